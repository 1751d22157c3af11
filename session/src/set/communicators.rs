//! Communicators of a session's ranks, for processes that ask the set's member: `MPI_COMM_WORLD`, and groups that ranks have made with the
//! session's PMIx server. MPI libraries create other communicators without the launcher.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use lattice_overlay::address::{GroupId, SetId, Uid};
use lattice_overlay::error::{CallError, Fault};
use lattice_overlay::frame::BODY_MAX;
use lattice_overlay::method::{Communicator, CommunicatorPart, Communicators, document};
use parking_lot::Mutex;
use pmi_core::ids::Rank;
use pmix_core::JobIndex;
use pmix_core::driver::Driver;
use pmix_core::server::{GroupFacts, GroupMembers};

use crate::cause::RankNumbers;

/// Name of the communicator of all ranks of a launch. Its number in its set is 0.
const WORLD: &str = "MPI_COMM_WORLD";
/// The launched job in a server. Later jobs were spawned, and have no addresses.
const LAUNCH: JobIndex = JobIndex(0);

/// Source of the communicators of a session's ranks. The host creates it, and passes it to the set and to the session.
#[derive(Clone, Default)]
pub struct CommunicatorSource(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    set: Option<SetId>,
    server: Option<Weak<Driver>>,
}

impl CommunicatorSource {
    /// Sets the id of the set. From now on, ids of groups begin with it.
    pub(super) fn found(&self, set: SetId) {
        let mut state = self.0.lock();
        state.set = Some(set);
        if let Some(server) = state.server.as_ref().and_then(Weak::upgrade) {
            server.number_launch(set.bits());
        }
    }

    /// Sets the server that makes the groups.
    pub(crate) fn follow(&self, server: &Arc<Driver>) {
        let mut state = self.0.lock();
        state.server = Some(Arc::downgrade(server));
        if let Some(set) = state.set {
            server.number_launch(set.bits());
        }
    }

    fn groups(&self) -> Vec<GroupFacts> {
        let server = self.0.lock().server.clone();
        server.and_then(|server| server.upgrade()).map(|server| server.groups()).unwrap_or_default()
    }

    /// Answers a question for one communicator by its id or name, or for all communicators, in a launch with `ranks` ranks.
    pub(super) fn answer(&self, member: Uid, ranks: u32, asked: &[u8]) -> Result<Bytes, CallError> {
        let set = member.set();
        let own = set.root().to_string().trim_end_matches("/node/0").to_owned();
        let mut all = vec![world(set, &own, ranks)];
        all.extend(self.groups().iter().map(|group| described(group, &own)));
        if !asked.is_empty() {
            let asked = String::from_utf8_lossy(asked);
            let is_meant = |known: &Communicator| known.name == asked || known.id == asked;
            let known = all.len();
            all.retain(is_meant);
            if all.is_empty() {
                let why =
                    format!("no rank here is in a communicator {asked:?}; an empty body asks for all {known} of them");
                return Err(CallError::Handler(Fault(why)));
            }
        }
        Ok(fitted(Communicators { member: member.to_string(), communicators: all, left_out: 0 }))
    }
}

fn world(set: SetId, own: &str, ranks: u32) -> Communicator {
    let all: Vec<Rank> = (0..ranks).map(Rank).collect();
    let members = vec![CommunicatorPart { of: own.to_owned(), ranks: RankNumbers(&all).to_string() }];
    Communicator { id: set.group(0).to_string(), name: WORLD.to_owned(), size: ranks, members }
}

fn described(group: &GroupFacts, own: &str) -> Communicator {
    let part = |members: &GroupMembers| CommunicatorPart {
        // A namespace ends with a secret of its launch.
        of: if members.job == Some(LAUNCH) { own.to_owned() } else { job_of(&members.namespace).to_owned() },
        ranks: RankNumbers(&members.ranks).to_string(),
    };
    Communicator {
        id: GroupId::from_bits(group.context).to_string(),
        name: String::from_utf8_lossy(&group.name).into_owned(),
        size: group.members.iter().map(|members| members.ranks.len() as u32).sum(),
        members: group.members.iter().map(part).collect(),
    }
}

