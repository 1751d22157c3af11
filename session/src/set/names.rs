//! Names that ranks publish. Names of this launch are in memory. The directory of the user's sets contains the names that other launches
//! may find.
//!
//! A lookup searches the names of this launch first. [`crate::names`] selects among the names of other launches.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lattice_overlay::directory::names::{Offer, Offered};
use lattice_overlay::directory::{Directory, DirectoryError, SetRecord, activation};
use pmi_core::services::{
    Lifetime, MeetError, Meeting, Met, NameCall, NameError, NameRange, NameRequest, NameUser, Published, Services,
};
use tokio::time::{Instant, timeout as timeout_of};

use super::{Founded, OwnSet, SetError, blocking};
use crate::names::{Candidate, LaunchNames, Outcome, choose};
use crate::wire;

/// Pause between two looks for a name while a rank waits. A look opens one directory, which may not exist.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Attempts to take an offer that changes at the same time.
const TRIES: usize = 3;

/// Result of a look for a name.
enum Look {
    Found(Bytes),
    /// Not found, but perhaps at this time.
    Later(std::time::Instant),
}

/// A name of another launch in the directory.
struct Other<'a> {
    offered: &'a Offered,
    offer: &'a Offer,
    name: Published,
    sought: bool,
}

#[async_trait]
impl Services for OwnSet {
    async fn name(&self, NameRequest { mut user, call }: NameRequest) -> Result<Bytes, NameError> {
        user.launch = self.0.facts.launch.clone().unwrap_or_default();
        let set = self.clone();
        let done = |result: Result<(), NameError>| result.map(|()| Bytes::new());
        match call {
            NameCall::Publish { service, port, lifetime, range } => {
                let name = Published { publisher: user, port, lifetime, range };
                done(blocking(move || set.publish(service, name)).await.map_err(unavailable)?)
            }
            NameCall::Lookup { service, timeout, range } => self.look_up(user, service, timeout, range).await,
            NameCall::Unpublish { service, publisher } => {
                let withdraw = move || {
                    let mut names = set.0.names.lock();
                    names.table.unpublish(&user, &service, publisher)?;
                    set.offer(&mut names, &service, None);
                    Ok(())
                };
                done(blocking(withdraw).await.map_err(unavailable)?)
            }
            NameCall::Leave => {
                let leave = move || {
                    let mut names = set.0.names.lock();
                    names.table.leave(&user).iter().for_each(|service| set.offer(&mut names, service, None));
                };
                blocking(leave).await.map_err(unavailable).map(|()| Bytes::new())
            }
        }
    }

    async fn meet(&self, meeting: Meeting) -> Result<Met, MeetError> {
        self.meet_others(meeting).await
    }
}

impl OwnSet {
    async fn look_up(
        &self,
        user: NameUser,
        service: Bytes,
        timeout: Option<Duration>,
        range: NameRange,
    ) -> Result<Bytes, NameError> {
        let until = Instant::now() + timeout.unwrap_or_default();
        loop {
            let mut published = std::pin::pin!(self.0.published.notified());
            // A name that is published after the look also counts.
            published.as_mut().enable();
            let (set, user, service, range) = (self.clone(), user.clone(), service.clone(), range.clone());
            let looked = blocking(move || set.look(&user, &service, &range)).await.map_err(unavailable)?;
            let now = Instant::now();
            let pause = match looked {
                Ok(Look::Found(port)) => return Ok(port),
                // Even a lookup without a timeout waits until a doubtful name is decided.
                Ok(Look::Later(then)) if timeout.is_none() || now < until => {
                    then.saturating_duration_since(now.into_std())
                }
                Err(NameError::NotFound | NameError::Ambiguous { .. }) if timeout.is_some() && now < until => {
                    until.saturating_duration_since(now)
                }
                Ok(Look::Later(_)) | Err(NameError::NotFound) if timeout.is_some() => return Err(NameError::TimedOut),
                Ok(Look::Later(_)) => return Err(NameError::NotFound),
                Err(error) => return Err(error),
            };
            // The wait ends early if a rank of this launch has published a name.
            let _ = timeout_of(LOOK_AGAIN.min(pause), published).await;
        }
    }

