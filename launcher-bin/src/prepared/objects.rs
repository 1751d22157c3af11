//! Ranks by objects of the nodes of a cluster. The template of a node gives the number of its ranks.

use std::collections::HashMap;
use std::num::NonZeroU32;

use lattice_cluster_client::Templates;
use lattice_dialects::per_object::{Filling, PerObject};
use lattice_session::count::counted;
use lattice_session::request::{Candidates, HostSlots, PlacementRequest};

/// Refusal of ranks by objects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectsError {
    /// The number of objects of a node is unknown.
    #[error(
        "{node} has not reported how many objects ({object}) it has\ntry: --tasks-per-node K, the number of ranks of a node"
    )]
    Unknown {
        /// Name of the node.
        node: String,
        /// Kind of the objects.
        object: &'static str,
    },
    /// No node has such an object.
    #[error("no {object} is known on {nodes}\ntry: --tasks-per-node K, the number of ranks of a node")]
    None {
        /// The nodes.
        nodes: String,
        /// Kind of the objects.
        object: &'static str,
    },
    /// The objects of the nodes take fewer ranks than requested.
    #[error(
        "{ranks} ranks do not fit: {nodes} have room for {room} with {} on each {object}\n\
         try: -n {room}, or fewer; --overcommit (mpirun's --oversubscribe), which lets them share",
        counted(u64::from(*per_object), "rank")
    )]
    TooFew {
        /// Requested number of ranks.
        ranks: u32,
        /// The nodes.
        nodes: String,
        /// Number of ranks for each object.
        per_object: u32,
        /// Kind of the objects.
        object: &'static str,
        /// Number of ranks that fit.
        room: u64,
    },
}

/// Gives each candidate node as many slots as its objects take ranks. A node without such an object gets none. `ranks` is the requested number
/// of ranks, if any.
///
/// # Errors
/// Fails if a node has no template, if no node has such an object, or if there are too few slots.
pub(crate) fn placed_by_objects(
    request: &mut PlacementRequest,
    ranks: Option<u32>,
    per_object: PerObject,
    allocated: &[String],
    templates: &Templates,
) -> Result<(), ObjectsError> {
    let (nodes, bounds): (Vec<&String>, HashMap<&str, u32>) = match &request.candidates {
        Candidates::All => (allocated.iter().collect(), HashMap::new()),
        Candidates::Listed(nodes) => (nodes.iter().collect(), HashMap::new()),
        Candidates::Hostfile(hosts) => {
            let mut bounds: HashMap<&str, u32> = HashMap::new();
            let mut nodes = Vec::new();
            for HostSlots { node, slots } in hosts {
                let bound = bounds.entry(node).or_insert_with(|| {
                    nodes.push(node);
                    0
                });
                *bound = bound.saturating_add(slots.get());
            }
            (nodes, bounds)
        }
    };
    let slots = |node: &String| {
        if request.except.contains(node) {
            return Ok(Some(HostSlots { node: node.clone(), slots: NonZeroU32::MIN }));
        }
        let unknown = || ObjectsError::Unknown { node: node.clone(), object: per_object.object.noun() };
        let (_, known) = templates.of(node).ok_or_else(unknown)?;
        let bound = bounds.get(node.as_str()).copied().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX);
        let room = per_object.room(&known.cores());
        Ok(room.map(|room| HostSlots { node: node.clone(), slots: room.min(bound) }))
    };
    let hosts = nodes.iter().copied().filter_map(|node| slots(node).transpose()).collect::<Result<Vec<_>, _>>()?;
    let used = || hosts.iter().filter(|host| !request.except.contains(&host.node));
    if used().next().is_none() {
        let without: Vec<&String> = nodes.into_iter().filter(|node| !request.except.contains(node)).collect();
        return Err(ObjectsError::None { nodes: hostlist::fold(&without), object: per_object.object.noun() });
    }
    let (first, is_whole) =
        (used().next().map(|host| host.slots), !matches!(request.candidates, Candidates::Hostfile(_)));
    let is_even = per_object.filling == Filling::Evenly && is_whole && used().all(|host| Some(host.slots) == first);
    let room = used().map(|host| u64::from(host.slots.get())).sum();
    if let Some(ranks) = ranks.filter(|&ranks| u64::from(ranks) > room) {
        if per_object.filling == Filling::Again {
            request.candidates = Candidates::Hostfile(in_turns(used(), ranks));
            return Ok(());
        }
        let nodes = hostlist::fold(&used().map(|host| &host.node).collect::<Vec<_>>());
        let PerObject { ranks: per_object, object, .. } = per_object;
        return Err(ObjectsError::TooFew { ranks, nodes, per_object: per_object.get(), object: object.noun(), room });
    }
    match first {
        // With a limit for each node, the distribution determines the shares.
        Some(slots) if is_even && hosts.len() == nodes.len() => {
            request.tasks_per_node = Some(request.tasks_per_node.map_or(slots, |bound| bound.min(slots)));
        }
        _ => request.candidates = Candidates::Hostfile(hosts),
    }
    Ok(())
}

/// Hosts with their slots, repeated in their order until there is a slot for each rank.
fn in_turns<'a>(hosts: impl Iterator<Item = &'a HostSlots> + Clone, ranks: u32) -> Vec<HostSlots> {
    let mut left = ranks;
    let mut turns = Vec::new();
    for HostSlots { node, slots } in hosts.cycle() {
        let Some(slots) = NonZeroU32::new(slots.get().min(left)) else { break };
        left -= slots.get();
        turns.push(HostSlots { node: node.clone(), slots });
    }
    turns
}

