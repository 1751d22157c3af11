//! `--container`: programs of a launch in containers. Runtimes are data: the runtimes of Lattice are in `containers.toml` in this directory. The
//! runtimes of a user are in `~/.config/lattice/containers.toml`. They have the same form, and override runtimes of Lattice with the same name.
//!
//! The runtime starts as the rank. It then becomes the program by `exec`, or remains its parent process. All features of a launch apply to it:
//! variables, binding, output, and its end.

mod error;
mod runtime;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use lattice_console::environment;
use lattice_console::machine::Machine;
use lattice_dialects::distinct;
use lattice_session::settings::{Entrance, JobMemory, PmiSpec};
use lattice_session::spec::AppSpec;

pub use self::error::ContainerError;
use self::runtime::{Chosen, Image, Memory, Runtime, Way};
use super::user_tables::UserTables;
use crate::args::ContainerArgs;

/// Runtimes of Lattice.
const OURS: &str = include_str!("containers.toml");

/// Variable with the name of a runtime, for launches with a container.
const PROFILE: &str = "LATTICE_CONTAINER_PROFILE";

/// Variables that disable access of MPI libraries to memory and descriptors of other ranks. They are for MPICH, Open MPI 4.1, Open MPI 5, UCX
/// below any of them, and Intel MPI. UCX opens shared memory files of other ranks through `/proc/PID/fd`, and prints an error for each.
const NO_FOREIGN_MEMORY: [(&str, &str); 6] = [
    ("MPIR_CVAR_CH4_CMA_ENABLE", "0"),
    ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
    ("OMPI_MCA_smsc", "^cma"),
    ("UCX_TLS", "^cma"),
    ("UCX_POSIX_USE_PROC_LINK", "n"),
    ("I_MPI_SHM_CMA", "0"),
];

/// Expands `{devices}` on the node, in the first word that contains it, and then executes the words after the patterns.
const WITH_DEVICES: &str = r#"patterns=$1 mark='{devices}'; shift
for word do
    shift
    case $patterns:$word in
        ?*:*"$mark"*)
            for file in $patterns; do
                [ -e "$file" ] && set -- "$@" "${word%%"$mark"*}$file${word#*"$mark"}"
            done
            patterns= ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec "$@""#;

/// Words by which a program connects to a server through a socket file.
const CONNECT: [&str; 4] = ["{lattice}", "pmi", "connect", "--"];

/// Names of the runtimes with a program in `PATH` that a launch without `--container-profile` can select.
///
/// # Errors
/// Fails if the file of the user cannot be used.
pub(crate) fn runtimes_in_path(machine: &Machine) -> Result<Vec<String>, ContainerError> {
    let runtimes = UserTables::<Runtime>::read(OURS, "containers.toml", machine)?;
    let found = runtimes.all()?.iter().filter(|(_, runtime)| runtime.chosen == Chosen::ByPath);
    Ok(found.filter(|(_, runtime)| runtime.is_in_path(machine)).map(|(name, _)| name.clone()).collect())
}

/// Container for the programs of a launch.
#[derive(Clone, Debug)]
pub(super) struct Container {
    runtime: Runtime,
    image: OsString,
    /// Path of this program, which is the same on all nodes.
    lattice: PathBuf,
    /// Default variables of the programs.
    variables: Vec<(OsString, OsString)>,
}

