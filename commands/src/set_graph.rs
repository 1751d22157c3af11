//! `lattice set graph`: members of sets and the links between them, as reported by the members.

mod svg;

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lattice_console::{print, print_json};
use lattice_overlay::address::{Process, SetId, Uid};
use lattice_overlay::method::{Connectivity, Method};
use serde::Serialize;

use super::error::CommandError;
use super::own_sets::{Known, OwnSets, Whose, as_set};
use crate::args::TableArgs;

/// Time limit for a member to report its links.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Members and links.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Graph {
    members: Vec<Member>,
    links: Vec<Link>,
}

/// A member of a set.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Member {
    address: String,
    set_id: u32,
    node: String,
    /// Pid of a member on this machine.
    pid: Option<u32>,
    command: String,
    /// Round-trip time of a call from this command; `None` without an answer.
    round_trip_s: Option<f64>,
}

/// A link between two members.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Link {
    a: String,
    b: String,
    kind: String,
    opened_by: String,
    /// Frames that both members have sent over the link.
    frames: u64,
}

/// Prints the graph of one set, or of all sets, as an SVG drawing or as JSON; returns the exit code.
pub(super) fn graph(form: &TableArgs, only: Option<SetId>) -> Result<u8, CommandError> {
    let graph = as_set("lattice set graph", &form.api, async |sets| gather(sets, only).await)?;
    Ok(if form.json { print_json(&graph)? } else { print(svg::svg(&graph).as_bytes())? })
}

async fn gather(sets: &OwnSets, only: Option<SetId>) -> Result<Graph, CommandError> {
    let (mut nodes, mut links) = (Vec::new(), BTreeMap::new());
    let known = sets.known(Whose::Own).await?;
    let itself = known.last().map(|set| set.id);
    for set in known.iter().filter(|set| only.is_none_or(|only| only == set.id)) {
        for (index, host) in (0..).zip(&set.hosts) {
            let uid = Uid::new(set.id, Process::Node(index));
            let begun = Instant::now();
            // This command reports no links itself. Its links appear if other members report them.
            let told = match itself {
                Some(itself) if itself == set.id => None,
                _ => sets.call(uid, Method::CONNECTIVITY, Bytes::new(), ANSWER_TIMEOUT).await.ok(),
            };
            let round_trip_s = told.is_some().then(|| begun.elapsed().as_secs_f64());
            nodes.push(node(set, uid, host, round_trip_s));
            if let Some(told) = told.and_then(|told| serde_json::from_slice::<Connectivity>(&told).ok()) {
                add_links(&mut links, told);
            }
        }
    }
    let known: HashSet<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
    let is_known = |edge: &Link| known.contains(edge.a.as_str()) && known.contains(edge.b.as_str());
    let edges = links.into_values().filter(is_known).collect();
    Ok(Graph { members: nodes, links: edges })
}

fn node(set: &Known, uid: Uid, host: &str, round_trip_s: Option<f64>) -> Member {
    let (host, command) = (host.to_owned(), set.command.clone());
    Member { address: uid.to_string(), set_id: set.id.bits(), node: host, pid: set.pid, command, round_trip_s }
}

/// Adds the links that a member reports. A link that both ends report is one edge. Of two frame counts the greater one is used, as it is
/// the later one.
fn add_links(links: &mut BTreeMap<(String, String), Link>, told: Connectivity) {
    for link in told.links {
        let (a, b) = (told.member.clone().min(link.to.clone()), told.member.clone().max(link.to.clone()));
        let opened_by = if link.opened { &told.member } else { &link.to }.clone();
        let new = || Link { a: a.clone(), b: b.clone(), kind: link.kind.clone(), opened_by, frames: 0 };
        let edge = links.entry((a.clone(), b.clone())).or_insert_with(new);
        edge.frames = edge.frames.max(link.sent.saturating_add(link.received));
    }
}

