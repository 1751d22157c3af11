//! Conversion between the messages of an attachment in `lattice.v1` and the types of [`crate::messages`]. Pure.
//!
//! [`lattice_session::wire`] encodes and decodes the parts of launch and node messages that occur in other messages as well.

use std::time::Duration;

use lattice_render::updates::StartProgress;
use lattice_session::cause::{Cause, CauseKind, StartClass};
use lattice_session::event::Report;
use lattice_session::wire::event::NodeHappening;
use lattice_session::wire::{self, WireError};
use pmi_core::ids::{NodeIndex, Rank};
use pmi_transport::proto::v1 as proto;
use proto::attach_request::What as Request;
use proto::attach_response::What as Response;

use super::messages::{Answer, FromLaunch, Role, ToLaunch};

/// First message of a client: attaches to `launch_id`, from the event after `after` on.
pub fn encode_attach(launch_id: &str, after: u64, role: Role) -> proto::AttachRequest {
    let attach = proto::AttachTo { launch_id: launch_id.to_owned(), after, tied: role == Role::Owner };
    proto::AttachRequest { what: Some(Request::Attach(attach)) }
}

/// A later message of a client.
pub fn encode(message: ToLaunch) -> proto::AttachRequest {
    let what = match message {
        ToLaunch::Acknowledge(sequence) => Request::Acknowledge(sequence),
        ToLaunch::Stdin(bytes) => Request::Stdin(bytes),
        ToLaunch::StdinEnd => Request::StdinEnd(proto::Nothing {}),
        ToLaunch::Signal(signal) => Request::Signal(signal),
        ToLaunch::ResizeTerminal(size) => Request::ResizeTerminal(wire::terminal::encode_size(size)),
        ToLaunch::End(signal) => Request::End(signal),
        ToLaunch::Kill(signal) => Request::Kill(signal),
    };
    proto::AttachRequest { what: Some(what) }
}

/// Decodes an answer.
///
/// # Errors
/// Fails if this version cannot decode it.
pub fn decode(answer: proto::AttachResponse) -> Result<Answer, WireError> {
    let sequence = (answer.sequence != 0).then_some(answer.sequence);
    let node = NodeIndex(answer.node);
    let what = match answer.what {
        Some(Response::Event(event)) => match wire::event::decode(event)? {
            NodeHappening::Event(event) => FromLaunch::Event(node, event),
            NodeHappening::Trace(lines) => FromLaunch::Trace(node, lines),
            _ => FromLaunch::Other,
        },
        Some(Response::StdinCredit(bytes)) => FromLaunch::StdinCredit(bytes),
        Some(Response::Complete(complete)) => FromLaunch::Complete(decode_report(complete)?),
        Some(Response::Starting(progress)) => FromLaunch::Starting(decode_progress(&progress)),
        Some(Response::DroppedOutput(bytes)) => FromLaunch::Dropped((bytes > 0).then_some(bytes)),
        Some(Response::UnendedNodes(nodes)) => FromLaunch::Unended(nodes),
        Some(Response::Spec(_)) | None => FromLaunch::Other,
    };
    Ok(Answer { sequence, what })
}

fn decode_progress(progress: &proto::StartProgress) -> StartProgress {
    StartProgress {
        nodes: progress.nodes,
        nodes_started: progress.nodes_started,
        ranks: progress.ranks,
        ranks_started: progress.ranks_started,
    }
}

