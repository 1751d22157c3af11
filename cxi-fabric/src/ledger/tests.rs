//! The ledger against a world that crashes: a manager, nodes that hold services, and a journal that is all that survives.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const NODES: [&str; 3] = ["n0", "n1", "n2"];
const ALLOCATIONS: [&str; 3] = ["a", "b", "c"];
const OURS: Numbering = Numbering::Ours { job_vni: false };
const OURS_WITH_JOB_VNI: Numbering = Numbering::Ours { job_vni: true };

fn need(allocation: &str) -> Need {
    Need { allocation: allocation.to_owned(), nodes: NODES.map(str::to_owned).to_vec(), uid: 1000 }
}

fn range() -> VniRange {
    "100-103".parse().expect("a range")
}

fn credentials(vni: Vni) -> Credentials {
    Credentials { vni, job_vni: None, auth_key: None, svc_id: 0, lifetime: None }
}

fn created(answer: Result<Answer, LedgerError>) -> ServiceRequest {
    match answer {
        Ok(Answer::Create(request)) => request,
        other => panic!("expected to create, got {other:?}"),
    }
}

fn service(request: &ServiceRequest) -> Service {
    let vni = request.vni.expect("ours");
    Service { id: ServiceId(format!("id-{}", request.name)), vni, job_vni: request.job_vni }
}

fn ledger() -> Ledger {
    Ledger::recover("c", OURS, range(), [])
}

#[test]
fn two_launches_of_an_allocation_share_one_service() {
    let (mut ledger, now) = (ledger(), Instant::now());
    let request = created(ledger.want(&need("a"), now));
    assert_eq!(ledger.want(&need("a"), now), Ok(Answer::Wait));
    assert!(ledger.made(&request.name, service(&request)));
    assert_eq!(ledger.want(&need("a"), now), Ok(Answer::Wait), "its credentials are being fetched");
    let credentials = credentials(request.vni.expect("ours"));
    ledger.equipped(&request.name, credentials.clone(), now);
    assert_eq!(ledger.want(&need("a"), now), Ok(Answer::Ready(credentials.clone())));
    assert_eq!(ledger.ready("a", now), Some(&credentials));
    assert_eq!(ledger.unwritten().len(), 2, "intended and made");
    // A launch on one node gets a VNI as well.
    let alone = Need { nodes: vec!["n0".into()], ..need("b") };
    assert!(created(ledger.want(&alone, now)).vni.is_some());
}

#[test]
fn credentials_that_ended_are_fetched_again() {
    let (mut ledger, now) = (ledger(), Instant::now());
    let request = created(ledger.want(&need("a"), now));
    ledger.made(&request.name, service(&request));
    let lifetime = Some(Duration::from_secs(60));
    ledger.equipped(&request.name, Credentials { lifetime, ..credentials(request.vni.expect("ours")) }, now);
    assert!(matches!(ledger.want(&need("a"), now), Ok(Answer::Ready(_))));
    let later = now + Duration::from_secs(60);
    assert!(ledger.ready("a", later).is_none());
    assert!(matches!(ledger.want(&need("a"), later), Ok(Answer::Fetch(..))));
    ledger.unequipped(&request.name);
    assert!(matches!(ledger.want(&need("a"), later), Ok(Answer::Fetch(..))));
    ledger.vanished(&request.name);
    assert_ne!(created(ledger.want(&need("a"), later)).vni, request.vni);
}

#[test]
fn a_vni_is_quarantined_until_the_last_node_confirmed() {
    let (mut ledger, now) = (ledger(), Instant::now());
    let request = created(ledger.want(&need("a"), now));
    let (name, vni) = (request.name.clone(), request.vni.expect("ours"));
    ledger.made(&name, service(&request));
    ledger.release("a");
    let confirm =
        |nodes: &[&str]| Task::Confirm(name.clone(), vni, nodes.iter().map(|node| (*node).to_owned()).collect());
    assert_eq!(ledger.due(), [Task::Delete(name.clone(), service(&request).id), confirm(&NODES)]);
    ledger.deleted(&name);
    ledger.confirmed(&name, "n1");
    ledger.confirmed(&name, "n1");
    assert_eq!(ledger.due(), [confirm(&["n0", "n2"])]);
    assert_eq!(ledger.views()[0].state, "quarantined");
    ledger.node_is_empty("n0");
    assert!(ledger.pool.is_taken(vni));
    ledger.confirmed(&name, "n2");
    assert!(!ledger.pool.is_taken(vni) && ledger.due().is_empty() && ledger.views().is_empty());
}