    /// Publishes a name in this launch, and offers it to other launches that may find it. Blocks.
    fn publish(&self, service: Bytes, name: Published) -> Result<(), NameError> {
        let mut names = self.0.names.lock();
        self.drop_taken(&mut names, &service);
        names.table.publish(service.clone(), name.clone())?;
        self.0.published.notify_waiters();
        if name.range.leaves_launch() {
            self.offer(&mut names, &service, Some(&name));
        }
        Ok(())
    }

    /// Looks once for a name. Blocks.
    fn look(&self, user: &NameUser, service: &Bytes, range: &NameRange) -> Result<Look, NameError> {
        if let Some(port) = self.look_at_own(user, service, range) {
            return Ok(Look::Found(port));
        }
        let Some(place) = self.0.place.as_deref() else { return Err(NameError::NotFound) };
        let directory = Directory::open_existing(place).map_err(no_directory)?.ok_or(NameError::NotFound)?;
        for _ in 0..TRIES {
            if let Some(look) = self.look_at_others(&directory, user, service, range)? {
                return Ok(look);
            }
        }
        Err(NameError::NotFound)
    }

    /// Looks for a name of this launch.
    fn look_at_own(&self, user: &NameUser, service: &Bytes, range: &NameRange) -> Option<Bytes> {
        let mut names = self.0.names.lock();
        if names.seek(service) && !names.table.published(service).is_empty() {
            // The offer shows other launches that this launch looks for the name itself.
            self.offer(&mut names, service, None);
        }
        loop {
            let found = names.table.find(user, service, range)?.clone();
            if found.lifetime != Lifetime::FirstRead {
                return Some(found.port);
            }
            names.table.remove(service, &found);
            let founded = self.0.founded.lock().clone().filter(|_| found.range.leaves_launch());
            let offer = encode(service, &found, names.has_sought(service));
            let taken = founded.map(|founded| founded.directory.take(&founded.record, service, &offer));
            // If a rank of this launch and another launch read the name, the directory determines the first reader.
            if !matches!(taken, Some(Ok(false))) {
                return Some(found.port);
            }
        }
    }

    /// Looks for a name of other launches; `None` if another reader has taken the name.
    fn look_at_others(
        &self,
        directory: &Directory,
        user: &NameUser,
        service: &Bytes,
        range: &NameRange,
    ) -> Result<Option<Look>, NameError> {
        let own = self.0.facts.launch.as_deref();
        let offered = directory.offers(service).map_err(no_directory)?;
        let others: Vec<Other<'_>> = offered
            .iter()
            .filter(|offered| offered.set.launch.is_some() && offered.set.launch.as_deref() != own)
            .filter_map(|offered| narrowest(offered, user, range))
            .collect();
        if others.is_empty() {
            return Err(NameError::NotFound);
        }
        // Nearer launches that have not published the name must have a set, so that they are found.
        activation::activate_all();
        let sets = directory.list().map_err(no_directory)?;
        let launches: Vec<_> = sets
            .iter()
            .filter_map(|set| Some((set.launch.as_deref()?, &set.kin)))
            .filter(|(launch, _)| Some(*launch) != own)
            .collect();
        let candidates: Vec<Candidate<'_>> = others.iter().map(Other::candidate).collect();
        let choice = choose(&self.0.facts.kin, &launches, &candidates);
        let outcome = {
            let mut names = self.0.names.lock();
            if names.table.find(user, service, range).is_some() {
                // The name was published in this launch in the meantime.
                drop(names);
                return Ok(self.look_at_own(user, service, range).map(Look::Found));
            }
            let ids: Vec<&str> = candidates.iter().map(|candidate| candidate.launch).collect();
            names.decide(service, choice, &ids, std::time::Instant::now())?
        };
        match outcome {
            Outcome::Later(then) => Ok(Some(Look::Later(then))),
            Outcome::Found(index) => {
                let Other { offered, offer, name, .. } = &others[index];
                let taken = !offer.once || directory.take(&offered.set, service, offer).map_err(no_directory)?;
                Ok(taken.then(|| Look::Found(name.port.clone())))
            }
        }
    }

