//! NICs as directories. As on real NICs, a service outlives the agent that made it. For clusters on one machine without real
//! NICs.
//!
//! ```text
//! DIRECTORY/cxi0/11        a service: its number, and a line of JSON with users and VNIs
//! DIRECTORY/cxi0/busy      while it exists, no service of this NIC can be destroyed; an operator makes it
//! DIRECTORY/cxi0/slow      while it exists, for half a minute at most, no service is made or destroyed
//! DIRECTORY/cxi0/short     content LE or TLE: a service that reserves some of these cannot be made, for lack of a pool
//! DIRECTORY/cxi1/down      this NIC has no link
//! ```

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{CxiBackend, CxiError, FoundService, Limits, Nic, Resource, ServiceSpec, Shortage, sysfs};
use crate::vni::Vni;

/// Longest delay of a call by a slow NIC, and the pause between two checks.
const SLOWEST: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// NICs in a directory.
#[derive(Clone, Debug)]
pub struct PaperNics {
    directory: PathBuf,
}

/// File format of a service.
#[derive(Debug, Serialize, Deserialize)]
struct Sheet {
    uid: u32,
    vnis: Vec<Vni>,
    traffic_classes: String,
}

impl PaperNics {
    /// NICs with a directory of their name in `directory`.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Makes NICs with these names in `directory`.
    ///
    /// # Errors
    /// Fails if the directory of a NIC cannot be made.
    pub fn make(directory: impl Into<PathBuf>, names: &[&str]) -> io::Result<Self> {
        let nics = Self::new(directory);
        names.iter().try_for_each(|name| fs::create_dir(nics.directory.join(name)))?;
        Ok(nics)
    }

    fn nic(&self, name: &str) -> Result<PathBuf, CxiError> {
        // Names come from outside; `..` is not a device name.
        sysfs::number(name)?;
        Ok(self.directory.join(name))
    }

