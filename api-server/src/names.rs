//! Names that ranks publish: one table for each user, so that jobs of one user find each other and nobody else does. A name goes
//! with the launch that published it, for nothing listens at its port any more.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use lattice_session::wire::call::NameCall;
use parking_lot::Mutex;
use pmi_core::services::{Lifetime, NameError, Names};
use tokio::time::{Instant, timeout_at};

use crate::store::{KeptName, KeptNames};
use crate::watched::Watched;

/// The longest that a look-up waits.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// The longest name, and the longest port; MPI_MAX_PORT_NAME is below.
const LENGTH_MAX: usize = 64 << 10;

/// The most bytes of all names and ports of a user.
const BYTES_MAX: usize = 4 << 20;

/// Answer to a call, and the launch and the name that it has changed.
type Called = (Result<Bytes, NameError>, Option<(String, Bytes)>);

/// A lock for each user who has asked for one.
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
    users: Watched<HashMap<u32, Table>>,
}

#[derive(Debug, Default)]
struct Table {
    names: Names,
    /// Which launch published each of them, and for how long.
    publishers: HashMap<Bytes, (String, Lifetime)>,
}

impl Table {
    /// Bytes of its names and ports.
    fn bytes(&self) -> usize {
        let port = |service: &Bytes| self.names.port(service).map_or(0, Bytes::len);
        self.publishers.keys().map(|service| service.len() + port(service)).sum()
    }
}

impl NameTables {
    /// Does what a rank of `launch`, which is a launch of `uid`, asks for. The port is empty but for a look-up. Returns besides the launch
    /// and the name that is published or withdrawn now, if one is.
    pub(crate) async fn call(&self, uid: u32, launch: &str, call: NameCall) -> Called {
        match call {
            NameCall::Publish { service, port, .. } if service.len().max(port.len()) > LENGTH_MAX => {
                let reason = format!("names and ports have at most {LENGTH_MAX} bytes");
                (Err(NameError::Unavailable { reason }), None)
            }
            NameCall::Publish { service, port, lifetime } => {
                let name = (service.clone(), port);
                match self.users.change(|users| publish(users, uid, launch, name, lifetime)) {
                    Ok(()) => (Ok(Bytes::new()), Some((launch.to_owned(), service))),
                    Err(error) => (Err(error), None),
                }
            }
            NameCall::Lookup { service, timeout: None } => look_up(&mut self.users.lock(), uid, &service),
            NameCall::Lookup { service, timeout: Some(timeout) } => {
                let deadline = Instant::now() + timeout.min(TIMEOUT_MAX);
                let found = timeout_at(deadline, self.await_name(uid, &service)).await;
                found.unwrap_or((Err(NameError::TimedOut), None))
            }
            NameCall::Unpublish { service } => {
                let mut users = self.users.lock();
                let Some(table) = users.get_mut(&uid) else { return (Err(NameError::NotFound), None) };
                let publisher = table.publishers.remove(&service).map(|(launch, _)| launch);
                let answer = table.names.unpublish(&service).map(|()| Bytes::new());
                (answer, publisher.map(|launch| (launch, service)))
            }
        }
    }

    async fn await_name(&self, uid: u32, service: &[u8]) -> Called {
        let look = |users: &mut HashMap<u32, Table>| match look_up(users, uid, service) {
            (Err(NameError::NotFound), _) => None,
            result => Some(result),
        };
        self.users.when(look).await
    }

    /// A name of a launch, to be kept; `None` if the launch has published none such, or not any more.
    pub(crate) fn published(&self, uid: u32, launch: &str, service: &Bytes) -> Option<KeptName> {
        let users = self.users.lock();
        let Table { names, publishers } = users.get(&uid)?;
        let (_, lifetime) = publishers.get(service).filter(|(publisher, _)| publisher == launch)?;
        let first_read = *lifetime == Lifetime::FirstRead;
        Some(KeptName { service: service.clone(), port: names.port(service)?.clone(), first_read })
    }

    /// Takes up the names of a launch that an earlier server kept.
    pub(crate) fn take_up(&self, uid: u32, launch: &str, kept: KeptNames) {
        let mut users = self.users.lock();
        for KeptName { service, port, first_read } in kept.names {
            let lifetime = if first_read { Lifetime::FirstRead } else { Lifetime::Withdrawn };
            // They had room there.
            let _ = publish(&mut users, uid, launch, (service, port), lifetime);
        }
    }

    /// A launch is over: what it published is withdrawn.
    pub(crate) fn withdraw(&self, uid: u32, launch: &str) {
        let mut users = self.users.lock();
        let Some(table) = users.get_mut(&uid) else { return };
        let Table { names, publishers } = table;
        publishers.retain(|service, (publisher, _)| {
            let others = publisher != launch;
            if !others {
                // It is there: what goes otherwise goes from both.
                let _ = names.unpublish(service);
            }
            others
        });
        if table.publishers.is_empty() {
            users.remove(&uid);
        }
    }
}

