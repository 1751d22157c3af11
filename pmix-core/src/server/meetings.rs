//! Collectives with ranks of other launches: the host combines the contributions of all nodes of all launches.
//!
//! ```text
//! last rank here arrives ──Call::Meet──> host ──Answer::Met──> the other jobs are added, their data is available, all ranks continue
//!                                         └─────an error─────> all ranks receive the error, and the launch continues
//! ```
//! A met job stays in the server, so that ranks can query its ranks and meet them again. For the server, none of its ranks is on a node
//! of this launch: all data about them comes from a meeting.

use pmi_core::fence::{FenceId, Scope};
use pmi_core::job::Job;
use pmi_core::segment::Segment;
use pmi_core::services::{MeetError, Meeting, Met, MetJob};

use super::collectives::{Waiter, context_segment};
use super::open_questions::AnswerReceiver;
use super::{Action, Server};
use crate::namespace::{JobIndex, JobState};
use crate::services::{Answer, Call};
use crate::wire::status;

/// Maximum number of jobs of other launches in a server.
const MET_MAX: usize = 16 * 1024;

impl Server {
    /// Joins a meeting with the contributions of this node's ranks; `first` is one of them.
    pub(super) fn meet(&mut self, id: FenceId, first: &Waiter, segments: Vec<Segment>) {
        let Scope::Foreign { name, nodes } = &id.scope else { return };
        let here = self.jobs.first().map(|job| job.namespace.node);
        // One node sends the jobs for all nodes.
        let tells = nodes.first().copied() == here;
        let ours = first.members.ours.keys().filter(|_| tells);
        let meeting = Meeting {
            name: name.to_string(),
            epoch: id.epoch,
            others: first.members.others.keys().cloned().collect(),
            nodes: nodes.to_vec(),
            jobs: ours.map(|&job| self.introduction(job)).collect(),
            segments,
        };
        let seat = first.address.identity.seat;
        let rank = self.rank(seat).rank;
        let ticket = self.new_ticket();
        self.asked.insert(ticket, AnswerReceiver::Meeting(id));
        self.actions.push_back(Action::Call { ticket, job: seat.job, rank, call: Call::Meet(meeting) });
    }

    /// Returns the description of a job of this launch for other launches.
    fn introduction(&self, job: JobIndex) -> MetJob {
        let namespace = &self.jobs[job].namespace;
        // Other launches do not need its initial pairs.
        let job = Job { preput: Vec::new(), ..namespace.job.clone() };
        MetJob { namespace: namespace.name.clone(), job, hosts: namespace.hosts.clone() }
    }

    /// The host has completed the meeting, or reports why it cannot.
    pub(super) fn end_meeting(&mut self, id: &FenceId, answer: &Answer) {
        if self.ended {
            return;
        }
        match answer {
            Answer::Met(Ok(met)) if self.make_acquaintance(met) => {
                let mut segments = vec![context_segment(met.number)];
                segments.extend(met.segments.iter().cloned());
                self.leave(id, &segments.into());
            }
            Answer::Met(Ok(_)) => self.refuse_meeting(id, status::OUT_OF_RESOURCE),
            Answer::Met(Err(error)) => {
                tracing::warn!("ranks of several launches do not meet: {error}");
                self.refuse_meeting(id, meet_status(error));
            }
            // A host sends no other answer to this call.
            _ => self.refuse_meeting(id, status::COMM_FAILURE),
        }
    }

    fn refuse_meeting(&mut self, id: &FenceId, code: i32) {
        self.part(id, |server, waiter| server.answer(waiter.address, code));
    }

    /// Adds the jobs of other launches; returns false if there are too many.
    fn make_acquaintance(&mut self, met: &Met) -> bool {
        let known = self.jobs.iter().filter(|job| job.is_met()).count();
        let strangers = met.jobs.iter().filter(|job| self.job_named(job.namespace.as_bytes()).is_none());
        let strangers: Vec<JobState> = strangers.map(JobState::met).collect();
        let has_room = known + strangers.len() <= MET_MAX;
        if has_room {
            for stranger in strangers {
                self.jobs.add(stranger);
            }
        }
        has_room
    }
}

fn meet_status(error: &MeetError) -> i32 {
    match error {
        MeetError::NotFound => status::NOT_FOUND,
        MeetError::TooMuch { .. } => status::OUT_OF_RESOURCE,
        _ => status::COMM_FAILURE,
    }
}
