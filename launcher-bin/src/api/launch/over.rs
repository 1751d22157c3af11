//! The end of a launch: how it ended is made durable, told to the client, and kept for a while for one that comes late.

use std::time::Duration;

use lattice_agent::wire;
use pmi_transport::proto::v1::{
    Cause, LaunchCompleteNotification, LaunchSpec, LaunchState, LaunchSummary, NotStarted, attach_response, cause::Kind,
};
use tokio::time::Instant;

use super::fan_out;
use super::task::{Launch, Phase};
use crate::api::store::{self, Change};

/// How long a launch that is over waits for its owner to fetch the rest, or without one is kept for all who want to see it.
const LINGER: Duration = Duration::from_secs(600);

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
        let complete = self.complete();
        let failed = !complete.success;
        let summary = LaunchSummary {
            state: if failed { LaunchState::LaunchFailed } else { LaunchState::Succeeded }.into(),
            cause: complete.error_message.clone(),
            ranks: self.judge.size(),
            ..self.summary_now()
        };
        *self.summary.lock() = summary.clone();
        self.record.summary = Some(summary);
        self.record.spec = Some(told_to_users(&self.spec));
        self.record.complete = Some(complete.clone());
        self.record.course = None;
        tracing::info!(success = complete.success, cause = complete.error_message, "the launch is over");
        if let Err(error) = store::write(&self.server.store, vec![Change::Launch(Box::new(self.record.clone()))]).await
        {
            tracing::error!(error = crate::chain(&error), "the end of the launch is not written down");
        }
        self.phase = Phase::Over { until: Instant::now() + LINGER };
        self.nodes.iter().for_each(|link| link.outbox.close());
        self.gone.lock().fill(true);
        let node_lost = matches!(&complete.cause, Some(Cause { kind: Some(Kind::NodeLost(_)), .. }));
        let reason = format!("launch {}: {}", self.spec.launch_id, complete.error_message);
        self.journal.push_own(attach_response::What::Complete(complete));
        self.server.launch_over(&self.spec, failed.then_some(reason), node_lost);
    }

    fn complete(&self) -> LaunchCompleteNotification {
        let cause = self.judge.cause().cloned();
        LaunchCompleteNotification {
            launch_id: self.spec.launch_id.clone(),
            allocation_id: self.spec.allocation_id.clone(),
            success: cause.is_none(),
            ranks: self.judge.exits(),
            error_message: cause.as_ref().map(words).unwrap_or_default(),
            cause,
            duration_us: self.begun.elapsed().as_micros() as u64,
        }
    }

    /// The launch in short, as it is now.
    pub(super) fn summary_now(&self) -> LaunchSummary {
        now(self.summary.lock().clone(), self.begun)
    }

    /// Whether nobody needs this task any more.
    pub(super) fn is_forgotten(&self) -> bool {
        match self.phase {
            Phase::Over { until } => Instant::now() >= until || !self.audience.is_detached() && self.tape.is_told(),
            Phase::Starting(_) | Phase::Active { .. } => false,
        }
    }
}

/// A summary of a launch that was begun then: one that is not over has run until now.
pub(super) fn now(summary: LaunchSummary, begun: Instant) -> LaunchSummary {
    match summary.state() {
        LaunchState::Succeeded | LaunchState::LaunchFailed => summary,
        _ => LaunchSummary { duration_us: begun.elapsed().as_micros() as u64, ..summary },
    }
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