fn publish(
    users: &mut HashMap<u32, Table>,
    uid: u32,
    launch: &str,
    (service, port): (Bytes, Bytes),
    lifetime: Lifetime,
) -> Result<(), NameError> {
    let table = users.entry(uid).or_default();
    if table.bytes() + service.len() + port.len() > BYTES_MAX {
        let reason = format!("the names and ports of a user have at most {BYTES_MAX} bytes");
        return Err(NameError::Unavailable { reason });
    }
    table.names.publish(service.clone(), port, lifetime)?;
    table.publishers.insert(service, (launch.to_owned(), lifetime));
    Ok(())
}

fn look_up(users: &mut HashMap<u32, Table>, uid: u32, service: &[u8]) -> Called {
    let Some(table) = users.get_mut(&uid) else { return (Err(NameError::NotFound), None) };
    let port = table.names.lookup(service);
    let is_gone = port.is_ok() && table.names.port(service).is_none();
    let publisher = if is_gone { table.publishers.remove_entry(service) } else { None };
    (port, publisher.map(|(service, (launch, _))| (launch, service)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(service: &'static str) -> NameCall {
        let (service, port) = (service.into(), "port".into());
        NameCall::Publish { service, port, lifetime: Lifetime::Withdrawn }
    }

    fn lookup(service: &'static str, timeout: Option<Duration>) -> NameCall {
        NameCall::Lookup { service: service.into(), timeout }
    }

    impl NameTables {
        async fn ask(&self, uid: u32, launch: &str, call: NameCall) -> Result<Bytes, NameError> {
            self.call(uid, launch, call).await.0
        }
    }

    #[tokio::test]
    async fn names_that_are_kept_are_those_that_can_still_be_found() {
        let names = NameTables::default();
        let once = NameCall::Publish { service: "once".into(), port: "first".into(), lifetime: Lifetime::FirstRead };
        let of_a = |service: &'static str| Some(("a".to_owned(), Bytes::from(service)));
        for (call, service) in [(publish("ocean"), "ocean"), (publish("gone"), "gone"), (once, "once")] {
            assert_eq!(names.call(1, "a", call).await, (Ok(Bytes::new()), of_a(service)));
        }
        assert_eq!(names.call(1, "b", lookup("ocean", None)).await, (Ok("port".into()), None));
        let gone = NameCall::Unpublish { service: "gone".into() };
        assert_eq!(names.call(1, "b", gone).await.1, of_a("gone"), "any launch of the user may");
        let next = NameTables::default();
        let kept = ["ocean", "gone", "once"].map(|service| names.published(1, "a", &service.into()));
        assert!(names.published(1, "b", &"ocean".into()).is_none() && kept[1].is_none());
        next.take_up(1, "a", KeptNames { names: kept.into_iter().flatten().collect() });
        assert_eq!(next.call(1, "b", lookup("once", None)).await, (Ok("first".into()), of_a("once")));
        assert_eq!(next.ask(1, "b", lookup("once", None)).await, Err(NameError::NotFound));
        assert_eq!(next.ask(1, "b", lookup("gone", None)).await, Err(NameError::NotFound));
        assert!(next.published(1, "a", &"once".into()).is_none() && next.published(1, "a", &"ocean".into()).is_some());
    }

    #[tokio::test]
    async fn the_names_of_a_user_have_so_many_bytes() {
        let names = NameTables::default();
        let large = |service: String| {
            let (service, port) = (service.into(), vec![b'x'; LENGTH_MAX].into());
            NameCall::Publish { service, port, lifetime: Lifetime::Withdrawn }
        };
        let mut published = 0;
        while names.ask(1, "a", large(published.to_string())).await.is_ok() {
            published += 1;
        }
        assert_eq!(published, BYTES_MAX / LENGTH_MAX - 1);
        let refused = names.ask(1, "a", large("more".to_owned())).await;
        assert!(matches!(refused, Err(NameError::Unavailable { .. })), "{refused:?}");
        assert!(names.ask(2, "b", large("ocean".to_owned())).await.is_ok(), "others have theirs");
        names.withdraw(1, "a");
        assert!(names.ask(1, "c", large("again".to_owned())).await.is_ok());
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
    async fn names_are_found_by_other_launches_of_the_user_only() {
        let names = NameTables::default();
        names.ask(1, "a", publish("ocean")).await.unwrap();
        assert_eq!(names.ask(1, "b", publish("ocean")).await, Err(NameError::AlreadyPublished));
        assert_eq!(names.ask(1, "b", lookup("ocean", None)).await, Ok("port".into()));
        assert_eq!(names.ask(2, "c", lookup("ocean", None)).await, Err(NameError::NotFound));
        names.withdraw(1, "a");
        assert_eq!(names.ask(1, "b", lookup("ocean", None)).await, Err(NameError::NotFound));
        assert!(names.users.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_waits_as_long_as_it_said() {
        let names = Arc::new(NameTables::default());
        let timeout = Some(Duration::from_secs(60));
        assert_eq!(names.ask(1, "a", lookup("late", timeout)).await, Err(NameError::TimedOut));
        let waiting = tokio::spawn({
            let names = Arc::clone(&names);
            async move { names.ask(1, "a", lookup("late", timeout)).await }
        });
        tokio::task::yield_now().await;
        names.ask(1, "b", publish("late")).await.unwrap();
        assert_eq!(waiting.await.unwrap(), Ok("port".into()));
    }
}
