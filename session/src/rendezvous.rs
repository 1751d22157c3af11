//! Rendezvous of launches of one user (MPI's connect and accept). The contribution of each node waits here until all nodes have
//! arrived. It is then sent to all nodes.
//!
//! ```text
//! arrive ──> Meeting (one for each user, name, round and set of launches) ──all nodes are here──> all nodes get the answer
//!                   └──one of its launches ends, or there is too much data──> all nodes get an error
//! ```
//! The first node of a launch lists the nodes of the launch that take part. Its other nodes must list the same nodes.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use parking_lot::Mutex;
use pmi_core::ids::NodeIndex;
use pmi_core::services::MeetError;
use pmi_transport::limits::MESSAGE_MAX;
use tokio::sync::oneshot;

use crate::unix_time;

/// Maximum number of bytes of all contributions to a meeting: each node gets all of them in one message.
const BYTES_MAX: usize = MESSAGE_MAX - (4 << 10);
/// Maximum number of bytes that wait for one user.
const BYTES_OF_USER_MAX: usize = 16 * BYTES_MAX;
/// Maximum number of incomplete meetings of one user.
const MEETINGS_OF_USER_MAX: usize = 1024;

/// All incomplete meetings.
#[derive(Debug)]
pub struct Rendezvous {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    meetings: HashMap<Key, Meeting>,
    /// The last number that was assigned.
    last: u64,
}

/// The launches that meet, and the purpose. Launches with different keys do not meet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    uid: u32,
    launches: BTreeSet<String>,
    name: String,
    epoch: u64,
}

#[derive(Debug, Default)]
struct Meeting {
    /// By launch.
    launches: BTreeMap<String, Participants>,
    bytes: usize,
}

/// The nodes of one launch.
#[derive(Debug)]
struct Participants {
    /// The nodes that take part.
    nodes: Vec<NodeIndex>,
    /// Arrived nodes, by index.
    here: BTreeMap<NodeIndex, Arrival>,
}

/// A node that has arrived.
#[derive(Debug)]
struct Arrival {
    call: Call,
    reply: oneshot::Sender<Answer>,
}

/// Call of a node to a meeting, with its contribution. Jobs and segments are forwarded unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Name of the meeting, the same for all participants.
    pub name: String,
    /// Round of the meetings with this name.
    pub epoch: u64,
    /// Namespaces of participating jobs of other launches.
    pub others: Vec<String>,
    /// Participating nodes of this launch.
    pub nodes: Vec<NodeIndex>,
    /// Participating jobs of this launch. One of its nodes describes them.
    pub jobs: Vec<Introduced>,
    /// Contribution of its ranks.
    pub segments: Vec<Bytes>,
    /// Length of the call as received, in bytes.
    pub length: usize,
}

/// A job that is introduced to the other participants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduced {
    /// Name of the job.
    pub namespace: String,
    /// Full description of the job, unchanged.
    pub encoded: Bytes,
}

/// A complete meeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    /// Number of the meeting, unique for the user.
    pub number: u64,
    /// Jobs of all participants.
    pub jobs: Vec<Introduced>,
    /// Segments of all nodes, in the order of launch ids and nodes.
    pub segments: Vec<Bytes>,
}

/// Result of a meeting.
pub type Answer = Result<Met, MeetError>;

/// A node that arrives at a meeting.
#[derive(Clone, Copy, Debug)]
pub struct Participant<'a> {
    /// The user of its launch.
    pub uid: u32,
    /// Its launch.
    pub launch: &'a str,
    /// Its index in the launch.
    pub node: NodeIndex,
}

impl Default for Rendezvous {
    fn default() -> Self {
        // Numbers of an earlier server are not assigned again: ranks with such a number may still run.
        let now = unix_time::seconds();
        Self { state: Mutex::new(State { meetings: HashMap::new(), last: 1 << 63 | now << 20 }) }
    }
}

impl Rendezvous {
    /// Adds a node to a meeting of its launch with `others`. The receiver gets the result of the meeting.
    ///
    /// # Errors
    /// Refuses a node that does not take part, and a node that already waits in the meeting.
    pub fn arrive(
        &self,
        participant: Participant<'_>,
        others: &BTreeSet<String>,
        call: Call,
    ) -> Result<oneshot::Receiver<Answer>, MeetError> {
        let Participant { uid, launch, node } = participant;
        if !call.nodes.contains(&node) {
            let reason = format!("node {node} comes to a meeting of {} other nodes", call.nodes.len());
            return Err(MeetError::Unavailable { reason });
        }
        let launches = others.iter().cloned().chain([launch.to_owned()]).collect();
        let key = Key { uid, launches, name: call.name.clone(), epoch: call.epoch };
        let (reply, answer) = oneshot::channel();
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        let held = state.held(uid);
        let meeting = state.meetings.entry(key.clone()).or_default();
        let refusal = meeting.admit(participant, Arrival { call, reply }, held)?;
        if (refusal.is_some() || meeting.is_complete(&key.launches))
            && let Some(meeting) = state.meetings.remove(&key)
        {
            meeting.close(number, refusal);
        }
        Ok(answer)
    }

