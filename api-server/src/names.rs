//! Names that ranks publish: one table for each user, so that jobs of one user find each other and nobody else does. A name goes
//! with the launch that published it, for nothing listens at its port any more.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use lattice_session::wire::call::NameCall;
use pmi_core::services::{Lifetime, NameError, Names};
use tokio::time::{Instant, timeout_at};

use crate::watched::Watched;

/// The longest that a look-up waits.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// The longest name, and the longest port; MPI_MAX_PORT_NAME is below.
const LENGTH_MAX: usize = 64 << 10;

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
    /// Does what a rank of `launch`, which is a launch of `uid`, asks for. The port is empty but for a look-up.
    pub(crate) async fn call(&self, uid: u32, launch: &str, call: NameCall) -> Result<Bytes, NameError> {
        match call {
            NameCall::Publish { service, port, .. } if service.len().max(port.len()) > LENGTH_MAX => {
                Err(NameError::Unavailable { reason: format!("names and ports have at most {LENGTH_MAX} bytes") })
            }
            NameCall::Publish { service, port, lifetime } => self.users.change(|users| {
                let table = users.entry(uid).or_default();
                table.names.publish(service.clone(), port, lifetime)?;
                table.publishers.insert(service, (launch.to_owned(), lifetime));
                Ok(Bytes::new())
            }),
            NameCall::Lookup { service, timeout: None } => look_up(&mut self.users.lock(), uid, &service),
            NameCall::Lookup { service, timeout: Some(timeout) } => {
                let deadline = Instant::now() + timeout.min(TIMEOUT_MAX);
                timeout_at(deadline, self.await_name(uid, &service)).await.unwrap_or(Err(NameError::TimedOut))
            }
            NameCall::Unpublish { service } => {
                let mut users = self.users.lock();
                let table = users.get_mut(&uid).ok_or(NameError::NotFound)?;
                table.publishers.remove(&service);
                table.names.unpublish(&service).map(|()| Bytes::new())
            }
        }
    }

    async fn await_name(&self, uid: u32, service: &[u8]) -> Result<Bytes, NameError> {
        let look = |users: &mut HashMap<u32, Table>| match look_up(users, uid, service) {
            Err(NameError::NotFound) => None,
            result => Some(result),
        };
        self.users.when(look).await
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

fn look_up(users: &mut HashMap<u32, Table>, uid: u32, service: &[u8]) -> Result<Bytes, NameError> {
    let table = users.get_mut(&uid).ok_or(NameError::NotFound)?;
    let port = table.names.lookup(service)?;
    if table.publishers.get(service).is_some_and(|(_, lifetime)| *lifetime == Lifetime::FirstRead) {
        table.publishers.remove(service);
    }
    Ok(port)
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

    #[tokio::test]
    async fn names_are_found_by_other_launches_of_the_user_only() {
        let names = NameTables::default();
        names.call(1, "a", publish("ocean")).await.unwrap();
        assert_eq!(names.call(1, "b", publish("ocean")).await, Err(NameError::AlreadyPublished));
        assert_eq!(names.call(1, "b", lookup("ocean", None)).await, Ok("port".into()));
        assert_eq!(names.call(2, "c", lookup("ocean", None)).await, Err(NameError::NotFound));
        names.withdraw(1, "a");
        assert_eq!(names.call(1, "b", lookup("ocean", None)).await, Err(NameError::NotFound));
        assert!(names.users.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_waits_as_long_as_it_said() {
        let names = Arc::new(NameTables::default());
        let timeout = Some(Duration::from_secs(60));
        assert_eq!(names.call(1, "a", lookup("late", timeout)).await, Err(NameError::TimedOut));
        let waiting = tokio::spawn({
            let names = Arc::clone(&names);
            async move { names.call(1, "a", lookup("late", timeout)).await }
        });
        tokio::task::yield_now().await;
        names.call(1, "b", publish("late")).await.unwrap();
        assert_eq!(waiting.await.unwrap(), Ok("port".into()));
    }
}
