//! The server's part in meetings of launches: whom a launch may meet, and that nobody waits for one that has ended.

use std::collections::BTreeSet;

use lattice_session::rendezvous::{Answer, Call, Participant, launch_of};
use pmi_core::services::MeetError;

use super::Server;

impl Server {
    /// A node of a launch comes to a meeting with others of the same user, and hears how it ends: with the last one who comes, or
    /// with the first of the launches that ends.
    ///
    /// # Errors
    /// The meeting's own.
    pub(crate) async fn meet(&self, participant: Participant<'_>, call: Call) -> Answer {
        let own = |job: &str| launch_of(job) == Some(participant.launch);
        if !call.jobs.iter().all(|job| own(&job.namespace)) {
            return Err(MeetError::Unavailable { reason: "a launch tells of jobs that are not its own".to_owned() });
        }
        let launches = call.others.iter().map(|namespace| launch_of(namespace).map(str::to_owned));
        let others: BTreeSet<String> = launches.collect::<Option<_>>().ok_or(MeetError::NotFound)?;
        let can_all_be_met = || others.iter().all(|launch| self.can_be_met(launch, participant.uid));
        if others.is_empty() || others.contains(participant.launch) || !can_all_be_met() {
            return Err(MeetError::NotFound);
        }
        let answer = self.rendezvous.arrive(participant, &others, call)?;
        // While it came in, one of them may have ended.
        for launch in others.iter().filter(|launch| !self.can_be_met(launch, participant.uid)) {
            self.rendezvous.withdraw(launch);
        }
        let gone = MeetError::Unavailable { reason: "the API server is ending".to_owned() };
        answer.await.unwrap_or(Err(gone))
    }

    /// Returns true if a launch is one of this user's, and not over.
    fn can_be_met(&self, launch: &str, uid: u32) -> bool {
        let Some(summary) = self.find(launch).map(|handle| handle.summary()) else { return false };
        summary.uid == uid && !summary.is_over()
    }
}