fn job_of(namespace: &str) -> &str {
    namespace.split_once('.').map_or(namespace, |(job, _)| job)
}

/// Returns the document. If it is too long, it has no members. If it is still too long, it has only as many communicators as fit.
fn fitted(mut answer: Communicators) -> Bytes {
    let mut body = document(&answer);
    if body.len() > BODY_MAX {
        answer.communicators.iter_mut().for_each(|communicator| communicator.members.clear());
        body = document(&answer);
    }
    while body.len() > BODY_MAX {
        let left = answer.communicators.len() / 2;
        answer.left_out += (answer.communicators.len() - left) as u32;
        answer.communicators.truncate(left);
        body = document(&answer);
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, context: u64, members: Vec<GroupMembers>) -> GroupFacts {
        GroupFacts { name: Bytes::copy_from_slice(name.as_bytes()), context, members }
    }

    fn ranks(of: &[u32]) -> Vec<Rank> {
        of.iter().copied().map(Rank).collect()
    }

    #[test]
    fn members_are_shown_by_job_and_no_secret_of_a_launch_is_told() {
        let members = vec![
            GroupMembers { job: Some(LAUNCH), namespace: "kvs_a_0.secret".to_owned(), ranks: ranks(&[0, 1, 2, 5]) },
            GroupMembers { job: Some(JobIndex(1)), namespace: "kvs_a_1.secret".to_owned(), ranks: ranks(&[3]) },
            GroupMembers { job: None, namespace: "kvs_b_0.other".to_owned(), ranks: ranks(&[0, 1]) },
        ];
        let shown = described(&group("ocean", 7 << 32 | 9, members), "lattice://7");
        let part = |of: &str, ranks: &str| CommunicatorPart { of: of.to_owned(), ranks: ranks.to_owned() };
        assert_eq!((shown.id.as_str(), shown.name.as_str(), shown.size), ("7/9", "ocean", 7));
        assert_eq!(shown.members, [part("lattice://7", "0-2,5"), part("kvs_a_1", "3"), part("kvs_b_0", "0-1")]);
    }

    #[test]
    fn the_world_is_known_without_a_pmix_server_and_what_is_not_known_is_said() {
        let (source, member) = (CommunicatorSource::default(), SetId::from_bits(4_099_098).root());
        let all: Communicators = serde_json::from_slice(&source.answer(member, 4, b"").unwrap()).unwrap();
        let [world] = &all.communicators[..] else { panic!("{all:?}") };
        assert_eq!((world.id.as_str(), world.size, world.members[0].ranks.as_str()), ("4099098/0", 4, "0-3"));
        assert_eq!(world.members[0].of, "lattice://4099098");
        for asked in [&b"4099098/0"[..], b"MPI_COMM_WORLD"] {
            let one: Communicators = serde_json::from_slice(&source.answer(member, 4, asked).unwrap()).unwrap();
            assert_eq!(one.communicators, all.communicators);
        }
        let Err(CallError::Handler(Fault(why))) = source.answer(member, 4, b"ocean") else { panic!("it is known") };
        assert!(why.contains("\"ocean\""), "{why}");
    }

    #[test]
    fn an_answer_is_as_long_as_may_be_and_says_what_it_leaves_out() {
        let odd: Vec<u32> = (0..40_000).step_by(2).collect();
        let wide = |number: u64| {
            let members = GroupMembers { job: Some(LAUNCH), namespace: "kvs_a_0.s".to_owned(), ranks: ranks(&odd) };
            described(&group(&format!("{number:0>400}"), number, vec![members]), "lattice://7")
        };
        for count in [0, 1, 100, 1000] {
            let communicators: Vec<Communicator> = (0..count).map(wide).collect();
            let body = fitted(Communicators { member: "lattice://7/node/0".to_owned(), communicators, left_out: 0 });
            assert!(body.len() <= BODY_MAX, "{count}: {}", body.len());
            let read: Communicators = serde_json::from_slice(&body).unwrap();
            assert_eq!(read.communicators.len() as u64 + u64::from(read.left_out), count);
            assert!(read.communicators.iter().all(|one| one.members.is_empty() && one.size == 20_000));
        }
    }
}