/// Name of a process in its set.
fn process(uid: &str) -> String {
    match uid.parse::<Uid>().map(Uid::process) {
        Ok(Process::Node(node)) => format!("node {node}"),
        Ok(Process::Rank(rank)) => format!("rank {rank}"),
        Err(_) => uid.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use lattice_overlay::method::LinkInfo;
    use lattice_overlay::strides::neighbours;

    use super::*;

    fn link(to: &str, opened: bool, sent: u64) -> LinkInfo {
        LinkInfo { to: to.to_owned(), kind: "root".to_owned(), opened, sent, received: 1 }
    }

    fn node(set: u32, command: &str, round_trip_s: Option<f64>) -> Member {
        let (address, command) = (SetId::from_bits(set).root().to_string(), command.to_owned());
        Member { address, set_id: set, node: "n1".to_owned(), pid: Some(7), command, round_trip_s }
    }

    #[test]
    fn a_link_that_both_ends_tell_is_one_edge() {
        let mut links = BTreeMap::new();
        let (a, b) = ("lattice://1/node/0", "lattice://2/node/0");
        add_links(&mut links, Connectivity { member: b.to_owned(), links: vec![link(a, false, 3)] });
        add_links(&mut links, Connectivity { member: a.to_owned(), links: vec![link(b, true, 4)] });
        let edges: Vec<Link> = links.into_values().collect();
        let edge = Link { a: a.into(), b: b.into(), kind: "root".into(), opened_by: a.into(), frames: 5 };
        assert_eq!(edges, [edge]);
    }

    #[test]
    fn a_drawing_has_a_box_for_each_member_and_a_line_for_each_link() {
        let nodes = vec![
            node(1, "./a <b> & a command that is too long for a box", Some(80.4e-6)),
            node(2, "lattice set list", None),
        ];
        let (a, b) = (nodes[0].address.clone(), nodes[1].address.clone());
        let edge = Link { a, b, kind: "root".into(), opened_by: String::new(), frames: 2 };
        let drawing = svg::svg(&Graph { members: nodes, links: vec![edge] });
        assert_eq!((drawing.matches("<rect x=").count(), drawing.matches("<line ").count()), (2, 1));
        for words in
            ["1: ./a &lt;b&gt; &amp; a command that is too..<", "node 0 on n1, 80 us", "no answer", ">root, 2 frames<"]
        {
            assert!(drawing.contains(words), "{words} in {drawing}");
        }
        let empty = svg::svg(&Graph::default());
        assert!(empty.starts_with("<svg ") && empty.ends_with("</svg>\n") && !empty.contains("NaN"), "{empty}");
    }

    /// Three launches of 512 sessions with all links that they can have, and one link between each two roots.
    #[test]
    fn three_sets_of_512_members_have_each_link_once() {
        let (sets, members) = ([1, 2, 3].map(SetId::from_bits), 512);
        let uid = |set, index| Uid::new(set, Process::Node(index)).to_string();
        let (mut links, mut nodes) = (BTreeMap::new(), Vec::new());
        for set in sets {
            for member in 0..members {
                let strides = neighbours(member, members).into_iter();
                let mut told: Vec<LinkInfo> = strides.map(|to| link(&uid(set, to), member < to, 2)).collect();
                let others = sets.into_iter().filter(|&other| member == 0 && other != set);
                told.extend(others.map(|other| link(&uid(other, 0), set.bits() < other.bits(), 2)));
                add_links(&mut links, Connectivity { member: uid(set, member), links: told });
                nodes.push(Member { address: uid(set, member), ..node(set.bits(), "./a.out", None) });
            }
        }
        // 2 x 9 strides. The longest stride leads to the same member in both directions.
        let graph = Graph { members: nodes, links: links.into_values().collect() };
        assert_eq!((graph.members.len(), graph.links.len()), (3 * 512, 3 * 512 * 17 / 2 + 3));
        let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&graph).unwrap()).unwrap();
        let count = |what: &str| json[what].as_array().unwrap().len();
        assert_eq!((count("members"), count("links")), (graph.members.len(), graph.links.len()));
    }
}
