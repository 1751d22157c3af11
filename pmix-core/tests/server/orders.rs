//! Requests in any order, on two nodes and in both encodings: each is answered once, with committed data, and leaves no state.

use std::collections::HashMap;

use pmi_core::fence::Exchange;
use pmix_core::wire::Encoding::{Fixed, Flex};
use pmix_core::wire::reader::Reader;
use pmix_core::wire::request::command;
use pmix_core::wire::status;
use pmix_core::wire::value::{Info, Value};
use proptest::prelude::*;

use super::world::{Client, World, collecting, whole};
use super::{put, values};

const RANKS: usize = 4;
const KEYS: [&str; 3] = ["card", "mask", "extra"];

#[derive(Clone, Copy, Debug)]
enum Operation {
    /// Commits the next value of a key.
    Commit {
        rank: usize,
        key: usize,
    },
    Get {
        rank: usize,
        of: usize,
        key: usize,
        immediate: bool,
    },
    Fence {
        rank: usize,
    },
    /// All time limits expire.
    Time,
}

fn operation() -> impl Strategy<Value = Operation> {
    let (rank, key) = (0..RANKS, 0..KEYS.len());
    prop_oneof![
        3 => (rank.clone(), key.clone()).prop_map(|(rank, key)| Operation::Commit { rank, key }),
        5 => (rank.clone(), rank.clone(), key, any::<bool>())
            .prop_map(|(rank, of, key, immediate)| Operation::Get { rank, of, key, immediate }),
        3 => rank.prop_map(|rank| Operation::Fence { rank }),
        1 => Just(Operation::Time),
    ]
}

fn exchange() -> impl Strategy<Value = Exchange> {
    prop_oneof![Just(Exchange::Full), Just(Exchange::Auto), Just(Exchange::Lazy)]
}

/// A request without an answer so far.
#[derive(Clone, Copy, Debug)]
enum Open {
    Commit,
    Get { of: usize, key: usize, immediate: bool },
    Fence,
}

/// The world and a model of it: all commits, and all open requests.
struct Model {
    world: World,
    clients: Vec<Client>,
    /// The values of each rank's keys, oldest first.
    committed: HashMap<(usize, usize), Vec<u32>>,
    open: HashMap<(usize, u32), Open>,
    next_tag: u32,
    fences: [usize; RANKS],
    time_is_over: bool,
}

fn node(rank: usize) -> usize {
    rank / 2
}

impl Model {
    fn new(exchange: Exchange) -> Self {
        let mut world = World::exchanging(exchange, 1, &[2, 2]);
        let join = |rank| {
            let encoding = if rank % 2 == 0 { Flex } else { Fixed };
            world.join(node(rank), "job0", rank as u32, encoding).unwrap()
        };
        let clients = (0..RANKS).map(join).collect();
        let (committed, open) = (HashMap::new(), HashMap::new());
        Self { world, clients, committed, open, next_tag: 100, fences: [0; RANKS], time_is_over: false }
    }

