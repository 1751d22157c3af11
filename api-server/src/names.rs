//! Names that ranks publish: a table for each launch of a user, which is removed with its launch. A lookup that finds nothing in its own
//! launch searches the other launches of the user, by the rules of [`lattice_session::names`].

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use lattice_overlay::directory::Kin;
use lattice_session::names::{self, Candidate, LaunchNames, Outcome, choose};
use lattice_session::wire::call::{published_from_bytes, published_to_bytes};
use parking_lot::Mutex;
use pmi_core::services::{Lifetime, NameCall, NameError, NameRange, NameRequest, NameUser, Names, Published};
use tokio::time::{Instant, timeout_at};

use crate::launch_id::LaunchId;
use crate::order::Order;
use crate::store::KeptNames;
use crate::watched::Watched;

/// Longest wait of a lookup.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Most bytes of all names and ports of a user.
const BYTES_MAX: usize = Names::BYTES_MAX;

/// Answer to a call, and the names that the call changed, with their launches.
type Called = (Result<Bytes, NameError>, Vec<Changed>);
/// A launch, and a name that it published or withdrew.
type Changed = (LaunchId, Bytes);

/// A lock for each user that has requested one.
#[derive(Debug, Default)]
pub(crate) struct UserLocks(Mutex<HashMap<u32, Weak<tokio::sync::Mutex<()>>>>);

impl UserLocks {
    /// The lock of a user.
    pub(crate) fn of(&self, uid: u32) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock();
        locks.retain(|_, lock| lock.strong_count() > 0);
        let known = locks.get(&uid).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let lock = Arc::default();
            locks.insert(uid, Arc::downgrade(&lock));
            lock
        })
    }
}

/// The names of all users.
#[derive(Debug, Default)]
pub(crate) struct NameTables {
    users: Watched<HashMap<u32, Launches>>,
}

/// The launches of a user that are not over.
type Launches = HashMap<LaunchId, Launch>;

#[derive(Debug)]
struct Launch {
    kin: Kin,
    /// Its allocation.
    session: Option<String>,
    names: LaunchNames,
}

/// A lookup.
#[derive(Clone, Copy, Debug)]
struct Search<'a> {
    uid: u32,
    user: &'a NameUser,
    service: &'a Bytes,
    range: &'a NameRange,
}

/// Outcome of one search for a name.
#[derive(Clone, Debug, PartialEq)]
enum Look {
    /// The port, and the name if the lookup removed it.
    Found(Bytes, Option<Changed>),
    /// The result is uncertain until this time.
    Later(Instant),
}

impl NameTables {
    /// Adds a launch that begins, with an empty table of names.
    pub(crate) fn begin(&self, order: &Order) {
        let (placed, uid) = (&order.launch, order.terms.uid);
        let kin = names::kin(&placed.apps, &placed.settings.ancestors);
        let launch = Launch { kin, session: placed.allocation_id.clone(), names: LaunchNames::default() };
        self.users.lock().entry(uid).or_default().insert(order.id(), launch);
    }

    /// Executes the request of a rank of `launch`, which is a launch of `uid`. The port is empty except for a lookup.
    pub(crate) async fn call(&self, uid: u32, launch: &LaunchId, request: NameRequest) -> Called {
        let NameRequest { user, call } = request;
        let user = NameUser { launch: launch.to_string(), ..user };
        match call {
            NameCall::Publish { service, port, lifetime, range } => {
                let name = Published { publisher: user, port, lifetime, range };
                match self.users.change(|users| publish(users, uid, service.clone(), name)) {
                    Ok(()) => (Ok(Bytes::new()), vec![(launch.clone(), service)]),
                    Err(error) => (Err(error), Vec::new()),
                }
            }
            NameCall::Lookup { service, timeout, range } => {
                let search = Search { uid, user: &user, service: &service, range: &range };
                match self.look_up(search, timeout).await {
                    Ok((port, changed)) => (Ok(port), changed.into_iter().collect()),
                    Err(error) => (Err(error), Vec::new()),
                }
            }
            NameCall::Unpublish { service, publisher } => {
                let mut users = self.users.lock();
                let Some(of) = table(&mut users, uid, launch) else { return (Err(NameError::NotFound), Vec::new()) };
                match of.names.table.unpublish(&user, &service, publisher) {
                    Ok(()) => (Ok(Bytes::new()), vec![(launch.clone(), service)]),
                    Err(error) => (Err(error), Vec::new()),
                }
            }
            NameCall::Leave => {
                let mut users = self.users.lock();
                let gone = table(&mut users, uid, launch).map(|of| of.names.table.leave(&user)).unwrap_or_default();
                (Ok(Bytes::new()), gone.into_iter().map(|service| (launch.clone(), service)).collect())
            }
        }
    }

