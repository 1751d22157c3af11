//! Effects of the machine of a simulated launch, which are executed here or returned to the simulation.

use std::time::Instant;

use lattice_session::event::Event;
use lattice_session::wire::event::NodeHappening;
use pmi_core::ids::NodeIndex;
use prost::Message;

use super::{ApiEffect, ClientEvent, Record, SimulatedApiServer};
use crate::launch::attachments::Dismissal;
use crate::launch::checkpoint::Snapshot;
use crate::launch::client_message::ClientMessage;
use crate::launch::effect::Effect;
use crate::launch::entry::Entry;
use crate::launch::event::{LogEvent, NodeEvent};
use crate::launch::outbox::{Outbox, StreamEnd};
use crate::launch::{Delivery, Part};
use crate::wire::launch::encode_progressed;
use crate::wire::node::encode_message;

impl SimulatedApiServer {
    pub(super) fn carry_out(&mut self, now: Instant) {
        while let Some(machine) = &mut self.machine {
            for effect in machine.take_effects() {
                self.carry_out_one(effect);
            }
            let unclean: Vec<String> =
                self.nodes.iter().filter(|name| self.unclean.has(name, &self.launch_id)).cloned().collect();
            match &mut self.machine {
                Some(machine) if machine.is_complete() => machine.on_complete(&unclean, now.into()),
                _ => break,
            }
        }
        self.flush();
    }

    fn carry_out_one(&mut self, effect: Effect) {
        match effect {
            Effect::Command { node, command } => {
                let taken = self.machine.as_ref().map_or(0, |machine| machine.events_taken(node));
                self.outboxes[node.index()].push(command, taken);
            }
            Effect::Resume { node, stream, after } => self.outboxes[node.index()].resume(stream, after),
            Effect::Acknowledge { node, through } => self.outboxes[node.index()].acknowledge(through),
            Effect::CloseStream { node } => self.outboxes[node.index()].close(),
            Effect::AbortNode { node, signal, .. } => self.effects.push_back(ApiEffect::Abort { node, signal }),
            Effect::MarkUnclean { node } => {
                let name = &self.nodes[node.index()];
                if self.registry.up(name).is_some() {
                    self.unclean.add(name, &self.launch_id);
                }
            }
            Effect::PublishPart { node, part } => self.parts[node.index()] = part,
            Effect::Append { sequence, node, event } => {
                self.effects.push_back(ApiEffect::Happened { sequence, event: client_event(event.clone()) });
                let numbered = self.log.push(node, event);
                debug_assert_eq!(numbered, sequence, "the machine and the log count the same events");
            }
            Effect::Settle { sequence } => self.log.settle(sequence),
            Effect::StopKeeping => self.log.stop_keeping(),
            Effect::Dismiss { client, why } if self.follower == Some(client) => {
                if why != Dismissal::Replaced {
                    self.effects.push_back(ApiEffect::Refused { client, reason: why.to_string() });
                }
                self.end_follower();
            }
            Effect::GrantInput { client, bytes } => self.effects.push_back(ApiEffect::GrantInput { client, bytes }),
            Effect::Dismiss { client, .. } | Effect::Forget { client } => {
                self.log.leave(client);
                self.follower = self.follower.filter(|follower| *follower != client);
            }
            Effect::Store(Snapshot::Running(progressed)) => {
                let record = Record::Running(encode_progressed(&progressed).encode_to_vec());
                self.effects.push_back(ApiEffect::Store(record));
            }
            Effect::Store(Snapshot::Over) => self.effects.push_back(ApiEffect::Store(Record::Over)),
            Effect::AnswerStart(result) => self.effects.push_back(ApiEffect::Started(result.is_ok())),
            Effect::Conclude(completion) => {
                self.parts.iter_mut().filter(|part| **part == Part::Expected).for_each(|part| *part = Part::Ended);
                self.effects.push_back(ApiEffect::Concluded { success: completion.cause.is_none() });
            }
            Effect::AnswerSpawn { ticket, answer } => self.effects.push_back(ApiEffect::AnswerSpawn { ticket, answer }),
            Effect::CountLostNode { node, reason } => self.effects.push_back(ApiEffect::Lost { node, reason }),
            // The simulation has one client, which requests nothing else.
            Effect::Publish(_) | Effect::ReportStart(_) | Effect::AnswerStatus { .. } | Effect::Finish { .. } => {}
        }
    }

    /// Removes the launch after it is over and no longer needed.
    pub(super) fn forget_if_over(&mut self, now: Instant) {
        let delivery = if self.log.is_delivered() { Delivery::Complete } else { Delivery::Partial };
        if self.machine.as_ref().is_some_and(|machine| machine.is_forgotten(delivery, now.into())) {
            self.machine = None;
            self.outboxes.iter().for_each(Outbox::close);
            self.end_follower();
            self.flush();
        }
    }

    /// Ends the stream of the attached client.
    fn end_follower(&mut self) {
        if let Some(client) = self.follower.take() {
            self.log.leave(client);
            self.effects.push_back(ApiEffect::EndClient { client });
        }
    }

    /// Takes the client's events from the log.
    fn deliver(&mut self) {
        while let Some(client) = self.follower
            && let Some(messages) = self.log.try_next(client)
        {
            for message in messages {
                if let ClientMessage::Event(Entry { sequence, event, .. }) = message {
                    self.effects.push_back(ApiEffect::Deliver { client, sequence, event: client_event(event) });
                }
            }
        }
    }

    /// Sends the log's messages for the client, and the outboxes' messages for the open streams.
    pub(super) fn flush(&mut self) {
        self.deliver();
        for node in 0..self.outboxes.len() {
            while let Some(stream) = self.streams[node]
                && let Some(next) = self.outboxes[node].try_next(stream)
            {
                let node_index = NodeIndex(node as u32);
                self.effects.push_back(match next {
                    Ok(message) => ApiEffect::Command { node: node_index, stream, command: encode_message(message) },
                    Err(end) => {
                        self.streams[node] = None;
                        ApiEffect::EndStream { node: node_index, stream, in_order: end == StreamEnd::Closed }
                    }
                });
            }
        }
    }
}

fn client_event(event: LogEvent) -> ClientEvent {
    match event {
        LogEvent::Node(NodeEvent::Happened(NodeHappening::Event(event), _)) => match event {
            Event::Started { rank, pid, .. } => ClientEvent::Started(rank, pid),
            Event::Output(output) => ClientEvent::Output(output.rank, output.bytes),
            Event::Exited { rank, exit, .. } => ClientEvent::Exited(rank, exit),
            Event::Ending(cause) => ClientEvent::Ending(cause),
            _ => ClientEvent::Other,
        },
        LogEvent::Node(_) => ClientEvent::Other,
        LogEvent::Unclean(nodes) => ClientEvent::Unclean(nodes),
        LogEvent::Complete(completion) => ClientEvent::Complete {
            cause: completion.cause.clone(),
            ends: completion.ends.iter().map(|end| (end.rank, end.exit)).collect(),
            message: completion.message.clone(),
        },
    }
}