    /// Ends the meetings of a launch that has ended.
    pub fn withdraw(&self, launch: &str) {
        let ended = |key: &Key, _: &mut Meeting| key.launches.contains(launch);
        let ended_meetings: Vec<Meeting> =
            self.state.lock().meetings.extract_if(ended).map(|(_, meeting)| meeting).collect();
        ended_meetings.into_iter().for_each(|meeting| meeting.close(0, Some(MeetError::NotFound)));
    }
}

/// Incomplete meetings of one user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    meetings: usize,
    /// Bytes of their contributions.
    bytes: usize,
}

impl State {
    /// Returns the incomplete meetings of a user.
    fn held(&self, uid: u32) -> Held {
        let of_user = self.meetings.iter().filter(|(key, _)| key.uid == uid);
        of_user.fold(Held::default(), |held, (_, meeting)| Held {
            meetings: held.meetings + 1,
            bytes: held.bytes + meeting.bytes,
        })
    }
}

impl Meeting {
    /// Adds a node. Its user already has `held` here, without this node. Returns the reason if the meeting ends without success.
    ///
    /// # Errors
    /// Refuses a node that already waits here.
    fn admit(
        &mut self,
        participant: Participant<'_>,
        arrival: Arrival,
        held: Held,
    ) -> Result<Option<MeetError>, MeetError> {
        let Participant { uid, launch, node } = participant;
        let is_new = self.launches.is_empty();
        let (bytes, nodes) = (arrival.call.length, arrival.call.nodes.clone());
        let of_launch = || Participants { nodes: nodes.clone(), here: BTreeMap::new() };
        let participants = self.launches.entry(launch.to_owned()).or_insert_with(of_launch);
        if participants.here.contains_key(&node) {
            let reason = format!("node {node} of launch {launch} waits in this meeting already");
            return Err(MeetError::Unavailable { reason });
        }
        let agreed = participants.nodes == nodes;
        participants.here.insert(node, arrival);
        self.bytes += bytes;
        if !agreed {
            let reason = "the nodes of a launch differ about who of them takes part".to_owned();
            return Ok(Some(MeetError::Unavailable { reason }));
        }
        let reason = if self.bytes > BYTES_MAX {
            format!("{} bytes were brought to one meeting; the limit is {BYTES_MAX}", self.bytes)
        } else if held.bytes + bytes > BYTES_OF_USER_MAX {
            let brought = held.bytes + bytes;
            format!("{brought} bytes wait in all meetings of user {uid}; the limit is {BYTES_OF_USER_MAX}")
        } else if is_new && held.meetings >= MEETINGS_OF_USER_MAX {
            format!("user {uid} has {} meetings that wait; the limit is {MEETINGS_OF_USER_MAX}", held.meetings)
        } else {
            return Ok(None);
        };
        Ok(Some(MeetError::TooMuch { reason }))
    }

    fn is_complete(&self, launches: &BTreeSet<String>) -> bool {
        self.launches.len() == launches.len()
            && self.launches.values().all(|participants| participants.here.len() == participants.nodes.len())
    }

    /// Answers all arrived nodes.
    fn close(self, number: u64, refusal: Option<MeetError>) {
        let arrivals: Vec<Arrival> =
            self.launches.into_values().flat_map(|participants| participants.here.into_values()).collect();
        let calls = || arrivals.iter().map(|arrival| &arrival.call);
        let introduced: BTreeSet<&str> =
            calls().flat_map(|call| &call.jobs).map(|job| job.namespace.as_str()).collect();
        let all_known = calls().flat_map(|call| &call.others).all(|other| introduced.contains(other.as_str()));
        let answer = match refusal {
            Some(error) => Err(error),
            // A call named it as a job of its launch, and that launch has no such job.
            None if !all_known => Err(MeetError::NotFound),
            None => Ok(Met {
                number,
                jobs: calls().flat_map(|call| &call.jobs).cloned().collect(),
                segments: calls().flat_map(|call| &call.segments).cloned().collect(),
            }),
        };
        for arrival in arrivals {
            // Its launch may be ending.
            let _ = arrival.reply.send(answer.clone());
        }
    }
}

/// Returns the launch of a namespace.
pub fn launch_of(namespace: &str) -> Option<&str> {
    namespace.strip_prefix("kvs_")?.split_once('_').map(|(launch, _)| launch)
}