impl Container {
    /// Container that the flags request; `None` if they request none.
    ///
    /// # Errors
    /// Fails if there is no such runtime or no image for it, or if the file of the user cannot be used.
    pub(super) fn of(args: &ContainerArgs, machine: &Machine) -> Result<Option<Self>, ContainerError> {
        let set = environment::value(&machine.environment, PROFILE);
        let image = match (&args.container, &args.container_profile) {
            (Some(image), _) if image.is_empty() => return Err(ContainerError::EmptyImage),
            (Some(image), _) => image,
            (None, Some(name)) if set != Some(OsStr::new(name)) => {
                return Err(ContainerError::NoImage { name: name.clone() });
            }
            (None, _) => return Ok(None),
        };
        let place = machine.directory.join(image);
        let runtimes = UserTables::<Runtime>::read(OURS, "containers.toml", machine)?;
        let known = || {
            let lines: Vec<String> =
                runtimes.tables.iter().map(|(name, runtime)| format!("  {name}: {}", runtime.about)).collect();
            lines.join("\n")
        };
        let (name, runtime) =
            match &args.container_profile {
                Some(name) => runtimes.get(name)?.ok_or_else(|| ContainerError::Unknown {
                    name: name.clone(),
                    file: runtimes.file.clone(),
                    known: known(),
                })?,
                None => {
                    let is_directory = place.is_dir();
                    let suits = |(_, runtime): &(&String, &Runtime)| {
                        runtime.chosen == Chosen::ByPath && (runtime.image == Image::Directory) == is_directory
                    };
                    // If no runtime for directories is in `PATH`, runtimes for any image take directories too.
                    let all = runtimes.all()?;
                    let any = all.iter().filter(|(_, runtime)| runtime.image == Image::Any && is_directory);
                    let mut suitable = all.iter().filter(suits).chain(any);
                    let looked_for = suitable.clone().filter_map(|(_, runtime)| runtime.command.first().cloned());
                    let looked_for = distinct(looked_for);
                    suitable.find(|(_, runtime)| runtime.is_in_path(machine)).ok_or_else(|| {
                        ContainerError::NoRuntime { image: image.into(), is_directory, looked_for, known: known() }
                    })?
                }
            };
        if runtime.image == Image::Directory && place.is_file() {
            return Err(ContainerError::NoDirectory { image: image.into(), name: name.clone() });
        }
        if runtime.command.is_empty() {
            return Err(ContainerError::NoCommand { name: name.clone() });
        }
        if !runtime.command.iter().any(|word| word.contains("{image}")) {
            return Err(ContainerError::NoPlace { name: name.clone(), command: runtime.command.join(" ") });
        }
        let own_memory = NO_FOREIGN_MEMORY.iter().filter(|_| runtime.memory == Memory::Own);
        let unset = own_memory.filter(|(name, _)| machine.variable(OsStr::new(name)).is_none());
        let variables = unset.map(|&(name, value)| (name.into(), value.into())).collect();
        let lattice = std::env::current_exe().unwrap_or_else(|_| "lattice".into());
        Ok(Some(Self { runtime: runtime.clone(), image: image.clone(), lattice, variables }))
    }

    /// Wraps a program in the container.
    pub(super) fn wrap(&self, app: &mut AppSpec) {
        let connect = CONNECT.iter().filter(|_| self.runtime.pmi == Way::File).copied();
        let devices = self.runtime.devices.as_str();
        let shell = ["/bin/sh", "-c", WITH_DEVICES, "sh", devices].into_iter().filter(|_| !devices.is_empty());
        let words = shell.chain(self.runtime.command.iter().map(String::as_str)).chain(connect);
        let mut words = words.map(|word| self.filled(word, &app.directory));
        let runtime = words.next().unwrap_or_default();
        let program = std::mem::replace(&mut app.program, runtime);
        // Variables of the user come later, and override these.
        app.set.splice(0..0, self.variables.iter().cloned());
        app.args = words.chain([program]).chain(std::mem::take(&mut app.args)).collect();
    }

    /// Expands the names in a word.
    fn filled(&self, word: &str, directory: &Path) -> OsString {
        let ours = replaced(word.as_bytes(), b"{lattice}", self.lattice.as_os_str().as_bytes());
        let image = replaced(&ours, b"{image}", self.image.as_bytes());
        OsString::from_vec(replaced(&image, b"{directory}", directory.as_os_str().as_bytes()))
    }

    /// Makes the PMI server reachable from within the container: by a port and without shared memory, unless the runtime passes on inherited
    /// descriptors. Memory of a node (`--node-memory`) is such a descriptor, so it is refused if the runtime closes descriptors.
    pub(super) fn adapt(&self, pmi: &mut PmiSpec, node_memory: bool) -> Result<(), ContainerError> {
        if self.runtime.pmi == Way::Socket {
            return Ok(());
        }
        if node_memory {
            return Err(ContainerError::NodeMemory);
        }
        pmi.entrance = Entrance::Port;
        pmi.job_memory = JobMemory::Off;
        Ok(())
    }
}

fn replaced(text: &[u8], name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(position) = memchr::memmem::find(rest, name) {
        parts.extend_from_slice(&rest[..position]);
        parts.extend_from_slice(value);
        rest = &rest[position + name.len()..];
    }
    parts.extend_from_slice(rest);
    parts
}

#[cfg(test)]
mod tests {
    use std::fs;

    use lattice_session::request::LaunchRequest;

    use super::*;
    use crate::prepared::tests::{commanded, commanded_on, machine};

