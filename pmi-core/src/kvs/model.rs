//! Checks [`Kvs`] against a model of three plain maps, over random courses of puts and fences on several nodes.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Kvs, Segment};
use crate::fence::Merged;

/// The three layers, each as the plainest map.
#[derive(Default)]
struct Model {
    staged: Pairs,
    in_flight: Pairs,
    merged: Pairs,
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

impl Model {
    fn readable(&self) -> Pairs {
        [&self.merged, &self.in_flight, &self.staged]
            .into_iter()
            .flatten()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }
}

fn pairs_of<'a>(segments: impl IntoIterator<Item = &'a Segment>) -> Pairs {
    segments.into_iter().flat_map(Segment::pairs).map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// One node under test: the space, its model, and the key that each index was seen with.
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
    /// All nodes enter a world fence; `foreign` stands for the pairs of a node that is not looked at.
    WorldBegins {
        foreign: Vec<(u8, Vec<u8>)>,
    },
    /// The world fence that is open, if one is, completes on all nodes.
    WorldEnds,
    Group {
        members: [bool; NODES],
        foreign: Vec<(u8, Vec<u8>)>,
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
        1 => (any::<[bool; NODES]>(), foreign()).prop_map(|(members, foreign)| Step::Group { members, foreign }),
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

fn take(nodes: &mut [Node; NODES], step: Step, open: &mut Option<Merged>) {
    match step {
        Step::Put { node, key: number, value } => {
            nodes[node].kvs.put(&key(number), &value);
            nodes[node].model.staged.insert(key(number), value);
        }
        Step::WorldBegins { foreign } if open.is_none() => {
            let mut merged = Merged { segments: vec![foreign_segment(&foreign)] };
            for Node { kvs, model, .. } in nodes {
                let contribution = kvs.contribute();
                assert_eq!(pairs_of(&contribution.segments), model.staged);
                model.in_flight = std::mem::take(&mut model.staged);
                merged.segments.extend(contribution.segments);
            }
            *open = Some(merged);
        }
        Step::WorldBegins { .. } => {}
        Step::WorldEnds => {
            let Some(merged) = open.take() else { return };
            for Node { kvs, model, .. } in nodes {
                kvs.commit(merged.clone());
                model.in_flight.clear();
                model.merged.extend(pairs_of(&merged.segments));
            }
        }
        Step::Group { members, foreign } => {
            let mut merged = Merged { segments: vec![foreign_segment(&foreign)] };
            let mut members: Vec<_> = nodes.iter_mut().zip(members).filter(|(_, is_in)| *is_in).collect();
            for (Node { kvs, model, .. }, _) in &mut members {
                let shared = kvs.share();
                assert_eq!(pairs_of(&shared.segments), model.staged);
                merged.segments.extend(shared.segments);
            }
            for (Node { kvs, model, .. }, _) in members {
                kvs.absorb(merged.clone());
                model.merged.extend(pairs_of(&merged.segments));
            }
        }
    }
}

proptest! {
    #[test]
    fn any_course_of_puts_and_fences_reads_as_the_model_does(steps in steps()) {
        let mut nodes: [Node; NODES] = Default::default();
        let mut open = None;
        for step in steps {
            take(&mut nodes, step, &mut open);
            nodes.iter_mut().for_each(Node::check);
        }
    }
}
