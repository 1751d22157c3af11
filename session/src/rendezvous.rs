//! Rendezvous of launches of one user (MPI's connect and accept): what each of their nodes brings waits here until all have come, and
//! goes to all.
//!
//! ```text
//!  arrive ──> Meeting (one for each user, name, round and set of launches) ──everybody is here──> all are answered
//!                    └──one of its launches ends, or too much is brought──> all are told so
//! ```
//! The nodes of a launch that take part are those that the first of them names; the others must name the same.

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

/// The most bytes that all nodes together bring to a meeting: what all bring goes to each in one message.
const BYTES_MAX: usize = MESSAGE_MAX - (4 << 10);
/// The most bytes that wait for one user.
const BYTES_OF_USER_MAX: usize = 16 * BYTES_MAX;
/// The most meetings of one user that wait for somebody.
const MEETINGS_OF_USER_MAX: usize = 1024;

/// All meetings that somebody waits in.
#[derive(Debug)]
pub struct Rendezvous {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    meetings: HashMap<Key, Meeting>,
    /// The last number that was given out.
    last: u64,
}

/// The launches that meet, and what for. Launches that do not agree about that do not meet.
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
    /// By node.
    here: BTreeMap<u32, Arrival>,
}

/// A node that has come.
#[derive(Debug)]
struct Arrival {
    call: Call,
    reply: oneshot::Sender<Answer>,
}

/// Call of a node to a meeting, with what it brings. Jobs and segments are passed on as they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The name by which all who take part call the meeting.
    pub name: String,
    /// The round of the meetings of this name.
    pub epoch: u64,
    /// Namespaces of the jobs of other launches that take part.
    pub others: Vec<String>,
    /// The nodes of this launch that take part.
    pub nodes: Vec<NodeIndex>,
    /// Jobs of this launch that take part; one of its nodes tells of them.
    pub jobs: Vec<Introduced>,
    /// Contribution of its ranks.
    pub segments: Vec<Bytes>,
    /// The length of the call as it came, in bytes.
    pub length: usize,
}

/// A job that the others of a meeting get to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduced {
    /// Name of the job.
    pub namespace: String,
    /// Everything about it, as it came.
    pub encoded: Bytes,
}

/// A meeting that takes place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    /// Number of the meeting, which no other one of the user has.
    pub number: u64,
    /// The jobs of all who take part.
    pub jobs: Vec<Introduced>,
    /// Segments that all nodes brought, in the order of launches' ids and nodes.
    pub segments: Vec<Bytes>,
}

/// End of a meeting.
pub type Answer = Result<Met, MeetError>;

/// A node that comes to a meeting.
#[derive(Clone, Copy, Debug)]
pub struct Participant<'a> {
    /// The user of its launch.
    pub uid: u32,
    /// Its launch.
    pub launch: &'a str,
    /// Its index in the launch.
    pub node: u32,
}

impl Default for Rendezvous {
    fn default() -> Self {
        // No number of a server that ran before is given out again: ranks that have one may live on.
        let now = unix_time::seconds();
        Self { state: Mutex::new(State { meetings: HashMap::new(), last: 1 << 63 | now << 20 }) }
    }
}

impl Rendezvous {
    /// A node comes to a meeting of its launch with `others`. The receiver hears how it ends.
    ///
    /// # Errors
    /// Refuses a node that does not take part, and one that waits in the meeting already.
    pub fn arrive(
        &self,
        participant: Participant<'_>,
        others: &BTreeSet<String>,
        call: Call,
    ) -> Result<oneshot::Receiver<Answer>, MeetError> {
        let Participant { uid, launch, node } = participant;
        if !call.nodes.contains(&NodeIndex(node)) {
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

    /// A launch has ended: nobody meets it any more.
    pub fn withdraw(&self, launch: &str) {
        let ended = |key: &Key, _: &mut Meeting| key.launches.contains(launch);
        let ended_meetings: Vec<Meeting> =
            self.state.lock().meetings.extract_if(ended).map(|(_, meeting)| meeting).collect();
        ended_meetings.into_iter().for_each(|meeting| meeting.close(0, Some(MeetError::NotFound)));
    }
}

/// Meetings of one user that wait for somebody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    meetings: usize,
    /// The bytes that were brought to them.
    bytes: usize,
}

impl State {
    /// The meetings of a user that wait.
    fn held(&self, uid: u32) -> Held {
        let of_user = self.meetings.iter().filter(|(key, _)| key.uid == uid);
        of_user.fold(Held::default(), |held, (_, meeting)| Held {
            meetings: held.meetings + 1,
            bytes: held.bytes + meeting.bytes,
        })
    }
}

impl Meeting {
    /// Takes a node in, where its user holds so much already without it. Returns why the meeting ends without taking place, if it
    /// does.
    ///
    /// # Errors
    /// Refuses a node that waits here already.
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

    /// Answers all who are here.
    fn close(self, number: u64, refusal: Option<MeetError>) {
        let arrivals: Vec<Arrival> =
            self.launches.into_values().flat_map(|participants| participants.here.into_values()).collect();
        let calls = || arrivals.iter().map(|arrival| &arrival.call);
        let introduced: BTreeSet<&str> =
            calls().flat_map(|call| &call.jobs).map(|job| job.namespace.as_str()).collect();
        let all_known = calls().flat_map(|call| &call.others).all(|other| introduced.contains(other.as_str()));
        let answer = match refusal {
            Some(error) => Err(error),
            // It was named as a job of its launch, and its launch knows none like that.
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

/// The launch to which a namespace belongs.
pub fn launch_of(namespace: &str) -> Option<&str> {
    namespace.strip_prefix("kvs_")?.split_once('_').map(|(launch, _)| launch)
}
