//! What must outlive the server while a launch runs, and when it is written down.
//!
//! ```text
//! news ──> judge, at once ──> store, a little later with all that came meanwhile ──> the streams of nodes whose part is over end
//! ```
//! An agent keeps its report until the stream ends, so what was not written yet is told again to the next server. A launch whose
//! nodes end together is written down once, as a whole, when it is over.

use std::time::Duration;

use tokio::time::Instant;

use super::judge::Standing;
use super::task::{Launch, Phase};
use crate::store::{self, Change, Course, StoreError};

/// How long news waits for more.
const SETTLE: Duration = Duration::from_millis(200);
/// How long what could not be written waits for the next attempt: first, and at most, each time twice as long.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What is known and not durable.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    /// When it is to be written.
    due: Option<Instant>,
    /// How long it waits for the next attempt; `None` unless the last one failed.
    retry: Option<Duration>,
    /// Nodes whose part is over: their streams end when that is durable.
    farewells: Vec<u32>,
}

impl Unwritten {
    /// Something changed that must be written down.
    pub(super) fn note(&mut self) {
        self.due.get_or_insert_with(|| Instant::now() + SETTLE);
    }

    /// A node's part is over.
    pub(super) fn note_over(&mut self, node: u32) {
        self.note();
        self.farewells.push(node);
    }

    /// Whether the node's stream must stay open.
    pub(super) fn holds(&self, node: u32) -> bool {
        self.farewells.contains(&node)
    }

    /// Whether all that is known is durable.
    pub(super) fn is_nothing(&self) -> bool {
        self.due.is_none()
    }

    /// An attempt to write has failed. Only the first of several is worth an operator's while.
    fn failed(&mut self, error: &StoreError) {
        if self.retry.is_none() {
            tracing::error!(
                error = pmi_transport::error_chain::chain(error),
                "what is known of the launch is not written down; it is tried again"
            );
        }
        let retry = self.retry.map_or(RETRY_FIRST, |retry| RETRY_MAX.min(2 * retry));
        (self.retry, self.due) = (Some(retry), Some(Instant::now() + retry));
    }

    /// All is durable. Returns the nodes whose streams may end.
    fn written(&mut self) -> Vec<u32> {
        if self.retry.is_some() {
            tracing::info!("what is known of the launch is written down again");
        }
        std::mem::take(self).farewells
    }
}

impl Launch {
    /// Writes down what has waited for long enough. It goes on waiting if that is not possible.
    pub(super) async fn write_in_time(&mut self, now: Instant) {
        if self.unwritten.due.is_none_or(|due| now < due) {
            return;
        }
        match self.phase {
            Phase::Starting(_) => {}
            Phase::Active { .. } => drop(self.write_course().await),
            Phase::Over { .. } => drop(self.write_record().await),
        }
    }

    /// Writes down how far the launch has come; returns whether that was possible.
    pub(super) async fn write_course(&mut self) -> bool {
        self.record.course = Some(Course {
            over: self.judge.at(Standing::Over),
            lost: self.judge.at(Standing::Lost),
            exits: self.judge.exits(),
            cause: self.judge.cause().cloned(),
            spawned: self.spawns.known().to_vec(),
        });
        self.record.summary = Some(self.summary_now());
        self.write_record().await
    }

    /// Writes down the record as it is, and lets nodes go that waited for that. It is tried again if it is not possible now.
    pub(super) async fn write_record(&mut self) -> bool {
        let change = Change::Launch(Box::new(self.record.clone()));
        if let Err(error) = store::write(&self.server.store, vec![change]).await {
            self.unwritten.failed(&error);
            return false;
        }
        let farewells = self.unwritten.written();
        let go = match self.phase {
            Phase::Over { .. } => (0..self.nodes.len() as u32).collect(),
            Phase::Starting(_) | Phase::Active { .. } => farewells,
        };
        go.into_iter().for_each(|node| self.nodes[node as usize].outbox.close());
        true
    }

    /// Takes over what another server had written down.
    pub(super) fn resume_course(&mut self, course: &Course) {
        self.resume_spawns(&course.spawned);
        self.judge.resume(course);
        self.ending = course.cause.is_some().then(Instant::now);
        let ended = [Standing::Over, Standing::Lost].map(|standing| self.judge.at(standing)).concat();
        for node in ended {
            self.nodes[node as usize].outbox.close();
            self.on_gone(node);
        }
        self.note_state();
    }
}
