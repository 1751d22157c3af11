//! Variables of the ranks: variables of this process that are passed on, and variables that are set for a program.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use lattice_console::bounded_file;
use lattice_console::machine::Machine;

use super::presets::{self, PresetError};
use super::slurm_variables;
use crate::args::{EnvSetting, LaunchArgs, ProgramArgs};
use crate::client_libraries::{self, ClientLibraryError};

/// Variables that most programs need. With `--export`, srun keeps only the variables of Slurm.
const KEPT: [&str; 5] = ["HOME", "USER", "LOGNAME", "SHELL", "PATH"];
/// Number of threads of an OpenMP program (OpenMP 5.2, 21.1.2).
const THREADS: &str = "OMP_NUM_THREADS";
/// Switches of MPI libraries that bind their process in MPI_Init, regardless of the binding by the launcher. They are MVAPICH2, and MVAPICH from
/// version 3 on (their user guides, "CPU binding"). The libraries of MPICH, Intel MPI and Open MPI keep an existing binding.
const OWN_BINDINGS: [&str; 2] = ["MV2_ENABLE_AFFINITY", "MVP_ENABLE_AFFINITY"];
/// Maximum size of a file of variables, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Refusal of variables.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// A flag names a variable that is not set.
    #[error("{flag} {name}: there is no such variable to pass on\ntry: {name}=VALUE, which sets one")]
    NoSuchVariable {
        /// The flag.
        flag: &'static str,
        /// Its name.
        name: String,
    },
    /// The file cannot be read.
    #[error("{flag}: cannot read {}: {source}\ntry: the path of another file; or --env NAME=VALUE, which needs none", path.display())]
    Read {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A preset cannot be used.
    #[error(transparent)]
    Preset(#[from] PresetError),
    /// The client libraries cannot be used.
    #[error("--pmi-library: {0}")]
    ClientLibraries(#[from] ClientLibraryError),
    /// A line sets no variable.
    #[error(
        "{flag}: {}, line {line}: it is not NAME=VALUE\n\
         try: NAME=VALUE on a line of its own, without `export` and quotes; lines that begin with # are passed over",
        path.display()
    )]
    Line {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
}

/// Initial variables of ranks: variables that are passed on, and the number of CPUs of each rank if it was requested.
pub(super) fn exported(args: &LaunchArgs, machine: &Machine) -> Result<Vec<(OsString, OsString)>, EnvironmentError> {
    let export = &args.environment.export;
    let mut variables = machine.environment.clone();
    if !export.all {
        variables.retain(|(name, _)| KEPT.iter().any(|kept| name == kept));
    }
    for path in &export.files {
        for (name, value) in read("--export", &machine.directory.join(path))? {
            put(&mut variables, name, value);
        }
    }
    let named = export.named.iter().map(|setting| ("--export", setting));
    for (flag, setting) in named.chain(args.environment.env_literal.iter().map(|setting| ("--env-literal", setting))) {
        let (name, value) = variable(flag, setting, machine)?;
        put(&mut variables, name, value);
    }
    if let Some(cpus) = args.placement.cpus_per_task
        && variables.iter().all(|(name, _)| name != THREADS)
    {
        variables.push((THREADS.into(), cpus.to_string().into()));
    }
    if args.pmi.slurm_env {
        for (name, value) in slurm_variables::of_launch(args, machine) {
            put(&mut variables, name.into(), value);
        }
    }
    Ok(variables)
}

/// Disables the binding by libraries for ranks that the launch binds, unless the user has set the switch of the library.
pub(super) fn leave_binding_to_us(variables: &mut Vec<(OsString, OsString)>) {
    for switch in OWN_BINDINGS {
        if variables.iter().all(|(name, _)| name != switch) {
            variables.push((switch.into(), "0".into()));
        }
    }
}

fn put(variables: &mut Vec<(OsString, OsString)>, name: OsString, value: OsString) {
    variables.retain(|(known, _)| *known != name);
    variables.push((name, value));
}

/// Variables that are set for the ranks of a program. If a name occurs twice, the later value applies.
pub(super) fn set(program: &ProgramArgs, machine: &Machine) -> Result<Vec<(OsString, OsString)>, EnvironmentError> {
    let mut set = presets::variables(&program.preset, machine)?;
    if program.pmi_library {
        set.extend(client_libraries::variables(machine.variable("LD_PRELOAD".as_ref()).map(OsStr::to_owned))?);
    }
    for path in &program.env_file {
        set.extend(read("--env-file", &machine.directory.join(path))?);
    }
    for setting in &program.env {
        set.push(variable("--env", setting, machine)?);
    }
    Ok(set)
}

fn variable(
    flag: &'static str,
    setting: &EnvSetting,
    machine: &Machine,
) -> Result<(OsString, OsString), EnvironmentError> {
    let value = match &setting.value {
        Some(value) => value.as_os_str(),
        None => machine.variable(&setting.name).ok_or_else(|| EnvironmentError::NoSuchVariable {
            flag,
            name: setting.name.to_string_lossy().into_owned(),
        })?,
    };
    Ok((setting.name.clone(), value.to_owned()))
}

/// Reads variables from a file with one `NAME=VALUE` on each line. Ignores empty lines and lines that begin with `#`. A value extends to the end
/// of its line.
fn read(flag: &'static str, path: &Path) -> Result<Vec<(OsString, OsString)>, EnvironmentError> {
    let failed = |source| EnvironmentError::Read { flag, path: path.to_owned(), source };
    let bytes = bounded_file::bytes(path, BYTES_MAX).map_err(failed)?;
    let lines = (1..).zip(bytes.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii_start));
    let settings = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with(b"#"));
    settings
        .map(|(line, text)| parse(text).ok_or_else(|| EnvironmentError::Line { flag, path: path.to_owned(), line }))
        .collect()
}

