//! Use of the services of this node by processes, found in their environments. It distinguishes a service that a launcher
//! forgot from one at work, whichever launcher made it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use super::{FoundService, NicService};
use crate::vni::Vni;

/// Use of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A process that was started with it, of a user whom it lets in.
    Process(u32),
    /// Whoever comes: the driver and the site make services that let in everybody, or name no VNI; launchers do not.
    Anybody,
    /// Perhaps a process of a user of it that we may not look at.
    Unknown,
    /// No process: a launcher made it, and forgot it or has not started its processes yet.
    Nobody,
}

/// The processes of this node, and what they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Users, and a process of each. With the VNI, as numbers of services are used again.
    given: BTreeMap<(NicService, Vni), BTreeMap<u32, u32>>,
    /// The users of processes that could not be looked at.
    hidden: BTreeSet<u32>,
}

impl Usage {
    /// Looks at all processes: of `/proc`, or a directory of its form. Only root may look at those of others.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn look(proc: &Path) -> io::Result<Self> {
        let mut usage = Self::default();
        for entry in fs::read_dir(proc)? {
            let entry = entry?;
            // The first process of a node is nobody's rank, and may have more rights than ours.
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
                // It has ended meanwhile.
                Err(_) => {}
            }
        }
        Ok(usage)
    }

    /// Use of a service of that NIC.
    pub fn of(&self, nic: &str, service: &FoundService) -> Use {
        let given = NicService { nic: nic.to_owned(), svc_id: service.svc_id };
        // Anybody may write anything into an environment of his.
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

/// The real user in a process's `status`.
fn user(status: &[u8]) -> Option<u32> {
    // The name of the process, in the first line, need not be UTF-8.
    String::from_utf8_lossy(status)
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// The services that an environment names, each with every VNI that it may be used on.
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
