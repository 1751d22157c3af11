//! `--distribution`: the order of ranks among nodes, and among the sockets of a node, in the words of srun(1).

use std::num::NonZeroU32;

use lattice_session::request;

/// Orders of ranks; `None` is the order without the flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Among nodes.
    pub nodes: Option<request::Distribution>,
    /// Among the sockets of a node.
    pub sockets: Option<Order>,
}

/// Order in which ranks are distributed over sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Consecutive ranks share a socket.
    Block,
    /// Consecutive ranks are on different ones.
    Cyclic,
}

/// Refusal of a text as a distribution.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoDistribution {
    #[error(
        "{word:?} is no distribution among nodes; `block`, `cyclic` and `plane=N` are possible, and `*` for the usual one"
    )]
    Nodes { word: String },
    #[error(
        "{word:?} is no distribution among sockets; behind the `:` `block` and `cyclic` are possible, and `*` for the usual one"
    )]
    Sockets { word: String },
    #[error(
        "plane={number:?} needs the number of ranks that share a node before the next one is dealt some, as in plane=4"
    )]
    Plane { number: String },
}

/// Reads one word for nodes, and one behind a colon for sockets.
pub(super) fn parse(text: &str) -> Result<Distribution, NoDistribution> {
    let (nodes, sockets) = text.split_once(':').map_or((text, None), |(nodes, sockets)| (nodes, Some(sockets)));
    Ok(Distribution { nodes: among_nodes(nodes)?, sockets: sockets.map(among_sockets).transpose()?.flatten() })
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

fn among_sockets(word: &str) -> Result<Option<Order>, NoDistribution> {
    match word {
        "block" => Ok(Some(Order::Block)),
        "cyclic" => Ok(Some(Order::Cyclic)),
        "*" => Ok(None),
        word => Err(NoDistribution::Sockets { word: word.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use request::Distribution::{Block, Cyclic, Plane};

    use super::*;

    #[test]
    fn both_levels_are_read() {
        let check = |text: &str, nodes, sockets| assert_eq!(parse(text), Ok(Distribution { nodes, sockets }), "{text}");
        check("block", Some(Block), None);
        check("cyclic:block", Some(Cyclic), Some(Order::Block));
        check("*:cyclic", None, Some(Order::Cyclic));
        let four = Plane(NonZeroU32::new(4).unwrap());
        check("plane=4", Some(four), None);
        check("plane=4:cyclic", Some(four), Some(Order::Cyclic));
        for text in
            ["", "plain", "plane", "plane=", "plane=0", "block:", "block:plane=2", "block:cyclic:block", ":cyclic"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
