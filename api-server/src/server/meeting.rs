//! The server's part in meetings of launches. It decides which launches a launch may meet, and ends the wait for launches that have ended.

use std::collections::BTreeSet;

use lattice_session::rendezvous::{Answer, Call, Participant, launch_of};
use pmi_core::services::MeetError;

use super::Server;

impl Server {
    /// Adds a node of a launch to a meeting with other launches of the same user. Returns the result when the last participant arrives, or
    /// when one of the launches ends.
    ///
    /// # Errors
    /// Returns the error of the meeting.
    pub(crate) async fn meet(&self, participant: Participant<'_>, call: Call) -> Answer {
        let own = |job: &str| launch_of(job) == Some(participant.launch);
        if !call.jobs.iter().all(|job| own(&job.namespace)) {
            return Err(MeetError::Unavailable { reason: "a launch reports jobs that are not its own".to_owned() });
        }
        let launches = call.others.iter().map(|namespace| launch_of(namespace).map(str::to_owned));
        let others: BTreeSet<String> = launches.collect::<Option<_>>().ok_or(MeetError::NotFound)?;
        let can_all_be_met = || others.iter().all(|launch| self.can_be_met(launch, participant.uid));
        if others.is_empty() || others.contains(participant.launch) || !can_all_be_met() {
            return Err(MeetError::NotFound);
        }
        let answer = self.rendezvous.arrive(participant, &others, call)?;
        // One of the launches may have ended during the arrival.
        for launch in others.iter().filter(|launch| !self.can_be_met(launch, participant.uid)) {
            self.rendezvous.withdraw(launch);
        }
        let gone = MeetError::Unavailable { reason: "the API server is ending".to_owned() };
        answer.await.unwrap_or(Err(gone))
    }

    /// Returns true if a launch belongs to this user and is not over.
    fn can_be_met(&self, launch: &str, uid: u32) -> bool {
        let Some(summary) = self.find(launch).map(|handle| handle.summary()) else { return false };
        summary.uid == uid && !summary.is_over()
    }
}
