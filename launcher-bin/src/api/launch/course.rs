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
use crate::api::store::{self, Change, Course};

/// How long news waits for more.
const SETTLE: Duration = Duration::from_millis(200);

/// What is known and not durable.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    since: Option<Instant>,
    /// Nodes whose part is over: their streams end when that is durable.
    farewells: Vec<u32>,
}

impl Unwritten {
    /// Something changed that must be written down.
    pub(super) fn note(&mut self) {
        self.since.get_or_insert_with(Instant::now);
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
}

impl Launch {
    /// Writes down what has waited for long enough. It goes on waiting if that is not possible.
    pub(super) async fn write_course_in_time(&mut self, now: Instant) {
        let due = self.unwritten.since.is_some_and(|since| now.duration_since(since) >= SETTLE);
        if due && matches!(self.phase, Phase::Active { .. }) {
            self.write_course().await;
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
        let change = Change::Launch(Box::new(self.record.clone()));
        if let Err(error) = store::write(&self.server.store, vec![change]).await {
            tracing::error!(error = crate::chain(&error), "how far the launch has come is not written down");
            return false;
        }
        self.unwritten.since = None;
        for node in std::mem::take(&mut self.unwritten.farewells) {
            self.nodes[node as usize].outbox.close();
        }
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
