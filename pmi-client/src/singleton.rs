//! The client without a launcher: rank 0 of 1, with its own key-value space and its own names. No call ever waits.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use rustix::process::getpid;

use crate::error::ClientError;
use crate::limits::{KeySigns, Limits, check_line};
use crate::membership::{IndexedPair, Membership};

/// Common limits of PMI servers, so that a program that works alone also works under a launcher.
pub(crate) const LIMITS: Limits =
    Limits { job_id_max: 255, key_max: 63, value_max: 1023, key_signs: KeySigns::OneLine };

/// The only rank of a job without a launcher.
#[derive(Debug)]
pub(crate) struct Singleton {
    pub(crate) membership: Membership,
    /// Pairs by space. The job's space has no name here.
    spaces: BTreeMap<Option<String>, Pairs>,
    /// Number of created spaces.
    made: u64,
    node_attributes: BTreeMap<String, Vec<u8>>,
    names: BTreeMap<String, Vec<u8>>,
}

/// Pairs of a space, in the order of their first puts.
#[derive(Debug, Default)]
struct Pairs {
    list: Vec<(String, Vec<u8>)>,
    indices: BTreeMap<String, usize>,
}

impl Singleton {
    pub(crate) fn new() -> Self {
        let job_id = format!("singleton_{}", getpid());
        Self {
            membership: Membership { rank: 0, size: 1, appnum: None, spawned: false, job_id },
            spaces: BTreeMap::from([(None, Pairs::default())]),
            made: 0,
            node_attributes: BTreeMap::new(),
            names: BTreeMap::new(),
        }
    }

    pub(crate) fn put(&mut self, space: Option<&str>, key: &str, value: &[u8]) -> Result<(), ClientError> {
        check(key, value)?;
        let pairs = self.pairs(space, "put")?;
        match pairs.indices.get(key) {
            Some(&index) => pairs.list[index].1 = value.to_vec(),
            None => {
                pairs.indices.insert(key.to_owned(), pairs.list.len());
                pairs.list.push((key.to_owned(), value.to_vec()));
            }
        }
        Ok(())
    }

    pub(crate) fn get(&mut self, space: Option<&str>, key: &str) -> Result<Option<Vec<u8>>, ClientError> {
        LIMITS.check_key(key)?;
        let is_made = self.is_made(space);
        let pairs = self.pairs(space, "get")?;
        match pairs.indices.get(key) {
            Some(&index) => Ok(Some(pairs.list[index].1.clone())),
            // As in PMI-1, where facts about the job are in its space.
            None if !is_made => self.job_attribute(key),
            None => Ok(None),
        }
    }

    pub(crate) fn pair_at(&mut self, space: Option<&str>, index: u64) -> Result<Option<IndexedPair>, ClientError> {
        let pairs = self.pairs(space, "getbyidx")?;
        let pair = usize::try_from(index).ok().and_then(|at| pairs.list.get(at)).cloned();
        Ok(pair.map(|(key, value)| IndexedPair { key, value, next: index + 1 }))
    }

    pub(crate) fn create_space(&mut self) -> String {
        self.made += 1;
        let name = format!("{}.k0.{}", self.membership.job_id, self.made);
        self.spaces.insert(Some(name.clone()), Pairs::default());
        name
    }

    pub(crate) fn destroy_space(&mut self, name: &str) -> Result<(), ClientError> {
        self.spaces.remove(&Some(name.to_owned())).map(drop).ok_or_else(|| no_such_space("destroy_kvs"))
    }

    /// Returns true for a space other than the job's own.
    fn is_made(&self, space: Option<&str>) -> bool {
        space.is_some_and(|name| name != self.membership.job_id)
    }

    fn pairs(&mut self, space: Option<&str>, command: &'static str) -> Result<&mut Pairs, ClientError> {
        let name = space.filter(|_| self.is_made(space)).map(str::to_owned);
        self.spaces.get_mut(&name).ok_or_else(|| no_such_space(command))
    }

    /// Returns the only fact of launchers that is valid without one: the placement of the ranks.
    pub(crate) fn job_attribute(&self, key: &str) -> Result<Option<Vec<u8>>, ClientError> {
        LIMITS.check_key(key)?;
        Ok((key == "PMI_process_mapping").then(|| b"(vector,(0,1,1))".to_vec()))
    }

    pub(crate) fn put_node_attribute(&mut self, key: &str, value: &[u8]) -> Result<(), ClientError> {
        check(key, value)?;
        self.node_attributes.insert(key.to_owned(), value.to_vec());
        Ok(())
    }

    pub(crate) fn node_attribute(&self, key: &str) -> Result<Option<Vec<u8>>, ClientError> {
        LIMITS.check_key(key)?;
        Ok(self.node_attributes.get(key).cloned())
    }

    pub(crate) fn publish(&mut self, service: &str, port: &[u8]) -> Result<(), ClientError> {
        check_line("service name", service.as_bytes())?;
        check_line("port", port)?;
        if self.names.contains_key(service) {
            return Err(ClientError::Refused { command: "publish", rc: 1, message: Some("already published".into()) });
        }
        self.names.insert(service.to_owned(), port.to_vec());
        Ok(())
    }

    pub(crate) fn lookup(&self, service: &str) -> Option<Vec<u8>> {
        self.names.get(service).cloned()
    }

    pub(crate) fn unpublish(&mut self, service: &str) -> Result<(), ClientError> {
        let refused = || ClientError::Refused { command: "unpublish", rc: 1, message: Some("not published".into()) };
        self.names.remove(service).map(drop).ok_or_else(refused)
    }
}

fn check(key: &str, value: &[u8]) -> Result<(), ClientError> {
    LIMITS.check_key(key)?;
    LIMITS.check_value(value)
}

fn no_such_space(command: &'static str) -> ClientError {
    ClientError::Refused { command, rc: -1, message: Some("unknown kvsname".into()) }
}
