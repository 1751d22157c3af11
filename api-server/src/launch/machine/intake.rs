//! Events of one node, each of which counts once, however often it is sent: a session numbers them, and sends again what it has not
//! heard to be taken.
//!
//! ```text
//! a first stream ──────────────────────────────> Known (0) ──next number──> Known (n + 1)
//! a server that took the launch up: Unknown ──resumed──> Known (what the session says)
//! ```

use lattice_session::numbered::{Arrival, Received};

use super::facts::Origin;

/// Number of events after which a node is told that they were taken, when no command tells it.
const EVENTS_UNTOLD_MAX: u64 = 512;
/// Cost of the events after which it is told. Nodes keep what they were not told of; grants of credit tell it much sooner.
const COST_UNTOLD_MAX: u64 = 4 << 20;

/// The events that have come from one node.
#[derive(Debug)]
pub(crate) struct Intake {
    /// `None` for a launch that an earlier server has heard of.
    received: Option<Received>,
    /// Events that the node has not been told of, and what they cost.
    untold: u64,
    untold_cost: u64,
}

/// Result of a node's word on where its events go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resumption {
    /// They go on where this server said, or before.
    AsAsked,
    /// This server did not know, and takes the node's word for it.
    Anew,
    /// Some are left out.
    Gap,
}

impl Intake {
    pub(crate) fn new(origin: Origin) -> Self {
        let received = (origin == Origin::Here).then(Received::default);
        Self { received, untold: 0, untold_cost: 0 }
    }

    /// The node's first stream begins: its first event has the number 1.
    pub(crate) fn begin(&mut self) {
        self.received.get_or_insert_default();
    }

    /// The number up to which all events have come; `None` if that is not known.
    pub(crate) fn last(&self) -> Option<u64> {
        self.received.map(Received::last)
    }

    /// The node says that its events go on after this number.
    pub(crate) fn resume(&mut self, after: u64) -> Resumption {
        match self.received {
            None => {
                self.received = Some(Received::through(after));
                Resumption::Anew
            }
            Some(received) if after <= received.last() => Resumption::AsAsked,
            Some(_) => Resumption::Gap,
        }
    }

    /// Takes in the event of this number. What an agent says itself has the number 0, and is always new.
    pub(crate) fn take(&mut self, sequence: u64, cost: u64) -> Arrival {
        if sequence == 0 {
            return Arrival::New;
        }
        // Before the node has said where it goes on, it goes on with nothing.
        let Some(received) = &mut self.received else { return Arrival::Again };
        let arrival = received.take(sequence);
        if arrival == Arrival::New {
            (self.untold, self.untold_cost) = (self.untold + 1, self.untold_cost + cost);
        }
        arrival
    }

    /// The number up to which the node is to be told that its events were taken, if it is time for that.
    pub(crate) fn due(&mut self) -> Option<u64> {
        if self.untold < EVENTS_UNTOLD_MAX && self.untold_cost < COST_UNTOLD_MAX {
            return None;
        }
        self.tell()
    }

    /// The number up to which the node is told at once that its events were taken, because it waits for that.
    pub(crate) fn tell(&mut self) -> Option<u64> {
        (self.untold, self.untold_cost) = (0, 0);
        self.last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_comes_again_does_not_count_and_a_gap_is_seen() {
        let mut intake = Intake::new(Origin::Here);
        let arrivals = [1, 2, 1, 0, 2, 4, 3].map(|sequence| intake.take(sequence, 0));
        use Arrival::{Again, Gap, New};
        assert_eq!(arrivals, [New, New, Again, New, Again, Gap, New]);
        assert_eq!(
            [3, 1, 4].map(|after| intake.resume(after)),
            [Resumption::AsAsked, Resumption::AsAsked, Resumption::Gap]
        );
        assert_eq!(intake.last(), Some(3));
    }

    #[test]
    fn a_server_that_took_a_launch_up_believes_where_its_nodes_go_on() {
        let mut intake = Intake::new(Origin::Resumed);
        assert_eq!((intake.last(), intake.take(5, 0)), (None, Arrival::Again));
        assert_eq!((intake.resume(7), intake.resume(7)), (Resumption::Anew, Resumption::AsAsked));
        assert_eq!(intake.take(8, 0), Arrival::New);
        let mut first = Intake::new(Origin::Resumed);
        first.begin();
        assert_eq!(first.take(1, 0), Arrival::New, "no server before this one has heard of it");
    }

    #[test]
    fn a_node_is_told_now_and_then_what_was_taken() {
        let mut intake = Intake::new(Origin::Here);
        let told: Vec<u64> = (1..=2 * EVENTS_UNTOLD_MAX)
            .filter_map(|sequence| {
                intake.take(sequence, 0);
                intake.due()
            })
            .collect();
        assert_eq!(told, [EVENTS_UNTOLD_MAX, 2 * EVENTS_UNTOLD_MAX]);
        intake.take(2 * EVENTS_UNTOLD_MAX + 1, COST_UNTOLD_MAX);
        assert_eq!(intake.due(), Some(2 * EVENTS_UNTOLD_MAX + 1));
    }
}