    /// Searches for a name until it is found, for as long as the caller waits, and at least until the result is certain.
    async fn look_up(
        &self,
        search: Search<'_>,
        timeout: Option<Duration>,
    ) -> Result<(Bytes, Option<Changed>), NameError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout.min(TIMEOUT_MAX));
        let mut last = None;
        let mut until = Instant::now();
        loop {
            let look = |users: &mut HashMap<u32, Launches>| {
                let looked = search.look(users);
                (Some(&looked) != last.as_ref()).then_some(looked)
            };
            let looked = match timeout_at(until, self.users.when(look)).await {
                Ok(looked) => looked,
                Err(_) if deadline.is_some_and(|deadline| until >= deadline) => return Err(NameError::TimedOut),
                // The result is certain by now.
                Err(_) => search.look(&mut self.users.lock()),
            };
            until = match (&looked, deadline) {
                (Ok(Look::Found(port, gone)), _) => return Ok((port.clone(), gone.clone())),
                (Ok(Look::Later(then)), deadline) => deadline.map_or(*then, |deadline| deadline.min(*then)),
                (Err(NameError::NotFound | NameError::Ambiguous { .. }), Some(deadline)) => deadline,
                (Err(error), _) => return Err(error.clone()),
            };
            last = Some(looked);
        }
    }

    /// Names that a launch has published under `service`, in their stored form.
    pub(crate) fn published(&self, uid: u32, launch: &LaunchId, service: &Bytes) -> KeptNames {
        let mut users = self.users.lock();
        let Some(of) = table(&mut users, uid, launch) else { return KeptNames::default() };
        let published = of.names.table.published(service).iter().cloned();
        KeptNames { names: published.map(|name| published_to_bytes(service.clone(), name).into()).collect() }
    }

    /// Loads the names of a launch that an earlier server stored.
    pub(crate) fn take_up(&self, uid: u32, launch: &LaunchId, kept: &KeptNames) {
        let mut users = self.users.lock();
        let Some(of) = table(&mut users, uid, launch) else { return };
        for (service, name) in kept.names.iter().filter_map(|name| published_from_bytes(name)) {
            // The names had room in the table of the earlier server.
            let _ = of.names.table.publish(service, name);
        }
    }

    /// Withdraws the names of a launch that is over.
    pub(crate) fn withdraw(&self, uid: u32, launch: &LaunchId) {
        self.users.change(|users| {
            let Some(launches) = users.get_mut(&uid) else { return };
            launches.remove(launch);
            if launches.is_empty() {
                users.remove(&uid);
            }
        });
    }
}

fn table<'a>(users: &'a mut HashMap<u32, Launches>, uid: u32, launch: &LaunchId) -> Option<&'a mut Launch> {
    users.get_mut(&uid)?.get_mut(launch)
}

fn publish(users: &mut HashMap<u32, Launches>, uid: u32, service: Bytes, name: Published) -> Result<(), NameError> {
    let launches = users.entry(uid).or_default();
    let bytes: usize = launches.values().map(|launch| launch.names.table.bytes()).sum();
    let bytes = bytes + service.len() + name.port.len();
    if bytes > BYTES_MAX {
        return Err(NameError::TooLong { bytes });
    }
    let over = || NameError::Unavailable { reason: "the launch is over".to_owned() };
    launches.get_mut(&*name.publisher.launch).ok_or_else(over)?.names.table.publish(service, name)
}