    fn words(request: &LaunchRequest) -> Vec<String> {
        let app = &request.programs.iter().next().unwrap().app;
        std::iter::once(&app.program).chain(&app.args).map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_runtime_comes_before_each_program() {
        let line = "--container /images/a b --container-profile charliecloud -n 2 ./a.out x : -n 1 -D /w ./b";
        let line = line.replace("/images/a b", "/images/a");
        let request = commanded(&line).unwrap().request;
        let here = machine().directory.display().to_string();
        let expected =
            ["ch-run", &format!("--bind={here}"), &format!("--cd={here}"), "/images/a", "--", "./a.out", "x"];
        assert_eq!(words(&request), expected);
        let second = request.programs.iter().nth(1).unwrap();
        assert_eq!(second.app.args[..2], ["--bind=/w", "--cd=/w"]);
        assert_eq!(request.settings.pmi.entrance, Entrance::Socket);
    }

    #[test]
    fn memory_that_a_runtime_closes_is_refused() {
        let error = |profile: &str| {
            commanded(&format!("--container img --container-profile {profile} --node-memory 1M true"))
                .err()
                .map(|error| error.to_string())
        };
        assert_eq!(error("charliecloud"), None);
        assert!(error("podman").unwrap().starts_with("--node-memory: this container runtime closes"));
    }

    #[test]
    fn a_runtime_that_closes_descriptors_gets_a_port() {
        let pmi = commanded("--container img --container-profile podman true").unwrap().request.settings.pmi;
        assert_eq!((pmi.entrance, pmi.job_memory), (Entrance::Port, JobMemory::Off));
        let pmi = commanded("true").unwrap().request.settings.pmi;
        assert_eq!((pmi.entrance, pmi.job_memory), (Entrance::Socket, JobMemory::Shared));
    }

    #[test]
    fn a_program_with_another_network_is_connected_through_a_file() {
        let request = commanded("--container /i --container-profile podman-isolated ./a.out x").unwrap().request;
        let (words, us) = (words(&request), std::env::current_exe().unwrap().display().to_string());
        assert_eq!(words[words.len() - 6..], [&us, "pmi", "connect", "--", "./a.out", "x"]);
        assert!(words.contains(&format!("--volume={us}:{us}:ro")), "{words:?}");
        assert_eq!(request.settings.pmi.entrance, Entrance::Port);
    }

    #[test]
    fn libraries_leave_memory_alone_that_they_cannot_read() {
        let set = |line: &str, machine: &Machine| {
            let programs = commanded_on(line, machine).unwrap().request.programs;
            programs.iter().next().unwrap().app.set.clone()
        };
        let own = set("--container i --container-profile charliecloud true", &machine());
        assert_eq!(own.len(), NO_FOREIGN_MEMORY.len());
        assert!(set("--container i --container-profile sarus true", &machine()).is_empty());
        let mut with_tls = machine();
        with_tls.environment.push(("UCX_TLS".into(), "tcp".into()));
        let kept = set("--container i --container-profile charliecloud --env OMPI_MCA_smsc=cma true", &with_tls);
        assert!(kept.iter().all(|(name, _)| name != "UCX_TLS"), "{kept:?}");
        assert_eq!(kept.last(), Some(&("OMPI_MCA_smsc".into(), "cma".into())), "the user's comes last and wins");
    }

    /// A machine with these profiles of the user, in a file below the directory.
    fn with_profiles(directory: &Path, text: &str) -> Machine {
        fs::create_dir(directory.join("lattice")).unwrap();
        fs::write(directory.join("lattice/containers.toml"), text).unwrap();
        let mut machine = machine();
        machine.environment.push(("XDG_CONFIG_HOME".into(), directory.into()));
        machine
    }

    /// The test creates the `/dev` of the node.
    #[test]
    fn devices_are_those_that_the_node_has() {
        let directory = tempfile::tempdir().unwrap();
        let dev = directory.path().display();
        let text = format!(
            "[mine]\nabout = 'x'\ncommand = ['echo', '--a', '--device={{devices}}:rw', '{{image}}']\npmi = 'socket'\nmemory = 'own'
            devices = '{dev}/cxi* {dev}/kfd'"
        );
        let machine = with_profiles(directory.path(), &text);
        let line = "--container i --container-profile mine -- ./app {devices}";
        let words = words(&commanded_on(line, &machine).unwrap().request);
        let run = || {
            let output = std::process::Command::new(&words[0]).args(&words[1..]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim_end().replace(&format!("{dev}/"), "")
        };
        assert_eq!(run(), "--a i ./app {devices}");
        for device in ["cxi1", "cxi0", "kfd", "kfd1"] {
            fs::write(directory.path().join(device), "").unwrap();
        }
        assert_eq!(run(), "--a --device=cxi0:rw --device=cxi1:rw --device=kfd:rw i ./app {devices}");
    }

    #[test]
    fn podman_is_given_the_nics_of_slingshot() {
        for profile in ["podman", "podman-rootfs", "podman-isolated"] {
            let words = words(&commanded(&format!("--container i --container-profile {profile} ./a")).unwrap().request);
            assert_eq!((&*words[3], &*words[4]), ("sh", "/dev/cxi*"), "{words:?}");
            assert!(words.iter().any(|word| word == "--device={devices}"), "{words:?}");
        }
    }

    #[test]
    fn ours_can_be_read_and_have_an_image_each() {
        let ours: std::collections::BTreeMap<String, Runtime> = toml::from_str(OURS).unwrap();
        for (name, runtime) in ours {
            assert!(runtime.command.iter().any(|word| word.contains("{image}")), "{name}");
            assert!(!runtime.about.is_empty(), "{name}");
        }
    }

    #[test]
    fn a_profile_without_a_place_for_the_image_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let text = "[mine]\nabout = 'x'\ncommand = ['unshare', '{imag}']\npmi = 'socket'\nmemory = 'own'";
        let machine = with_profiles(directory.path(), text);
        let error = commanded_on("--container i --container-profile mine true", &machine).unwrap_err().to_string();
        assert!(error.contains("--container-profile mine: its command has no {image}: unshare {imag}"), "{error}");
    }

    /// Regression: `unshare` is on every Linux, and was selected for `app.sif` as if it were a directory.
    #[test]
    fn without_a_name_the_first_that_is_installed_and_takes_the_image_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        let mut machine = machine();
        machine.environment = vec![("PATH".into(), directory.path().into())];
        machine.directory = directory.path().to_owned();
        fs::create_dir(directory.path().join("root")).unwrap();
        fs::write(directory.path().join("app.sif"), "").unwrap();
        let install = |program: &str| fs::write(directory.path().join(program), "").unwrap();
        let check = |image: &str, expected: &str| {
            let line = format!("--container {image} true");
            match commanded_on(&line, &machine) {
                Ok(command) => assert!(words(&command.request).iter().any(|word| word == expected), "{image}"),
                Err(error) => assert!(error.to_string().contains(expected), "{image}: {error}"),
            }
        };
        install("unshare");
        check(
            "app.sif",
            "no container runtime that takes an image that is no directory is in PATH here (looked for apptainer, enroot, podman, sarus, \
             singularity, uenv)",
        );
        check("root", "a directory is in PATH here (looked for bwrap, ch-run, ");
        install("bwrap");
        check("app.sif", "looked for apptainer");
        check("root", "bwrap");
        install("podman");
        check("app.sif", "podman");
        check("docker.io/me/app", "podman");
        check("root", "bwrap");
        let error = commanded_on("--container app.sif --container-profile unshare true", &machine).unwrap_err();
        assert!(error.to_string().contains("it is a file, and unshare takes a directory"), "{error}");
        let named = commanded_on("--container root --container-profile unshare true", &machine).unwrap();
        assert_eq!(words(&named.request)[0], "unshare");
    }

