//! An all-to-all fence: nodes exchange their blocks in rounds over doubling distances (Bruck's all-gather).
//!
//! ```text
//! 5 nodes: blocks on node 0 after       round 0: 0 1        round 1: 0 1 2 3        round 2: 0 1 2 3 4
//!          received in this round               from 1                from 2                from 4
//! ```
//! A fence of N nodes takes ceil(log2 N) rounds. In each round a node sends one message and receives one. All nodes carry the same load:
//! each sends and receives all contributions once. A tree of the same depth passes data up and down, and its root sends everything
//! several times. But the nodes of a tree have a few neighbours, and here each node has two for each round. So this fence is for hosts
//! with connections between all nodes anyway.

use async_trait::async_trait;
use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::fence::{Contribution, Fence, FenceError, FenceId, Merged};
use crate::ids::NodeIndex;
use crate::segment::Segment;

/// Identifier of a message between two nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MessageId {
    /// The fence.
    pub fence: FenceId,
    /// Round of the fence.
    pub round: u32,
}

/// Connections of a node to the other nodes of a job.
#[async_trait]
pub trait Links: Send + Sync {
    /// Sends a message. The message is stored until the other node receives it.
    ///
    /// # Errors
    /// Returns the reason when the other node is lost.
    async fn send(&self, to: NodeIndex, id: &MessageId, message: Bytes) -> Result<(), String>;

    /// Waits for a message of another node.
    ///
    /// # Errors
    /// Returns the reason when the other node is lost before it sends the message.
    async fn receive(&self, from: NodeIndex, id: &MessageId) -> Result<Bytes, String>;
}

/// A node's part of the fences of a job.
#[derive(Clone, Debug)]
pub struct AllToAll<L> {
    links: L,
    node: NodeIndex,
    /// All nodes.
    all: Vec<NodeIndex>,
}

/// A lost node, and how the loss was detected.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lost {
    node: NodeIndex,
    reason: String,
}

impl<L: Links> AllToAll<L> {
    /// Creates the fences of `node` in a job of `nodes` nodes.
    pub fn new(links: L, node: NodeIndex, nodes: u32) -> Self {
        Self { links, node, all: (0..nodes).map(NodeIndex).collect() }
    }

    /// Runs the rounds of a fence, and returns the contributions of the members, in their order from this node on.
    async fn gather(&self, id: &FenceId, members: &[NodeIndex], own: Bytes) -> Result<Vec<Bytes>, Lost> {
        let place = members.iter().position(|&member| member == self.node);
        let own_place = place.ok_or_else(|| Lost { node: self.node, reason: "it is no member of the fence".into() })?;
        let count = members.len();
        let at = |distance: usize| members[(own_place + distance) % count];
        let mut known = vec![own];
        let mut failed = None;
        for round in 0..rounds(count) {
            let distance = 1 << round;
            let id = MessageId { fence: id.clone(), round };
            let message = match &failed {
                None => encode(&known[..known.len().min(count - distance)]),
                // Forwards the loss to the node that waits for this one.
                Some(lost) => encode_loss(lost),
            };
            let to = at(count - distance);
            let sent = self.links.send(to, &id, message).await;
            if failed.is_some() {
                continue;
            }
            let from = at(distance);
            failed = match sent {
                Err(reason) => Some(Lost { node: to, reason }),
                Ok(()) => match self.links.receive(from, &id).await.map(decode) {
                    Ok(Ok(blocks)) if blocks.len() == distance.min(count - distance) => {
                        known.extend(blocks);
                        None
                    }
                    Ok(Ok(blocks)) => Some(Lost { node: from, reason: format!("it reported {} nodes", blocks.len()) }),
                    Ok(Err(lost)) => {
                        Some(lost.unwrap_or_else(|| Lost { node: from, reason: "it makes no sense".into() }))
                    }
                    Err(reason) => Some(Lost { node: from, reason }),
                },
            };
        }
        match failed {
            Some(lost) => Err(lost),
            None => {
                known.rotate_right(own_place);
                Ok(known)
            }
        }
    }
}

/// Number of rounds after which `nodes` nodes have all contributions.
fn rounds(nodes: usize) -> u32 {
    nodes.max(1).next_power_of_two().trailing_zeros()
}