impl Search<'_> {
    /// Searches once.
    fn look(self, users: &mut HashMap<u32, Launches>) -> Result<Look, NameError> {
        let Self { uid, user, service, range } = self;
        let launches = users.get_mut(&uid).ok_or(NameError::NotFound)?;
        let own = launches.get_mut(&*user.launch).ok_or(NameError::NotFound)?;
        own.names.seek(service);
        if let Some(found) = own.names.table.find(user, service, range).cloned() {
            return Ok(take(own, &user.launch, service, &found));
        }
        let (kin, session) = (own.kin.clone(), own.session.clone());
        let others: Vec<(&LaunchId, &Launch)> = launches.iter().filter(|(id, _)| ***id != *user.launch).collect();
        let offers: Vec<(Candidate<'_>, Published)> = others
            .iter()
            .filter_map(|(id, launch)| {
                let is_session = launch.session == session;
                let published = launch.names.table.published(service).iter();
                let visible = published.filter(|name| name.is_visible(user, range, is_session));
                let name = visible.min_by_key(|name| name.range.width())?;
                let sought = launch.names.has_sought(service);
                Some((
                    Candidate { launch: id, kin: &launch.kin, program: name.publisher.program, sought },
                    name.clone(),
                ))
            })
            .collect();
        let kins: Vec<(&str, &Kin)> = others.iter().map(|(id, launch)| (&***id, &launch.kin)).collect();
        let candidates: Vec<Candidate<'_>> = offers.iter().map(|(candidate, _)| *candidate).collect();
        let choice = choose(&kin, &kins, &candidates);
        let ids: Vec<String> = candidates.iter().map(|candidate| candidate.launch.to_owned()).collect();
        let names: Vec<Published> = offers.into_iter().map(|(_, name)| name).collect();
        let own = launches.get_mut(&*user.launch).ok_or(NameError::NotFound)?;
        match own.names.decide(service, choice, &ids, Instant::now().into_std())? {
            Outcome::Later(then) => Ok(Look::Later(Instant::from_std(then))),
            Outcome::Found(index) => {
                let launch = launches.get_mut(&*ids[index]).ok_or(NameError::NotFound)?;
                Ok(take(launch, &ids[index], service, &names[index]))
            }
        }
    }
}

/// Takes a name that was found. Removes it if it was published for one reader.
fn take(of: &mut Launch, launch: &str, service: &Bytes, found: &Published) -> Look {
    let is_gone = found.lifetime == Lifetime::FirstRead && of.names.table.remove(service, found);
    Look::Found(found.port.clone(), is_gone.then(|| (launch.into(), service.clone())))
}

#[cfg(test)]
mod tests {
    use pmi_core::services::{Program, Publisher};

    use super::*;

    fn publish(service: &str, lifetime: Lifetime, range: NameRange) -> NameCall {
        NameCall::Publish { service: service.to_owned().into(), port: "port".into(), lifetime, range }
    }

    fn shared(service: &str) -> NameCall {
        publish(service, Lifetime::Withdrawn, NameRange::User)
    }

    fn lookup(service: &'static str, timeout: Option<Duration>) -> NameCall {
        NameCall::Lookup { service: service.into(), timeout, range: NameRange::User }
    }

    fn unpublish(service: &'static str) -> NameCall {
        NameCall::Unpublish { service: service.into(), publisher: Publisher::AnyOfLaunch }
    }

    /// User, id, allocation and program of a launch.
    type Given = (u32, &'static str, &'static str, (u64, u64));

    /// The names of users with these launches, all started from one shell.
    fn tables(launches: &[Given]) -> NameTables {
        let names = NameTables::default();
        for &(uid, id, allocation, program) in launches {
            let kin = Kin { ancestors: vec![7], programs: vec![program] };
            let launch = Launch { kin, session: Some(allocation.to_owned()), names: LaunchNames::default() };
            names.users.lock().entry(uid).or_default().insert(id.into(), launch);
        }
        names
    }

    /// Launches `a` and `b` of one user and `c` of another user, with unrelated programs.
    fn three() -> NameTables {
        tables(&[(1, "a", "x", (1, 1)), (1, "b", "x", (2, 2)), (2, "c", "y", (3, 3))])
    }

    impl NameTables {
        async fn ask_all(&self, uid: u32, launch: &str, call: NameCall) -> Called {
            let (name, line) = self.users.lock()[&uid][launch].kin.programs[0];
            let user =
                NameUser { job: format!("kvs_{launch}_0"), program: Program { name, line }, ..Default::default() };
            self.call(uid, &launch.into(), NameRequest { user, call }).await
        }

