//! Values of `--tasks-per` and `--rank-by`: ranks on objects of a node, and the order of rank numbers, in the words of Open MPI's mpirun.

use std::num::NonZeroU32;

use lattice_inventory::UsableCores;
use lattice_session::request;
use rank_spawner::{Deal, Dealt, Numbering, Object};

/// Number of ranks on each object of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerObject {
    /// Maximum number of ranks on an object.
    pub ranks: NonZeroU32,
    /// Kind of the objects.
    pub object: Object,
    /// Distribution over the nodes if there are fewer ranks than the nodes can take.
    pub filling: Filling,
}

/// Order in which ranks fill several nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// One node after the other, as with mpirun's `--map-by ppr`.
    NodeByNode,
    /// The same. When all nodes are full, ranks start again with the first node, as with Intel MPI's mpiexec.
    Again,
    /// All nodes take the same share, as with srun.
    Evenly,
}

impl PerObject {
    /// One rank on each core: the slots of a node without a number.
    pub const SLOTS: Self = Self { ranks: NonZeroU32::MIN, object: Object::Core, filling: Filling::NodeByNode };

    /// Number of ranks that a node with these cores takes; `None` if it has no such object.
    pub fn room(self, cores: &UsableCores) -> Option<NonZeroU32> {
        NonZeroU32::new(self.object.count(cores))?.checked_mul(self.ranks)
    }

    /// The distribution of bound ranks over the objects, combined with the requested distribution among sockets and cores.
    pub fn deals(self, asked: [Option<Deal>; 2]) -> [Option<Deal>; 2] {
        let deal = Deal { over: self.object, what: Dealt::Ranks, at_once: self.ranks };
        match (self.filling, asked) {
            (Filling::Again, asked) => asked,
            (Filling::Evenly, [Some(sockets), _]) if self.object == Object::Core => [Some(sockets), Some(deal)],
            _ => [Some(deal), None],
        }
    }
}

/// Order of rank numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankBy {
    /// Consecutive ranks share a node, in the order of their placement there.
    Slot,
    /// Consecutive ranks are on different nodes.
    Node,
    /// Consecutive ranks share a node, and are neighbours on it.
    Fill,
    /// Consecutive ranks share a node, and are on different objects of it.
    Object(Object),
}

impl RankBy {
    /// Order among nodes.
    pub const fn among_nodes(self) -> request::Numbering {
        match self {
            Self::Node => request::Numbering::InTurn,
            Self::Slot | Self::Fill | Self::Object(_) => request::Numbering::NodeByNode,
        }
    }

    /// Order on a node.
    pub const fn on_a_node(self) -> Numbering {
        match self {
            Self::Slot | Self::Node => Numbering::AsDealt,
            Self::Fill => Numbering::InOrder,
            Self::Object(object) => Numbering::Over(object),
        }
    }
}

/// Error for an invalid number of ranks on objects, or an invalid order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoObject {
    /// The text is no number of ranks of an object.
    #[error(
        "{text:?} is no number of ranks of an object; possible is K:OBJECT, such as 2:socket, with hwthread, core, l3cache, numa, socket, gpu or nic; `:again` after it has more ranks begin again with the first node"
    )]
    PerObject {
        /// The text.
        text: String,
    },
    /// The text is no order of ranks.
    #[error("{text:?} is no order of ranks; slot, node, fill, l3cache, numa, socket, gpu and nic are possible")]
    RankBy {
        /// The text.
        text: String,
    },
}

/// Parses `K:OBJECT`, with `:again` after it if ranks start again with the first node.
///
/// # Errors
/// Refuses every other text.
pub fn per_object(text: &str) -> Result<PerObject, NoObject> {
    let read = |(ranks, word): (&str, &str)| {
        let (word, filling) = match word.strip_suffix(":again") {
            Some(word) => (word, Filling::Again),
            None => (word, Filling::NodeByNode),
        };
        Some(PerObject { ranks: ranks.parse().ok()?, object: Object::called(word)?, filling })
    };
    text.split_once(':').and_then(read).ok_or_else(|| NoObject::PerObject { text: text.to_owned() })
}

/// Parses an order of ranks.
///
/// # Errors
/// Refuses every other text.
pub fn rank_by(text: &str) -> Result<RankBy, NoObject> {
    match (text, Object::called(text)) {
        ("slot", _) => Ok(RankBy::Slot),
        ("node", _) => Ok(RankBy::Node),
        ("fill", _) | (_, Some(Object::Core | Object::Thread)) => Ok(RankBy::Fill),
        (_, Some(object)) => Ok(RankBy::Object(object)),
        _ => Err(NoObject::RankBy { text: text.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_objects_are_read() {
        let two = NonZeroU32::new(2).unwrap();
        let per = |ranks, object| PerObject { ranks, object, filling: Filling::NodeByNode };
        assert_eq!(per_object("2:socket"), Ok(per(two, Object::Socket)));
        assert_eq!(per_object("2:hwthread"), Ok(per(two, Object::Thread)));
        assert_eq!(per_object("1:gpu"), Ok(per(NonZeroU32::MIN, Object::Gpu)));
        let again = PerObject { filling: Filling::Again, ..per(two, Object::Core) };
        assert_eq!(per_object("2:core:again"), Ok(again));
        for text in ["", "2", "socket", "0:socket", "2:rack", "x:core", "2:core:1", "2:again"] {
            assert!(per_object(text).is_err(), "{text}");
        }
        assert_eq!(rank_by("package"), Ok(RankBy::Object(Object::Socket)));
        assert_eq!(rank_by("nic"), Ok(RankBy::Object(Object::Nic)));
        assert_eq!(rank_by("core"), Ok(RankBy::Fill));
        assert!(rank_by("span").unwrap_err().to_string().starts_with("\"span\" is no order of ranks; slot"));
    }
}