/// Report of the whole launch, with exits in rank order.
fn decode_report(complete: proto::LaunchCompleteNotification) -> Result<Report, WireError> {
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
    Ok(Report {
        exits,
        cause,
        duration: Duration::from_micros(complete.duration_us),
        usage: complete.usage.map(wire::event::decode_usage),
        by_node: wire::event::decode_usage_range(complete.least_used, complete.most_used).map(Box::new),
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lattice_session::event::Event;
    use lattice_session::settings::TerminalSize;
    use proto::node_event::What as Node;

    use super::*;

    fn event(what: Node) -> Response {
        Response::Event(proto::NodeEvent { what: Some(what), ..Default::default() })
    }

    fn decoded(what: Option<Response>) -> Result<Answer, WireError> {
        decode(proto::AttachResponse { sequence: 7, node: 1, what })
    }

    fn report(complete: proto::LaunchCompleteNotification) -> Report {
        match decoded(Some(Response::Complete(complete))).unwrap().what {
            FromLaunch::Complete(report) => report,
            other => panic!("{other:?} instead of a report"),
        }
    }

    #[test]
    fn an_owner_ties_the_launch_to_its_connection_and_a_viewer_does_not() {
        for (role, tied) in [(Role::Owner, true), (Role::Viewer, false)] {
            let expected = proto::AttachTo { launch_id: "k3jq".to_owned(), after: 9, tied };
            assert_eq!(encode_attach("k3jq", 9, role).what, Some(Request::Attach(expected)));
        }
    }

    #[test]
    fn every_message_of_a_client_has_its_own_form() {
        let check = |message, expected| assert_eq!(encode(message).what, Some(expected));
        check(ToLaunch::Acknowledge(3), Request::Acknowledge(3));
        check(ToLaunch::Stdin(Bytes::from_static(b"x")), Request::Stdin("x".into()));
        check(ToLaunch::StdinEnd, Request::StdinEnd(proto::Nothing {}));
        check(ToLaunch::Signal(10), Request::Signal(10));
        let size = TerminalSize { rows: 3, columns: 70 };
        let message = proto::TerminalSize { rows: 3, columns: 70 };
        check(ToLaunch::ResizeTerminal(size), Request::ResizeTerminal(message));
        check(ToLaunch::End(2), Request::End(2));
        check(ToLaunch::Kill(2), Request::Kill(2));
    }

    #[test]
    fn every_kind_of_answer_has_its_meaning() {
        let check = |what: Response, expected: FromLaunch| {
            let answer = decoded(Some(what)).unwrap();
            assert_eq!((answer.sequence, answer.what), (Some(7), expected));
        };
        let started = proto::RankStarted { rank: 3, pid: 7, ..Default::default() };
        let expected = Event::Started { rank: Rank(3), pid: 7, at: Duration::ZERO };
        check(event(Node::Started(started)), FromLaunch::Event(NodeIndex(1), expected));
        check(event(Node::Trace("x".into())), FromLaunch::Trace(NodeIndex(1), "x".into()));
        check(event(Node::StdinTaken(3)), FromLaunch::Other);
        check(Response::StdinCredit(5), FromLaunch::StdinCredit(5));
        check(Response::DroppedOutput(0), FromLaunch::Dropped(None));
        check(Response::DroppedOutput(9), FromLaunch::Dropped(Some(9)));
        check(Response::UnendedNodes("node7".into()), FromLaunch::Unended("node7".to_owned()));
        check(Response::Spec(proto::LaunchSpec::default()), FromLaunch::Other);
        let progress =
            proto::StartProgress { nodes: 4, nodes_started: 1, ranks: 8, ranks_started: 2, ranks_initialized: 0 };
        let expected = StartProgress { nodes: 4, nodes_started: 1, ranks: 8, ranks_started: 2 };
        check(Response::Starting(progress), FromLaunch::Starting(expected));
    }

    #[test]
    fn an_answer_of_a_later_version_keeps_its_number() {
        let answer = decoded(None).unwrap();
        assert_eq!((answer.sequence, answer.what), (Some(7), FromLaunch::Other));
        let unnumbered = decode(proto::AttachResponse { sequence: 0, node: 0, what: None }).unwrap();
        assert_eq!(unnumbered.sequence, None);
    }

    #[test]
    fn an_event_without_content_is_an_error() {
        let error = decoded(Some(Response::Event(proto::NodeEvent::default()))).unwrap_err();
        assert_eq!(error.to_string(), "the message has no event");
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
        let failed = report(complete.clone());
        assert_eq!(failed.exits.iter().map(|(rank, _)| rank.0).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(failed.duration, Duration::from_micros(1500));
        assert_eq!(failed.cause.unwrap().to_string(), "API server: no agent");
        assert_eq!(report(proto::LaunchCompleteNotification { success: true, ..complete }).cause, None);
    }
}