#[cfg(test)]
mod tests {
    use lattice_inventory::{Group, PciDevice, PciKind, Template};
    use rank_spawner::Object;

    use super::*;
    use lattice_cluster_client::Limits;

    fn template(packages: u16, cores: u16) -> Template {
        let group =
            |id: u16, first: u16, count: u16| Group { cpus: (first..first + count).collect(), id: Some(id.into()) };
        Template {
            cpus: (0..packages * cores).collect(),
            packages: (0..packages).map(|package| group(package, package * cores, cores)).collect(),
            cores: (0..packages * cores).map(|core| group(core, core, 1)).collect(),
            ..Template::default()
        }
    }

    /// Adds a GPU next to each of these CPUs to a template.
    fn with_gpus(template: Template, cpus: &[&str]) -> Template {
        let gpu = |(bus, cpus): (u8, &&str)| PciDevice {
            address: format!("0000:{bus:02x}:00.0").parse().unwrap(),
            kind: PciKind::Gpu,
            class: 0x0302,
            id: [0x10de, 1],
            board: [0, 0],
            revision: 0,
            numa: None,
            cpus: cpus.parse().unwrap(),
            link_mb: 0,
            model: String::new(),
            names: Vec::new(),
        };
        Template { pci: (1..).zip(cpus).map(gpu).collect(), ..template }
    }

    #[test]
    fn nodes_without_gpus_take_no_rank_of_a_gpu() {
        let mut templates = Templates::default();
        templates.add(vec!["a0".to_owned()], with_gpus(template(2, 4), &["0-3", "0-3", "4-7"]), &Limits::default());
        templates.add(vec!["b0".to_owned()], template(1, 2), &Limits::default());
        let per = PerObject { ranks: NonZeroU32::new(2).unwrap(), object: Object::Gpu, filling: Filling::NodeByNode };
        let place = |nodes: &[&str]| {
            let mut request = PlacementRequest::default();
            let nodes: Vec<String> = nodes.iter().map(|&node| node.to_owned()).collect();
            placed_by_objects(&mut request, None, per, &nodes, &templates).map(|()| request.candidates)
        };
        let Ok(Candidates::Hostfile(hosts)) = place(&["b0", "a0"]) else { panic!("slots") };
        let seen: Vec<_> = hosts.iter().map(|host| (host.node.as_str(), host.slots.get())).collect();
        assert_eq!(seen, [("a0", 6)]);
        let refused = place(&["b0"]).unwrap_err().to_string();
        assert!(refused.starts_with("no GPU is known on b0\ntry: --tasks-per-node"), "{refused}");
    }

    #[test]
    fn nodes_take_as_many_ranks_as_their_objects() {
        let mut templates = Templates::default();
        templates.add(vec!["a0".to_owned(), "a1".to_owned()], template(2, 4), &Limits::default());
        templates.add(vec!["b0".to_owned()], template(1, 2), &Limits::default());
        let allocated: Vec<String> = ["a0", "a1", "b0", "x"].map(str::to_owned).into();
        let per =
            |ranks, object| PerObject { ranks: NonZeroU32::new(ranks).unwrap(), object, filling: Filling::NodeByNode };
        let check = |candidates: Candidates, per_object, expected: &[(&str, u32)]| {
            let except = vec!["x".to_owned()];
            let mut request = PlacementRequest { candidates, except, ..PlacementRequest::default() };
            placed_by_objects(&mut request, Some(3), per_object, &allocated, &templates).unwrap();
            let Candidates::Hostfile(hosts) = request.candidates else { panic!("slots") };
            let seen: Vec<_> = hosts.iter().map(|host| (host.node.as_str(), host.slots.get())).collect();
            assert_eq!(seen, expected);
        };
        check(Candidates::All, per(2, Object::Socket), &[("a0", 4), ("a1", 4), ("b0", 2), ("x", 1)]);
        check(Candidates::Listed(vec!["b0".into(), "a1".into()]), per(1, Object::Core), &[("b0", 2), ("a1", 8)]);
        let slots = |node: &str, slots| HostSlots { node: node.to_owned(), slots: NonZeroU32::new(slots).unwrap() };
        let again = |object| PerObject { filling: Filling::Again, ..per(1, object) };
        let listed = |nodes: [&str; 2]| Candidates::Listed(nodes.map(str::to_owned).into());
        check(listed(["b0", "a1"]), again(Object::Socket), &[("b0", 1), ("a1", 2)]);
        check(listed(["b0", "x"]), again(Object::Socket), &[("b0", 1), ("b0", 1), ("b0", 1)]);
        let hosts = vec![slots("a0", 1), slots("b0", 9), slots("a0", 2)];
        check(Candidates::Hostfile(hosts), per(4, Object::Socket), &[("a0", 3), ("b0", 4)]);
        let refusal = |except: &[&str], ranks, per_object| {
            let except = except.iter().map(|&node| node.to_owned()).collect();
            let mut request = PlacementRequest { except, ..PlacementRequest::default() };
            placed_by_objects(&mut request, ranks, per_object, &allocated, &templates).unwrap_err().to_string()
        };
        let refused = refusal(&[], None, per(1, Object::Numa));
        assert!(refused.starts_with("x has not reported how many objects (NUMA node)"), "{refused}");
        let refused = refusal(&["x", "a0"], Some(11), per(1, Object::Core));
        assert!(
            refused.starts_with("11 ranks do not fit: a1,b0 have room for 10 with 1 rank on each core"),
            "{refused}"
        );
    }
}
