//! Restrictions of a site on the programs that users start, in addition to limits on their number: which programs, and whether running jobs
//! may start further jobs.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use lattice_session::spec::AppSpec;
use pmi_transport::identity::{Caller, Role};

/// Rules about permitted programs and jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StartPolicy {
    /// Permission of ranks to start further jobs (`MPI_Comm_spawn`), which their nodes request.
    pub spawning: Spawning,
    /// Files that may be started, and directories of such files; `None` for all.
    pub entry_points: Option<Vec<PathBuf>>,
}

/// Permission of running jobs to start further jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Spawning {
    #[default]
    Allowed,
    /// A node starts only programs that users requested from the API server.
    Forbidden,
}

/// Reason why a program is not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PolicyError {
    #[error("jobs of this cluster start no further ones; an administrator has turned spawning off")]
    NoSpawning,
    #[error(
        "{program:?} is no entry point of this cluster; programs are started by their paths, of {}",
        possible(.entry_points)
    )]
    NoEntryPoint { program: String, entry_points: Vec<PathBuf> },
    #[error(
        "this cluster takes no batch jobs of users: their scripts are run on nodes by {program:?}, which is no entry point; those are {}",
        possible(.entry_points)
    )]
    BatchForbidden { program: String, entry_points: Vec<PathBuf> },
}

impl StartPolicy {
    /// Refuses programs of a launch that are no entry points. Administrators may start any program.
    pub(crate) fn check_launch<'a>(
        &self,
        caller: &Caller,
        mut programs: impl Iterator<Item = &'a AppSpec>,
    ) -> Result<(), PolicyError> {
        if caller.role() == Role::Admin {
            return Ok(());
        }
        programs.try_for_each(|app| self.check_program(&app.program, &app.directory))
    }

    /// The same for the launch of a batch job, with its own error because the user did not type the program.
    pub(crate) fn check_batch<'a>(
        &self,
        caller: &Caller,
        programs: impl Iterator<Item = &'a AppSpec>,
    ) -> Result<(), PolicyError> {
        self.check_launch(caller, programs).map_err(|error| match error {
            PolicyError::NoEntryPoint { program, entry_points } => {
                PolicyError::BatchForbidden { program, entry_points }
            }
            other => other,
        })
    }

    /// Refuses a job that ranks start from these programs. Only the node can resolve a program without a full path.
    pub(crate) fn check_spawn<'a>(&self, mut programs: impl Iterator<Item = &'a OsStr>) -> Result<(), PolicyError> {
        if self.spawning == Spawning::Forbidden {
            return Err(PolicyError::NoSpawning);
        }
        programs.try_for_each(|program| self.check_program(program, Path::new("")))
    }

    fn check_program(&self, program: &OsStr, directory: &Path) -> Result<(), PolicyError> {
        let Some(entry_points) = &self.entry_points else { return Ok(()) };
        let is_entry_point = plain_path(program, directory)
            .is_some_and(|path| entry_points.iter().any(|entry_point| path.starts_with(entry_point)));
        if is_entry_point {
            return Ok(());
        }
        Err(PolicyError::NoEntryPoint {
            program: program.to_string_lossy().into_owned(),
            entry_points: entry_points.clone(),
        })
    }
}

/// Path of a program that is named by a path. `None` for a program that nodes search for, and for a path that leads upwards, because only a
/// node can resolve it.
fn plain_path(program: &OsStr, directory: &Path) -> Option<PathBuf> {
    let named = Path::new(program);
    let path = if named.components().count() > 1 || named.is_absolute() { directory.join(named) } else { return None };
    let is_plain = path.is_absolute() && path.components().all(|part| part != Component::ParentDir);
    is_plain.then_some(path)
}

fn possible(entry_points: &[PathBuf]) -> String {
    let names: Vec<String> = entry_points.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> StartPolicy {
        let entry_points = Some(vec!["/opt/apps".into(), "/usr/bin/env".into()]);
        StartPolicy { entry_points, ..StartPolicy::default() }
    }

    fn app(program: &str, directory: &str) -> AppSpec {
        AppSpec {
            program: program.into(),
            args: Vec::new(),
            directory: directory.into(),
            set: Vec::new(),
            remove: Vec::new(),
            process_set: None,
        }
    }

    #[test]
    fn users_start_entry_points_and_nothing_else() {
        let starts = |program: &str, directory: &str| {
            policy()
                .check_launch(&Caller::User(1000), [app("/opt/apps/first", "/"), app(program, directory)].iter())
                .is_ok()
        };
        assert!(starts("/opt/apps/solver/bin/solve", "/home/u"));
        assert!(starts("/usr/bin/env", "/"));
        assert!(starts("./solve", "/opt/apps/solver"));
        assert!(starts("bin/solve", "/opt/apps/solver"));
        for (program, directory) in [
            ("/home/u/a.out", "/"),
            ("/opt/apps-of-mine/a.out", "/"),
            ("/usr/bin/env2", "/"),
            ("/opt/apps/../../home/u/a.out", "/"),
            ("../a.out", "/opt/apps"),
            // Found in the user's PATH.
            ("solve", "/opt/apps"),
            ("", "/opt/apps"),
        ] {
            assert!(!starts(program, directory), "{program} in {directory}");
        }
        let refusal = policy().check_launch(&Caller::User(1000), [app("a.out", "/")].iter()).unwrap_err().to_string();
        let expected = "\"a.out\" is no entry point of this cluster; programs are started by their paths, of \
                        /opt/apps, /usr/bin/env";
        assert_eq!(refusal, expected);
        let refusal =
            policy().check_batch(&Caller::User(1000), [app("/bin/lattice", "/")].iter()).unwrap_err().to_string();
        let expected = "this cluster takes no batch jobs of users: their scripts are run on nodes by \"/bin/lattice\", which is no \
                        entry point; those are /opt/apps, /usr/bin/env";
        assert_eq!(refusal, expected);
        assert!(policy().check_launch(&Caller::Admin(None), [app("a.out", "/")].iter()).is_ok());
        assert!(StartPolicy::default().check_launch(&Caller::User(1000), [app("a.out", "/")].iter()).is_ok());
    }

    #[test]
    fn jobs_start_others_where_that_is_allowed() {
        let spawn = |policy: StartPolicy, program: &str| policy.check_spawn(std::iter::once(OsStr::new(program)));
        assert_eq!(spawn(StartPolicy::default(), "child"), Ok(()));
        assert_eq!(spawn(policy(), "/opt/apps/child"), Ok(()));
        for program in ["/tmp/child", "./child", "child"] {
            assert!(matches!(spawn(policy(), program), Err(PolicyError::NoEntryPoint { .. })), "{program}");
        }
        let forbidding = StartPolicy { spawning: Spawning::Forbidden, ..StartPolicy::default() };
        assert_eq!(spawn(forbidding, "child"), Err(PolicyError::NoSpawning));
    }
}
