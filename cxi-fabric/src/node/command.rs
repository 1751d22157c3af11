//! HPE's `cxi_service` program, for nodes on which the agent must not load the library. Its input is a YAML description; its
//! output is text.

use std::fmt::Write as _;
use std::io::{self, Read, Seek};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::sysfs::{self, Sysfs};
use super::{CxiBackend, CxiError, FoundService, Nic, ServiceSpec, Shortage};
use crate::vni::Vni;

/// Time limit of one call; the program communicates only with the kernel of this node.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two checks for its end.
const POLL_PAUSE: Duration = Duration::from_millis(2);
/// Limit on the bytes of its output that are read.
const OUTPUT_MAX: u64 = 1 << 20;

/// Back end with the program `cxi_service`.
#[derive(Clone, Debug)]
pub struct CxiServiceCommand {
    program: PathBuf,
    sysfs: Sysfs,
}

impl CxiServiceCommand {
    /// Uses the program at the path `program`, or with that name in `PATH`.
    pub fn new(program: impl Into<PathBuf>, sysfs: Sysfs) -> Self {
        Self { program: program.into(), sysfs }
    }

    /// Runs the program for a NIC and returns its output.
    fn run(&self, nic: &str, action: &'static str, words: &[&str]) -> Result<String, CxiError> {
        // The program accepts any name that starts with `cxi`; this function does not.
        sysfs::number(nic)?;
        let shown = format!("{} {action} -d {nic} {}", self.program.display(), words.join(" "));
        let failed = |trouble: String| CxiError::Command { command: shown.trim_end().to_owned(), trouble };
        let mut command = Command::new(&self.program);
        command.arg(action).args(["-d", nic]).args(words).env("LC_ALL", "C");
        let Finished { status, stdout, stderr } = finish(&mut command).map_err(|error| failed(error.to_string()))?;
        if status.success() {
            return Ok(stdout);
        }
        let words = stderr.trim();
        Err(match words {
            _ if words.ends_with("Device or resource busy") => CxiError::Busy { nic: nic.to_owned() },
            _ if words.ends_with("No space left on device") => {
                CxiError::Short { nic: nic.to_owned(), shortage: Shortage::Unknown }
            }
            _ if words.ends_with("Operation not permitted") || words.ends_with("Permission denied") => {
                CxiError::Denied { nic: nic.to_owned() }
            }
            _ => failed(format!("{status}: {}", words.chars().take(300).collect::<String>())),
        })
    }
}

impl CxiBackend for CxiServiceCommand {
    fn nics(&self) -> Result<Vec<Nic>, CxiError> {
        self.sysfs.nics()
    }

    fn create(&self, nic: &str, spec: &ServiceSpec) -> Result<u32, CxiError> {
        let unwritten = |source| CxiError::System { nic: nic.to_owned(), action: "writing its description", source };
        let mut file = tempfile::NamedTempFile::new().map_err(unwritten)?;
        io::Write::write_all(&mut file, describe(spec).as_bytes()).map_err(unwritten)?;
        let path = file.path().to_string_lossy();
        let output = self.run(nic, "create", &["-y", &path])?;
        read_created(&output).ok_or_else(|| CxiError::Command {
            command: format!("{} create", self.program.display()),
            trouble: "it prints no number of a service".into(),
        })
    }

    fn destroy(&self, nic: &str, svc_id: u32) -> Result<(), CxiError> {
        match self.run(nic, "delete", &["-s", &svc_id.to_string()]) {
            // The program looks the service up first, and reports a missing one as an invalid argument.
            Err(CxiError::Command { trouble, .. }) if trouble.ends_with("Invalid argument") => {
                Err(CxiError::Unknown { nic: nic.to_owned(), svc_id })
            }
            result => result.map(|_| ()),
        }
    }

    fn list(&self, nic: &str) -> Result<Vec<FoundService>, CxiError> {
        self.run(nic, "list", &["-v"]).map(|output| read_list(&output))
    }
}

/// Input of `cxi_service create`. The program rejects unknown keys.
fn describe(spec: &ServiceSpec) -> String {
    let mut yaml =
        String::from("resource_limits: 1\nrestricted_members: 1\nrestricted_vnis: 1\nrestricted_tcs: 1\nlimits:\n");
    // Writing to a string cannot fail.
    for (resource, limit) in spec.limits.iter() {
        let _ = writeln!(yaml, "  - name: {resource}\n    max: {}\n    res: {}", limit.max, limit.reserve);
    }
    yaml.push_str("vnis:\n");
    for vni in &spec.vnis {
        let _ = writeln!(yaml, "  vni: {vni}");
    }
    let _ = writeln!(yaml, "members:\n  - type: uid\n    id: {}", spec.uid);
    yaml.push_str("tcs:\n");
    for class in spec.traffic_classes.names() {
        let _ = writeln!(yaml, "  tc: {class}");
    }
    yaml
}

