//! Programs that Lattice uses if they are installed: debuggers, and container runtimes.

use std::fs;
use std::path::PathBuf;

use lattice_console::environment::{self, Environment};
use lattice_console::machine::Machine;
use nix::unistd::{AccessFlags, access, geteuid};

use super::check::{Check, Subject};

/// File with the rule of the kernel about which processes a process may inspect.
const PTRACE_SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

pub(super) fn checks(subject: &Subject) -> Vec<Check> {
    let environment = subject.environment();
    let mut checks = vec![debugger(environment)];
    checks.extend(ptrace());
    checks.push(containers(subject));
    checks
}

/// Executable files of this name in the directories of `PATH`, in their order.
pub(super) fn in_path(name: &str, environment: &Environment) -> Vec<PathBuf> {
    let path = environment::value(environment, "PATH").unwrap_or_default();
    let files = std::env::split_paths(path).map(|directory| directory.join(name));
    files.filter(|file| file.is_file() && access(file, AccessFlags::X_OK).is_ok()).collect()
}

fn debugger(environment: &Environment) -> Check {
    let found = |name| in_path(name, environment).into_iter().next();
    match (found("gdb"), found("eu-stack")) {
        (Some(gdb), _) => Check::ok("gdb", gdb.display().to_string()),
        (None, Some(stack)) => Check::warning(
            "gdb",
            format!("none in PATH; lattice stacks uses {}", stack.display()),
            "install gdb, for lattice debug",
        ),
        (None, None) => Check::warning(
            "gdb",
            "none in PATH, and no eu-stack",
            "install gdb on each node, for lattice stacks, lattice debug and call stacks of ranks that hang",
        ),
    }
}

/// Rule of the kernel about inspection, if it has one.
fn ptrace() -> Option<Check> {
    let scope = fs::read_to_string(PTRACE_SCOPE).ok()?.trim().to_owned();
    Some(ptrace_of(&scope, geteuid().is_root()))
}

fn ptrace_of(scope: &str, is_root: bool) -> Check {
    let detail = format!("kernel.yama.ptrace_scope is {scope}");
    match scope {
        "0" | "1" => Check::ok("ptrace", detail),
        "2" if is_root => Check::ok("ptrace", detail),
        _ => Check::warning(
            "ptrace",
            format!("{detail}: call stacks of ranks cannot be read"),
            "sysctl kernel.yama.ptrace_scope=1, by the administrator",
        ),
    }
}

fn containers(subject: &Subject) -> Check {
    const NAME: &str = "container runtimes";
    let machine = match Machine::this() {
        Ok(machine) => machine,
        Err(error) => return Check::failed(NAME, &error.to_string(), "another working directory"),
    };
    match (subject.runtimes)(&machine) {
        Ok(found) if found.is_empty() => Check::ok(NAME, "none in PATH; only --container needs one"),
        Ok(found) => Check::ok(NAME, found.join(", ")),
        Err(error) => Check::failed(NAME, &error.to_string(), "correct the file"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::check::State;
    use super::*;

    #[test]
    fn a_program_is_found_where_it_can_be_executed() {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [first, second] = directories.each_ref().map(|directory| directory.path().join("gdb"));
        for (file, mode) in [(&first, 0o600), (&second, 0o700)] {
            fs::write(file, "").unwrap();
            fs::set_permissions(file, PermissionsExt::from_mode(mode)).unwrap();
        }
        let path = std::env::join_paths(directories.each_ref().map(tempfile::TempDir::path)).unwrap();
        let environment = [("PATH".into(), path)];
        assert_eq!(in_path("gdb", &environment), std::slice::from_ref(&second));
        assert_eq!(debugger(&environment), Check::ok("gdb", second.display().to_string()));
        assert_eq!(debugger(&[]).state, State::Warning);
    }

    #[test]
    fn a_kernel_that_forbids_inspection_is_reported() {
        let check =
            |scope, is_root, expected| assert_eq!(ptrace_of(scope, is_root).state, expected, "{scope} {is_root}");
        check("0", false, State::Ok);
        check("1", false, State::Ok);
        check("2", true, State::Ok);
        check("2", false, State::Warning);
        check("3", true, State::Warning);
    }
}
