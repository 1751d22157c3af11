//! Links of a session to sessions of other nodes. A link is opened for the first frame. It is closed after the session has left the
//! launch and has sent its remaining frames.

use std::time::Duration;

use bytes::Bytes;
use lattice_session::timeouts;
use pmi_core::ids::NodeIndex;
use pmi_transport::proto::v1 as proto;
use prost::Message as _;

use super::SessionHost;
use crate::connection::{ConnectionId, End, Host, KEEP_ALIVE, Purpose, Side};
use crate::event::{Message, SessionEvent};
use crate::surroundings::{LEASE, Surroundings};
use crate::time::Time;

/// Pause before the next attempt to open a link, if the other end does not exist yet.
const PAUSE: Duration = Duration::from_millis(100);
/// Time limit for the attempts.
const TRIES: Duration = Duration::from_secs(5);

/// State of another node, for a session that opens a link to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkTarget {
    /// Process of its session, if the session accepts links.
    pub(crate) session: Option<u64>,
    /// The node has had the launch, and has no such session any more.
    pub(crate) has_ended: bool,
    /// The node has an agent, which can pass the link on.
    pub(crate) has_agent: bool,
}

/// The link to another node: one stream, or one stream from each node. The rules are those of `Links` of the crate `pmi-transport`.
#[derive(Clone, Debug)]
pub(super) struct NodeLink {
    /// The stream for writes.
    writes: ConnectionId,
    streams: Vec<ConnectionId>,
}

impl SessionHost {
    /// Returns true if the session accepts links.
    pub(crate) fn takes_links(&self) -> bool {
        !self.has_ended() && !self.machines.has_left()
    }

    /// Sends a frame to another node. It does not overtake frames that wait for a link that is being opened, even if the other node has
    /// opened a link in the meantime.
    pub(super) fn send_frame(&mut self, to: u32, frame: Bytes, around: &mut Surroundings) {
        match (self.opening.get_mut(&to), self.links.get(&to)) {
            (Some(waiting), _) => waiting.push(frame),
            (None, Some(link)) => self.send_on_link(link.writes, frame, around),
            (None, None) => {
                self.opening.insert(to, vec![frame]);
                self.count_opening(around);
                let time = around.some_time(100, 3000);
                around.after(time, self.opens_link(to, around.now()));
            }
        }
    }

    fn count_opening(&mut self, around: &mut Surroundings) {
        let number = self.opening.len();
        self.input(around, |session, now| session.opens_links(number, now));
    }

    fn opens_link(&self, to: u32, since: Time) -> SessionEvent {
        SessionEvent::OpenLink { node: self.node, session: self.process, to, since }
    }

    fn send_on_link(&self, link: ConnectionId, frame: Bytes, around: &mut Surroundings) {
        around.journal.hash(&frame);
        if let Some(side) = around.network.side_of(link, self.end()) {
            around.send(link, side.other(), Message::Frame { from: self.node, frame });
        }
    }

    /// Opens a link, if it is still needed. `since` is the start of the attempts. Returns the link, and the session that accepts it.
    pub(crate) fn open_link(
        &mut self,
        to: u32,
        since: Time,
        target: LinkTarget,
        around: &mut Surroundings,
    ) -> Option<(u64, ConnectionId)> {
        if !self.opening.contains_key(&to) {
            return None;
        }
        let opened = self.try_link(to, since, target, around);
        self.count_opening(around);
        if self.exit_waits && self.opening.is_empty() {
            self.exit(around);
        }
        opened
    }

