//! Task prolog and epilog: programs that run around each rank, on its node and as its user. A shell runs them, which becomes the rank's
//! program where there is no epilog.
//!
//! Lines that a prolog prints change the rank (task prolog, srun(1)): `export NAME=VALUE` sets a variable for it, `unset NAME` takes one out,
//! and `print TEXT` is written to its standard output. All others mean nothing.

use std::ffi::OsString;
use std::mem;
use std::path::{Path, PathBuf};

use lattice_session::spec::AppSpec;

const SHELL: &str = "/bin/sh";

/// Gets prolog and epilog, either of which may be empty, and the program with its arguments. The names of its variables are such as no
/// environment has. It outlives signals that end the program, for the epilog's sake, and ends as the program did.
const SCRIPT: &str = r#"lattice_prolog=$1 lattice_epilog=$2
shift 2
if [ -n "$lattice_prolog" ]; then
    lattice_said=$("$lattice_prolog" </dev/null) || {
        lattice_code=$?
        echo "lattice: the task prolog $lattice_prolog ended with status $lattice_code" >&2
        exit $lattice_code
    }
    while IFS= read -r lattice_line; do
        case $lattice_line in
        "export "*=*) export "${lattice_line#export }" ;;
        "unset "*) unset "${lattice_line#unset }" ;;
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
"$lattice_epilog" </dev/null
[ $lattice_code -le 128 ] || kill -$((lattice_code - 128)) $$
exit $lattice_code"#;

/// Programs around each rank.
#[derive(Clone, Debug, Default)]
pub(super) struct TaskScripts {
    prolog: PathBuf,
    epilog: PathBuf,
}

impl TaskScripts {
    /// Those that are given, by absolute names; a name without a slash is looked up in `PATH` where the rank runs.
    pub(super) fn new(prolog: Option<&Path>, epilog: Option<&Path>, directory: &Path) -> Self {
        let name = |path: Option<&Path>| match path {
            Some(path) if path.components().count() > 1 || path.is_absolute() => directory.join(path),
            path => path.map(Path::to_owned).unwrap_or_default(),
        };
        Self { prolog: name(prolog), epilog: name(epilog) }
    }

    /// Puts a program between them.
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

    #[test]
    fn a_program_is_put_between_those_that_are_given() {
        assert_eq!(wrapped(None, None), ["./a", "x"]);
        assert_eq!(wrapped(Some("./begin"), None)[4..], ["/home/./begin", "", "./a", "x"]);
        assert_eq!(wrapped(Some("begin"), Some("/end"))[4..], ["begin", "/end", "./a", "x"]);
    }
}