    /// Numbers of a NIC's services, in order.
    fn services(nic: &Path) -> io::Result<Vec<u32>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(nic)? {
            numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// Waits while the NIC is slow.
fn wait(nic: &Path) {
    let end = Instant::now() + SLOWEST;
    while nic.join("slow").exists() && Instant::now() < end {
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Resource of which the NIC has too little for a service with these limits.
fn shortage(nic: &Path, limits: &Limits) -> Option<Shortage> {
    let (resource, shortage) = match fs::read_to_string(nic.join("short")).ok()?.trim() {
        "LE" => (Resource::Les, Shortage::ListEntryPools),
        "TLE" => (Resource::Tles, Shortage::TriggerPools),
        _ => return None,
    };
    (limits.of(resource).reserve > 0).then_some(shortage)
}

fn failed(nic: &str, action: &'static str) -> impl Fn(io::Error) -> CxiError {
    move |source| CxiError::System { nic: nic.to_owned(), action, source }
}

impl CxiBackend for PaperNics {
    fn nics(&self) -> Result<Vec<Nic>, CxiError> {
        let shown = self.directory.display().to_string();
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed(&shown, "listing devices"))? {
            let name = entry.map_err(failed(&shown, "listing devices"))?.file_name();
            numbers.extend(name.to_str().and_then(|name| sysfs::number(name).ok()));
        }
        numbers.sort_unstable();
        let nic = |number| {
            let name = format!("cxi{number}");
            let is_up = !self.directory.join(&name).join("down").exists();
            Nic { name, is_up }
        };
        Ok(numbers.into_iter().map(nic).collect())
    }

    fn create(&self, nic: &str, spec: &ServiceSpec) -> Result<u32, CxiError> {
        let directory = self.nic(nic)?;
        wait(&directory);
        if let Some(shortage) = shortage(&directory, &spec.limits) {
            return Err(CxiError::Short { nic: nic.to_owned(), shortage });
        }
        let failed = failed(nic, "writing a service down");
        let sheet = Sheet { uid: spec.uid, vnis: spec.vnis.clone(), traffic_classes: spec.traffic_classes.to_string() };
        let text = serde_json::to_string(&sheet).map_err(|error| failed(error.into()))?;
        // Real NICs reserve the first numbers for system services, and each NIC has its own numbering.
        let base = sysfs::number(nic)?.saturating_mul(10).saturating_add(10);
        let svc_id = Self::services(&directory).map_err(&failed)?.last().map_or(base, |last| *last) + 1;
        let draft = directory.join("draft");
        fs::write(&draft, text + "\n").map_err(&failed)?;
        fs::rename(draft, directory.join(svc_id.to_string())).map_err(&failed)?;
        Ok(svc_id)
    }

    fn destroy(&self, nic: &str, svc_id: u32) -> Result<(), CxiError> {
        let directory = self.nic(nic)?;
        wait(&directory);
        if directory.join("busy").exists() {
            return Err(CxiError::Busy { nic: nic.to_owned() });
        }
        match fs::remove_file(directory.join(svc_id.to_string())) {
            Err(error) if error.kind() == ErrorKind::NotFound => Err(CxiError::Unknown { nic: nic.to_owned(), svc_id }),
            removed => removed.map_err(failed(nic, "removing a service")),
        }
    }

    fn list(&self, nic: &str) -> Result<Vec<FoundService>, CxiError> {
        let directory = self.nic(nic)?;
        let failed = failed(nic, "reading its services");
        let mut found = Vec::new();
        for svc_id in Self::services(&directory).map_err(&failed)? {
            let text = match fs::read_to_string(directory.join(svc_id.to_string())) {
                // The service was destroyed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                text => text.map_err(&failed)?,
            };
            let sheet: Sheet = serde_json::from_str(&text).map_err(|error| failed(error.into()))?;
            found.push(FoundService { svc_id, uids: vec![sheet.uid], vnis: sheet.vnis });
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Limits, TrafficClasses};

    #[test]
    fn what_is_made_is_there_for_the_next_agent() {
        let directory = tempfile::tempdir().expect("a directory");
        for nic in ["cxi0", "cxi1", "cxi10"] {
            fs::create_dir(directory.path().join(nic)).expect("a NIC");
        }
        fs::write(directory.path().join("cxi1/down"), "").expect("no link");
        let vni = Vni::new(1024).expect("a number");
        let spec = ServiceSpec {
            uid: 1000,
            vnis: vec![vni],
            traffic_classes: TrafficClasses::default(),
            limits: Limits::for_ranks(1),
        };
        let nics = PaperNics::new(directory.path());
        let up: Vec<_> = nics.nics().expect("NICs").into_iter().map(|nic| (nic.name, nic.is_up)).collect();
        assert_eq!(up, [("cxi0".to_owned(), true), ("cxi1".to_owned(), false), ("cxi10".to_owned(), true)]);
        assert_eq!(nics.create("cxi0", &spec).expect("made"), 11);
        assert_eq!(nics.create("cxi0", &spec).expect("made"), 12);
        assert_eq!(nics.create("cxi10", &spec).expect("made"), 111);
        drop(nics);

        let nics = PaperNics::new(directory.path());
        let found = nics.list("cxi0").expect("a list");
        assert_eq!((found.len(), found[0].svc_id, &found[0].vnis, &found[0].uids), (2, 11, &vec![vni], &vec![1000]));
        fs::write(directory.path().join("cxi0/busy"), "").expect("busy");
        assert!(matches!(nics.destroy("cxi0", 11), Err(CxiError::Busy { .. })));
        fs::remove_file(directory.path().join("cxi0/busy")).expect("free");
        fs::write(directory.path().join("cxi0/short"), "TLE\n").expect("no pools");
        let refused = nics.create("cxi0", &spec).expect_err("they are reserved").to_string();
        assert_eq!(refused, "cxi0: all pools of trigger list entries are taken");
        nics.destroy("cxi0", 11).expect("destroyed");
        assert!(matches!(nics.destroy("cxi0", 11), Err(CxiError::Unknown { .. })));
        assert!(matches!(nics.list("../cxi0"), Err(CxiError::NicName(_))));
    }
}