#[async_trait]
impl<L: Links> Fence for AllToAll<L> {
    async fn exchange(&self, id: &FenceId, contribution: Contribution) -> Result<Merged, FenceError> {
        let own = joined(&contribution.segments, Segment::MAX_LEN)
            .map_err(|reason| FenceError::NotBegun { epoch: id.epoch, reason })?;
        let gathered = self.gather(id, id.scope.members(&self.all), own).await;
        let blocks =
            gathered.map_err(|Lost { node, reason }| FenceError::NodeLost { node, epoch: id.epoch, reason })?;
        let bad =
            |error: crate::segment::SegmentError| FenceError::BadSegment { epoch: id.epoch, reason: error.to_string() };
        let segments =
            blocks.into_iter().filter(|block| !block.is_empty()).map(|block| Segment::decode(block).map_err(bad));
        Ok(segments.collect::<Result<Vec<_>, _>>()?.into())
    }
}

/// Joins the segments into one segment with the same meaning. Fails above `max` bytes, because other nodes cannot read a longer segment.
fn joined(segments: &[Segment], max: usize) -> Result<Bytes, String> {
    if let [one] = segments {
        return Ok(one.clone().into_bytes());
    }
    let length = segments.iter().map(|segment| segment.as_bytes().len()).sum();
    if length > max {
        return Err(format!("this node has put {length} bytes since the last fence; the limit is {max}"));
    }
    let mut joined = Vec::with_capacity(length);
    segments.iter().for_each(|segment| joined.extend_from_slice(segment.as_bytes()));
    Ok(joined.into())
}

const KNOWN: u8 = 0;
const LOST: u8 = 1;

/// Encodes contributions: their number, then each contribution after its length.
fn encode(blocks: &[Bytes]) -> Bytes {
    let mut out = BytesMut::with_capacity(5 + blocks.iter().map(|block| 8 + block.len()).sum::<usize>());
    out.put_u8(KNOWN);
    out.put_u32(blocks.len() as u32);
    for block in blocks {
        out.put_u64(block.len() as u64);
        out.put_slice(block);
    }
    out.freeze()
}

fn encode_loss(lost: &Lost) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(LOST);
    out.put_u32(lost.node.0);
    out.put_slice(lost.reason.as_bytes());
    out.freeze()
}

/// Decodes a message. Fails with the loss that the message reports, or with `None` if the message is malformed.
fn decode(mut message: Bytes) -> Result<Vec<Bytes>, Option<Lost>> {
    let kind = message.try_get_u8().map_err(|_| None)?;
    let number = message.try_get_u32().map_err(|_| None)?;
    if kind == LOST {
        let reason = String::from_utf8_lossy(&message).chars().take(200).collect();
        return Err(Some(Lost { node: NodeIndex(number), reason }));
    }
    let mut blocks = Vec::new();
    for _ in 0..number {
        let length = usize::try_from(message.try_get_u64().map_err(|_| None)?).map_err(|_| None)?;
        if length > message.len() {
            return Err(None);
        }
        blocks.push(message.split_to(length));
    }
    if kind == KNOWN && message.is_empty() { Ok(blocks) } else { Err(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_joined_unless_they_are_too_long() {
        let segments = [("a", "1"), ("b", "2")].map(|pair| Segment::from_iter([pair]));
        let length = 2 * segments[0].as_bytes().len();
        let read = joined(&segments, length).map(|joined| Segment::decode(joined).unwrap().pair_count());
        assert_eq!(read, Ok(2));
        let refused = joined(&segments, length - 1).unwrap_err();
        assert_eq!(refused, "this node has put 8 bytes since the last fence; the limit is 7");
        assert_eq!(joined(&[], length), Ok(Bytes::new()));
    }

    #[test]
    fn a_message_is_read_as_it_was_written_and_nothing_else_is_one() {
        let blocks: Vec<Bytes> = ["", "abc", "d"].map(Bytes::from).to_vec();
        let message = encode(&blocks);
        assert_eq!(decode(message.clone()), Ok(blocks));
        for length in 0..message.len() {
            assert_eq!(decode(message.slice(..length)), Err(None), "{length} bytes");
        }
        let lost = Lost { node: NodeIndex(7), reason: "its power is off".into() };
        assert_eq!(decode(encode_loss(&lost)), Err(Some(lost)));
        assert_eq!(decode(Bytes::from_static(b"\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")), Err(None));
        assert_eq!([1, 2, 3, 4, 5, 8, 9, 1000].map(rounds), [0, 1, 2, 2, 3, 3, 4, 10]);
    }
}
