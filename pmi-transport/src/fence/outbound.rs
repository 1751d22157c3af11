//! Output of a node: frames to links, to foreign agents' calls, and other effects that need the runtime.

use std::sync::Arc;

use pmi_core::ids::NodeIndex;

use super::Limits;
use super::counters::Counters;
use super::effects::{FenceResult, NodeQuestion};
use super::fence_call::FenceCall;
use super::link_queue::{Outgoing, Queue, Stuck};
use super::links::{Links, Sent, StreamId};
use super::membership::{Member, MembershipId, Questions};
use super::pmi_fence_calls::PmiFenceCalls;
use crate::proto::v1::LinkFrame;

/// Effect of an input that needs the runtime. It is executed after the lock is released.
pub(super) enum Effect {
    /// Opens a link.
    Open { id: StreamId, name: String, address: String, outgoing: Outgoing },
    /// Prepares the answer to another node's question. The task belongs to the membership.
    Answer { membership: MembershipId, asked: NodeQuestion, source: Arc<dyn Questions> },
    /// Writes the queued frames of a link.
    Flush(Arc<Queue>),
    /// Treats a node as lost because its frames exceed a limit.
    Lose { name: String, stuck: Stuck },
}

/// Links of a node, with the state that they share with the launches.
pub(super) struct Outbound {
    pub(super) limits: Limits,
    pub(super) links: Links,
    pub(super) pmi_fence: PmiFenceCalls,
    pub(super) counters: Counters,
    pub(super) effects: Vec<Effect>,
    /// Ended fences with their callers. They are delivered after the lock is released.
    pub(super) ends: Vec<(FenceCall, FenceResult)>,
}

impl Outbound {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            links: Links::new(limits.all_link_bytes),
            pmi_fence: PmiFenceCalls::default(),
            counters: Counters::default(),
            effects: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Sends a frame to a node of a launch: as part of the answer to its open call, or over its link.
    pub(super) fn send(&mut self, node: NodeIndex, member: &Member, frame: LinkFrame) {
        let Some(frame) = self.pmi_fence.take(node, frame) else { return };
        match self.links.send(&member.name, frame, self.limits.link_bytes) {
            Sent::Queued(unflushed) => self.effects.extend(unflushed.map(Effect::Flush)),
            Sent::Opening(id, outgoing) => {
                let Member { name, address } = member.clone();
                self.effects.push(Effect::Open { id, name, address, outgoing });
            }
            Sent::Stuck(stuck) => {
                self.counters.dropped += 1;
                self.effects.push(Effect::Lose { name: member.name.clone(), stuck });
            }
        }
    }

    /// Sends a frame to a node over its link, if there is one.
    pub(super) fn answer(&mut self, name: &str, frame: LinkFrame) {
        let unflushed = self.links.answer(name, frame, self.limits.link_bytes);
        self.effects.extend(unflushed.map(Effect::Flush));
    }
}
