//! Names that ranks publish, in the directory of the user's sets, and what else ranks ask of a launcher without daemons.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lattice_overlay::directory::Directory;
use lattice_overlay::directory::names::{self, NAMES_MAX};
use pmi_core::ids::Rank;
use pmi_core::services::{Lifetime, MeetError, Meeting, Met, NameError, Services};
use tokio::time::{Instant, sleep};

use super::{Founded, OwnSet, SetError, blocking};

/// Time between two looks for a name that somebody waits for. A look is one small file that is opened, or is not there.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

impl OwnSet {
    /// Does something with the names, of which this set is one that can publish.
    async fn with_names<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Founded) -> Result<T, names::NameError> + Send + 'static,
    ) -> Result<T, NameError> {
        let founded = self.founded().await.map_err(unavailable)?;
        blocking(move || act(&founded)).await.map_err(unavailable)?.map_err(name_error)
    }

    /// Looks for a name; nothing has to be founded for that.
    async fn look_up(&self, service: Bytes) -> Result<Bytes, NameError> {
        let place = self.0.place.clone();
        let look = move || match place.as_deref().map(Directory::open_existing).transpose()?.flatten() {
            Some(directory) => directory.look_up(&service),
            None => Err(names::NameError::NotFound),
        };
        blocking(look).await.map_err(unavailable)?.map(Bytes::from).map_err(name_error)
    }
}

#[async_trait]
impl Services for OwnSet {
    async fn publish(&self, _: Rank, service: Bytes, port: Bytes, lifetime: Lifetime) -> Result<(), NameError> {
        let lifetime = match lifetime {
            Lifetime::Withdrawn => names::Lifetime::Withdrawn,
            Lifetime::FirstRead => names::Lifetime::FirstRead,
        };
        self.with_names(move |set| set.directory.publish(&set.record, &service, &port, lifetime)).await
    }

    async fn lookup(&self, _: Rank, service: Bytes, timeout: Option<Duration>) -> Result<Bytes, NameError> {
        let Some(timeout) = timeout else { return self.look_up(service).await };
        let until = Instant::now() + timeout;
        loop {
            match self.look_up(service.clone()).await {
                Err(NameError::NotFound) if Instant::now() >= until => return Err(NameError::TimedOut),
                Err(NameError::NotFound) => {
                    sleep(LOOK_AGAIN.min(until.saturating_duration_since(Instant::now()))).await;
                }
                result => return result,
            }
        }
    }

    async fn unpublish(&self, _: Rank, service: Bytes) -> Result<(), NameError> {
        self.with_names(move |set| set.directory.unpublish(&service)).await
    }

    async fn meet(&self, meeting: Meeting) -> Result<Met, MeetError> {
        self.meet_others(meeting).await
    }
}

fn unavailable(error: SetError) -> NameError {
    no_names(error.to_string())
}

/// Ranks are told that there are no names; why so is for the log, as not every MPI library shows it.
fn no_names(reason: String) -> NameError {
    tracing::warn!("names cannot be used: {reason}");
    NameError::Unavailable { reason }
}

fn name_error(error: names::NameError) -> NameError {
    match error {
        names::NameError::AlreadyPublished => NameError::AlreadyPublished,
        names::NameError::NotFound => NameError::NotFound,
        names::NameError::Full => NameError::Full { limit: NAMES_MAX },
        other => no_names(other.to_string()),
    }
}