    fn try_link(
        &mut self,
        to: u32,
        since: Time,
        target: LinkTarget,
        around: &mut Surroundings,
    ) -> Option<(u64, ConnectionId)> {
        let is_reached = around.network.reaches(Host(self.node), Host(to));
        match target.session.filter(|_| is_reached && target.has_agent) {
            Some(peer) => {
                let link = around.network.open(Purpose::Link, self.end(), End { host: Host(to), process: peer });
                let frames = self.opening.remove(&to).unwrap_or_default();
                frames.into_iter().for_each(|frame| self.send_on_link(link, frame, around));
                match self.left_at {
                    Some(_) => self.close_link(link, around),
                    None => self.add_stream(to, link, true),
                }
                Some((peer, link))
            }
            None => {
                let tries = match (is_reached, target.has_agent) {
                    (false, _) => KEEP_ALIVE,
                    (true, true) => TRIES,
                    (true, false) => LEASE,
                };
                let has_ended = target.has_ended && is_reached && around.network.is_up(Host(to));
                let is_given_up = self.left_at.is_some_and(|left| around.now() > left + timeouts::KILL);
                if has_ended {
                    self.opening.remove(&to);
                    self.close_links_to(to, around);
                    self.input(around, |session, now| {
                        session.link_absent(NodeIndex(to), "it has left the launch", now);
                    });
                } else if around.now() > since + tries || is_given_up {
                    self.opening.remove(&to);
                    // A link that the other node has opened ends as well.
                    self.lose_link(to, "no link can be opened", around);
                } else {
                    around.after(PAUSE, self.opens_link(to, since));
                }
                None
            }
        }
    }

    /// Accepts a link from another node. If there is an earlier link from this node, the node has ended it.
    pub(crate) fn accept_link(&mut self, from: u32, stream: ConnectionId, around: &mut Surroundings) {
        let before = self.links.get(&from).into_iter().flat_map(|link| &link.streams);
        if before.into_iter().any(|&stream| self.has_accepted(stream, around)) {
            self.lose_link(from, "it opened another link", around);
        }
        self.add_stream(from, stream, false);
    }

    fn add_stream(&mut self, node: u32, stream: ConnectionId, is_written_to: bool) {
        let link = self.links.entry(node).or_insert_with(|| NodeLink { writes: stream, streams: Vec::new() });
        link.streams.push(stream);
        if is_written_to {
            link.writes = stream;
        }
    }

    fn has_accepted(&self, stream: ConnectionId, around: &Surroundings) -> bool {
        around.network.side_of(stream, self.end()) == Some(Side::Accepter)
    }

    /// Ends the link to a node, with all its streams.
    fn lose_link(&mut self, node: u32, reason: &str, around: &mut Surroundings) {
        self.close_links_to(node, around);
        self.input(around, |session, now| session.link_broke(NodeIndex(node), reason, now));
    }

    fn close_links_to(&mut self, node: u32, around: &mut Surroundings) {
        let streams = self.links.remove(&node).map(|link| link.streams).unwrap_or_default();
        streams.into_iter().for_each(|stream| self.close_link(stream, around));
    }

    pub(crate) fn on_frame(&mut self, from: u32, frame: Bytes, around: &mut Surroundings) {
        if let Ok(frame) = proto::LinkFrame::decode(frame) {
            self.input(around, |session, now| session.on_node(NodeIndex(from), frame, now));
        }
    }

    /// Handles the end of a stream. Its link ends, unless the last frames of the other node arrive on a stream of that node.
    pub(crate) fn link_broke(&mut self, stream: ConnectionId, around: &mut Surroundings) {
        let Some(connection) = around.network.get(stream) else { return };
        let (peer, is_broken) = (connection.other_host(Host(self.node)), connection.is_broken);
        let is_opened = !self.has_accepted(stream, around);
        if let Some(side) = around.network.side_of(stream, self.end()) {
            around.network.shut(stream, side.other());
        }
        let Some(Host(peer)) = peer else { return };
        let Some(link) = self.links.get_mut(&peer).filter(|link| link.streams.contains(&stream)) else { return };
        link.streams.retain(|&known| known != stream);
        // The other streams were opened by the other node.
        if !(is_opened && !is_broken && !link.streams.is_empty()) {
            self.lose_link(peer, "its link broke", around);
        }
    }

    /// The session leaves the launch. For a while, its sent frames still reach the other sessions, also over links that are being opened.
    pub(super) fn leave_links(&mut self, around: &mut Surroundings) {
        self.left_at.get_or_insert(around.now());
        let streams = std::mem::take(&mut self.links).into_values().flat_map(|link| link.streams);
        streams.for_each(|stream| self.close_link(stream, around));
    }

    /// Returns true if a link to this node is open or is being opened.
    pub(super) fn is_linked(&self, to: u32) -> bool {
        self.links.contains_key(&to) || self.opening.contains_key(&to)
    }

    fn close_link(&self, link: ConnectionId, around: &mut Surroundings) {
        if let Some(side) = around.network.side_of(link, self.end()) {
            around.close(link, side);
        }
    }
}
