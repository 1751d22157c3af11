//! Rendezvous of launches of one user (MPI's connect and accept): what each of their nodes brings waits here until all have come, and
//! goes to all.
//!
//! ```text
//!  arrive ──> Meeting (one for each user, name, round and set of launches) ──everybody is here──> all are answered
//!                    └──one of its launches ends, or too much is brought──> all are told so
//! ```
//! The nodes of a launch that take part are those that the first of them names; the others must name the same.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lattice_session::{unix_time, wire};
use parking_lot::Mutex;
use pmi_core::services::MeetError;
use pmi_transport::limits::MESSAGE_MAX;
use pmi_transport::proto::v1::{MeetAnswer, MeetCall, meet_answer::Outcome};
use prost::Message;
use tokio::sync::oneshot;

/// The most bytes that all nodes together bring to a meeting: what all bring goes to each in one message.
const BYTES_MAX: usize = MESSAGE_MAX - (4 << 10);
/// The most bytes that wait for one user.
const BYTES_OF_USER_MAX: usize = 16 * BYTES_MAX;
/// The most meetings of one user that wait for somebody.
const MEETINGS_OF_USER_MAX: usize = 1024;

/// All meetings that somebody waits in.
#[derive(Debug)]
pub(crate) struct Rendezvous {
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
    /// Nodes that take part, as gaps.
    node_gaps: Vec<u32>,
    /// Number of these nodes.
    nodes: usize,
    /// By node.
    here: BTreeMap<u32, Arrival>,
}

/// A node that has come.
#[derive(Debug)]
struct Arrival {
    call: MeetCall,
    reply: oneshot::Sender<Answer>,
}

pub(crate) type Answer = Result<MeetAnswer, MeetError>;

/// A node that comes to a meeting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Participant<'a> {
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
    pub(crate) fn arrive(
        &self,
        participant: Participant<'_>,
        others: &BTreeSet<String>,
        call: MeetCall,
    ) -> Result<oneshot::Receiver<Answer>, MeetError> {
        let Participant { uid, launch, node } = participant;
        let nodes = wire::fence::decode_nodes(&call.node_gaps);
        let nodes = nodes.map_err(|error| MeetError::Unavailable { reason: error.to_string() })?;
        if !nodes.iter().any(|known| known.0 == node) {
            let reason = format!("node {node} comes to a meeting of {} other nodes", nodes.len());
            return Err(MeetError::Unavailable { reason });
        }
        let launches = others.iter().cloned().chain([launch.to_owned()]).collect();
        let key = Key { uid, launches, name: call.name.clone(), epoch: call.epoch };
        let (reply, answer) = oneshot::channel();
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        let (meetings_of_user, bytes_of_user) = state.held(uid);
        let meeting = state.meetings.entry(key.clone()).or_default();
        let is_new = meeting.launches.is_empty();
        let bytes = call.encoded_len();
        let participants = meeting.launches.entry(launch.to_owned()).or_insert_with(|| Participants {
            node_gaps: call.node_gaps.clone(),
            nodes: nodes.len(),
            here: BTreeMap::new(),
        });
        if participants.here.contains_key(&node) {
            let reason = format!("node {node} of launch {launch} waits in this meeting already");
            return Err(MeetError::Unavailable { reason });
        }
        let agreed = participants.node_gaps == call.node_gaps;
        meeting.bytes += bytes;
        participants.here.insert(node, Arrival { call, reply });
        let refusal = if !agreed {
            Some(MeetError::Unavailable {
                reason: "the nodes of a launch differ about who of them takes part".to_owned(),
            })
        } else if meeting.bytes > BYTES_MAX {
            let reason = format!("{} bytes were brought to one meeting; the limit is {BYTES_MAX}", meeting.bytes);
            Some(MeetError::TooMuch { reason })
        } else if bytes_of_user + bytes > BYTES_OF_USER_MAX {
            let brought = bytes_of_user + bytes;
            let reason =
                format!("{brought} bytes wait in all meetings of user {uid}; the limit is {BYTES_OF_USER_MAX}");
            Some(MeetError::TooMuch { reason })
        } else if is_new && meetings_of_user >= MEETINGS_OF_USER_MAX {
            let reason =
                format!("user {uid} has {meetings_of_user} meetings that wait; the limit is {MEETINGS_OF_USER_MAX}");
            Some(MeetError::TooMuch { reason })
        } else {
            None
        };
        if (refusal.is_some() || meeting.is_complete(&key.launches))
            && let Some(meeting) = state.meetings.remove(&key)
        {
            meeting.close(number, refusal);
        }
        Ok(answer)
    }

    /// A launch has ended: nobody meets it any more.
    pub(crate) fn withdraw(&self, launch: &str) {
        let ended = |key: &Key, _: &mut Meeting| key.launches.contains(launch);
        let ended_meetings: Vec<Meeting> =
            self.state.lock().meetings.extract_if(ended).map(|(_, meeting)| meeting).collect();
        ended_meetings.into_iter().for_each(|meeting| meeting.close(0, Some(MeetError::NotFound)));
    }
}

