//! Simulated NICs of a node: they record the calls, and tests can set their next results.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;

use super::{CxiBackend, CxiError, FoundService, Nic, ServiceSpec};

/// NICs in memory.
#[derive(Default)]
pub struct Recorded {
    nics: Vec<Nic>,
    state: Mutex<BTreeMap<String, RecordedNic>>,
}

/// One simulated NIC.
#[derive(Default)]
pub struct RecordedNic {
    /// Existing services, by number.
    pub services: BTreeMap<u32, ServiceSpec>,
    /// Next failures of `create`, in order.
    pub create_failures: VecDeque<CxiError>,
    /// Next failures of `destroy`, in order.
    pub destroy_failures: VecDeque<CxiError>,
    /// Number of services made so far.
    made: u32,
}

impl Recorded {
    /// A node with these NICs. As in reality, service numbers start at different values on each NIC.
    pub fn new(nics: impl IntoIterator<Item = Nic>) -> Self {
        let nics: Vec<Nic> = nics.into_iter().collect();
        let state = (10..).step_by(10).zip(&nics).map(|(made, nic)| {
            let recorded = RecordedNic { made, ..RecordedNic::default() };
            (nic.name.clone(), recorded)
        });
        Self { state: Mutex::new(state.collect()), nics }
    }

    /// Calls `work` with a NIC, to inspect it or to prepare its results.
    ///
    /// # Panics
    /// Panics if there is no NIC with that name.
    pub fn with<T>(&self, nic: &str, work: impl FnOnce(&mut RecordedNic) -> T) -> T {
        work(self.state.lock().get_mut(nic).unwrap_or_else(|| panic!("there is no {nic}")))
    }

    /// Number of services on all NICs.
    pub fn service_count(&self) -> usize {
        self.state.lock().values().map(|nic| nic.services.len()).sum()
    }
}

impl CxiBackend for Recorded {
    fn nics(&self) -> Result<Vec<Nic>, CxiError> {
        Ok(self.nics.clone())
    }

    fn create(&self, nic: &str, spec: &ServiceSpec) -> Result<u32, CxiError> {
        self.with(nic, |nic| {
            if let Some(failure) = nic.create_failures.pop_front() {
                return Err(failure);
            }
            nic.made += 1;
            nic.services.insert(nic.made, spec.clone());
            Ok(nic.made)
        })
    }

    fn destroy(&self, name: &str, svc_id: u32) -> Result<(), CxiError> {
        self.with(name, |nic| {
            if let Some(failure) = nic.destroy_failures.pop_front() {
                return Err(failure);
            }
            let unknown = || CxiError::Unknown { nic: name.to_owned(), svc_id };
            nic.services.remove(&svc_id).map(|_| ()).ok_or_else(unknown)
        })
    }

    fn list(&self, nic: &str) -> Result<Vec<FoundService>, CxiError> {
        let found = |(svc_id, spec): (&u32, &ServiceSpec)| FoundService {
            svc_id: *svc_id,
            uids: vec![spec.uid],
            vnis: spec.vnis.clone(),
        };
        Ok(self.with(nic, |nic| nic.services.iter().map(found).collect()))
    }
}