        async fn ask(&self, uid: u32, launch: &str, call: NameCall) -> Result<Bytes, NameError> {
            self.ask_all(uid, launch, call).await.0
        }
    }

    #[tokio::test]
    async fn names_that_are_kept_are_those_that_can_still_be_found() {
        let names = three();
        let of_a = |service: &'static str| vec![("a".into(), Bytes::from(service))];
        let once = publish("once", Lifetime::FirstRead, NameRange::Session);
        let process = publish("process", Lifetime::Process, NameRange::User);
        for (call, service) in
            [(shared("ocean"), "ocean"), (shared("gone"), "gone"), (once, "once"), (process, "process")]
        {
            assert_eq!(names.ask_all(1, "a", call).await, (Ok(Bytes::new()), of_a(service)));
        }
        assert_eq!(names.ask_all(1, "b", lookup("ocean", None)).await, (Ok("port".into()), vec![]));
        assert_eq!(names.ask(1, "b", unpublish("gone")).await, Err(NameError::NotFound), "it is another launch's");
        assert_eq!(names.ask_all(1, "a", unpublish("gone")).await.1, of_a("gone"));
        assert_eq!(names.ask_all(1, "a", NameCall::Leave).await.1, of_a("process"));
        let next = three();
        for service in ["ocean", "gone", "once", "process"] {
            next.take_up(1, &"a".into(), &names.published(1, &"a".into(), &service.into()));
        }
        assert_eq!(next.ask_all(1, "b", lookup("once", None)).await, (Ok("port".into()), of_a("once")));
        for gone in ["once", "gone", "process"] {
            assert_eq!(next.ask(1, "b", lookup(gone, None)).await, Err(NameError::NotFound));
        }
        let kept = |service: &'static str| next.published(1, &"a".into(), &service.into()).names.len();
        assert_eq!(["once", "ocean"].map(kept), [0, 1]);
    }

    #[tokio::test]
    async fn the_names_of_a_user_have_so_many_bytes() {
        let names = three();
        let large = |service: String| NameCall::Publish {
            service: service.into(),
            port: vec![b'x'; Names::LENGTH_MAX].into(),
            lifetime: Lifetime::Withdrawn,
            range: NameRange::User,
        };
        let mut published = 0;
        while names.ask(1, ["a", "b"][published % 2], large(published.to_string())).await.is_ok() {
            published += 1;
        }
        assert_eq!(published, BYTES_MAX / Names::LENGTH_MAX - 1);
        let refused = names.ask(1, "a", large("more".to_owned())).await;
        assert!(matches!(refused, Err(NameError::TooLong { .. })), "{refused:?}");
        assert!(names.ask(2, "c", large("ocean".to_owned())).await.is_ok(), "other users have theirs");
        names.withdraw(1, &"a".into());
        assert!(names.ask(1, "b", large("again".to_owned())).await.is_ok());
    }

    #[test]
    fn each_user_has_a_lock_of_his_own_while_it_is_used() {
        let locks = UserLocks::default();
        let (one, same, other) = (locks.of(1), locks.of(1), locks.of(2));
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        drop((one, same, other));
        locks.of(3);
        assert_eq!(locks.0.lock().len(), 1);
    }

    #[tokio::test]
    async fn each_launch_has_its_own_names_and_finds_those_of_others_of_its_user() {
        let names = three();
        names.ask(1, "a", shared("ocean")).await.unwrap();
        assert_eq!(names.ask(1, "b", lookup("ocean", None)).await, Ok("port".into()));
        let holder = "rank 0 of launch a".to_owned();
        assert_eq!(names.ask(1, "a", shared("ocean")).await, Err(NameError::AlreadyPublished { holder }));
        let own = NameCall::Publish {
            service: "ocean".into(),
            port: "own".into(),
            lifetime: Lifetime::Withdrawn,
            range: NameRange::Session,
        };
        names.ask(1, "b", own).await.unwrap();
        assert_eq!(names.ask(1, "b", lookup("ocean", None)).await, Ok("own".into()));
        assert_eq!(names.ask(1, "a", lookup("ocean", None)).await, Ok("port".into()));
        assert_eq!(names.ask(2, "c", lookup("ocean", None)).await, Err(NameError::NotFound));
        [(1, "a"), (1, "b"), (2, "c")].into_iter().for_each(|(uid, id)| names.withdraw(uid, &id.into()));
        assert!(names.users.lock().is_empty());
        let late = NameRequest { user: NameUser::default(), call: shared("late") };
        assert!(matches!(names.call(1, &"a".into(), late).await.0, Err(NameError::Unavailable { .. })));
    }

