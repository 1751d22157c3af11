//! Meaning of one answer of the attach stream. Pure but for the decoding.

use std::time::Duration;

use bytes::Bytes;
use lattice_session::cause::{Cause, CauseKind, StartClass};
use lattice_session::event::{Event, Report};
use lattice_session::wire::event::NodeHappening;
use lattice_session::wire::{self, WireError};
use pmi_core::ids::{NodeIndex, Rank};
use pmi_transport::proto::v1 as proto;
use proto::attach_response::What as FromLaunch;

use crate::updates::{StartProgress, Update};

/// Meaning of an answer.
#[derive(Debug)]
pub(super) enum Received {
    /// For the renderer; `None` for an event that it need not see, but that is acknowledged.
    Update(Option<Update>),
    /// Lines of the PMI trace, from this node.
    Trace(NodeIndex, Bytes),
    /// Bytes of input that may be sent beyond those before.
    Credit(u64),
    /// The launch is over.
    End(Report),
    /// An event that was received before, on another connection.
    Duplicate,
}

/// Reads an answer, where the events up to `last` were received before; the number of a new event becomes `last`.
///
/// # Errors
/// Fails if this version cannot read it.
pub(super) fn read(answer: proto::AttachResponse, last: &mut u64) -> Result<Received, WireError> {
    if answer.sequence != 0 {
        if answer.sequence <= *last {
            return Ok(Received::Duplicate);
        }
        *last = answer.sequence;
    }
    let node = NodeIndex(answer.node);
    Ok(match answer.what {
        Some(FromLaunch::Event(event)) => match wire::event::decode(event)? {
            NodeHappening::Event(event) => Received::Update(is_shown(&event).then_some(Update::Event(node, event))),
            NodeHappening::Trace(lines) => Received::Trace(node, lines),
            _ => Received::Update(None),
        },
        Some(FromLaunch::StdinCredit(bytes)) => Received::Credit(bytes),
        Some(FromLaunch::Complete(complete)) => Received::End(report(complete)?),
        Some(FromLaunch::Starting(progress)) => Received::Update(Some(Update::Starting(StartProgress {
            nodes: progress.nodes,
            nodes_started: progress.nodes_started,
            ranks: progress.ranks,
            ranks_started: progress.ranks_started,
        }))),
        Some(FromLaunch::DroppedOutput(bytes)) => Received::Update(Some(Update::Dropped((bytes > 0).then_some(bytes)))),
        Some(FromLaunch::UnendedNodes(nodes)) => Received::Update(Some(Update::Remark(format!(
            "warning: {nodes} did not say that its part of the launch has ended; processes may be left there"
        )))),
        // An event of a later version is nothing to show, but is acknowledged.
        Some(FromLaunch::Spec(_)) | None => Received::Update(None),
    })
}

/// True for events that the renderer shows; the others are between nodes and the API server.
fn is_shown(event: &Event) -> bool {
    !matches!(event, Event::Progress { .. } | Event::Waiting { .. } | Event::Spawned { .. })
}

/// Report of the launch as a whole.
fn report(complete: proto::LaunchCompleteNotification) -> Result<Report, WireError> {
    let mut exits: Vec<_> =
        complete.ranks.iter().map(|exit| (Rank(exit.rank), wire::cause::decode_exit(exit))).collect();
    exits.sort_unstable_by_key(|&(rank, _)| rank);
    let cause = match complete.cause {
        Some(cause) => Some(wire::cause::decode(cause)?),
        None if complete.success => None,
        None => Some(Cause {
            host: "API server".to_owned(),
            kind: CauseKind::NotStarted { reason: complete.error_message, class: StartClass::System },
        }),
    };
    Ok(Report { exits, cause, duration: Duration::from_micros(complete.duration_us) })
}

#[cfg(test)]
mod tests {
    use proto::node_event::What as NodeWhat;

    use super::*;

    fn answer(sequence: u64, what: FromLaunch) -> proto::AttachResponse {
        proto::AttachResponse { sequence, node: 1, what: Some(what) }
    }

    fn event(what: NodeWhat) -> FromLaunch {
        FromLaunch::Event(proto::NodeEvent { what: Some(what) })
    }

    fn started() -> FromLaunch {
        event(NodeWhat::Started(proto::RankStarted { rank: 3, pid: 7, ..Default::default() }))
    }

    #[test]
    fn events_that_come_again_after_a_broken_connection_are_passed_over() {
        let mut last = 0;
        let mut check = |sequence, is_new: bool| {
            let received = read(answer(sequence, started()), &mut last).unwrap();
            assert_eq!(!matches!(received, Received::Duplicate), is_new, "{sequence}");
        };
        check(1, true);
        check(3, true);
        check(2, false);
        check(3, false);
        check(4, true);
        check(0, true);
        check(0, true);
        assert_eq!(last, 4);
    }

    #[test]
    fn every_kind_of_answer_has_its_meaning() {
        let check = |what: FromLaunch, expected: &str| {
            let received = format!("{:?}", read(answer(0, what), &mut 0).unwrap());
            assert!(received.starts_with(expected), "{received} is not {expected}");
        };
        check(started(), "Update(Some(Event(NodeIndex(1), Started { rank: Rank(3), pid: 7 })))");
        check(event(NodeWhat::Trace("x".into())), "Trace(NodeIndex(1), b\"x\")");
        check(event(NodeWhat::Waiting(proto::Waiting { ranks: vec![1] })), "Update(None)");
        check(event(NodeWhat::StdinTaken(3)), "Update(None)");
        check(FromLaunch::StdinCredit(5), "Credit(5)");
        check(FromLaunch::DroppedOutput(0), "Update(Some(Dropped(None)))");
        check(FromLaunch::DroppedOutput(9), "Update(Some(Dropped(Some(9))))");
        check(FromLaunch::UnendedNodes("node7".into()), "Update(Some(Remark(\"warning: node7 did not say");
        check(FromLaunch::Spec(proto::LaunchSpec::default()), "Update(None)");
    }

    #[test]
    fn an_event_of_a_later_version_is_acknowledged_and_not_shown() {
        let mut last = 0;
        let unknown = proto::AttachResponse { sequence: 5, node: 0, what: None };
        assert!(matches!(read(unknown, &mut last), Ok(Received::Update(None))));
        assert_eq!(last, 5);
        assert!(read(answer(6, FromLaunch::Event(proto::NodeEvent { what: None })), &mut last).is_err());
    }

    #[test]
    fn the_end_tells_all_exits_in_rank_order_and_why_there_is_no_success() {
        let exit = |rank| proto::RankExitStatus { rank, exit_code: 3, ..Default::default() };
        let complete = proto::LaunchCompleteNotification {
            ranks: vec![exit(2), exit(0)],
            duration_us: 1500,
            error_message: "no agent".to_owned(),
            ..Default::default()
        };
        let Received::End(report) = read(answer(9, FromLaunch::Complete(complete.clone())), &mut 0).unwrap() else {
            panic!("not the end");
        };
        assert_eq!(report.exits.iter().map(|(rank, _)| rank.0).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(report.duration, Duration::from_micros(1500));
        assert_eq!(report.cause.unwrap().to_string(), "API server: no agent");
        let success = proto::LaunchCompleteNotification { success: true, ..complete };
        let Received::End(report) = read(answer(9, FromLaunch::Complete(success)), &mut 0).unwrap() else {
            panic!("not the end");
        };
        assert_eq!(report.cause, None);
    }
}
