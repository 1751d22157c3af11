//! The same wiring without a fence: each member of a set calls one peer after the other to get its value. The members are real, and the
//! network has the same model.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use lattice_overlay::address::{Process, SetId, Uid};
use lattice_overlay::frame::Frame;
use lattice_overlay::machine::{CallOptions, Effect, Machine, Membership, Neighbour, Opener};
use lattice_overlay::method::Method;

use crate::fence::{BYTES_PER_MICROSECOND, HOP, WORK};

const SET: SetId = SetId::from_bits(1);
const VALUE: Method = Method(256);

/// Result of a run.
pub(crate) struct Outcome {
    /// Time at which the last member had all values, in milliseconds.
    pub(crate) milliseconds: f64,
    /// Number of links of each member after the run.
    pub(crate) degrees: Vec<usize>,
}

enum Happens {
    Arrives(Frame),
    Opens,
}

struct World {
    origin: Instant,
    machines: Vec<Machine>,
    /// By member: the time at which it has finished its work, and the time of its last answer.
    free: Vec<u64>,
    done: Vec<u64>,
    wanted: Vec<Vec<u32>>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    happens: HashMap<u64, (u32, u32, Happens)>,
    count: u64,
    value: Bytes,
}

/// Runs members that each get the values of the next `peers` members.
pub(crate) fn run(members: u32, bytes: usize, peers: u32) -> Outcome {
    let behind = |member: u32| (1..=peers).rev().map(|ahead| (member + ahead) % members).collect();
    wire(bytes, (0..members).map(behind).collect())
}

/// Runs members that each get the values of the members in their list, from the last to the first.
pub(crate) fn wire(bytes: usize, wanted: Vec<Vec<u32>>) -> Outcome {
    let members = wanted.len() as u32;
    let new = |node| Machine::new(Membership { set: SET, node, members, homes: Vec::new(), launch: None });
    let zeros = vec![0; wanted.len()];
    let mut world = World {
        origin: Instant::now(),
        machines: (0..members).map(new).collect(),
        free: zeros.clone(),
        done: zeros,
        wanted,
        events: BinaryHeap::new(),
        happens: HashMap::new(),
        count: 0,
        value: vec![7; bytes].into(),
    };
    (0..members).for_each(|member| world.ask_next(member));
    while let Some(Reverse((time, number))) = world.events.pop() {
        let (from, to, what) = world.happens.remove(&number).expect("each event is one");
        world.happen(time, from, to, what);
    }
    assert!(world.wanted.iter().all(Vec::is_empty), "every member has what it wanted");
    Outcome {
        milliseconds: world.done.iter().max().copied().unwrap_or_default() as f64 / 1e6,
        degrees: world.machines.iter().map(|machine| machine.connectivity().links.len()).collect(),
    }
}

impl World {
    fn now(&self, member: u32) -> Instant {
        self.origin + Duration::from_nanos(self.free[member as usize])
    }

    fn happen(&mut self, time: u64, from: u32, to: u32, what: Happens) {
        let free = &mut self.free[to as usize];
        *free = time.max(*free) + WORK;
        let now = self.now(to);
        match what {
            Happens::Arrives(frame) => {
                self.machines[to as usize].handle_frame(Neighbour::Member(from), frame, now);
            }
            Happens::Opens => {
                self.machines[from as usize].handle_opened(Neighbour::Member(to), Opener::Them, now);
                self.machines[to as usize].handle_opened(Neighbour::Member(from), Opener::Us, now);
                self.carry_out(from);
            }
        }
        self.carry_out(to);
    }

    fn ask_next(&mut self, member: u32) {
        self.done[member as usize] = self.free[member as usize];
        if let Some(peer) = self.wanted[member as usize].pop() {
            let (to, now) = (Uid::new(SET, Process::Node(peer)), self.now(member));
            let options = CallOptions { timeout: Duration::from_secs(3600), within: None };
            self.machines[member as usize].call(to, VALUE, Bytes::new(), options, now);
            self.carry_out(member);
        }
    }

    fn carry_out(&mut self, member: u32) {
        while let Some(effect) = self.machines[member as usize].poll_effect() {
            match effect {
                // Opening a link takes a round trip.
                Effect::Open(Neighbour::Member(to)) => self.schedule(member, to, 2 * HOP, Happens::Opens),
                Effect::Send(Neighbour::Member(to), frame) => {
                    let mut written = BytesMut::new();
                    frame.append(&mut written);
                    let bytes = written.len() as u64;
                    self.free[member as usize] += WORK + bytes * 1000 / BYTES_PER_MICROSECOND;
                    self.machines[member as usize].handle_written(Neighbour::Member(to), 1);
                    self.schedule(member, to, HOP, Happens::Arrives(frame));
                }
                Effect::Serve(request) => {
                    let (now, value) = (self.now(member), self.value.clone());
                    self.machines[member as usize].answer(request.ticket, Ok(value), now);
                }
                Effect::Ended(_, result) => {
                    assert_eq!(result.map(|value| value.len()), Ok(self.value.len()));
                    self.ask_next(member);
                }
                other => unreachable!("no link is lost or closed here: {other:?}"),
            }
        }
    }

    fn schedule(&mut self, from: u32, to: u32, after: u64, what: Happens) {
        self.count += 1;
        self.events.push(Reverse((self.free[from as usize] + after, self.count)));
        // The opener of a link receives the event that the link is open.
        let (from, to) = if matches!(what, Happens::Opens) { (to, from) } else { (from, to) };
        self.happens.insert(self.count, (from, to, what));
    }
}