#[test]
fn a_managers_own_number_is_given_back_after_the_nodes_confirmed() {
    let mut ledger = Ledger::recover("c", Numbering::Managers, range(), []);
    let request = created(ledger.want(&need("a"), Instant::now()));
    assert_eq!(request.vni, None);
    let vni = Vni::new(7).expect("a number");
    ledger.made(&request.name, Service { id: ServiceId("j".into()), vni, job_vni: None });
    ledger.release("a");
    assert!(matches!(ledger.due().as_slice(), [Task::Confirm(..)]), "{:?}", ledger.due());
    NODES.iter().for_each(|node| ledger.confirmed(&request.name, node));
    assert!(matches!(ledger.due().as_slice(), [Task::Delete(..)]), "{:?}", ledger.due());
}

#[test]
fn a_creation_that_may_have_happened_is_looked_for() {
    let (mut ledger, now) = (ledger(), Instant::now());
    let request = created(ledger.want(&need("a"), now));
    ledger.failed(&request.name, Effect::Unknown);
    assert_eq!(ledger.due(), [Task::Find(request.clone())]);
    ledger.found(&request.name, Some(service(&request)));
    assert!(matches!(ledger.due().as_slice(), [Task::Delete(..)]), "no node was told of it: {:?}", ledger.due());

    let certain = created(ledger.want(&need("b"), now));
    ledger.failed(&certain.name, Effect::None);
    assert_eq!(ledger.due().len(), 1);
    assert!(!ledger.pool.is_taken(certain.vni.expect("ours")));
}

#[test]
fn a_creation_that_a_crash_cut_short_is_undone_and_holds_up_nobody() {
    let (mut ledger, now) = (ledger(), Instant::now());
    let request = created(ledger.want(&need("a"), now));
    let mut next = Ledger::recover("c", OURS, range(), ledger.unwritten());
    assert_eq!(next.due(), [Task::Find(request.clone())]);
    let again = created(next.want(&need("a"), now));
    assert!(again.name != request.name && again.vni != request.vni);
    assert_eq!(next.unwritten().len(), 2, "the end of the one, the beginning of the other");
}

#[test]
fn an_exhausted_pool_tells_its_counts() {
    let (mut ledger, now) = (ledger(), Instant::now());
    for allocation in ["a", "b", "c", "d"] {
        created(ledger.want(&need(allocation), now));
    }
    let error = ledger.want(&need("e"), now).expect_err("exhausted").to_string();
    assert!(error.starts_with("VNI pool exhausted (4/4 in use"), "{error}");
}

#[test]
fn a_second_vni_is_held_and_freed_with_the_first_or_neither_is() {
    let mut ledger = Ledger::recover("c", OURS_WITH_JOB_VNI, range(), []);
    let now = Instant::now();
    let (one, two) = (created(ledger.want(&need("a"), now)), created(ledger.want(&need("b"), now)));
    assert_eq!(one.vnis().chain(two.vnis()).map(Vni::get).collect::<Vec<_>>(), [100, 101, 102, 103]);
    ledger.failed(&one.name, Effect::None);
    let mut three = Ledger::recover("c", OURS_WITH_JOB_VNI, "100-102".parse().expect("a range"), []);
    created(three.want(&need("a"), now));
    assert!(three.want(&need("b"), now).is_err(), "one number is left, and two are needed");
    assert_eq!(three.pool.taken().len(), 2, "what was of no use is free again");

    ledger.made(&two.name, service(&two));
    ledger.release("b");
    ledger.deleted(&two.name);
    assert_eq!(ledger.pool.taken().len(), 2, "both are in quarantine");
    let mut ledger = Ledger::recover("c", OURS_WITH_JOB_VNI, range(), ledger.compacted());
    NODES.iter().for_each(|node| ledger.confirmed(&two.name, node));
    assert!(ledger.pool.taken().is_empty());
}

#[test]
fn strangers_are_this_clusters_and_unknown() {
    let mut ledger = ledger();
    let known = created(ledger.want(&need("a"), Instant::now())).name;
    let listed = |name: &str| Listed {
        id: ServiceId(name.into()),
        name: ServiceName::try_from(name.to_owned()).ok(),
        vni: None,
    };
    let list = vec![listed(known.as_str()), listed("c.old.7"), listed("other.x.1"), listed("c/odd")];
    let strangers = ledger.strangers(list);
    assert_eq!(strangers.iter().map(|listed| listed.id.0.as_str()).collect::<Vec<_>>(), ["c.old.7"]);
}

