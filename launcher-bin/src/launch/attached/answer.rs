//! Meaning of one answer of the attach stream. An earlier connection may have delivered it already. No I/O.

use bytes::Bytes;
use lattice_cluster_client::messages::{Answer, FromLaunch};
use lattice_render::updates::Update;
use lattice_session::event::{Event, Report};
use pmi_core::ids::NodeIndex;

/// Meaning of an answer.
#[derive(Debug)]
pub(super) enum Meaning {
    /// For the renderer; `None` for an event that is acknowledged and not shown.
    Update(Option<Update>),
    /// Lines of the PMI trace, from this node.
    Trace(NodeIndex, Bytes),
    /// Additional bytes of input that may be sent.
    Credit(u64),
    /// The launch is over.
    End(Report),
    /// An event that an earlier connection has delivered.
    Duplicate,
}

/// Reads an answer. Events up to `last` were received before. The number of a new event becomes `last`.
pub(super) fn read(Answer { sequence, what }: Answer, last: &mut u64) -> Meaning {
    match sequence {
        Some(sequence) if sequence <= *last => return Meaning::Duplicate,
        Some(sequence) => *last = sequence,
        None => {}
    }
    let update = match what {
        FromLaunch::Event(node, event) => is_shown(&event).then_some(Update::Event(node, event)),
        FromLaunch::Starting(progress) => Some(Update::Starting(progress)),
        FromLaunch::Dropped(bytes) => Some(Update::Dropped(bytes)),
        FromLaunch::Unended(nodes) => Some(Update::Remark(format!(
            "warning: {nodes} did not report the end of its part of the launch; processes may be left there"
        ))),
        FromLaunch::Trace(node, lines) => return Meaning::Trace(node, lines),
        FromLaunch::StdinCredit(bytes) => return Meaning::Credit(bytes),
        FromLaunch::Complete(report) => return Meaning::End(report),
        // An event of a later version is acknowledged, and not shown.
        FromLaunch::Other => None,
    };
    Meaning::Update(update)
}

/// True for events that the renderer shows. Other events are between nodes and the API server.
fn is_shown(event: &Event) -> bool {
    !matches!(
        event,
        Event::Mapped(_)
            | Event::Progress { .. }
            | Event::Waiting { .. }
            | Event::LongWait { .. }
            | Event::Spawned { .. }
            | Event::Died(_)
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pmi_core::ids::Rank;

    use super::*;
    use lattice_render::updates::StartProgress;

    const NODE: NodeIndex = NodeIndex(1);

    fn started() -> FromLaunch {
        FromLaunch::Event(NODE, Event::Started { rank: Rank(3), pid: 7, at: Duration::ZERO })
    }

    #[test]
    fn events_that_come_again_after_a_broken_connection_are_passed_over() {
        let mut last = 0;
        let mut check = |sequence: u64, expected: &str| {
            let answer = Answer { sequence: (sequence != 0).then_some(sequence), what: started() };
            let meaning = format!("{:?}", read(answer, &mut last));
            assert!(meaning.starts_with(expected), "{sequence}: {meaning}");
        };
        check(1, "Update");
        check(3, "Update");
        check(2, "Duplicate");
        check(3, "Duplicate");
        check(4, "Update");
        check(0, "Update");
        check(0, "Update");
        assert_eq!(last, 4);
    }

    #[test]
    fn every_kind_of_answer_has_its_meaning() {
        let check = |what: FromLaunch, expected: &str| {
            let meaning = format!("{:?}", read(Answer { sequence: None, what }, &mut 0));
            assert!(meaning.starts_with(expected), "{meaning} is not {expected}");
        };
        check(started(), "Update(Some(Event(NodeIndex(1), Started { rank: Rank(3), pid: 7, at: 0ns })))");
        check(FromLaunch::Trace(NODE, "x".into()), "Trace(NodeIndex(1), b\"x\")");
        check(FromLaunch::StdinCredit(5), "Credit(5)");
        check(FromLaunch::Dropped(Some(9)), "Update(Some(Dropped(Some(9))))");
        check(FromLaunch::Unended("node7".into()), "Update(Some(Remark(\"warning: node7 did not report");
        let progress = StartProgress { nodes: 2, nodes_started: 1, ranks: 4, ranks_started: 3 };
        check(FromLaunch::Starting(progress), "Update(Some(Starting(StartProgress { nodes: 2, nodes_started: 1,");
        let report = Report { exits: Vec::new(), cause: None, duration: Duration::ZERO, usage: None, by_node: None };
        check(FromLaunch::Complete(report), "End(Report");
    }

    #[test]
    fn what_is_between_nodes_and_the_api_server_is_acknowledged_and_not_shown() {
        let waiting = Event::Waiting { ranks: vec![Rank(1)] };
        let progress = Event::Progress { question: 1, ranks: Vec::new(), stacks: None };
        let silent = [FromLaunch::Event(NODE, waiting), FromLaunch::Event(NODE, progress), FromLaunch::Other];
        for (sequence, what) in (1..).zip(silent) {
            let mut last = sequence - 1;
            assert!(matches!(read(Answer { sequence: Some(sequence), what }, &mut last), Meaning::Update(None)));
            assert_eq!(last, sequence);
        }
    }
}
