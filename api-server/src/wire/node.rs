//! Reports of nodes, and commands to them.

use lattice_session::event::Event;
use lattice_session::wire::event::{self, NodeHappening};
use lattice_session::wire::{cause, command, death, gathered, input, terminal};
use pmi_core::ids::Rank;
use pmi_transport::proto::v1 as proto;
use proto::node_command::What as Command;
use proto::node_event::What;

use crate::launch::event::{NodeCommand, NodeEvent, Programs, RankEnd};
use crate::launch::outbox::{Content, Message};

/// Decodes an event; `None` if this version does not support it. An unsupported ending is [`NodeEvent::UnknownEnding`].
pub(crate) fn decode_event(message: proto::NodeEvent) -> Option<NodeEvent> {
    let programs = programs(&message);
    let is_ending = matches!(message.what, Some(What::Ending(_)));
    match event::decode(message) {
        Ok(happening) => Some(NodeEvent::Happened(happening, programs)),
        Err(error) => {
            tracing::debug!(%error, "an event means nothing here");
            is_ending.then_some(NodeEvent::UnknownEnding)
        }
    }
}

/// The programs that a message names.
fn programs(message: &proto::NodeEvent) -> Programs {
    let known = |(rank, program): (u32, &bytes::Bytes)| (Rank(rank), program.clone());
    let named = |&(_, program): &(u32, &bytes::Bytes)| !program.is_empty();
    match &message.what {
        Some(What::Started(started)) => {
            [(started.rank, &started.program)].into_iter().filter(named).map(known).collect()
        }
        Some(What::Progress(progress)) => {
            progress.ranks.iter().map(|rank| (rank.rank, &rank.program)).filter(named).map(known).collect()
        }
        _ => Programs::new(),
    }
}

/// Encodes an event.
pub(crate) fn encode_event(event: &NodeEvent) -> proto::NodeEvent {
    let NodeEvent::Happened(happening, programs) = event else { return proto::NodeEvent::default() };
    let mut message = event::encode_happening(happening);
    if let (NodeHappening::Event(Event::Started { .. }), Some(What::Started(started)), Some((_, program))) =
        (happening, &mut message.what, programs.first())
    {
        started.program.clone_from(program);
    }
    message
}

/// Encodes a message on a stream to a node.
pub(crate) fn encode_message(message: Message) -> proto::NodeCommand {
    let Message { content, events_taken } = message;
    match content {
        Content::Command(sequence, command) => proto::NodeCommand { sequence, events_taken, ..encode_command(command) },
        Content::Resume { after } => {
            let what = Some(Command::Resume(proto::Resume { after }));
            proto::NodeCommand { what, events_taken, sequence: 0 }
        }
        Content::Nothing => proto::NodeCommand { what: None, events_taken, sequence: 0 },
    }
}

/// Encodes a command.
pub(crate) fn encode_command(command: NodeCommand) -> proto::NodeCommand {
    let nothing = proto::Nothing {};
    let what = match command {
        NodeCommand::Signal(signal) => Command::Signal(signal),
        NodeCommand::SignalRanks(signal, ranks) => {
            Command::SignalRanks(proto::SignalRanks { signal, ranks: command::encode_ranges(&ranks) })
        }
        NodeCommand::LookAtStacks(ranks) => {
            Command::LookAtStacks(proto::RankSelection { ranks: command::encode_ranges(&ranks) })
        }
        NodeCommand::End(signal) => Command::End(signal),
        NodeCommand::Kill(signal) => Command::Kill(signal),
        NodeCommand::GiveUp => Command::GiveUp(nothing),
        NodeCommand::AskProgress(question) => Command::AskProgress(question),
        NodeCommand::AskUsage(question) => Command::AskUsage(question),
        NodeCommand::AskStacks(question) => Command::AskStacks(question),
        NodeCommand::Gather { question, order } => {
            Command::Gather(proto::Gather { question, order: Some(gathered::encode_order(&order)) })
        }
        NodeCommand::Release => Command::Release(nothing),
        NodeCommand::Deaths(deaths) => Command::Deaths(death::encode_all(&deaths)),
        NodeCommand::CutOff(node) => Command::CutOff(node.0),
        NodeCommand::Spawn(order) => Command::Spawn(command::encode_spawn(&order)),
        NodeCommand::Disown(job) => Command::Disown(job.as_str().to_owned()),
        NodeCommand::JobOver(job) => Command::JobOver(job.as_str().to_owned()),
        NodeCommand::Stdin(bytes) => Command::Stdin(bytes),
        NodeCommand::StdinEnd => Command::StdinEnd(nothing),
        NodeCommand::Input(piece) => Command::Input(input::encode(&piece)),
        NodeCommand::ResizeTerminal(size) => Command::ResizeTerminal(terminal::encode_size(size)),
        NodeCommand::OutputCredit(bytes) => Command::OutputCredit(bytes),
    };
    proto::NodeCommand { what: Some(what), ..proto::NodeCommand::default() }
}

