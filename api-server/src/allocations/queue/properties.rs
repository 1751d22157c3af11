//! Properties of the queue over whole histories: requests arrive, begin, run no longer than their limit, and end.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Number of nodes.
const NODES: u32 = 6;
/// The longest limit of a request, in seconds.
const LIMIT_MAX: u64 = 20;

/// A request, and its course.
#[derive(Clone, Debug)]
struct Job {
    comes_at: u64,
    nodes: NodeChoice,
    limit: Option<u64>,
    /// Seconds for which it runs.
    takes: u64,
}

/// A history of the cluster, second by second.
#[derive(Debug, Default)]
struct History {
    now: u64,
    /// By job: its nodes and its start time.
    running: BTreeMap<usize, (Vec<String>, u64)>,
    began: BTreeMap<usize, u64>,
    /// The head of the queue, and the start time that was promised to it.
    promise: Option<(usize, u64)>,
}

impl History {
    /// Ends the jobs that are finished, and serves the queue once.
    fn second(&mut self, jobs: &[Job]) {
        self.running.retain(|&job, (_, began)| *began + jobs[job].takes > self.now);
        let mut table = Timetable::new(self.now, self.free_at(jobs));
        let waiting =
            jobs.iter().enumerate().filter(|(job, wish)| wish.comes_at <= self.now && !self.began.contains_key(job));
        for (job, Job { nodes, limit, .. }) in waiting.collect::<Vec<_>>() {
            match table.decide(Wish { nodes, limit: *limit }) {
                Decision::Begins(nodes) => self.begin(job, nodes, &jobs[job].nodes),
                Decision::Heads => self.promise_to(job, table.head().unwrap()),
                Decision::Waits | Decision::Lacks => {}
            }
        }
        self.now += 1;
    }

    fn free_at(&self, jobs: &[Job]) -> BTreeMap<String, FreeAt> {
        let mut free_at: BTreeMap<_, _> = (0..NODES).map(|node| (format!("n{node}"), FreeAt::Now)).collect();
        for (&job, (nodes, began)) in &self.running {
            let until = jobs[job].limit.map_or(FreeAt::Unknown, |limit| FreeAt::At(began + limit));
            free_at.extend(nodes.iter().map(|node| (node.clone(), until)));
        }
        free_at
    }

    /// Begins a job. Checks that its nodes match the request, exist and are free, and that the job begins no later than promised.
    fn begin(&mut self, job: usize, nodes: Vec<String>, wanted: &NodeChoice) {
        match wanted {
            NodeChoice::These(wanted) => assert_eq!(&nodes, wanted),
            NodeChoice::Any(number) => assert_eq!(nodes.len(), number.get() as usize),
        }
        let taken: BTreeSet<&String> = self.running.values().flat_map(|(nodes, _)| nodes).collect();
        let own: BTreeSet<&String> = nodes.iter().collect();
        assert_eq!(own.len(), nodes.len(), "no node twice");
        assert!(own.is_disjoint(&taken) && own.iter().all(|node| self.is_a_node(node)), "{own:?} of {taken:?}");
        if let Some((_, promised)) = self.promise.filter(|&(head, _)| head == job) {
            assert!(self.now <= promised, "the head was promised {promised}, and begins at {}", self.now);
            self.promise = None;
        }
        self.running.insert(job, (nodes, self.now));
        self.began.insert(job, self.now);
    }

    fn is_a_node(&self, node: &str) -> bool {
        node.strip_prefix('n').and_then(|number| number.parse::<u32>().ok()).is_some_and(|number| number < NODES)
    }

    /// Records a promise to the head. Checks that the promised time never becomes later.
    fn promise_to(&mut self, job: usize, reservation: &Reservation) {
        let before = self.promise.filter(|&(head, _)| head == job).map(|(_, promised)| promised);
        let Some(at) = reservation.at else {
            assert_eq!(before, None, "the head's time is not known any more");
            return;
        };
        assert!(at >= self.now && before.is_none_or(|before| at <= before), "{before:?} becomes {at}");
        self.promise = Some((job, at));
    }
}

fn any_choice() -> impl Strategy<Value = NodeChoice> {
    let some = prop::sample::subsequence((0..NODES).collect::<Vec<_>>(), 1..=3);
    prop_oneof![
        3 => (1..=NODES).prop_map(|number| NodeChoice::Any(NonZeroU32::new(number).unwrap())),
        1 => some.prop_map(|nodes| NodeChoice::These(nodes.iter().map(|node| format!("n{node}")).collect())),
    ]
}

/// Jobs in the order of their arrival; `unlimited` of ten have no limit.
fn jobs(unlimited: u32) -> impl Strategy<Value = Vec<Job>> {
    let job = (0_u64..60, any_choice(), 1..=LIMIT_MAX, 1..=LIMIT_MAX, 0_u32..10);
    prop::collection::vec(job, 1..40).prop_map(move |mut jobs| {
        jobs.sort_by_key(|&(comes_at, ..)| comes_at);
        let made = |(comes_at, nodes, limit, takes, dice): (u64, NodeChoice, u64, u64, u32)| {
            let limit = (dice >= unlimited).then_some(limit);
            Job { comes_at, nodes, limit, takes: limit.map_or(takes, |limit| takes.min(limit)) }
        };
        jobs.into_iter().map(made).collect()
    })
}

proptest! {
    /// [`History`] checks each step.
    #[test]
    fn no_node_is_given_twice_and_the_head_is_never_delayed(jobs in jobs(0)) {
        let mut history = History::default();
        for _ in 0..60 + LIMIT_MAX * jobs.len() as u64 + 1 {
            history.second(&jobs);
        }
        // If the jobs had run one after the other, all would have begun by now.
        prop_assert_eq!(history.began.len(), jobs.len(), "an allocation starves");
    }

    #[test]
    fn nobody_starves_beside_those_without_a_limit(jobs in jobs(3)) {
        let mut history = History::default();
        for _ in 0..60 + 2 * LIMIT_MAX * jobs.len() as u64 + 1 {
            // An unknown time becomes known when a job ends. Therefore a promise is valid for one second only.
            history.promise = None;
            history.second(&jobs);
        }
        prop_assert_eq!(history.began.len(), jobs.len(), "an allocation starves");
    }

    #[test]
    fn a_request_alone_begins_if_its_nodes_are_free(nodes in any_choice(), limit in prop::option::of(1..=LIMIT_MAX)) {
        let free = History::default().free_at(&[]);
        let decision = Timetable::new(0, free).decide(Wish { nodes: &nodes, limit });
        prop_assert!(matches!(decision, Decision::Begins(_)), "{:?}", decision);
    }
}
