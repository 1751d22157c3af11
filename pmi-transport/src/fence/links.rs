//! Links: one permanent stream of frames per pair of agents, opened by the first node that has a frame to send.
//!
//! ```text
//!            first frame for it: opened                      it opens one: accepted
//! no link ─────────────────────────────> one or two streams <────────────────────── no link
//!                                             │ a stream ends, for any reason
//!                                             v
//!                                        no link; calls that need the other end fail
//! ```
//! If both nodes open a link at the same time, there are two streams. Each side keeps sending on its first one. So frames from one
//! node to another never overtake each other. If the stream that this node opened ends normally, the other node has closed both
//! streams, and its last frames arrive on its own stream.

use std::sync::Arc;

use tokio::task::AbortHandle;

use super::budget::Budget;
use super::fast_map::FastMap;
use super::link_queue::{Outgoing, Queue, Sender, Stuck};
use crate::proto::v1::LinkFrame;

/// Number of a stream, unique within this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamId(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Opened,
    Accepted,
}

/// One stream, and the task that reads it; the task ends with it.
#[derive(Debug)]
struct OneStream {
    id: StreamId,
    origin: Origin,
    reader: Option<AbortHandle>,
    /// Sending side of a stream that is not used for sending.
    idle: Option<Sender>,
}

impl Drop for OneStream {
    fn drop(&mut self) {
        if let Some(reader) = &self.reader {
            reader.abort();
        }
    }
}

/// A node with a link to it.
#[derive(Debug)]
struct Peer {
    sender: Sender,
    streams: Vec<OneStream>,
}

/// End of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The other end has closed it, after its last frame.
    InOrder,
    /// It broke, or could not be opened.
    Broken,
}

/// Outcome of sending a frame.
pub(super) enum Sent {
    /// Queued. This queue must be flushed after the node's lock is released.
    Queued(Option<Arc<Queue>>),
    /// Queued in a new link. The caller must send `Outgoing` and add a reader.
    Opening(StreamId, Outgoing),
    /// The limit of the link, or of all links together, is exceeded; the link is closed.
    Stuck(Stuck),
}

/// Stream that another node opened.
pub(super) struct Accepted {
    pub(super) id: StreamId,
    /// Frames to be sent back.
    pub(super) outgoing: Outgoing,
    /// True if it replaces an earlier link of the node.
    pub(super) replaces_link: bool,
}

/// Links of one node, by the name of the node at the other end.
#[derive(Debug)]
pub(super) struct Links {
    peers: FastMap<String, Peer>,
    streams: u64,
    budget: Budget,
}

impl Links {
    /// Creates an empty set. The queues of all its links have at most `max` bytes together.
    pub(super) fn new(max: usize) -> Self {
        Self { peers: FastMap::default(), streams: 0, budget: Budget::new(max) }
    }

    /// Queues a frame for `name`, in a new link if there is none.
    pub(super) fn send(&mut self, name: &str, frame: LinkFrame, max: usize) -> Sent {
        if let Some(peer) = self.peers.get(name) {
            return match peer.sender.send(frame, max) {
                Ok(unflushed) => Sent::Queued(unflushed),
                Err(stuck) => {
                    self.peers.remove(name);
                    Sent::Stuck(stuck)
                }
            };
        }
        let (sender, outgoing) = Sender::new(&self.budget);
        if let Err(stuck) = sender.send(frame, max) {
            return Sent::Stuck(stuck);
        }
        let id = self.next_id();
        let streams = vec![OneStream { id, origin: Origin::Opened, reader: None, idle: None }];
        self.peers.insert(name.to_owned(), Peer { sender, streams });
        Sent::Opening(id, outgoing)
    }

    /// Queues a frame for `name` if there is a link; without a link, that node waits for no frame. Returns the queue if it must be
    /// flushed.
    pub(super) fn answer(&mut self, name: &str, frame: LinkFrame, max: usize) -> Option<Arc<Queue>> {
        // An answer that exceeds a limit is dropped, as without a link.
        self.peers.get(name)?.sender.send(frame, max).ok().flatten()
    }

    /// Accepts a stream that `name` opened. An earlier stream that `name` opened ends with its link: a node opens a second one only
    /// after a restart.
    pub(super) fn accept(&mut self, name: &str) -> Accepted {
        let (sender, outgoing) = Sender::new(&self.budget);
        let id = self.next_id();
        let is_stale = |peer: &Peer| peer.streams.iter().any(|stream| stream.origin == Origin::Accepted);
        let was_stale = self.peers.get(name).is_some_and(is_stale);
        if was_stale {
            self.peers.remove(name);
        }
        let stream = |idle| OneStream { id, origin: Origin::Accepted, reader: None, idle };
        match self.peers.get_mut(name) {
            Some(peer) => peer.streams.push(stream(Some(sender))),
            None => {
                self.peers.insert(name.to_owned(), Peer { sender, streams: vec![stream(None)] });
            }
        }
        Accepted { id, outgoing, replaces_link: was_stale }
    }

    /// Sets the task that reads a stream; ends the task if the stream no longer exists.
    pub(super) fn give_reader(&mut self, name: &str, id: StreamId, reader: AbortHandle) {
        let mut streams = self.peers.get_mut(name).into_iter().flat_map(|peer| &mut peer.streams);
        match streams.find(|stream| stream.id == id) {
            Some(stream) => stream.reader = Some(reader),
            None => reader.abort(),
        }
    }

    /// Returns true while `id` is a stream of the link to `name`.
    pub(super) fn has(&self, name: &str, id: StreamId) -> bool {
        self.peers.get(name).is_some_and(|peer| peer.streams.iter().any(|stream| stream.id == id))
    }