/// Parses the number of the new service in the output of `cxi_service create`.
pub(crate) fn read_created(output: &str) -> Option<u32> {
    output.lines().rev().find_map(|line| line.strip_prefix("Successfully created service:")?.trim().parse().ok())
}

/// Parses the output of `cxi_service list -v`: paragraphs that start with `ID:`.
pub(crate) fn read_list(output: &str) -> Vec<FoundService> {
    let mut services: Vec<FoundService> = Vec::new();
    for line in output.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let name = name.trim().trim_start_matches("---> ");
        match (name, services.last_mut()) {
            ("ID", _) => {
                let number = value.split_whitespace().next().and_then(|digits| digits.parse().ok());
                services.extend(number.map(|svc_id| FoundService { svc_id, uids: Vec::new(), vnis: Vec::new() }));
            }
            ("VNIs", Some(service)) => {
                // A range, such as 64-127, is not a list, and no service of this crate has one.
                let numbers = value.split_whitespace().filter_map(|digits| digits.parse().ok());
                service.vnis = numbers.filter_map(|number: u32| Vni::new(number).ok()).collect();
            }
            ("Valid Members", Some(service)) => {
                let uid = |word: &str| word.strip_prefix("uid=")?.parse().ok();
                service.uids = value.split_whitespace().filter_map(uid).collect();
            }
            _ => {}
        }
    }
    services
}

struct Finished {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

/// Runs a command to its end, or kills it at its time limit. Its output goes to files, so that it never blocks on this
/// process.
fn finish(command: &mut Command) -> io::Result<Finished> {
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    let mut child = command.spawn()?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if start.elapsed() < TIME_LIMIT => std::thread::sleep(POLL_PAUSE),
            None => {
                child.kill()?;
                child.wait()?;
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no end within {} s", TIME_LIMIT.as_secs()),
                ));
            }
        }
    };
    let read = |file: &mut std::fs::File| -> io::Result<String> {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.take(OUTPUT_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Finished { status, stdout: read(&mut stdout)?, stderr: read(&mut stderr)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Limits, TrafficClasses};

    #[test]
    fn a_description_names_every_restriction() {
        let spec = ServiceSpec {
            uid: 1000,
            vnis: vec![Vni::new(1024).expect("a number")],
            traffic_classes: TrafficClasses::default(),
            limits: Limits::for_ranks(1),
        };
        let yaml = describe(&spec);
        for part in [
            "restricted_vnis: 1\n",
            "  - name: TLEs\n    max: 8\n    res: 8\n",
            "vnis:\n  vni: 1024\n",
            "members:\n  - type: uid\n    id: 1000\n",
            "tcs:\n  tc: LOW_LATENCY\n  tc: BEST_EFFORT\n",
        ] {
            assert!(yaml.contains(part), "{part} is not in\n{yaml}");
        }
    }

    #[test]
    fn a_list_is_read_as_the_manual_page_shows_it() {
        let output = "cxi0\n----\n Total Device Resources\n ACs:  1022\n ID: 1 (DEFAULT)\n   LNIs/RGID          : 1\n   \
                      Restricted Members : No\n   ---> Valid Members : All uids/gids\n   VNIs               : 1 10\n ID: 2\n   \
                      ---> Valid Members : uid=1 gid=2\n   VNIs               : 64-127\n ID: 3\n   ---> Valid Members : uid=1000\n   \
                      VNIs               : 19 20 21 22\n";
        let found = read_list(output);
        assert_eq!(found.iter().map(|service| service.svc_id).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(found[0].uids.is_empty());
        assert_eq!((found[1].uids.as_slice(), found[1].vnis.len()), ([1].as_slice(), 0));
        assert_eq!(found[2].vnis.iter().map(|vni| vni.get()).collect::<Vec<_>>(), [19, 20, 21, 22]);
    }

    #[test]
    fn a_program_that_fails_is_quoted() {
        let backend = CxiServiceCommand::new("/nonexistent/cxi_service", Sysfs::default());
        let error = backend.list("cxi0").expect_err("no program").to_string();
        assert!(error.starts_with("/nonexistent/cxi_service list -d cxi0 -v: "), "{error}");
        let error = backend.list("cxi0; reboot").expect_err("no NIC").to_string();
        assert!(error.contains("is no CXI device"), "{error}");
    }
}
