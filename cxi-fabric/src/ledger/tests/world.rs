//! The ledger in a simulated world with crashes: a manager, nodes that hold services, and a journal, which alone
//! survives.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const ALLOCATIONS: [&str; 3] = ["a", "b", "c"];

/// Time that the manager takes to make a service.
#[derive(Clone, Copy, Debug)]
enum Pace {
    AtOnce,
    /// Until [`Step::Answered`].
    Slow,
}

#[derive(Clone, Debug)]
enum Step {
    /// A launch requests credentials, and its nodes use them if it gets them.
    Launch(usize, Pace),
    /// The manager answers the oldest call to make a service.
    Answered,
    Release(usize),
    /// The server does one task that is due, if the manager is up.
    Undo(usize),
    /// A node ends one service that it holds, and confirms it when queried.
    NodeEnds(usize),
    ManagerIsUp(bool),
    /// The answer to the next creation is lost.
    LoseAnswer,
    Compact,
}

/// Number of actions of the server before it is killed.
type Fuse = Option<u8>;

struct World {
    ledger: Ledger,
    numbering: Numbering,
    journal: Vec<Entry>,
    manager: BTreeMap<ServiceName, Service>,
    /// Calls to make a service that the manager has not answered.
    asked: VecDeque<ServiceRequest>,
    /// Services on the nodes: node, name, VNI.
    held: BTreeSet<(String, ServiceName, Vni)>,
    is_up: bool,
    loses_answer: bool,
    fuse: Fuse,
    now: Instant,
}

/// Result of a killed server.
struct Killed;

impl World {
    fn new(numbering: Numbering) -> Self {
        Self {
            ledger: Ledger::recover(cluster(), numbering, range(), []),
            numbering,
            journal: Vec::new(),
            manager: BTreeMap::new(),
            asked: VecDeque::new(),
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
        self.asked.clear();
        self.ledger = Ledger::recover(cluster(), self.numbering, range(), self.journal.clone());
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
        // Never reassigned while a node may still use the number.
        assert!(
            self.held.iter().all(|(_, name, held)| *held != vni || *name == request.name),
            "{vni} is given to {} while a node holds it: {:?}",
            request.name,
            self.held
        );
        let others = self.manager.iter().find(|(name, service)| **name != request.name && service.vni == vni);
        assert!(others.is_none(), "{vni} is given to {} and is that of {others:?}", request.name);
        let entry = self.manager.entry(request.name.clone()).or_insert(service);
        Some(entry.clone())
    }

    fn launch(&mut self, allocation: &str, pace: Pace) -> Result<(), Killed> {
        let answer = self.ledger.want(&need(allocation), self.now);
        self.write()?;
        let (name, service) = match answer {
            Ok(Answer::Create(request)) => match pace {
                Pace::AtOnce => return self.call(&request),
                Pace::Slow => {
                    self.asked.push_back(request);
                    return Ok(());
                }
            },
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
        self.equip(&name, &service)
    }

    /// Calls the manager to make a service, and reports.
    fn call(&mut self, request: &ServiceRequest) -> Result<(), Killed> {
        if !self.is_up {
            self.ledger.failed(&request.name, Effect::Unknown);
            return self.write();
        }
        let service = self.create(request);
        self.tick()?;
        if std::mem::take(&mut self.loses_answer) {
            self.ledger.failed(&request.name, Effect::Unknown);
            return self.write();
        }
        let Some(service) = service else {
            self.ledger.failed(&request.name, Effect::None);
            return self.write();
        };
        let is_wanted = self.ledger.made(&request.name, service.clone());
        self.write()?;
        if is_wanted { self.equip(&request.name, &service) } else { Ok(()) }
    }

    fn equip(&mut self, name: &ServiceName, service: &Service) -> Result<(), Killed> {
        self.ledger.equipped(name, credentials(service.vni), self.now);
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
            Step::Launch(which, pace) => return self.launch(ALLOCATIONS[which], pace),
            Step::Answered => {
                let oldest = self.asked.pop_front();
                return oldest.map_or(Ok(()), |request| self.call(&request));
            }
            Step::Release(which) => {
                self.ledger.release(ALLOCATIONS[which]);
                return self.write();
            }
            Step::Undo(choice) => return self.undo(choice),
            Step::NodeEnds(which) => {
                // Launches end before their allocation, but a node may be late.
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

    /// Ends all allocations, with a manager and nodes that answer.
    fn wind_up(&mut self) {
        while let Some(request) = self.asked.pop_front() {
            let _ = self.call(&request);
        }
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
        6 => (0..3_usize).prop_map(|which| Step::Launch(which, Pace::AtOnce)),
        2 => (0..3_usize).prop_map(|which| Step::Launch(which, Pace::Slow)),
        2 => Just(Step::Answered),
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
        let long = Ledger::recover(cluster(), OURS, range(), world.journal.clone());
        let short = Ledger::recover(cluster(), OURS, range(), long.compacted());
        prop_assert_eq!(long.views(), short.views());
        prop_assert_eq!(long.due(), short.due());
        prop_assert_eq!(long.compacted(), short.compacted());
        prop_assert_eq!(long.pool.taken(), short.pool.taken());
    }
}
