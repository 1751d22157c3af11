//! Events of one node. Each event is processed once, even if it is sent several times: a session numbers its events, and repeats events that
//! were not acknowledged.
//!
//! ```text
//! a first stream ──────────────────────────────> Known (0) ──next number──> Known (n + 1)
//! a resumed launch: Unknown ──resumed──> Known (number from the session)
//! ```

use lattice_session::numbered::{Arrival, Received};

use super::facts::Origin;

/// Number of events after which a node is sent an acknowledgement, if no command has carried one.
const EVENTS_UNTOLD_MAX: u64 = 512;
/// Total cost of events after which a node is sent an acknowledgement. Nodes keep unacknowledged events. As a rule, a command that grants credit
/// carries the acknowledgement much sooner.
const COST_UNTOLD_MAX: u64 = 4 << 20;

/// The events that were received from one node.
#[derive(Debug)]
pub(crate) struct Intake {
    /// `None` for a resumed launch, until the number of the node's last event is known.
    received: Option<Received>,
    /// Number and total cost of the unacknowledged events.
    untold: u64,
    untold_cost: u64,
}

/// Result of a node's report of the number after which its events continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resumption {
    /// The events continue at the requested number, or before it.
    AsAsked,
    /// This server did not have a number, and accepts the number of the node.
    Anew,
    /// Events are missing.
    Gap,
}

impl Intake {
    pub(crate) fn new(origin: Origin) -> Self {
        let received = (origin == Origin::Here).then(Received::default);
        Self { received, untold: 0, untold_cost: 0 }
    }

    /// The node's first stream begins: the first event has the number 1.
    pub(crate) fn begin(&mut self) {
        self.received.get_or_insert_default();
    }

    /// The number up to which all events were received; `None` if it is unknown.
    pub(crate) fn last(&self) -> Option<u64> {
        self.received.map(Received::last)
    }

    /// The node reports that its events continue after this number.
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

    /// Accepts the event with this number. Events of the agent itself have the number 0, and are always new.
    pub(crate) fn take(&mut self, sequence: u64, cost: u64) -> Arrival {
        if sequence == 0 {
            return Arrival::New;
        }
        // Events before the node's report of its number are repetitions.
        let Some(received) = &mut self.received else { return Arrival::Again };
        let arrival = received.take(sequence);
        if arrival == Arrival::New {
            (self.untold, self.untold_cost) = (self.untold + 1, self.untold_cost + cost);
        }
        arrival
    }

    /// The number up to which the node is to be sent an acknowledgement, if one is due.
    pub(crate) fn due(&mut self) -> Option<u64> {
        if self.untold < EVENTS_UNTOLD_MAX && self.untold_cost < COST_UNTOLD_MAX {
            return None;
        }
        self.tell()
    }

    /// The number for an immediate acknowledgement, because the node waits for it.
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