fn parse(line: &[u8]) -> Option<(OsString, OsString)> {
    let equals = line.iter().position(|&byte| byte == b'=').filter(|&equals| equals > 0)?;
    let is_name = OsStr::from_bytes(&line[..equals]).to_str().is_some_and(|name| !name.contains(char::is_whitespace));
    let os = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    (is_name && !line.contains(&0)).then(|| (os(&line[..equals]), os(&line[equals + 1..])))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use crate::prepared::tests::commanded;

    fn names(line: &str) -> Vec<String> {
        let environment = commanded(line).unwrap().request.settings.environment;
        environment.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect()
    }

    #[test]
    fn what_is_passed_on_is_what_was_asked_for() {
        assert_eq!(names("true"), ["PATH=/usr/bin:/bin", "HERE=x"]);
        assert_eq!(names("--export=ALL true"), ["PATH=/usr/bin:/bin", "HERE=x"]);
        assert_eq!(names("--export=NONE true"), ["PATH=/usr/bin:/bin"]);
        assert_eq!(names("--export=HERE true"), ["PATH=/usr/bin:/bin", "HERE=x"]);
        assert_eq!(names("--export=ALL,HERE=y,A=1 true"), ["PATH=/usr/bin:/bin", "HERE=y", "A=1"]);
        assert_eq!(names("--export=PATH=/x true"), ["PATH=/x"]);
        let literal = "--export=NONE --env-literal=HERE --env-literal A={rank},2 true";
        assert_eq!(names(literal), ["PATH=/usr/bin:/bin", "HERE=x", "A={rank},2"]);
        for (line, expected) in [
            ("-c 2 --export=NONE true", &["OMP_NUM_THREADS=2"][..]),
            ("-c 2 --export=OMP_NUM_THREADS=1 true", &["OMP_NUM_THREADS=1"]),
        ] {
            let own = ["MV2_ENABLE_AFFINITY=0", "MVP_ENABLE_AFFINITY=0"];
            assert_eq!(names(line), [&["PATH=/usr/bin:/bin"], expected, &own].concat(), "{line}");
        }
        let line = "--cpu-bind cores --export=MV2_ENABLE_AFFINITY=1 true";
        assert_eq!(names(line), ["PATH=/usr/bin:/bin", "MV2_ENABLE_AFFINITY=1", "MVP_ENABLE_AFFINITY=0"]);
        assert_eq!(names("-c 2 --cpu-bind none --export=NONE true"), ["PATH=/usr/bin:/bin", "OMP_NUM_THREADS=2"]);
        let error = commanded("--export=GONE true").unwrap_err().to_string();
        assert_eq!(error, "--export GONE: there is no such variable to pass on\ntry: GONE=VALUE, which sets one");
    }

    /// Recorded from srun of Slurm 22.05.8, except for the user's name and ids, and the machine.
    #[test]
    fn variables_of_slurm_follow_from_the_line() {
        let check = |line: &str, expected: &[&str]| {
            let seen = names(&format!("--slurm-env --export=NONE {line} true"));
            let is_of_user = |name: &String| name.starts_with("SLURM_JOB_") || name.starts_with("SLURM_SUBMIT_HOST=");
            let of_slurm =
                |name: &String| name.starts_with("SLURM_") && !is_of_user(name) && !name.starts_with("SLURM_UMASK");
            assert_eq!(seen.iter().filter(|name| of_slurm(name)).collect::<Vec<_>>(), expected, "{line}");
            assert_eq!(seen.iter().filter(|name| is_of_user(name)).count(), 5, "{seen:?}");
        };
        check("", &[]);
        check("-c 2 --ntasks-per-node=3", &["SLURM_CPUS_PER_TASK=2", "SLURM_NTASKS_PER_NODE=3"]);
        check("-m cyclic", &["SLURM_DISTRIBUTION=cyclic"]);
        check("-m block:fcyclic", &["SLURM_DISTRIBUTION=block:fcyclic"]);
        check("-m plane=4", &["SLURM_DISTRIBUTION=plane", "SLURM_DIST_PLANESIZE=4"]);
        assert!(names("--slurm-env -J ocean true").contains(&"SLURM_JOB_NAME=ocean".to_owned()));
        assert!(names("--slurm-env /bin/true").contains(&"SLURM_JOB_NAME=true".to_owned()));
    }

    #[test]
    fn a_file_sets_variables_and_a_flag_goes_before_it() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"# of the model\n\nA=1\n  B=x = y \nC=\n").unwrap();
        let line = format!("--env A=2 --env-file {} true", file.path().display());
        let programs = commanded(&line).unwrap().request.programs;
        let set: Vec<_> = programs.iter().flat_map(|program| program.app.set.clone()).collect();
        assert_eq!(
            set,
            [("A", "1"), ("B", "x = y "), ("C", ""), ("A", "2")].map(|(name, value)| (name.into(), value.into()))
        );
    }

    #[test]
    fn a_line_that_sets_nothing_is_refused_by_its_number() {
        for text in ["A=1\nB", "A=1\n=2", "A=1\nexport B=2"] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            let error = commanded(&format!("--env-file {} true", file.path().display())).unwrap_err().to_string();
            assert!(error.contains("line 2: it is not NAME=VALUE\ntry: NAME=VALUE on a line of its own"), "{error}");
        }
        let error = commanded("--env-file /dev/zero true").unwrap_err().to_string();
        assert!(error.contains("cannot read /dev/zero: it has more than"), "{error}");
        assert!(
            commanded("--env-file /nonexistent true").unwrap_err().to_string().contains("cannot read /nonexistent")
        );
    }
}