    /// Closes the link to `name` because its stream `id` has ended. Returns false if that is not one of its streams, or if another
    /// stream still has the last frames of the other node.
    pub(super) fn close(&mut self, name: &str, id: StreamId, end: StreamEnd) -> bool {
        let Some(peer) = self.peers.get_mut(name) else { return false };
        let Some(at) = peer.streams.iter().position(|stream| stream.id == id) else { return false };
        let brings_nothing = peer.streams[at].origin == Origin::Opened && end == StreamEnd::InOrder;
        let other = peer.streams.iter_mut().find(|stream| brings_nothing && stream.origin == Origin::Accepted);
        if let Some(other) = other {
            // The other node may have refused this stream only. It receives further frames on its own one.
            if let Some(sender) = other.idle.take() {
                peer.sender = sender;
            }
            peer.streams.remove(at);
            return false;
        }
        self.peers.remove(name).is_some()
    }

    /// Closes the link to `name`, if there is one.
    pub(super) fn cut(&mut self, name: &str) {
        self.peers.remove(name);
    }

    pub(super) fn count(&self) -> usize {
        self.peers.len()
    }

    fn next_id(&mut self) -> StreamId {
        self.streams += 1;
        StreamId(self.streams)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio_stream::Stream;

    use super::super::frames::kept_bytes;
    use super::*;
    use crate::proto::v1::{FenceKey, link_frame::What};

    fn frame(epoch: u64) -> LinkFrame {
        LinkFrame { what: Some(What::Awaited(FenceKey { epoch, ..FenceKey::default() })) }
    }

    fn opened(links: &mut Links, epoch: u64) -> (StreamId, Outgoing) {
        match links.send("a", frame(epoch), usize::MAX) {
            Sent::Opening(id, outgoing) => (id, outgoing),
            Sent::Queued(_) | Sent::Stuck(_) => panic!("there was no link"),
        }
    }

    /// Epochs of the queued frames, and whether the stream has ended after them.
    fn queued(outgoing: &mut Outgoing) -> (Vec<u64>, bool) {
        let mut epochs = Vec::new();
        let mut context = Context::from_waker(std::task::Waker::noop());
        loop {
            match Pin::new(&mut *outgoing).poll_next(&mut context) {
                Poll::Ready(Some(LinkFrame { what: Some(What::Awaited(key)) })) => epochs.push(key.epoch),
                Poll::Ready(Some(other)) => panic!("{other:?}"),
                Poll::Ready(None) => return (epochs, true),
                Poll::Pending => return (epochs, false),
            }
        }
    }

    #[test]
    fn the_first_frame_opens_a_link_and_the_others_follow_it_in_order() {
        let mut links = Links::new(usize::MAX);
        let (_, mut outgoing) = opened(&mut links, 1);
        for epoch in 2..4 {
            assert!(matches!(links.send("a", frame(epoch), usize::MAX), Sent::Queued(_)));
        }
        assert_eq!((queued(&mut outgoing), links.count()), ((vec![1, 2, 3], false), 1));
        links.cut("a");
        assert_eq!((queued(&mut outgoing), links.count()), ((vec![], true), 0));
    }

    #[test]
    fn when_both_ends_open_a_link_each_goes_on_with_its_own_stream() {
        let mut links = Links::new(usize::MAX);
        let (own, mut outgoing) = opened(&mut links, 1);
        let mut accepted = links.accept("a");
        assert!(!accepted.replaces_link && accepted.id != own);
        links.answer("a", frame(2), usize::MAX);
        assert_eq!((queued(&mut outgoing).0, queued(&mut accepted.outgoing)), (vec![1, 2], (vec![], false)));
        assert!(!links.close("a", own, StreamEnd::InOrder), "the other node's last frames come on its own stream");
        assert!(links.close("a", accepted.id, StreamEnd::InOrder), "that is the end of the link");
        assert!(!links.close("a", own, StreamEnd::InOrder) && queued(&mut outgoing).1);

        let (own, _) = opened(&mut links, 1);
        links.accept("a");
        assert!(links.close("a", own, StreamEnd::Broken), "what was sent may be lost");
    }

    #[test]
    fn an_agent_that_opens_a_second_link_has_lost_its_first() {
        let mut links = Links::new(usize::MAX);
        let mut first = links.accept("a");
        let second = links.accept("a");
        assert!(second.replaces_link && queued(&mut first.outgoing).1);
        assert!(!links.close("a", first.id, StreamEnd::InOrder) && links.close("a", second.id, StreamEnd::InOrder));
    }

    #[test]
    fn a_node_that_does_not_read_is_given_up_and_its_room_is_given_back() {
        let one = kept_bytes(frame(0).what.as_ref().unwrap());
        let mut links = Links::new(2 * one);
        let (_, outgoing) = opened(&mut links, 1);
        assert!(matches!(links.send("a", frame(2), one), Sent::Stuck(Stuck::NotReading)));
        assert_eq!(links.count(), 0);
        // Dropping the stream returns the bytes of its queue.
        let Sent::Opening(_, _unread) = links.send("b", frame(1), usize::MAX) else { panic!("there was no link") };
        assert!(
            matches!(links.send("b", frame(2), usize::MAX), Sent::Stuck(Stuck::NoRoom)),
            "all links share one bound"
        );
        drop(outgoing);
        assert!(matches!(links.send("b", frame(1), usize::MAX), Sent::Opening(..)));
    }

    #[test]
    fn nobody_without_a_link_is_answered() {
        let mut links = Links::new(usize::MAX);
        links.answer("a", frame(1), usize::MAX);
        assert_eq!(links.count(), 0);
    }
}
