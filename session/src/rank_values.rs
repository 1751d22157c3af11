//! Values of variables that differ between ranks: names in braces, such as `{rank}`, are filled in on the rank's node.
//!
//! Braces around any other text stay, so that JSON and shell code pass unchanged.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use pmi_core::ids::{LocalRank, NodeIndex, Rank};

/// First port for launches.
const PORT_FIRST: u64 = 20_000;
/// Number of these ports. They end below the ports that the kernel assigns.
const PORTS: u64 = 12_000;

/// Names that are filled in, with their meaning.
pub const NAMES: [(&str, &str); 11] = [
    ("rank", "rank in the job"),
    ("size", "number of ranks"),
    ("local_rank", "rank on its node"),
    ("local_size", "number of ranks on its node"),
    ("node", "index of its node"),
    ("nodes", "number of nodes"),
    ("host", "name of its node"),
    ("head", "address of node 0, as the other nodes reach it; an IPv6 address has brackets before a colon"),
    ("port", "a port from 20000 to 31999, the same for all ranks; it is not checked that it is free"),
    ("node_list", "names of all nodes"),
    ("launch_id", "id of the launch"),
];

/// Values of the names for one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankFacts<'a> {
    pub(crate) rank: Rank,
    pub(crate) size: u32,
    pub(crate) local_rank: LocalRank,
    pub(crate) local_size: u32,
    pub(crate) node: NodeIndex,
    pub(crate) nodes: usize,
    pub(crate) host: &'a str,
    pub(crate) head: &'a str,
    pub(crate) node_list: &'a str,
    pub(crate) launch_id: &'a str,
}

impl RankFacts<'_> {
    fn of(&self, name: &str) -> Option<String> {
        Some(match name {
            "rank" => self.rank.to_string(),
            "size" => self.size.to_string(),
            "local_rank" => self.local_rank.to_string(),
            "local_size" => self.local_size.to_string(),
            "node" => self.node.to_string(),
            "nodes" => self.nodes.to_string(),
            "host" => self.host.to_owned(),
            "head" => self.head.to_owned(),
            "port" => port(self.launch_id).to_string(),
            "node_list" => self.node_list.to_owned(),
            "launch_id" => self.launch_id.to_owned(),
            _ => return None,
        })
    }
}

/// Returns the port of a launch, derived from its id: all nodes get the same port. (FNV-1a.)
fn port(launch_id: &str) -> u64 {
    let hash = launch_id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    PORT_FIRST + hash % PORTS
}

/// Returns true if a value has names that are filled in.
pub fn has_names(value: &OsStr) -> bool {
    pieces(value.as_bytes()).iter().any(|piece| matches!(piece, Piece::Name(_)))
}

/// Returns the value for one rank.
pub(crate) fn fill(value: &OsStr, facts: &RankFacts<'_>) -> OsString {
    let mut filled = Vec::new();
    let mut pieces = pieces(value.as_bytes()).into_iter().peekable();
    while let Some(piece) = pieces.next() {
        match piece {
            Piece::Text(text) => filled.extend_from_slice(text),
            // An IPv6 address before a port has brackets.
            Piece::Name("head") if facts.head.contains(':') && pieces.peek().is_some_and(is_before_port) => {
                filled.extend(format!("[{}]", facts.head).into_bytes());
            }
            Piece::Name(name) => filled.extend(facts.of(name).unwrap_or_default().into_bytes()),
        }
    }
    OsString::from_vec(filled)
}

#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a [u8]),
    Name(&'static str),
}

/// Returns true for text that begins with the port after an address.
fn is_before_port(piece: &Piece<'_>) -> bool {
    matches!(piece, Piece::Text([b':', ..]))
}

fn pieces(mut value: &[u8]) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    while let Some(open) = value.iter().position(|&byte| byte == b'{') {
        let (before, from) = value.split_at(open);
        let name = NAMES.into_iter().map(|(name, _)| name).find(|name| is_name(from, name));
        let text = if name.is_some() { before } else { &value[..=open] };
        pieces.push(Piece::Text(text));
        match name {
            Some(name) => {
                pieces.push(Piece::Name(name));
                value = &from[name.len() + 2..];
            }
            None => value = &from[1..],
        }
    }
    pieces.push(Piece::Text(value));
    pieces
}

/// Returns true if a text begins with a name in braces.
fn is_name(text: &[u8], name: &str) -> bool {
    text.len() > name.len() + 1 && text[1..].starts_with(name.as_bytes()) && text[name.len() + 1] == b'}'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FACTS: RankFacts<'_> = RankFacts {
        rank: Rank(5),
        size: 8,
        local_rank: LocalRank(1),
        local_size: 4,
        node: NodeIndex(1),
        nodes: 2,
        host: "n1",
        head: "10.0.0.1",
        node_list: "n0,n1",
        launch_id: "ab12",
    };

    #[test]
    fn names_are_filled_in_and_everything_else_is_text() {
        for (value, expected) in [
            ("", ""),
            ("{rank}", "5"),
            ("r{rank}of{size}.", "r5of8."),
            ("{local_rank}/{local_size} {node}/{nodes} {host} {node_list} {launch_id}", "1/4 1/2 n1 n0,n1 ab12"),
            ("{{rank}}", "{5}"),
            ("{\"a\": {\"b\": 1}} ${HOME} {RANK} {rank {", "{\"a\": {\"b\": 1}} ${HOME} {RANK} {rank {"),
        ] {
            assert_eq!(fill(OsStr::new(value), &FACTS), expected, "{value}");
            assert_eq!(has_names(OsStr::new(value)), value.contains("rank}"), "{value}");
        }
    }

    #[test]
    fn an_address_with_colons_has_brackets_before_a_port() {
        let facts = RankFacts { head: "fd93::10", ..FACTS };
        for (value, expected) in
            [("{head}", "fd93::10"), ("{head}:80", "[fd93::10]:80"), ("tcp://{head}:{rank}/", "tcp://[fd93::10]:5/")]
        {
            assert_eq!(fill(OsStr::new(value), &facts), expected, "{value}");
        }
    }

    #[test]
    fn a_port_is_that_of_the_launch_and_in_its_range() {
        let filled = fill(OsStr::new("{head}:{port}"), &FACTS).into_string().unwrap();
        let (head, number) = filled.split_once(':').unwrap();
        assert_eq!((head, number.parse()), ("10.0.0.1", Ok(port("ab12"))));
        assert_ne!(port("ab12"), port("ab13"));
        assert!((0..1000).map(|id: u32| port(&id.to_string())).all(|port| (20_000..32_000).contains(&port)));
    }

    proptest! {
        #[test]
        fn a_value_without_names_is_its_own(value in "[{}a-z_ ]{0,20}") {
            let value = OsStr::new(&value);
            prop_assert_eq!(has_names(value), fill(value, &FACTS) != value);
        }
    }
}
