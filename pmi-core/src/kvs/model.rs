//! Checks [`Kvs`] against a model of three plain maps, over random sequences of puts and fences on several nodes. A group's fence ends on
//! each node at a separate time, before or after world fences that began later.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::age::Age;
use super::{Kvs, Segment};
use crate::fence::Merged;

/// The three layers as plain maps, and the clock that orders the pairs of groups.
#[derive(Default)]
struct Model {
    staged: AgedPairs,
    in_flight: AgedPairs,
    /// The newest pairs of all fences, even where a read returns another pair.
    merged: AgedPairs,
    begun: u64,
    clock: u64,
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;
type AgedPairs = BTreeMap<Vec<u8>, (Age, Vec<u8>)>;

impl Model {
    fn readable(&self) -> Pairs {
        [&self.merged, &self.in_flight, &self.staged].into_iter().flat_map(plain).collect()
    }

    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.staged.insert(key, (Age { interval: self.begun, clock: self.clock }, value));
    }

    fn bring(&mut self, brought: impl IntoIterator<Item = (Vec<u8>, (Age, Vec<u8>))>) {
        for (key, (age, value)) in brought {
            if self.merged.get(&key).is_none_or(|(known, _)| *known <= age) {
                self.merged.insert(key, (age, value));
            }
        }
    }
}

fn plain(pairs: &AgedPairs) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    pairs.iter().map(|(key, (_, value))| (key.clone(), value.clone()))
}

fn pairs_of<'a>(segments: impl IntoIterator<Item = &'a Segment>) -> Pairs {
    segments.into_iter().flat_map(Segment::pairs).map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// Result of a group's fence in transit to one node.
struct Late {
    node: usize,
    merged: Merged,
    /// The same result for the model, in the order of the nodes, and the latest clock of the nodes.
    brought: Vec<AgedPairs>,
    clock: Option<u64>,
}

/// One node under test: the space, its model, and the key at each index.
#[derive(Default)]
struct Node {
    kvs: Kvs,
    model: Model,
    indexes: Vec<Vec<u8>>,
}

impl Node {
    fn check(&mut self) {
        let readable = self.model.readable();
        assert_eq!(self.kvs.len(), readable.len());
        assert_eq!(self.kvs.is_empty(), readable.is_empty());
        let walked: Vec<_> = (0..self.kvs.len()).map(|index| self.kvs.nth(index).unwrap()).collect();
        for (index, &(key, value)) in walked.iter().enumerate() {
            match self.indexes.get(index) {
                Some(before) => assert_eq!(before, key, "index {index} has another key"),
                None => self.indexes.push(key.to_vec()),
            }
            assert_eq!(self.kvs.get(key), Some(value));
        }
        let walked: Pairs = walked.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        assert_eq!(walked, readable);
        assert_eq!(self.kvs.get(b"never put"), None);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        node: usize,
        key: u8,
        value: Vec<u8>,
    },
    /// All nodes enter a world fence; `foreign` holds the pairs of a node without a model.
    WorldBegins {
        foreign: Vec<(u8, Vec<u8>)>,
    },
    /// The open world fence, if any, completes on all nodes.
    WorldEnds,
    /// Some nodes enter a group's fence.
    GroupBegins {
        members: [bool; NODES],
    },
    /// One of the open fences of groups ends on one of its nodes.
    GroupEnds {
        which: usize,
    },
}

const NODES: usize = 3;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let value = || vec(any::<u8>(), 0..200);
    let foreign = || vec((any::<u8>(), value()), 0..12);
    let step = prop_oneof![
        12 => (0..NODES, any::<u8>(), value()).prop_map(|(node, key, value)| Step::Put { node, key, value }),
        2 => foreign().prop_map(|foreign| Step::WorldBegins { foreign }),
        2 => Just(Step::WorldEnds),
        2 => any::<[bool; NODES]>().prop_map(|members| Step::GroupBegins { members }),
        4 => any::<usize>().prop_map(|which| Step::GroupEnds { which }),
    ];
    vec(step, 0..150)
}

/// A few dozen keys of different lengths.
fn key(number: u8) -> Vec<u8> {
    vec![b'k'; 1 + usize::from(number % 40) * 5]
}

fn foreign_segment(pairs: &[(u8, Vec<u8>)]) -> Segment {
    let segment: Segment = pairs.iter().map(|(number, value)| (key(*number), value)).collect();
    Segment::decode(segment.into_bytes()).unwrap()
}

/// The open fences.
#[derive(Default)]
struct Open {
    world: Option<Merged>,
    fenced: u64,
    groups: Vec<Late>,
}

fn take(nodes: &mut [Node; NODES], step: Step, open: &mut Open) {
    match step {
        Step::Put { node, key: number, value } => {
            nodes[node].kvs.put(&key(number), &value);
            nodes[node].model.put(key(number), value);
        }
        Step::WorldBegins { foreign } if open.world.is_none() => {
            let mut merged = Merged::from(vec![foreign_segment(&foreign)]);
            for Node { kvs, model, .. } in nodes {
                let contribution = kvs.contribute();
                assert_eq!(pairs_of(&contribution.segments), plain(&model.staged).collect());
                model.in_flight = std::mem::take(&mut model.staged);
                model.begun += 1;
                merged.segments.extend(contribution.segments);
            }
            open.world = Some(merged);
        }
        Step::WorldBegins { .. } => {}
        Step::WorldEnds => {
            let Some(merged) = open.world.take() else { return };
            let age = Age::fenced(open.fenced);
            open.fenced += 1;
            for Node { kvs, model, .. } in nodes {
                kvs.commit(merged.clone());
                model.in_flight.clear();
                model.bring(pairs_of(&merged.segments).into_iter().map(|(key, value)| (key, (age, value))));
            }
        }
        Step::GroupBegins { members } => begin_group(nodes, members, open),
        Step::GroupEnds { .. } if open.groups.is_empty() => {}
        Step::GroupEnds { which } => {
            let Late { node, merged, brought, clock } = open.groups.remove(which % open.groups.len());
            let Node { kvs, model, .. } = &mut nodes[node];
            kvs.absorb(&merged).unwrap();
            model.bring(brought.into_iter().flatten());
            model.clock = model.clock.max(clock.map_or(0, |clock| clock + 1));
        }
    }
}

fn begin_group(nodes: &mut [Node; NODES], members: [bool; NODES], open: &mut Open) {
    let (mut merged, mut brought, mut latest) = (Merged::default(), Vec::new(), None);
    for (Node { kvs, model, .. }, _) in nodes.iter_mut().zip(members).filter(|(_, is_in)| *is_in) {
        let shared = kvs.share();
        assert_eq!(pairs_of(shared.segments.iter().skip(1)), plain(&model.staged).collect());
        if !shared.segments.is_empty() {
            latest = latest.max(Some(model.clock));
            model.clock += 1;
        }
        merged.segments.extend(shared.segments);
        brought.push(model.staged.clone());
    }
    for node in (0..NODES).filter(|&node| members[node]) {
        open.groups.push(Late { node, merged: merged.clone(), brought: brought.clone(), clock: latest });
    }
}

proptest! {
    #[test]
    fn any_course_of_puts_and_fences_reads_as_the_model_does(steps in steps()) {
        let mut nodes: [Node; NODES] = Default::default();
        let mut open = Open::default();
        for step in steps {
            take(&mut nodes, step, &mut open);
            nodes.iter_mut().for_each(Node::check);
        }
    }
}