#[derive(Clone, Debug)]
enum Step {
    /// A launch wants credentials, and its nodes use them if it gets them.
    Launch(usize),
    Release(usize),
    /// The server does one thing that is due, if the manager is up.
    Undo(usize),
    /// A node ends what it holds of one service, and says so if asked.
    NodeEnds(usize),
    ManagerIsUp(bool),
    /// The answer of the next creation is lost.
    LoseAnswer,
    Compact,
}

/// Number of the server's actions before it is killed.
type Fuse = Option<u8>;

struct World {
    ledger: Ledger,
    numbering: Numbering,
    journal: Vec<Entry>,
    manager: BTreeMap<ServiceName, Service>,
    /// Services on the nodes: node, name, VNI.
    held: BTreeSet<(String, ServiceName, Vni)>,
    is_up: bool,
    loses_answer: bool,
    fuse: Fuse,
    now: Instant,
}

/// The server was killed here.
struct Killed;

impl World {
    fn new(numbering: Numbering) -> Self {
        Self {
            ledger: Ledger::recover("c", numbering, range(), []),
            numbering,
            journal: Vec::new(),
            manager: BTreeMap::new(),
            held: BTreeSet::new(),
            is_up: true,
            loses_answer: false,
            fuse: None,
            now: Instant::now(),
        }
    }