/// Encodes the end of a rank.
pub(crate) fn encode_end(end: &RankEnd) -> proto::RankExitStatus {
    cause::encode_exit(end.rank, end.exit, end.reached)
}

/// Decodes the end of a rank.
pub(crate) fn decode_end(status: &proto::RankExitStatus) -> RankEnd {
    RankEnd { rank: Rank(status.rank), exit: cause::decode_exit(status), reached: cause::decode_reached(status) }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lattice_session::cause::RankExit;
    use lattice_session::gathered::NodeSelection;
    use lattice_session::input_piece::InputPiece;
    use lattice_session::settings::TerminalSize;
    use pmi_core::deaths::{Death, DeathKind};
    use pmi_core::ids::{JobId, NodeIndex};
    use pmi_core::{DialoguePoint, Phase};

    use super::*;

    fn decoded(what: Option<What>) -> Option<NodeEvent> {
        decode_event(proto::NodeEvent { what, ..Default::default() })
    }

    #[test]
    fn an_event_without_a_meaning_here_is_passed_over_unless_it_ends_the_launch() {
        assert!(decoded(None).is_none());
        assert!(decoded(Some(What::Notice(proto::Notice { what: None }))).is_none());
        let ending = proto::Cause { host: "n1".to_owned(), kind: None };
        assert!(matches!(decoded(Some(What::Ending(ending))), Some(NodeEvent::UnknownEnding)));
    }

    #[test]
    fn programs_are_named_for_ranks_whose_program_is_known() {
        let rank = |rank, program: &'static str| proto::RankProgress {
            rank,
            program: program.into(),
            ..proto::RankProgress::default()
        };
        let ranks = vec![rank(0, "/a"), rank(1, ""), rank(2, "/b")];
        let progress = What::Progress(proto::Progress { question: 1, ranks, stacks: None });
        let Some(NodeEvent::Happened(_, programs)) = decoded(Some(progress)) else { panic!("it has a meaning") };
        let named = |rank, program: &'static str| (Rank(rank), Bytes::from(program));
        assert_eq!(programs, vec![named(0, "/a"), named(2, "/b")]);
    }

    #[test]
    fn every_command_is_the_message_of_its_name() {
        let job = JobId::new("kvs_l_0.s1").unwrap();
        let nothing = || proto::Nothing {};
        let dead = Death { rank: Rank(3), kind: DeathKind::NodeLost };
        let nodes = NodeSelection::of([2, 3]).unwrap();
        let piece = InputPiece { offset: 7, bytes: "in".into(), is_last: true, nodes };
        let cases = [
            (NodeCommand::Signal(10), Command::Signal(10)),
            (NodeCommand::End(15), Command::End(15)),
            (NodeCommand::Kill(9), Command::Kill(9)),
            (NodeCommand::GiveUp, Command::GiveUp(nothing())),
            (NodeCommand::Release, Command::Release(nothing())),
            (NodeCommand::AskProgress(3), Command::AskProgress(3)),
            (NodeCommand::AskUsage(3), Command::AskUsage(3)),
            (NodeCommand::AskStacks(3), Command::AskStacks(3)),
            (NodeCommand::Deaths([dead].into()), Command::Deaths(death::encode_all(&[dead]))),
            (NodeCommand::CutOff(NodeIndex(2)), Command::CutOff(2)),
            (NodeCommand::Disown(job.clone()), Command::Disown("kvs_l_0.s1".to_owned())),
            (NodeCommand::JobOver(job), Command::JobOver("kvs_l_0.s1".to_owned())),
            (NodeCommand::Stdin("in".into()), Command::Stdin("in".into())),
            (NodeCommand::StdinEnd, Command::StdinEnd(nothing())),
            (NodeCommand::Input(piece.clone()), Command::Input(input::encode(&piece))),
            (
                NodeCommand::ResizeTerminal(TerminalSize { rows: 3, columns: 70 }),
                Command::ResizeTerminal(proto::TerminalSize { rows: 3, columns: 70 }),
            ),
            (NodeCommand::OutputCredit(7), Command::OutputCredit(7)),
        ];
        for (command, what) in cases {
            assert_eq!(encode_command(command).what, Some(what));
        }
    }

    #[test]
    fn an_end_of_a_rank_comes_back_as_it_was() {
        let signal = RankExit::Signal { signal: 11, core_dumped: true };
        for exit in [RankExit::Code(0), RankExit::Code(-1), signal] {
            for phase in [None, Some(Phase::Silent), Some(Phase::Open), Some(Phase::Finalized)] {
                let reached = phase.map(|phase| DialoguePoint { phase, fences: 3 });
                let end = RankEnd { rank: Rank(7), exit, reached };
                assert_eq!(decode_end(&encode_end(&end)), end);
            }
        }
    }
}