    #[tokio::test]
    async fn ranges_end_where_the_standard_says() {
        let launches: [Given; 3] = [(1, "a", "x", (1, 1)), (1, "same", "x", (2, 2)), (1, "other", "y", (3, 3))];
        for (range, expected) in [
            (NameRange::Job, [true, false, false]),
            (NameRange::Session, [true, true, false]),
            (NameRange::User, [true, true, true]),
        ] {
            let names = tables(&launches);
            names.ask(1, "a", publish("ocean", Lifetime::Withdrawn, range.clone())).await.unwrap();
            for ((_, launch, ..), expected) in launches.iter().zip(expected) {
                let found = names.ask(1, launch, lookup("ocean", None)).await.is_ok();
                assert_eq!(found, expected, "{launch} looks for a name of {range:?}");
            }
            let in_session = NameCall::Lookup { service: "ocean".into(), timeout: None, range: NameRange::Session };
            assert_eq!(names.ask(1, "other", in_session).await, Err(NameError::NotFound), "it searches its session");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_waits_as_long_as_it_said() {
        let names = Arc::new(three());
        let timeout = Some(Duration::from_secs(60));
        assert_eq!(names.ask(1, "a", lookup("late", timeout)).await, Err(NameError::TimedOut));
        let waiting = tokio::spawn({
            let names = Arc::clone(&names);
            async move { names.ask(1, "a", lookup("late", timeout)).await }
        });
        tokio::task::yield_now().await;
        names.ask(1, "b", shared("late")).await.unwrap();
        assert_eq!(waiting.await.unwrap(), Ok("port".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_client_gets_the_server_of_its_own_launch_and_not_that_of_a_copy() {
        // Copies with the same arguments, and with different arguments.
        for line in [1, 2] {
            let names = Arc::new(tables(&[(1, "a", "x", (1, 1)), (1, "b", "x", (1, line))]));
            let wait = |launch: &'static str| {
                let names = Arc::clone(&names);
                tokio::spawn(async move { names.ask(1, launch, lookup("bay", Some(Duration::from_secs(60)))).await })
            };
            let waiting = [wait("a"), wait("b")];
            tokio::task::yield_now().await;
            let of = |launch: &'static str| NameCall::Publish {
                service: "bay".into(),
                port: launch.into(),
                lifetime: Lifetime::Withdrawn,
                range: NameRange::User,
            };
            names.ask(1, "a", of("a")).await.unwrap();
            tokio::time::sleep(Duration::from_secs(20)).await;
            assert_eq!(names.ask(1, "b", lookup("bay", None)).await, Err(NameError::NotFound));
            names.ask(1, "b", of("b")).await.unwrap();
            let [of_a, of_b] = waiting;
            assert_eq!((of_a.await.unwrap(), of_b.await.unwrap()), (Ok("a".into()), Ok("b".into())));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_program_in_two_launches_and_roles_meets_itself_after_a_delay() {
        let names = tables(&[(1, "host", "x", (1, 1)), (1, "guest", "x", (1, 2))]);
        names.ask(1, "host", shared("bay")).await.unwrap();
        let begun = Instant::now();
        let soon = lookup("bay", Some(Duration::from_secs(1)));
        assert_eq!(names.ask(1, "guest", soon).await, Err(NameError::TimedOut));
        assert_eq!(names.ask(1, "guest", lookup("bay", None)).await, Ok("port".into()));
        assert_eq!(begun.elapsed(), names::DOUBT);
        names.ask(1, "host", shared("next")).await.unwrap();
        assert_eq!(names.ask(1, "guest", lookup("next", None)).await, Ok("port".into()));
        assert_eq!(begun.elapsed(), names::DOUBT, "it is known by now");
    }
}
