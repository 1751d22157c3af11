//! Task prolog and epilog: programs that run around each rank, on its node and as its user. A shell runs them. Without an epilog, the shell
//! becomes the program of the rank by `exec`.
//!
//! Lines from a prolog change the rank (task prolog, srun(1)): `export NAME=VALUE` sets a variable, `unset NAME` removes one, and `print TEXT`
//! is written to standard output of the rank. All other lines are ignored.

use std::ffi::{OsStr, OsString};
use std::mem;
use std::path::{Path, PathBuf};

use lattice_session::spec::AppSpec;
use rank_spawner::{Program, ProgramError};

const SHELL: &str = "/bin/sh";

/// Arguments: prolog and epilog, each of which may be empty, and the program with its arguments. No environment contains the names of the shell
/// variables. The script survives signals that end the program, so that the epilog runs. It ends in the same way as the program. A shell reports
/// a signal as a status, but a program can also exit with that status, and some signals do not end a process.
const SCRIPT: &str = r#"lattice_prolog=$1 lattice_epilog=$2
shift 2
lattice_who() {
    echo "lattice: rank $LATTICE_RANK on $(echo "$LATTICE_NODELIST" | cut -d, -f$((LATTICE_NODE + 1))): the task $1"
}
lattice_need() {
    [ -n "$2" ] || return 0
    case $2 in */*) [ -f "$2" ] && [ -x "$2" ] ;; *) command -v "$2" >/dev/null ;; esac && return
    lattice_who "$1 $2 is no program there; type --task-$1 with the path of one that all nodes have, such as ./NAME" >&2
    exit 127
}
lattice_need prolog "$lattice_prolog"
lattice_need epilog "$lattice_epilog"
if [ -n "$lattice_prolog" ]; then
    lattice_said=$("$lattice_prolog" </dev/null) || {
        lattice_code=$?
        lattice_who "prolog $lattice_prolog ended with status $lattice_code; try sh -x with it, if it is a script of sh" >&2
        exit $lattice_code
    }
    while IFS= read -r lattice_line; do
        case $lattice_line in
        "export "*=* | "unset "*)
            lattice_name=${lattice_line#* }
            # A shell ends at a name that is none of its own, such as that of a function of another one.
            case ${lattice_name%%=*} in
            "" | [0-9]* | *[!A-Za-z0-9_]*) ;;
            *) case $lattice_line in "unset "*) unset "$lattice_name" ;; *) export "$lattice_name" ;; esac ;;
            esac
            ;;
        "print "*) printf '%s\n' "${lattice_line#print }" ;;
        esac
    done <<END
$lattice_said
END
fi
[ -n "$lattice_epilog" ] || exec "$@"
trap : HUP INT TERM USR1 USR2
"$@"
lattice_code=$?
trap - HUP INT TERM USR1 USR2
"$lattice_epilog" </dev/null ||
    lattice_who "epilog $lattice_epilog ended with status $?, which does not change the rank's exit; try sh -x with it, if it is a script of sh" >&2
case $lattice_code in 129 | 1[3-9]? | 2??) lattice_signal=$(kill -l $lattice_code 2>/dev/null) ;; *) lattice_signal= ;; esac
case $lattice_signal in
"" | CHLD | CONT | STOP | TSTP | TTIN | TTOU | URG | WINCH) ;;
*)
    # The core file is the program's.
    ulimit -c 0
    kill -s "$lattice_signal" $$ 2>/dev/null
    ;;
esac
exit $lattice_code"#;

/// Task prolog and epilog of each rank.
#[derive(Clone, Debug, Default)]
pub(super) struct TaskScripts {
    prolog: PathBuf,
    epilog: PathBuf,
}

impl TaskScripts {
    /// Creates the scripts with absolute names. A name without a slash is looked up in `PATH` on the node of the rank.
    pub(super) fn new(prolog: Option<&Path>, epilog: Option<&Path>, directory: &Path) -> Self {
        let name = |path: Option<&Path>| match path {
            Some(path) if path.components().count() > 1 || path.is_absolute() => directory.join(path),
            path => path.map(Path::to_owned).unwrap_or_default(),
        };
        Self { prolog: name(prolog), epilog: name(epilog) }
    }

    /// Fails if this machine lacks a script. `path` is the `PATH` of the ranks.
    ///
    /// # Errors
    /// Returns the flag of the missing script, and the reason.
    pub(super) fn check(&self, path: Option<&OsStr>) -> Result<(), (&'static str, ProgramError)> {
        for (flag, name) in [("--task-prolog", &self.prolog), ("--task-epilog", &self.epilog)] {
            match Program::resolve(name.as_os_str(), path, Path::new("/")) {
                _ if name.as_os_str().is_empty() => {}
                // A shell runs the script, and also reads a script without #!.
                Ok(_) | Err(ProgramError::UnknownFormat { .. }) => {}
                Err(error) => return Err((flag, error)),
            }
        }
        Ok(())
    }

    /// Wraps a program in the scripts.
    pub(super) fn wrap(&self, app: &mut AppSpec) {
        if self.prolog.as_os_str().is_empty() && self.epilog.as_os_str().is_empty() {
            return;
        }
        let program = mem::replace(&mut app.program, SHELL.into());
        let script: [OsString; 5] =
            ["-c".into(), SCRIPT.into(), "lattice-task".into(), self.prolog.clone().into(), self.epilog.clone().into()];
        app.args = script.into_iter().chain([program]).chain(mem::take(&mut app.args)).collect();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    fn wrapped(prolog: Option<&str>, epilog: Option<&str>) -> Vec<OsString> {
        let mut app = AppSpec {
            program: "./a".into(),
            args: vec!["x".into()],
            directory: "/home".into(),
            set: Vec::new(),
            remove: Vec::new(),
            process_set: None,
        };
        TaskScripts::new(prolog.map(Path::new), epilog.map(Path::new), Path::new("/home")).wrap(&mut app);
        [app.program].into_iter().chain(app.args).collect()
    }

    /// Runs `program`, a line of shell, with `epilog` and without a prolog. Returns exit code, signal and standard error.
    fn end(program: &str, epilog: &str) -> (Option<i32>, Option<i32>, String) {
        let [shell, words @ ..] = &wrapped(None, Some(epilog))[..] else { panic!("a shell") };
        let mut command = Command::new(shell);
        command.args(&words[..words.len() - 2]).args(["sh", "-c", program]);
        let output = command.output().unwrap();
        (output.status.code(), output.status.signal(), String::from_utf8(output.stderr).unwrap())
    }

    #[test]
    fn what_is_around_a_program_ends_as_the_program_did() {
        for (program, code, signal) in [
            ("exit 0", Some(0), None),
            ("exit 128", Some(128), None),
            ("kill -TERM $$", None, Some(15)),
            ("kill -SEGV $$", None, Some(11)),
            ("kill -KILL $$", None, Some(9)),
            ("kill -USR1 $$", None, Some(10)),
            // Numbers of signals that stop a process, or have no effect.
            ("exit 145", Some(145), None),
            ("exit 146", Some(146), None),
            ("exit 147", Some(147), None),
            ("exit 150", Some(150), None),
            ("exit 151", Some(151), None),
            ("exit 156", Some(156), None),
            ("exit 200", Some(200), None),
            ("exit 255", Some(255), None),
        ] {
            let (seen_code, seen_signal, text) = end(program, "/bin/true");
            assert_eq!((seen_code, seen_signal), (code, signal), "{program}");
            assert!(!text.contains("kill"), "{program}: {text}");
        }
    }

    #[test]
    fn an_epilog_that_fails_is_reported_and_changes_no_exit() {
        let (code, _, text) = end("exit 3", "/bin/false");
        assert_eq!(code, Some(3));
        assert!(text.contains("the task epilog /bin/false ended with status 1, which does not change"), "{text}");
        assert_eq!(end("exit 3", "/bin/true").2, "");
    }

    #[test]
    fn a_program_is_put_between_those_that_are_given() {
        assert_eq!(wrapped(None, None), ["./a", "x"]);
        assert_eq!(wrapped(Some("./begin"), None)[4..], ["/home/./begin", "", "./a", "x"]);
        assert_eq!(wrapped(Some("begin"), Some("/end"))[4..], ["begin", "/end", "./a", "x"]);
    }
}