    fn tag(&mut self, rank: usize, open: Open) -> u32 {
        self.next_tag += 1;
        self.open.insert((rank, self.next_tag), open);
        self.next_tag
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Commit { rank, key } => {
                let values = self.committed.entry((rank, key)).or_default();
                let version = values.len() as u32;
                values.push(version);
                let tag = self.tag(rank, Open::Commit);
                let value = version.to_be_bytes();
                let (local, remote) = ([&value[..], b"l"].concat(), [&value[..], b"r"].concat());
                put(&mut self.world, self.clients[rank], tag, KEYS[key], &local, &remote);
            }
            Operation::Get { rank, of, key, immediate } => {
                let tag = self.tag(rank, Open::Get { of, key, immediate });
                self.world.send(self.clients[rank], tag, command::GET, |out| {
                    out.one();
                    out.text(Some(b"job0"));
                    out.one();
                    out.u32(of as u32);
                    out.count(immediate.into());
                    out.group(immediate.into());
                    if immediate {
                        out.info(&Info::new("pmix.immediate", Value::Bool(true)));
                    }
                    out.one();
                    out.text(Some(KEYS[key].as_bytes()));
                });
            }
            Operation::Fence { rank } => {
                self.fences[rank] += 1;
                let tag = self.tag(rank, Open::Fence);
                self.world.send(self.clients[rank], tag, command::FENCE, collecting(&whole("job0")));
            }
            Operation::Time => {
                self.time_is_over = true;
                self.world.let_time_pass();
            }
        }
        self.hear_answers();
        self.time_is_over = false;
    }

    fn hear_answers(&mut self) {
        for rank in 0..RANKS {
            let client = self.clients[rank];
            while let Some(message) = self.world.receive(client) {
                let open = self.open.remove(&(rank, message.tag)).expect("an answer that nobody waits for");
                let mut reader = Reader::new(client.encoding, &message.payload);
                reader.one().unwrap();
                let code = reader.i32().unwrap();
                match open {
                    Open::Commit | Open::Fence => assert_eq!(code, status::SUCCESS),
                    Open::Get { of, key, immediate } => self.check_get(rank, (of, key), immediate, code, reader.rest()),
                }
            }
        }
    }

    /// Checks that a get returned a value that the rank had already committed, for ranks of its node or of other nodes.
    fn check_get(&self, rank: usize, about: (usize, usize), immediate: bool, code: i32, objects: &[u8]) {
        let committed = self.committed.get(&about).map_or(&[][..], Vec::as_slice);
        let is_near = node(rank) == node(about.0);
        if code == status::NOT_FOUND {
            assert!(immediate || self.time_is_over, "a get of {about:?} gave up too early");
            assert!(!is_near || committed.is_empty(), "{about:?} was committed on this node");
            return;
        }
        assert_eq!(code, status::SUCCESS);
        let values = values(self.clients[rank].encoding, objects);
        let (_, value) = values.iter().find(|(key, _)| key == KEYS[about.1]).expect("the key that was asked for");
        let (version, scope) = value.split_first_chunk().unwrap();
        let version = u32::from_be_bytes(*version);
        assert_eq!(scope, if is_near { b"l" } else { b"r" });
        assert!(committed.contains(&version), "{about:?} never was {version}");
        assert!(!is_near || committed.last() == Some(&version), "an old value of {about:?} on its own node");
    }

    /// Completes all open requests.
    fn settle(&mut self) {
        let rounds = *self.fences.iter().max().unwrap();
        for rank in 0..RANKS {
            for _ in self.fences[rank]..rounds {
                self.apply(Operation::Fence { rank });
            }
        }
        self.apply(Operation::Time);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_request_is_answered_once_with_what_was_committed(
        operations in prop::collection::vec(operation(), 0..80),
        exchange in exchange(),
    ) {
        let mut model = Model::new(exchange);
        for operation in operations {
            model.apply(operation);
        }
        model.settle();
        prop_assert!(model.open.is_empty(), "never answered: {:?}", model.open);
        prop_assert!(model.world.timers.is_empty(), "timers are left: {:?}", model.world.timers);
        prop_assert!(model.world.end.is_none(), "{:?}", model.world.end);
    }

    /// After a fence no rank reads an older value: each rank commits before the fence, and gets afterwards.
    #[test]
    fn after_a_fence_every_rank_reads_what_was_committed_before_it(
        commits in prop::collection::vec((0..RANKS, 0..KEYS.len()), 1..12),
        order in Just((0..RANKS).collect::<Vec<_>>()).prop_shuffle(),
        exchange in exchange(),
    ) {
        let mut model = Model::new(exchange);
        for (rank, key) in commits {
            model.apply(Operation::Commit { rank, key });
        }
        for rank in order {
            model.apply(Operation::Fence { rank });
        }
        prop_assert!(model.open.is_empty());
        let about: Vec<_> = model.committed.keys().copied().collect();
        for (of, key) in about {
            for rank in 0..RANKS {
                let newest = *model.committed[&(of, key)].last().unwrap();
                model.committed.insert((of, key), vec![newest]);
                model.apply(Operation::Get { rank, of, key, immediate: true });
                prop_assert!(model.open.is_empty());
            }
        }
        match exchange {
            Exchange::Full => prop_assert_eq!(model.world.questions, 0, "a fence brought all there is to know"),
            _ => prop_assert!(model.world.questions <= 4, "each node asks the other for its data, or for a spread, once"),
        }
    }
}
