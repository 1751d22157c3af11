//! Use of this node's services by processes, found in their environments. It distinguishes a forgotten service from a
//! service in use, for services of any launcher.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use super::{FoundService, NicService};
use crate::vni::Vni;

/// Use of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A process that was started with the service, and belongs to one of its users.
    Process(u32),
    /// Any process may use it: the driver and the site make services for all users or without VNIs; launchers do not.
    Anybody,
    /// Unknown: this process may not inspect a process of one of its users.
    Unknown,
    /// No process: the launcher forgot the service, or has not started its processes yet.
    Nobody,
}

/// Processes of this node, and their services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Users of a service, with one process of each. The key includes the VNI, since service numbers are reused.
    given: BTreeMap<(NicService, Vni), BTreeMap<u32, u32>>,
    /// Users of processes that could not be inspected.
    hidden: BTreeSet<u32>,
}

impl Usage {
    /// Reads all processes in `/proc`, or in a directory with the same layout. Only root may inspect processes of other
    /// users.
    ///
    /// # Errors
    /// Fails if the directory is not readable.
    pub fn look(proc: &Path) -> io::Result<Self> {
        let mut usage = Self::default();
        for entry in fs::read_dir(proc)? {
            let entry = entry?;
            // The first process of a node is not a rank, and may have more privileges than this process.
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).filter(|pid| *pid != 1);
            let Some(pid) = pid else { continue };
            let owner = || user(&fs::read(entry.path().join("status")).unwrap_or_default());
            match fs::read(entry.path().join("environ")) {
                Ok(environment) => {
                    for given in given(&environment) {
                        let users = usage.given.entry(given).or_default();
                        users.extend(owner().map(|user| (user, pid)));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => usage.hidden.extend(owner()),
                // The process has ended meanwhile.
                Err(_) => {}
            }
        }
        Ok(usage)
    }

    /// Use of a service on that NIC.
    pub fn of(&self, nic: &str, service: &FoundService) -> Use {
        let given = NicService { nic: nic.to_owned(), svc_id: service.svc_id };
        // A user can write anything into the environment of its processes.
        let lets_in = |user: &u32| service.uids.is_empty() || service.uids.contains(user);
        let given = service.vnis.iter().filter_map(|vni| self.given.get(&(given.clone(), *vni)));
        if let Some((_, pid)) = given.flatten().find(|(user, _)| lets_in(user)) {
            return Use::Process(*pid);
        }
        match service {
            FoundService { uids, vnis, .. } if uids.is_empty() || vnis.is_empty() => Use::Anybody,
            FoundService { uids, .. } if uids.iter().any(|uid| self.hidden.contains(uid)) => Use::Unknown,
            _ => Use::Nobody,
        }
    }
}

/// Real user in a process's `status`.
fn user(status: &[u8]) -> Option<u32> {
    // The process name, in the first line, may be invalid UTF-8.
    String::from_utf8_lossy(status)
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// Services in an environment, each with every VNI on which it may be used.
fn given(environment: &[u8]) -> Vec<(NicService, Vni)> {
    let list = |name: &str| {
        let mut variables = environment.split(|byte| *byte == 0);
        let value = variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        value.and_then(|value| std::str::from_utf8(value).ok()).unwrap_or_default().split(',')
    };
    let vni = |number: &str| Vni::new(number.parse().ok()?).ok();
    let vnis: Vec<Vni> = list("SLINGSHOT_VNIS").filter_map(vni).collect();
    let services = list("SLINGSHOT_DEVICES").zip(list("SLINGSHOT_SVC_IDS"));
    let service = |(nic, number): (&str, &str)| Some(NicService { nic: nic.to_owned(), svc_id: number.parse().ok()? });
    let with_vnis = |service: NicService| vnis.iter().map(move |vni| (service.clone(), *vni));
    services.filter_map(service).flat_map(with_vnis).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(svc_id: u32, uids: &[u32], vni: u32) -> FoundService {
        FoundService { svc_id, uids: uids.to_vec(), vnis: Vni::new(vni).into_iter().collect() }
    }

    #[test]
    fn a_launchers_service_is_somebodys_if_a_process_was_born_with_it() {
        let proc = tempfile::tempdir().expect("a directory");
        let born_with = "A=1\0SLINGSHOT_SVC_IDS=12,21\0SLINGSHOT_DEVICES=cxi0,cxi1\0SLINGSHOT_VNIS=1024,1025\0";
        let anothers = "SLINGSHOT_SVC_IDS=13,14\0SLINGSHOT_DEVICES=cxi0,cxi0\0SLINGSHOT_VNIS=1024\0";
        for (pid, user, environment) in [("17", 1000, born_with), ("18", 1000, ""), ("19", 2000, anothers)] {
            let process = proc.path().join(pid);
            fs::create_dir(&process).expect("a process");
            fs::write(process.join("environ"), environment).expect("its environment");
            fs::write(process.join("status"), format!("Name:\tx\nUid:\t{user}\t0\t0\t0\n")).expect("its user");
        }
        fs::create_dir(proc.path().join("sys")).expect("no process");
        let mut usage = Usage::look(proc.path()).expect("readable");
        usage.hidden.insert(7);
        for (nic, service, expected) in [
            ("cxi0", found(12, &[1000], 1024), Use::Process(17)),
            ("cxi1", found(21, &[1000], 1025), Use::Process(17)),
            ("cxi1", found(21, &[1000], 1026), Use::Nobody),
            ("cxi1", found(12, &[1000], 1024), Use::Nobody),
            ("cxi0", found(13, &[1000], 1024), Use::Nobody),
            ("cxi0", found(13, &[1000, 2000], 1024), Use::Process(19)),
            ("cxi0", found(14, &[], 1024), Use::Process(19)),
            ("cxi0", found(11, &[1000, 7], 1024), Use::Unknown),
            ("cxi0", found(1, &[], 1024), Use::Anybody),
            ("cxi0", found(2, &[1000], 0), Use::Anybody),
        ] {
            assert_eq!(usage.of(nic, &service), expected, "{nic} {service:?}");
        }
        assert!(Usage::look(&proc.path().join("missing")).is_err());
        assert_eq!(user(b"Name:\tx\nUid:\t1000\t0\t0\t0\n"), Some(1000));
    }
}
