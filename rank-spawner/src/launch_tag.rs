//! Mark that identifies the processes of a launch anywhere in the process tree: one variable in their environment.

use std::fs::File;
use std::io::{self, Read};
use std::thread;
use std::time::Duration;

use nix::unistd::Pid;
use pmi_core::ids::JobId;

use crate::process_table::Process;

/// Mark of one launch. Put [`LaunchTag::VARIABLE`] with the value [`LaunchTag::value`] into every rank's environment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LaunchTag(JobId);

impl LaunchTag {
    /// The name of the variable.
    pub const VARIABLE: &str = "LATTICE_LAUNCH_ID";

    /// Tag of the launch with the first job `id`. Tags must be unique on a node.
    pub fn new(id: JobId) -> Self {
        Self(id)
    }

    /// Value of the variable: 1 to 63 bytes.
    pub fn value(&self) -> &str {
        self.0.as_str()
    }

    /// True if this tag has the value, which [`value_of`] returned.
    pub(crate) fn is(&self, value: &[u8]) -> bool {
        self.value().as_bytes() == value
    }
}

/// Value of the tag in the initial environment of `pid`. `None` if there is none or it cannot be read: the process has
/// ended, belongs to another user, or has dropped its environment.
pub(crate) fn value_of(pid: Pid) -> Option<Vec<u8>> {
    let environment = environment_of(pid).ok()?;
    let mut variables = environment.split(|&byte| byte == 0);
    let value =
        variables.find_map(|variable| variable.strip_prefix(LaunchTag::VARIABLE.as_bytes())?.strip_prefix(b"="))?;
    Some(value.to_owned())
}

/// Environment of a process, from the kernel: variables that each end with NUL.
///
/// While a process is in `execve`, its environment reads as empty. An empty environment therefore counts only if the
/// process was outside of `execve` before and after the read. The retries are short, since a process may stay in `execve`
/// until a file server answers.
fn environment_of(pid: Pid) -> io::Result<Vec<u8>> {
    /// The kernel limits arguments and environment together to 6 MiB.
    const LEN_MAX: u64 = 8 << 20;
    const LOOKS: u32 = 20;
    const PAUSE: Duration = Duration::from_millis(1);
    let mut environment = Vec::new();
    let mut was_outside = false;
    for _ in 0..LOOKS {
        File::open(format!("/proc/{pid}/environ"))?.take(LEN_MAX).read_to_end(&mut environment)?;
        if !environment.is_empty() {
            break;
        }
        let is_outside = !Process::read(pid).is_some_and(|process| process.in_exec);
        if was_outside && is_outside {
            break;
        }
        was_outside = is_outside;
        if !is_outside {
            thread::sleep(PAUSE);
        }
    }
    Ok(environment)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_tag_is_found_in_the_environment_of_a_process_and_not_confused() {
        let tag = LaunchTag::new(JobId::new("launch-1").unwrap());
        let check = |name: &str, value: &str, found: Option<&str>, ours: bool| {
            let mut child = Command::new("sleep").arg("100").env(name, value).spawn().unwrap();
            let seen = value_of(Pid::from_raw(child.id() as i32));
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(seen.as_deref(), found.map(str::as_bytes), "{name}={value}");
            assert_eq!(seen.is_some_and(|seen| tag.is(&seen)), ours);
        };
        check(LaunchTag::VARIABLE, "launch-1", Some("launch-1"), true);
        check(LaunchTag::VARIABLE, "launch-10", Some("launch-10"), false);
        check("X", "\nLATTICE_LAUNCH_ID=launch-1", None, false);
        check("LATTICE_LAUNCH_ID_", "launch-1", None, false);
        assert_eq!(value_of(Pid::from_raw(i32::MAX)), None);
    }
}
