//! Collectives with ranks of other launches: the host brings together what all nodes of all launches bring.
//!
//! ```text
//! last rank here arrives ──Call::Meet──> host ──Answer::Met──> the others' jobs are known, their data can be got, all ranks go on
//!                                         └─────an error─────> all ranks are told, and the launch lives on
//! ```
//! A job that was met stays known, so that its ranks can be asked about and met again. None of its ranks is on a node of this
//! launch as far as the server is concerned: whatever is known of them came from a meeting.

use pmi_core::fence::{FenceId, Scope};
use pmi_core::job::Job;
use pmi_core::segment::Segment;
use pmi_core::services::{MeetError, Meeting, Met, MetJob};

use super::collectives::{Waiter, context_segment};
use super::host::Asked;
use super::{Action, Server};
use crate::namespace::{JobIndex, JobState};
use crate::services::{Answer, Call};
use crate::wire::status;

/// The most jobs of other launches that a server knows.
const MET_MAX: usize = 16 * 1024;

impl Server {
    /// Comes to a meeting with what this node's ranks bring; `first` is one of them.
    pub(super) fn meet(&mut self, id: FenceId, first: &Waiter, segments: Vec<Segment>) {
        let Scope::Foreign { name, nodes } = &id.scope else { return };
        let here = self.jobs.first().map(|job| job.namespace.node);
        // One node tells for all.
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
        self.asked.insert(ticket, Asked::Meeting(id));
        self.actions.push_back(Action::Call { ticket, job: seat.job, rank, call: Call::Meet(meeting) });
    }

    /// Returns the description of a job of this launch for others.
    fn introduction(&self, job: JobIndex) -> MetJob {
        let namespace = &self.jobs[job].namespace;
        // What it found when it started is its own affair.
        let job = Job { preput: Vec::new(), ..namespace.job.clone() };
        MetJob { namespace: namespace.name.clone(), job, hosts: namespace.hosts.clone() }
    }

    /// The host has brought all together, or says why it cannot.
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
            // The host answers what it was asked.
            _ => self.refuse_meeting(id, status::COMM_FAILURE),
        }
    }

    fn refuse_meeting(&mut self, id: &FenceId, code: i32) {
        self.part(id, |server, waiter| server.answer(waiter.address, code));
    }

    /// Learns of the jobs of other launches; false if that would be too many.
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