    /// Removes names under `service` that another launch has read, if only the first reader may have them. Blocks.
    fn drop_taken(&self, names: &mut LaunchNames, service: &Bytes) {
        let is_once = |name: &Published| name.lifetime == Lifetime::FirstRead && name.range.leaves_launch();
        if names.table.published(service).iter().any(is_once) {
            self.offer(names, service, None);
        }
    }

    /// Updates the offer of names under `service` to other launches. `new` is offered for the first time. Names that other launches have
    /// taken are removed from this launch. Without a usable directory, only this launch finds the name. Blocks.
    fn offer(&self, names: &mut LaunchNames, service: &Bytes, new: Option<&Published>) {
        let sought = names.has_sought(service);
        let leaving = names.table.published(service).iter().filter(|name| name.range.leaves_launch());
        let leaving: Vec<Published> = leaving.cloned().collect();
        let is_founded = self.0.founded.lock().is_some();
        if leaving.is_empty() && !is_founded {
            return;
        }
        let mut taken = Vec::new();
        let change = |current: &[Offer]| {
            let current: Vec<Published> = current.iter().filter_map(|offer| Some(decode(&offer.content)?.0)).collect();
            let is_there = |name: &&Published| {
                name.lifetime != Lifetime::FirstRead || Some(*name) == new || current.contains(*name)
            };
            taken.extend(leaving.iter().filter(|name| !is_there(name)).cloned());
            leaving.iter().filter(is_there).map(|name| encode(service, name, sought)).collect()
        };
        let offered = self.found_here().and_then(|founded: Arc<Founded>| {
            founded.directory.offer(&founded.record, service, change).map_err(SetError::from)
        });
        for name in taken {
            names.table.remove(service, &name);
        }
        if let Err(error) = offered {
            tracing::warn!("names are found in this launch alone: {error}");
        }
    }
}

impl Other<'_> {
    fn candidate(&self) -> Candidate<'_> {
        let SetRecord { launch, kin, .. } = &self.offered.set;
        let launch = launch.as_deref().unwrap_or_default();
        Candidate { launch, kin, program: self.name.publisher.program, sought: self.sought }
    }
}

/// Returns the name with the narrowest range that `user` may find in the offers of a launch.
fn narrowest<'a>(offered: &'a Offered, user: &NameUser, range: &NameRange) -> Option<Other<'a>> {
    let of = |offer: &'a Offer| {
        let (name, sought) = decode(&offer.content)?;
        // All launches of the user on this machine are one session.
        name.is_visible(user, range, true).then_some(Other { offered, offer, name, sought })
    };
    offered.offers.iter().filter_map(of).min_by_key(|other| other.name.range.width())
}

/// Encodes an offer: the publication, and whether the launch looks for the name itself.
fn encode(service: &Bytes, name: &Published, sought: bool) -> Offer {
    let mut content = vec![u8::from(sought)];
    content.extend(wire::call::published_to_bytes(service.clone(), name.clone()));
    Offer { once: name.lifetime == Lifetime::FirstRead, content }
}

fn decode(content: &[u8]) -> Option<(Published, bool)> {
    let (&sought, publication) = content.split_first()?;
    let (_, name) = wire::call::published_from_bytes(publication)?;
    Some((name, sought != 0))
}

fn unavailable(error: SetError) -> NameError {
    NameError::Unavailable { reason: error.to_string() }
}

fn no_directory(error: DirectoryError) -> NameError {
    unavailable(error.into())
}