impl State {
    /// Number of meetings of a user that wait, and of bytes that were brought to them.
    fn held(&self, uid: u32) -> (usize, usize) {
        let meetings = self.meetings.iter().filter(|(key, _)| key.uid == uid);
        meetings.fold((0, 0), |(count, bytes), (_, meeting)| (count + 1, bytes + meeting.bytes))
    }
}

impl Meeting {
    fn is_complete(&self, launches: &BTreeSet<String>) -> bool {
        self.launches.len() == launches.len()
            && self.launches.values().all(|participants| participants.here.len() == participants.nodes)
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
            None => Ok(MeetAnswer {
                outcome: Outcome::Met.into(),
                number,
                jobs: calls().flat_map(|call| &call.jobs).cloned().collect(),
                segments: calls().flat_map(|call| &call.segments).cloned().collect(),
                message: String::new(),
            }),
        };
        for arrival in arrivals {
            // Its launch may be ending.
            let _ = arrival.reply.send(answer.clone());
        }
    }
}

/// The launch to which a namespace belongs.
pub(crate) fn launch_of(namespace: &str) -> Option<&str> {
    namespace.strip_prefix("kvs_")?.split_once('_').map(|(launch, _)| launch)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pmi_transport::proto::v1::MetJob;

    use super::*;

    const UID: u32 = 7;

    fn job(launch: &str) -> String {
        format!("kvs_{launch}_0.secret")
    }

    /// Node `node` of 2 of `launch` comes to meet `other`, with so many bytes.
    fn come(rendezvous: &Rendezvous, launch: &str, node: u32, other: &str, bytes: usize) -> oneshot::Receiver<Answer> {
        let introduced = MetJob { namespace: job(launch), ..Default::default() };
        let call = MeetCall {
            name: "connect".to_owned(),
            others: vec![job(other)],
            node_gaps: vec![0, 1],
            jobs: if node == 0 { vec![introduced] } else { Vec::new() },
            segments: vec![Bytes::from(vec![node as u8; bytes])],
            ..Default::default()
        };
        let others = [other.to_owned()].into();
        rendezvous.arrive(Participant { uid: UID, launch, node }, &others, call).unwrap()
    }

    fn is_idle(rendezvous: &Rendezvous) -> bool {
        rendezvous.state.lock().meetings.is_empty()
    }

    #[test]
    fn all_get_the_same_when_the_last_one_has_come() {
        let rendezvous = Rendezvous::default();
        let mut answers = vec![
            come(&rendezvous, "b", 0, "a", 3),
            come(&rendezvous, "a", 1, "b", 2),
            come(&rendezvous, "b", 1, "a", 4),
        ];
        assert!(answers.iter_mut().all(|answer| answer.try_recv().is_err()));
        answers.push(come(&rendezvous, "a", 0, "b", 1));
        let answers: Vec<MeetAnswer> = answers.iter_mut().map(|answer| answer.try_recv().unwrap().unwrap()).collect();
        assert!(answers.iter().all(|answer| *answer == answers[0]));
        let lengths: Vec<usize> = answers[0].segments.iter().map(Bytes::len).collect();
        assert_eq!((lengths, answers[0].jobs.len()), (vec![1, 2, 3, 4], 2));
        assert!(answers[0].number >= 1 << 63 && is_idle(&rendezvous));
    }

    #[test]
    fn the_end_of_a_launch_ends_its_meetings_only() {
        let rendezvous = Rendezvous::default();
        let (mut with_b, mut with_c) = (come(&rendezvous, "a", 0, "b", 1), come(&rendezvous, "a", 0, "c", 1));
        rendezvous.withdraw("b");
        assert_eq!(with_b.try_recv(), Ok(Err(MeetError::NotFound)));
        assert!(with_c.try_recv().is_err());
        rendezvous.withdraw("a");
        assert_eq!(with_c.try_recv(), Ok(Err(MeetError::NotFound)));
        assert!(is_idle(&rendezvous));
    }

    #[test]
    fn what_is_brought_is_bounded() {
        let rendezvous = Rendezvous::default();
        let mut answers =
            [come(&rendezvous, "a", 0, "b", BYTES_MAX / 2), come(&rendezvous, "b", 0, "a", BYTES_MAX / 2)];
        for answer in &mut answers {
            assert!(matches!(answer.try_recv(), Ok(Err(MeetError::TooMuch { .. }))));
        }
        assert!(is_idle(&rendezvous));
        for launch in 0..MEETINGS_OF_USER_MAX {
            assert!(come(&rendezvous, "a", 0, &launch.to_string(), 1).try_recv().is_err());
        }
        assert!(matches!(come(&rendezvous, "a", 0, "b", 1).try_recv(), Ok(Err(MeetError::TooMuch { .. }))));
        assert_eq!(rendezvous.state.lock().held(UID).0, MEETINGS_OF_USER_MAX);
    }

    #[test]
    fn a_refusal_names_the_limit_that_was_reached() {
        let refused = |mut answer: oneshot::Receiver<Answer>| match answer.try_recv() {
            Ok(Err(MeetError::TooMuch { reason })) => reason,
            other => panic!("{other:?}"),
        };
        let rendezvous = Rendezvous::default();
        let brought = BYTES_MAX - 1000;
        let mut waiting = Vec::new();
        let fitting = BYTES_OF_USER_MAX / brought;
        for other in 0..fitting {
            waiting.push(come(&rendezvous, "a", 0, &other.to_string(), brought));
        }
        assert!(waiting.iter_mut().all(|answer| answer.try_recv().is_err()));
        let reason = refused(come(&rendezvous, "a", 0, "late", brought));
        assert!(reason.ends_with(&format!("of user {UID}; the limit is {BYTES_OF_USER_MAX}")), "{reason}");
        let reason = refused(come(&Rendezvous::default(), "a", 0, "b", BYTES_MAX));
        assert!(reason.ends_with(&format!("to one meeting; the limit is {BYTES_MAX}")), "{reason}");
    }

    #[test]
    fn a_node_that_comes_twice_is_refused_and_its_first_call_goes_on_waiting() {
        let rendezvous = Rendezvous::default();
        let mut first = come(&rendezvous, "a", 0, "b", 1);
        let introduced = MetJob { namespace: job("a"), ..Default::default() };
        let call = MeetCall {
            name: "connect".to_owned(),
            others: vec![job("b")],
            node_gaps: vec![0, 1],
            jobs: vec![introduced],
            ..Default::default()
        };
        let again = rendezvous.arrive(Participant { uid: UID, launch: "a", node: 0 }, &["b".to_owned()].into(), call);
        let refusal = again.unwrap_err().to_string();
        assert!(refusal.contains("node 0 of launch a waits in this meeting already"), "{refusal}");
        assert_eq!(first.try_recv(), Err(oneshot::error::TryRecvError::Empty), "it was not dropped");
        let _others =
            [come(&rendezvous, "a", 1, "b", 1), come(&rendezvous, "b", 0, "a", 1), come(&rendezvous, "b", 1, "a", 1)];
        assert!(first.try_recv().unwrap().is_ok());
    }

    #[test]
    fn a_job_that_nobody_has_is_not_met() {
        let rendezvous = Rendezvous::default();
        let call = |namespace: String, others: &str| MeetCall {
            others: vec![format!("kvs_{others}_0.s9.guessed")],
            node_gaps: vec![0],
            jobs: vec![MetJob { namespace, ..Default::default() }],
            ..Default::default()
        };
        let come = |launch, other: &str| {
            let participant = Participant { uid: UID, launch, node: 0 };
            rendezvous.arrive(participant, &[other.to_owned()].into(), call(job(launch), other)).unwrap()
        };
        let mut answers = [come("a", "b"), come("b", "a")];
        assert!(answers.iter_mut().all(|answer| answer.try_recv() == Ok(Err(MeetError::NotFound))));
        assert_eq!(launch_of("kvs_abc_0.s2.secret"), Some("abc"));
        assert_eq!([launch_of("kvs_abc"), launch_of("abc_0")], [None, None]);
    }
}