    /// A point at which the server can be killed.
    fn tick(&mut self) -> Result<(), Killed> {
        match self.fuse {
            Some(0) => Err(Killed),
            Some(left) => {
                self.fuse = Some(left - 1);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn write(&mut self) -> Result<(), Killed> {
        self.tick()?;
        let entries = self.ledger.unwritten();
        self.journal.extend(entries);
        self.tick()
    }

    fn restart(&mut self) {
        self.fuse = None;
        self.ledger = Ledger::recover("c", self.numbering, range(), self.journal.clone());
        let written = self.ledger.unwritten();
        self.journal.extend(written);
    }

    fn create(&mut self, request: &ServiceRequest) -> Option<Service> {
        let free = || {
            (100..=103)
                .filter_map(|number| Vni::new(number).ok())
                .find(|vni| self.manager.values().all(|service| service.vni != *vni))
        };
        let vni = request.vni.or_else(free)?;
        let service = Service { id: ServiceId(format!("id-{}", request.name)), vni, job_vni: request.job_vni };
        // Never reissued: nobody else may still be able to use the number.
        assert!(
            self.held.iter().all(|(_, name, held)| *held != vni || *name == request.name),
            "{vni} is given to {} while a node holds it: {:?}",
            request.name,
            self.held
        );
        let entry = self.manager.entry(request.name.clone()).or_insert(service);
        Some(entry.clone())
    }

    fn launch(&mut self, allocation: &str) -> Result<(), Killed> {
        let answer = self.ledger.want(&need(allocation), self.now);
        self.write()?;
        let (name, service) = match answer {
            Ok(Answer::Create(request)) if self.is_up => {
                let service = self.create(&request);
                self.tick()?;
                if std::mem::take(&mut self.loses_answer) {
                    self.ledger.failed(&request.name, Effect::Unknown);
                    return self.write();
                }
                let Some(service) = service else {
                    self.ledger.failed(&request.name, Effect::None);
                    return self.write();
                };
                assert!(self.ledger.made(&request.name, service.clone()));
                self.write()?;
                (request.name, service)
            }
            Ok(Answer::Create(request)) => {
                self.ledger.failed(&request.name, Effect::Unknown);
                return self.write();
            }
            Ok(Answer::Fetch(name, service)) if self.is_up => (name, service),
            Ok(Answer::Fetch(name, _)) => {
                self.ledger.unequipped(&name);
                return self.write();
            }
            Ok(Answer::Ready(credentials)) => {
                let (name, service) = self.find(credentials.vni);
                (name, service)
            }
            Ok(Answer::Wait) | Err(_) => return Ok(()),
        };
        self.ledger.equipped(&name, credentials(service.vni), self.now);
        for node in NODES {
            self.tick()?;
            self.held.insert((node.to_owned(), name.clone(), service.vni));
        }
        Ok(())
    }

    fn find(&self, vni: Vni) -> (ServiceName, Service) {
        let found = self.manager.iter().find(|(_, service)| service.vni == vni);
        found.map(|(name, service)| (name.clone(), service.clone())).expect("credentials are of a service that exists")
    }

    fn undo(&mut self, choice: usize) -> Result<(), Killed> {
        let due = self.ledger.due();
        let Some(task) = (!due.is_empty()).then(|| due[choice % due.len()].clone()) else { return Ok(()) };
        self.tick()?;
        match task {
            Task::Delete(name, _) if self.is_up => {
                self.manager.remove(&name);
                self.tick()?;
                self.ledger.deleted(&name);
            }
            Task::Find(request) if self.is_up => {
                let found = self.manager.get(&request.name).cloned();
                self.ledger.found(&request.name, found);
            }
            Task::Confirm(name, _, nodes) => {
                let is_done = |node: &String| !self.held.iter().any(|(other, held, _)| other == node && *held == name);
                nodes.iter().filter(|node| is_done(node)).for_each(|node| self.ledger.confirmed(&name, node));
            }
            Task::Delete(..) | Task::Find(_) => {}
        }
        self.write()
    }

    fn step(&mut self, step: &Step) -> Result<(), Killed> {
        match *step {
            Step::Launch(which) => return self.launch(ALLOCATIONS[which]),
            Step::Release(which) => {
                self.ledger.release(ALLOCATIONS[which]);
                return self.write();
            }
            Step::Undo(choice) => return self.undo(choice),
            Step::NodeEnds(which) => {
                // Launches end before their allocation does, but a node may be late.
                let current = self.ledger.views();
                let is_held =
                    |name: &ServiceName| current.iter().any(|view| view.name == *name && view.state == "held");
                let ended = self.held.iter().find(|(node, name, _)| node == NODES[which] && !is_held(name)).cloned();
                ended.into_iter().for_each(|held| {
                    self.held.remove(&held);
                });
            }
            Step::ManagerIsUp(is_up) => self.is_up = is_up,
            Step::LoseAnswer => self.loses_answer = true,
            Step::Compact => self.journal = self.ledger.compacted(),
        }
        Ok(())
    }

    /// Ends all allocations, while manager and nodes answer.
    fn wind_up(&mut self) {
        self.restart();
        self.is_up = true;
        ALLOCATIONS.iter().for_each(|allocation| self.ledger.release(allocation));
        for _ in 0..100 {
            self.held.clear();
            let _ = (0..8).try_for_each(|choice| self.undo(choice));
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3_usize).prop_map(Step::Launch),
        3 => (0..3_usize).prop_map(Step::Release),
        6 => (0..8_usize).prop_map(Step::Undo),
        6 => (0..3_usize).prop_map(Step::NodeEnds),
        1 => any::<bool>().prop_map(Step::ManagerIsUp),
        1 => Just(Step::LoseAnswer),
        1 => Just(Step::Compact),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_vni_is_reissued_early_and_every_service_ends_whenever_the_server_is_killed(
        steps in prop::collection::vec((step(), prop::option::weighted(0.2, 0..6_u8)), 1..60),
        numbering in prop::sample::select(vec![OURS, OURS_WITH_JOB_VNI, Numbering::Managers]),
    ) {
        let mut world = World::new(numbering);
        for (step, fuse) in &steps {
            world.fuse = *fuse;
            if world.step(step).is_err() {
                world.restart();
            }
            world.fuse = None;
        }
        world.wind_up();
        prop_assert!(world.manager.is_empty(), "left at the manager: {:?}", world.manager);
        prop_assert!(world.ledger.due().is_empty(), "still due: {:?}", world.ledger.due());
        prop_assert!(world.ledger.pool.taken().is_empty());
    }

    #[test]
    fn a_compacted_journal_makes_the_same_ledger(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new(OURS);
        for step in &steps {
            let _ = world.step(step);
        }
        let long = Ledger::recover("c", OURS, range(), world.journal.clone());
        let short = Ledger::recover("c", OURS, range(), long.compacted());
        prop_assert_eq!(long.views(), short.views());
        prop_assert_eq!(long.due(), short.due());
        prop_assert_eq!(long.compacted(), short.compacted());
        prop_assert_eq!(long.pool.taken(), short.pool.taken());
    }
}

/// Whichever of the two reports last: the VNI is free then, and is told once.
#[test]
fn a_vni_is_free_when_manager_and_nodes_have_both_given_it_back() {
    for manager_is_last in [false, true] {
        let mut ledger = ledger();
        let request = created(ledger.want(&need("a"), Instant::now()));
        ledger.made(&request.name, service(&request));
        ledger.release("a");
        let confirm =
            |ledger: &mut Ledger| need("a").nodes.iter().for_each(|node| ledger.confirmed(&request.name, node));
        if manager_is_last {
            confirm(&mut ledger);
            assert_eq!(ledger.over(), []);
            ledger.deleted(&request.name);
        } else {
            ledger.deleted(&request.name);
            assert_eq!(ledger.over(), []);
            confirm(&mut ledger);
        }
        assert_eq!(ledger.over(), [(request.name.clone(), request.vni)]);
        confirm(&mut ledger);
        assert_eq!(ledger.over(), []);
    }
}
