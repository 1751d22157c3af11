//! Note on a launch of one rank, in an allocation with room for more ranks, if the command line has no number of ranks.

use lattice_cluster_client::{Cluster, ClusterError, answered};
use lattice_console::report;
use lattice_dialects::hostfile;
use lattice_session::count::counted;
use lattice_session::request::{Candidates, PlacementRequest};

/// Room in an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// Several nodes.
    Nodes(usize),
    /// One node with this number of cores.
    Cores(u32),
    /// Slots, as counted by another manager or by the user.
    Slots(u64),
}

/// Reports idle slots of the allocation, if there are any. If the API server refuses the query, the launch itself reports the refusal.
///
/// # Errors
/// Fails if the API server cannot be reached.
pub(super) async fn report_idle(
    cluster: &Cluster,
    placement: &PlacementRequest,
    allocation: &str,
) -> Result<(), ClusterError> {
    let room = match &placement.candidates {
        Candidates::Hostfile(hosts) => Some(Room::Slots(hostfile::slots_of(hosts))),
        Candidates::Listed(nodes) => Some(Room::Nodes(nodes.len())),
        Candidates::All => answered(room_of(cluster, allocation).await)?.flatten(),
    };
    if let Some(note) = room.and_then(note) {
        report(&note);
    }
    Ok(())
}

async fn room_of(cluster: &Cluster, allocation: &str) -> Result<Option<Room>, ClusterError> {
    let nodes = cluster.allocated_nodes(allocation).await?.names;
    Ok(match nodes.as_slice() {
        [only] => {
            let facts = cluster.node_facts().await?;
            facts.iter().find(|node| node.name == *only).map(|node| Room::Cores(node.cores))
        }
        nodes => Some(Room::Nodes(nodes.len())),
    })
}

fn note(room: Room) -> Option<String> {
    let (number, room) = match room {
        Room::Nodes(nodes) => (nodes as u64, counted(nodes, "node")),
        Room::Cores(cores) => (cores.into(), format!("1 node with {}", counted(cores, "core"))),
        Room::Slots(slots) => (slots, counted(slots, "slot")),
    };
    (number > 1).then(|| {
        format!(
            "note: without -n this is 1 rank, in an allocation of {room}\n\
             try: -n N for N ranks, -N all for one on each node, --fill for one in each slot, -n 1 for one without this note"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_that_one_rank_leaves_idle_is_reported() {
        for (room, expected) in [
            (Room::Nodes(16), Some("1 rank, in an allocation of 16 nodes\n")),
            (Room::Cores(8), Some("1 rank, in an allocation of 1 node with 8 cores\n")),
            (Room::Slots(64), Some("1 rank, in an allocation of 64 slots\n")),
            (Room::Slots(1), None),
            (Room::Cores(1), None),
            (Room::Nodes(0), None),
        ] {
            let note = note(room);
            assert_eq!(note.is_some(), expected.is_some(), "{room:?}: {note:?}");
            assert!(note.unwrap_or_default().contains(expected.unwrap_or_default()), "{room:?}");
        }
    }
}
