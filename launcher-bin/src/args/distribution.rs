//! `--distribution`: the order of ranks among nodes, and among the sockets of a node and their cores, in the words of srun(1).

use std::num::NonZeroU32;

use lattice_session::request;
use rank_spawner::{Deal, Dealt, Object};

/// Orders of ranks; `None` is the default order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Among nodes.
    pub nodes: Option<request::Distribution>,
    /// Among the sockets of a node.
    pub sockets: Option<Order>,
    /// Among the cores of a socket.
    pub cores: Option<Order>,
}

/// Order in which ranks are distributed over objects of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Consecutive ranks share an object.
    Block,
    /// Consecutive ranks are on different objects.
    Cyclic,
    /// The CPUs of each rank are on different objects.
    FullyCyclic,
}

impl Distribution {
    /// Distributions of bound ranks over the sockets and cores of a node.
    pub(crate) fn deals(&self) -> [Option<Deal>; 2] {
        let deal = |(over, order)| match order {
            Some(Order::Cyclic) => Some(Deal::over(over, Dealt::Ranks)),
            Some(Order::FullyCyclic) => Some(Deal::over(over, Dealt::Cpus)),
            Some(Order::Block) | None => None,
        };
        let mut deals = [(Object::Socket, self.sockets), (Object::Core, self.cores)].into_iter().filter_map(deal);
        [deals.next(), deals.next()]
    }
}

/// Error for a text that is no distribution.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoDistribution {
    #[error(
        "{word:?} is no distribution among nodes; `block`, `cyclic` and `plane=N` are possible, and `*` for the usual one"
    )]
    Nodes { word: String },
    #[error(
        "{word:?} is no distribution among sockets or cores; after a `:` `block`, `cyclic` and `fcyclic` are possible, and `*` for the usual one"
    )]
    Within { word: String },
    #[error(
        "plane={number:?} needs the number of ranks that share a node before the next one is dealt some, as in plane=4"
    )]
    Plane { number: String },
}

/// Parses `NODES[:SOCKETS[:CORES]]`.
pub(super) fn parse(text: &str) -> Result<Distribution, NoDistribution> {
    let mut words = text.splitn(3, ':');
    let nodes = among_nodes(words.next().unwrap_or_default())?;
    let mut within = || words.next().map(within_node).transpose().map(Option::flatten);
    Ok(Distribution { nodes, sockets: within()?, cores: within()? })
}

fn among_nodes(word: &str) -> Result<Option<request::Distribution>, NoDistribution> {
    if let Some(number) = word.strip_prefix("plane=") {
        let ranks = number.parse::<NonZeroU32>().map_err(|_| NoDistribution::Plane { number: number.to_owned() })?;
        return Ok(Some(request::Distribution::Plane(ranks)));
    }
    match word {
        "block" => Ok(Some(request::Distribution::Block)),
        "cyclic" => Ok(Some(request::Distribution::Cyclic)),
        "*" => Ok(None),
        word => Err(NoDistribution::Nodes { word: word.to_owned() }),
    }
}

fn within_node(word: &str) -> Result<Option<Order>, NoDistribution> {
    match word {
        "block" => Ok(Some(Order::Block)),
        "cyclic" => Ok(Some(Order::Cyclic)),
        "fcyclic" => Ok(Some(Order::FullyCyclic)),
        "*" => Ok(None),
        word => Err(NoDistribution::Within { word: word.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use request::Distribution::{Block, Cyclic, Plane};

    use super::*;

    #[test]
    fn all_levels_are_read() {
        let check = |text: &str, nodes, sockets, cores| {
            assert_eq!(parse(text), Ok(Distribution { nodes, sockets, cores }), "{text}");
        };
        check("block", Some(Block), None, None);
        check("cyclic:block", Some(Cyclic), Some(Order::Block), None);
        check("*:cyclic", None, Some(Order::Cyclic), None);
        let four = Plane(NonZeroU32::new(4).unwrap());
        check("plane=4", Some(four), None, None);
        check("plane=4:cyclic", Some(four), Some(Order::Cyclic), None);
        check("block:fcyclic", Some(Block), Some(Order::FullyCyclic), None);
        check("block:cyclic:fcyclic", Some(Block), Some(Order::Cyclic), Some(Order::FullyCyclic));
        check("*:*:cyclic", None, None, Some(Order::Cyclic));
        for text in [
            "",
            "plain",
            "plane",
            "plane=",
            "plane=0",
            "fcyclic",
            "block:",
            "block:plane=2",
            "block:cyclic:",
            "block:cyclic:block:block",
            ":cyclic",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
