//! Control groups: the agent creates one for each session, so that no process of a launch can escape its end.

use std::io::ErrorKind;
use std::path::PathBuf;

use rank_spawner::{CgroupError, usable_cgroup};

use super::check::{Check, Subject};

const NAME: &str = "control groups";

/// Creates a group as the agent does, and removes it.
pub(super) fn checks(_: &Subject) -> Vec<Check> {
    vec![check(&usable_cgroup())]
}

fn check(found: &Result<PathBuf, CgroupError>) -> Check {
    match found {
        Ok(directory) => Check::ok(NAME, format!("version 2; {} is delegated to this user", directory.display())),
        // The group of a login is that of its user only if the administrator delegates it.
        Err(CgroupError::NotWritable { path, error }) if error.kind() == ErrorKind::PermissionDenied => {
            let path = path.display();
            Check::ok(NAME, format!("version 2; {path} is not delegated to this user, which only an agent needs"))
        }
        Err(error @ CgroupError::NotWritable { .. }) => Check::warning(
            NAME,
            error.to_string(),
            "on a node, use the unit of packaging/systemd, which has Delegate=yes",
        ),
        Err(error @ CgroupError::NoKill) => Check::warning(NAME, error.to_string(), "update the kernel"),
        Err(error) => {
            Check::warning(NAME, error.to_string(), "start the kernel with systemd.unified_cgroup_hierarchy=1")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;

    #[test]
    fn the_version_the_kernel_and_the_delegation_count() {
        let refused =
            |kind: ErrorKind| CgroupError::NotWritable { path: "/sys/fs/cgroup/a".into(), error: kind.into() };
        assert_eq!(check(&Ok("/sys/fs/cgroup".into())).state, State::Ok);
        assert_eq!(check(&Err(refused(ErrorKind::PermissionDenied))).state, State::Ok);
        for error in [refused(ErrorKind::ReadOnlyFilesystem), CgroupError::NoKill, CgroupError::NotMounted] {
            let check = check(&Err(error));
            assert_eq!((check.state, check.action.is_some()), (State::Warning, true), "{check:?}");
        }
    }
}
