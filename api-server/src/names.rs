//! Names that ranks publish: one table for each user, so that jobs of one user find each other and nobody else does. A name goes
//! with the launch that published it, for nothing listens at its port any more.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use lattice_session::wire::call::NameCall;
use pmi_core::services::{Lifetime, NameError, Names};
use tokio::time::{Instant, timeout_at};

use crate::store::{KeptName, KeptNames};
use crate::watched::Watched;

/// The longest that a look-up waits.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// The longest name, and the longest port; MPI_MAX_PORT_NAME is below.
const LENGTH_MAX: usize = 64 << 10;

/// Answer to a call, and the launch whose names it has changed.
type Called = (Result<Bytes, NameError>, Option<String>);

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

impl NameTables {
    /// Does what a rank of `launch`, which is a launch of `uid`, asks for. The port is empty but for a look-up. Returns besides the launch
    /// whose names are others now, if any is.
    pub(crate) async fn call(&self, uid: u32, launch: &str, call: NameCall) -> Called {
        match call {
            NameCall::Publish { service, port, .. } if service.len().max(port.len()) > LENGTH_MAX => {
                let reason = format!("names and ports have at most {LENGTH_MAX} bytes");
                (Err(NameError::Unavailable { reason }), None)
            }
            NameCall::Publish { service, port, lifetime } => {
                match self.users.change(|users| publish(users, uid, launch, (service, port), lifetime)) {
                    Ok(()) => (Ok(Bytes::new()), Some(launch.to_owned())),
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
                (table.names.unpublish(&service).map(|()| Bytes::new()), publisher)
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

    /// The names of a launch, to be kept.
    pub(crate) fn of(&self, uid: u32, launch: &str) -> KeptNames {
        let users = self.users.lock();
        let Some(Table { names, publishers }) = users.get(&uid) else { return KeptNames::default() };
        let own = publishers.iter().filter(|(_, (publisher, _))| publisher == launch);
        let kept = |(service, (_, lifetime)): (&Bytes, &(String, Lifetime))| {
            let first_read = *lifetime == Lifetime::FirstRead;
            Some(KeptName { service: service.clone(), port: names.port(service)?.clone(), first_read })
        };
        KeptNames { names: own.filter_map(kept).collect() }
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
    table.names.publish(service.clone(), port, lifetime)?;
    table.publishers.insert(service, (launch.to_owned(), lifetime));
    Ok(())
}

fn look_up(users: &mut HashMap<u32, Table>, uid: u32, service: &[u8]) -> Called {
    let Some(table) = users.get_mut(&uid) else { return (Err(NameError::NotFound), None) };
    let port = table.names.lookup(service);
    let is_gone = port.is_ok() && table.names.port(service).is_none();
    let publisher = if is_gone { table.publishers.remove(service) } else { None };
    (port, publisher.map(|(launch, _)| launch))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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
        for call in [publish("ocean"), publish("gone"), once] {
            assert_eq!(names.call(1, "a", call).await, (Ok(Bytes::new()), Some("a".to_owned())));
        }
        assert_eq!(names.call(1, "b", lookup("ocean", None)).await, (Ok("port".into()), None));
        let gone = NameCall::Unpublish { service: "gone".into() };
        assert_eq!(names.call(1, "b", gone).await.1.as_deref(), Some("a"), "any launch of the user may");
        let next = NameTables::default();
        next.take_up(1, "a", names.of(1, "a"));
        assert_eq!(next.call(1, "b", lookup("once", None)).await, (Ok("first".into()), Some("a".to_owned())));
        assert_eq!(next.ask(1, "b", lookup("once", None)).await, Err(NameError::NotFound));
        assert_eq!(next.ask(1, "b", lookup("gone", None)).await, Err(NameError::NotFound));
        assert_eq!((next.of(1, "a").names.len(), next.of(1, "b").names.len()), (1, 0));
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
