//! The end of a launch: how it ended is told to the client, made durable, and kept for a while for a client that comes late.

use lattice_session::timeouts;
use lattice_session::wire;
use pmi_transport::proto::v1::{
    Cause, LaunchCompleteNotification, LaunchSpec, LaunchState, LaunchSummary, NotStarted, attach_response, cause::Kind,
};
use tokio::time::Instant;

use super::task::{Launch, Phase};
use super::{Part, fan_out};

impl Launch {
    /// The launch ends before it began.
    pub(super) async fn refuse(&mut self, error: &fan_out::NotStarted) {
        let (host, reason) = error.blame();
        let kind = Kind::NotStarted(NotStarted { reason, class: Default::default() });
        self.judge.fail(Cause { host: host.to_owned(), kind: Some(kind) });
        self.finish().await;
        // Its id was told to nobody.
        self.phase = Phase::Over { until: Instant::now() };
    }

    /// Nothing more happens.
    pub(super) async fn finish(&mut self) {
        self.tell_of_silence(Instant::now(), true);
        self.settle_cause();
        let unended = self.unended_nodes();
        let complete = self.complete(&unended);
        let failed = !complete.success;
        let summary = LaunchSummary {
            state: if failed { LaunchState::LaunchFailed } else { LaunchState::Succeeded }.into(),
            cause: complete.error_message.clone(),
            ranks: self.judge.size(),
            client_stopped_at: 0,
            ..self.summary_now()
        };
        *self.summary.lock() = summary.clone();
        self.record.summary = Some(summary);
        self.record.spec = Some(told_to_users(&self.spec));
        self.record.complete = Some(complete.clone());
        self.record.course = None;
        tracing::info!(success = complete.success, cause = complete.error_message, "the launch is over");
        let node_lost = matches!(&complete.cause, Some(Cause { kind: Some(Kind::NodeLost(_)), .. }));
        let reason = format!("launch {}: {}", self.spec.launch_id, complete.error_message);
        if !unended.is_empty() {
            self.journal.push_own(attach_response::What::UnendedNodes(hostlist::fold(&unended)));
        }
        self.record.last_event = self.journal.push_own(attach_response::What::Complete(complete));
        self.tape.end();
        self.phase = Phase::Over { until: Instant::now() + timeouts::LINGER };
        // Clients read it while it is written down, and need not wait for the disk: nodes keep their reports until their streams
        // end, which they do when it is written, and would tell a server that comes after this one the same.
        self.write_record().await;
        for part in self.parts.lock().iter_mut().filter(|part| **part == Part::Expected) {
            *part = Part::Ended;
        }
        self.server.launch_over(&self.spec, failed.then_some(reason), node_lost);
    }

    /// The nodes that were given up, and have not said since that nothing is left there.
    fn unended_nodes(&self) -> Vec<String> {
        let leftovers = self.server.leftovers.lock();
        let is_left = |node: &&String| leftovers.is_left(node, &self.spec.launch_id);
        self.nodes.iter().map(|link| &link.recipient.name).filter(is_left).cloned().collect()
    }

    fn complete(&self, unended: &[String]) -> LaunchCompleteNotification {
        let cause = self.judge.cause().cloned();
        let mut error_message = cause.as_ref().map(words).unwrap_or_default();
        if !unended.is_empty() {
            let nodes = hostlist::fold(unended);
            error_message += &format!("; {nodes} did not say that its part has ended, processes may be left there");
        }
        LaunchCompleteNotification {
            launch_id: self.spec.launch_id.clone(),
            allocation_id: self.spec.allocation_id.clone(),
            success: cause.is_none(),
            ranks: self.judge.exits(),
            error_message,
            cause,
            duration_us: self.begun.elapsed().as_micros() as u64,
        }
    }

    /// The launch in short, as it is now.
    pub(super) fn summary_now(&self) -> LaunchSummary {
        now(self.summary.lock().clone(), self.begun)
    }

    /// Whether nobody needs this task any more: an owner that is slow does, for as long as it is there. One whose end is not
    /// durable is kept until it is: as long as that takes, no launch begins, so there are no more of them.
    pub(super) fn is_forgotten(&self) -> bool {
        let Phase::Over { until } = self.phase else { return false };
        if !self.unwritten.is_nothing() {
            return false;
        }
        let now = Instant::now();
        let is_told = !self.audience.is_detached() && self.tape.is_told();
        is_told || now >= until && !self.audience.expects_owner(now)
    }
}

/// Whether nothing more happens in a launch.
pub(crate) fn is_over(summary: &LaunchSummary) -> bool {
    matches!(summary.state(), LaunchState::Succeeded | LaunchState::LaunchFailed)
}

/// A summary of a launch that was begun then: one that is not over has run until now.
pub(super) fn now(summary: LaunchSummary, begun: Instant) -> LaunchSummary {
    if is_over(&summary) {
        return summary;
    }
    LaunchSummary { duration_us: begun.elapsed().as_micros() as u64, ..summary }
}

/// A cause in words.
pub(super) fn words(cause: &Cause) -> String {
    match wire::cause::decode(cause.clone()) {
        Ok(cause) => cause.to_string(),
        Err(error) => format!("{}: {error}", cause.host),
    }
}

/// A spec without what the users' own tools need not know.
pub(super) fn told_to_users(spec: &LaunchSpec) -> LaunchSpec {
    LaunchSpec { secret: Default::default(), environment: Vec::new(), ..spec.clone() }
}