    #[test]
    fn a_user_adds_runtimes_and_an_unknown_one_is_refused_with_what_there_is() {
        let directory = tempfile::tempdir().unwrap();
        let text = "[mine]\nabout = 'of mine'\ncommand = ['in', '{image}{image}']\npmi = 'socket'\nmemory = 'shared'";
        let machine = with_profiles(directory.path(), text);
        let mine = commanded_on("--container i --container-profile mine true", &machine).unwrap().request;
        assert_eq!(words(&mine), ["in", "ii", "true"]);
        let error = commanded_on("--container i --container-profile docker true", &machine).unwrap_err().to_string();
        assert!(error.starts_with("--container-profile docker: there is none of this name here or in "), "{error}");
        assert!(error.contains("  mine: of mine\n"), "{error}");
        fs::write(directory.path().join("lattice/containers.toml"), "[x]\ncommand = []\n[podman]\npmi = 'no'").unwrap();
        commanded_on("--container i --container-profile docker true", &machine).unwrap_err();
        commanded_on("--container i --container-profile apptainer true", &machine).unwrap();
        for name in ["x", "podman"] {
            let line = format!("--container i --container-profile {name} true");
            let error = commanded_on(&line, &machine).unwrap_err().to_string();
            assert!(error.contains(&format!("containers.toml: [{name}]: ")), "{error}");
        }
        assert!(commanded_on("--container i true", &machine).unwrap_err().to_string().contains("containers.toml: "));
    }

    /// Regression: the programs ran outside of any container, without a message.
    #[test]
    fn a_runtime_without_an_image_is_refused_unless_it_is_a_setting() {
        let mut machine = machine();
        let refusal = |line: &str, machine: &Machine| commanded_on(line, machine).unwrap_err().to_string();
        let error = refusal("--container-profile podman true", &machine);
        assert!(error.ends_with("try: --container IMAGE; LATTICE_CONTAINER_PROFILE may stand alone"), "{error}");
        machine.environment.push((PROFILE.into(), "podman".into()));
        assert_eq!(words(&commanded_on("--container-profile podman true", &machine).unwrap().request), ["true"]);
        let error = refusal("--container= true", &machine);
        assert!(error.starts_with("--container: the name of the image is empty"), "{error}");
    }
}
