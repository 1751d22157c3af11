//! Collectives with ranks of other launches: the host combines the contributions of all nodes of all launches.
//!
//! ```text
//! last rank here arrives ──Call::Meet──> host ──Answer::Met──> the other jobs are added, their data is available, all ranks continue
//!                                         └─────an error─────> all ranks receive the error, and the launch continues
//! ```
//! A met job stays in the server, so that ranks can query its ranks and meet them again. For the server, none of its ranks is on a node
//! of this launch: all data about them comes from a meeting.

use pmi_core::fence::{FenceId, Merged, Scope};
use pmi_core::job::Job;
use pmi_core::segment::Segment;
use pmi_core::services::{MeetError, Meeting, Met, MetJob};

use super::launch::Launch;
use super::members::Members;
use super::open_questions::AnswerReceiver;
use super::segments::context_segment;
use crate::namespace::{JobIndex, JobState, Namespace, Seat};
use crate::services::{Answer, Call};
use crate::wire::status;

/// Maximum number of jobs of other launches in a server.
const MET_MAX: usize = 16 * 1024;

/// Joins a meeting of these members with the contributions of this node's ranks; `seat` is one of them.
pub(super) fn meet(launch: &mut Launch, id: FenceId, members: &Members, seat: Seat, segments: Vec<Segment>) {
    let Scope::Foreign { name, nodes } = &id.scope else { return };
    let here = launch.jobs.first().map(|job| job.namespace.node);
    // One node sends the jobs for all nodes.
    let sends = nodes.first().copied() == here;
    let ours = members.ours.keys().filter(|_| sends);
    let meeting = Meeting {
        name: name.to_string(),
        epoch: id.epoch,
        others: members.others.keys().cloned().collect(),
        nodes: nodes.to_vec(),
        jobs: ours.map(|&job: &JobIndex| introduction(&launch.jobs[job].namespace)).collect(),
        segments,
    };
    let rank = launch.jobs.rank(seat).rank;
    launch.call(seat.job, rank, Call::Meet(meeting), AnswerReceiver::Meeting(id));
}

/// Returns the description of a job of this launch for other launches.
fn introduction(namespace: &Namespace) -> MetJob {
    // Other launches do not need its initial pairs.
    let job = Job { preput: Vec::new(), ..namespace.job.clone() };
    MetJob { namespace: namespace.name.clone(), job, hosts: namespace.hosts.clone() }
}

/// Returns the data of a meeting from the host's answer, and adds the jobs of other launches.
///
/// # Errors
/// Fails with the status for the ranks if the meeting has failed.
pub(super) fn data_of_meeting(launch: &mut Launch, answer: &Answer) -> Result<Merged, i32> {
    match answer {
        Answer::Met(Ok(met)) if add_strangers(launch, met) => {
            let mut segments = vec![context_segment(met.number)];
            segments.extend(met.segments.iter().cloned());
            Ok(segments.into())
        }
        Answer::Met(Ok(_)) => Err(status::OUT_OF_RESOURCE),
        Answer::Met(Err(error)) => {
            tracing::warn!("ranks of several launches do not meet: {error}");
            Err(meet_status(error))
        }
        // A host sends no other answer to this call.
        _ => Err(status::COMM_FAILURE),
    }
}

/// Adds the jobs of other launches; returns false if there are too many.
fn add_strangers(launch: &mut Launch, met: &Met) -> bool {
    let known = launch.jobs.iter().filter(|job| job.is_met()).count();
    let strangers = met.jobs.iter().filter(|job| launch.jobs.named(job.namespace.as_bytes()).is_none());
    let strangers: Vec<JobState> = strangers.map(JobState::met).collect();
    let has_room = known + strangers.len() <= MET_MAX;
    if has_room {
        for stranger in strangers {
            launch.jobs.add(stranger);
        }
    }
    has_room
}

fn meet_status(error: &MeetError) -> i32 {
    match error {
        MeetError::NotFound => status::NOT_FOUND,
        MeetError::TooMuch { .. } => status::OUT_OF_RESOURCE,
        _ => status::COMM_FAILURE,
    }
}
