//! `--distribution`: the order of ranks among nodes, and among the sockets of a node, in the words of srun(1).

/// Orders of ranks; `None` is the order without the flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Among nodes.
    pub nodes: Option<Order>,
    /// Among the sockets of a node.
    pub sockets: Option<Order>,
}

/// Order in which ranks are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Consecutive ranks share a node or a socket.
    Block,
    /// Consecutive ranks are on different ones.
    Cyclic,
}

/// Refusal of a text as a distribution.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{word:?} is no distribution; `block` and `cyclic` are possible, for nodes and behind a `:` for sockets, and `*` for the usual one"
)]
pub(super) struct NoDistribution {
    word: String,
}

/// Reads one word for nodes, and one behind a colon for sockets.
pub(super) fn parse(text: &str) -> Result<Distribution, NoDistribution> {
    let (nodes, sockets) = text.split_once(':').map_or((text, None), |(nodes, sockets)| (nodes, Some(sockets)));
    Ok(Distribution { nodes: order(nodes)?, sockets: sockets.map(order).transpose()?.flatten() })
}

fn order(word: &str) -> Result<Option<Order>, NoDistribution> {
    match word {
        "block" => Ok(Some(Order::Block)),
        "cyclic" => Ok(Some(Order::Cyclic)),
        "*" => Ok(None),
        word => Err(NoDistribution { word: word.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_levels_are_read() {
        let check = |text: &str, nodes, sockets| assert_eq!(parse(text), Ok(Distribution { nodes, sockets }), "{text}");
        check("block", Some(Order::Block), None);
        check("cyclic:block", Some(Order::Cyclic), Some(Order::Block));
        check("*:cyclic", None, Some(Order::Cyclic));
        for text in ["", "plain", "block:", "block:cyclic:block", ":cyclic"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
