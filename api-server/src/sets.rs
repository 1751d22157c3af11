//! The directory of sets: the id of each launch and command, and the passes by which sets of one user connect.
//!
//! ```text
//! launch begins ──found──> its id ──end──> kept for ten minutes, so that no old connection reaches another launch ──> free
//! command asks ───visit──> an id of its own, for ten minutes after each of its requests
//! ```
//! Each user has 4,096 ids, see [`SetId`]. Users with ids of the same bits share none of them. A launch without a free id runs without one,
//! like a launch on a machine without a usable directory. Commands have a quarter of a user's ids. Beyond that, a new command gets the id
//! of the command with the oldest request.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use lattice_overlay::address::SetId;
use lattice_session::{random, unix_time};
use parking_lot::Mutex;
use pmi_transport::session_link::{LinkKey, Pass, Ticket};
use tokio::time::Instant;

use super::order::Order;
use crate::launch_id::LaunchId;

/// Time for which an id is not reused, after the end of its launch or the last request of its command.
const KEPT: Duration = Duration::from_secs(600);
/// The most ids of a user that commands hold.
const COMMANDS_MAX: usize = SetId::PER_USER as usize / 4;
/// Validity of a pass, in seconds.
const PASS_SECONDS: u64 = 60;

/// Live sets, and ids that are not reused yet.
#[derive(Debug, Default)]
pub(crate) struct Sets(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    /// By user, because users with numbers that are 2^20 apart have ids of the same bits.
    ids: HashMap<u32, HashMap<SetId, Holder>>,
    /// Users and ids of live launches, by launch.
    launches: HashMap<LaunchId, (u32, SetId)>,
}

/// Holder of an id.
#[derive(Debug)]
enum Holder {
    Launch(Root),
    /// A launch that is over.
    Over(Instant),
    /// A command.
    Command(Instant),
}

impl Holder {
    /// Time from which the id is free; `None` for a live launch.
    fn until(&self) -> Option<Instant> {
        match self {
            Self::Launch(_) => None,
            Self::Over(until) | Self::Command(until) => Some(*until),
        }
    }
}

/// Root of the set of a launch.
#[derive(Debug)]
struct Root {
    launch: LaunchId,
    uid: u32,
    key: LinkKey,
    /// Address of its agent.
    address: String,
}

/// Process that requests a connection to a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker<'a> {
    /// A running launch.
    Launch(&'a str),
    /// A command of a user, with the id that it received; 0 before its first request.
    Command(u32),
}

/// Permission to connect.
#[derive(Debug)]
pub(crate) struct Granted {
    /// Id of the requesting process.
    pub from: SetId,
    /// Address of the other root's agent, and the pass; `None` for a command that only requested its id.
    pub pass: Option<(String, Pass)>,
}

/// Reason to refuse a pass.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PassError {
    #[error("{0} is no set of yours that lives; lattice set list shows those that do")]
    NoSet(SetId),
    #[error("launch {0} is no set")]
    NotFounded(String),
    #[error("{} sets live already, or lived a moment ago; wait some minutes", SetId::PER_USER)]
    Full,
    #[error("no random number can be had for the pass")]
    Random(#[source] io::Error),
}

impl Sets {
    /// Creates the set of a launch that begins; `None` if its user has too many sets, or if its nodes have no key.
    pub(crate) fn found(&self, order: &Order, now: Instant) -> Option<SetId> {
        let root = Root::of(order)?;
        let mut held = self.0.lock();
        let set = free(held.of(root.uid, now), root.uid).ok()?;
        held.insert(set, root);
        Some(set)
    }

    /// Takes over the set of a launch that an earlier server began.
    pub(crate) fn take_up(&self, order: &Order) {
        if let (Some(root), Some(set)) = (Root::of(order), order.terms.set) {
            self.0.lock().insert(set, root);
        }
    }

    /// Ends the set of a launch that is over, or does not begin.
    pub(crate) fn end(&self, launch: &LaunchId, now: Instant) {
        let Held { ids, launches } = &mut *self.0.lock();
        if let Some((uid, set)) = launches.remove(launch)
            && let Some(holder) = ids.get_mut(&uid).and_then(|own| own.get_mut(&set))
        {
            *holder = Holder::Over(now + KEPT);
        }
    }

    /// Lets a launch or a command of user `uid` connect to the root of a set of the same user. Without a set, returns the id of a command.
    pub(crate) fn pass(
        &self,
        uid: u32,
        asker: Asker<'_>,
        to: Option<SetId>,
        now: Instant,
    ) -> Result<Granted, PassError> {
        let mut held = self.0.lock();
        let from = match asker {
            Asker::Launch(launch) => match held.launches.get(launch) {
                Some((owner, set)) if *owner == uid => *set,
                _ => return Err(PassError::NotFounded(launch.to_owned())),
            },
            Asker::Command(0) => for_command(held.of(uid, now), uid)?,
            Asker::Command(told) => SetId::from_bits(told),
        };
        let sets = held.of(uid, now);
        if let Asker::Command(told) = asker {
            match sets.get(&from) {
                None if told == 0 => {}
                Some(Holder::Command(_)) => {}
                _ => return Err(PassError::NoSet(from)),
            }
            sets.insert(from, Holder::Command(now + KEPT));
        }
        let Some(to) = to else { return Ok(Granted { from, pass: None }) };
        match sets.get(&to) {
            Some(Holder::Launch(root)) if to != from => {
                let expires = unix_time::seconds() + PASS_SECONDS;
                let ticket = Ticket { from: from.bits(), to: to.bits(), uid, expires };
                let nonce = random::bytes().map_err(PassError::Random)?;
                let pass = Pass::issue(&root.key, &root.launch, ticket, nonce);
                Ok(Granted { from, pass: Some((root.address.clone(), pass)) })
            }
            // The error does not reveal the present or former owner of the set.
            _ => Err(PassError::NoSet(to)),
        }
    }
}

impl Held {
    fn insert(&mut self, set: SetId, root: Root) {
        self.launches.insert(root.launch.clone(), (root.uid, set));
        self.ids.entry(root.uid).or_default().insert(set, Holder::Launch(root));
    }

    /// Ids of a user that are not free.
    fn of(&mut self, uid: u32, now: Instant) -> &mut HashMap<SetId, Holder> {
        self.ids.retain(|_, own| {
            own.retain(|_, holder| holder.until().is_none_or(|until| until > now));
            !own.is_empty()
        });
        self.ids.entry(uid).or_default()
    }
}

impl Root {
    fn of(order: &Order) -> Option<Self> {
        let key = order.terms.link_key.clone()?;
        let address = order.terms.addresses.first()?.clone();
        Some(Self { launch: order.id(), uid: order.terms.uid, key, address })
    }
}

/// An id for one more command of this user.
fn for_command(sets: &mut HashMap<SetId, Holder>, uid: u32) -> Result<SetId, PassError> {
    let commands = sets.iter().filter_map(|(set, holder)| match holder {
        Holder::Command(until) => Some((*until, *set)),
        _ => None,
    });
    let (count, oldest) =
        commands.fold((0, None), |(count, oldest), next| (count + 1, oldest.min(Some(next)).or(Some(next))));
    match oldest {
        Some((_, oldest)) if count >= COMMANDS_MAX => {
            sets.remove(&oldest);
            Ok(oldest)
        }
        _ => free(sets, uid),
    }
}

/// A free id of this user: a random one, or the next.
fn free(sets: &HashMap<SetId, Holder>, uid: u32) -> Result<SetId, PassError> {
    let first = u16::from_be_bytes(random::bytes().map_err(PassError::Random)?);
    let ids = (0..SetId::PER_USER).map(|more| SetId::new(uid, first.wrapping_add(more)));
    // In messages 0 stands for no id.
    let mut free = ids.filter(|set| set.bits() != 0 && !sets.contains_key(set));
    free.next().ok_or(PassError::Full)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::tests::order;

    fn launch(id: &str, uid: u32) -> Order {
        let mut order = order(2);
        order.launch.launch_id = id.to_owned();
        order.terms.uid = uid;
        order
    }

    fn is_refused(result: Result<Granted, PassError>) -> bool {
        matches!(result, Err(PassError::NoSet(_)))
    }

    #[test]
    fn sets_of_one_user_get_passes_to_each_other_and_others_get_nothing() {
        let (sets, now) = (Sets::default(), Instant::now());
        let [a, b, other] =
            [("a", 1000), ("b", 1000), ("c", 1001)].map(|(id, uid)| sets.found(&launch(id, uid), now).unwrap());
        assert_eq!((a.user(), b.user(), other.user()), (1000, 1000, 1001));
        let granted = sets.pass(1000, Asker::Launch("a"), Some(b), now).unwrap();
        assert_eq!((granted.from, granted.pass.unwrap().0), (a, launch("b", 1000).terms.addresses[0].clone()));
        for to in [other, a, SetId::new(1000, a.number() ^ b.number() ^ 1)] {
            assert!(is_refused(sets.pass(1000, Asker::Launch("a"), Some(to), now)), "{to}");
        }
        assert!(is_refused(sets.pass(0, Asker::Command(0), Some(a), now)), "root is another user as well");
        assert!(matches!(sets.pass(1000, Asker::Launch("x"), Some(a), now), Err(PassError::NotFounded(_))));
    }

    #[test]
    fn a_command_has_an_id_as_long_as_it_asks() {
        let (sets, now) = (Sets::default(), Instant::now());
        let a = sets.found(&launch("a", 1000), now).unwrap();
        let own = sets.pass(1000, Asker::Command(0), None, now).unwrap();
        assert!(own.pass.is_none());
        let again = sets.pass(1000, Asker::Command(own.from.bits()), Some(a), now).unwrap();
        assert_eq!((again.from, again.pass.is_some()), (own.from, true));
        // The id of a launch, of a command of another user, and an id that no command received are refused.
        for (uid, told) in [(1000, a.bits()), (1001, own.from.bits()), (1000, own.from.bits() ^ 1)] {
            assert!(is_refused(sets.pass(uid, Asker::Command(told), Some(a), now)), "{told}");
        }
        let later = now + KEPT;
        sets.found(&launch("b", 1000), later).unwrap();
        assert!(is_refused(sets.pass(1000, Asker::Command(own.from.bits()), Some(a), later)));
    }

    #[test]
    fn an_id_is_nobodys_again_ten_minutes_after_its_launch_and_the_4097th_set_is_refused() {
        let (sets, now) = (Sets::default(), Instant::now());
        let first = sets.found(&launch("first", 1000), now).unwrap();
        sets.end(&"first".into(), now);
        sets.end(&"unknown".into(), now);
        assert!(is_refused(sets.pass(1000, Asker::Command(0), Some(first), now)), "it is over");
        let mut ids: Vec<SetId> = Vec::new();
        while let Some(set) = sets.found(&launch(&format!("l{}", ids.len()), 1000), now) {
            ids.push(set);
        }
        // One id belongs to the refused command, and one to the first launch.
        assert_eq!(ids.len(), usize::from(SetId::PER_USER) - 2);
        assert!(!ids.contains(&first));
        assert!(matches!(sets.pass(1000, Asker::Command(0), None, now), Err(PassError::Full)));
        // Users with numbers that are 2^20 apart have the same bits, and share nothing else.
        let same = 1000 + (1 << 20);
        let own = sets.found(&launch("same", same), now).unwrap();
        assert!(is_refused(sets.pass(1000, Asker::Command(0), Some(own), now)) || ids.contains(&own));
        assert!(sets.found(&launch("other", 1001), now).is_some());
        assert!(sets.found(&launch("last", 1000), now + KEPT).is_some());
    }

    /// Commands of one user, in any number, leave room for the launches of all users.
    #[test]
    fn commands_without_number_take_ids_from_no_launch() {
        let (sets, now) = (Sets::default(), Instant::now());
        let stranger = 1000 + (1 << 20);
        let first = sets.pass(stranger, Asker::Command(0), None, now).unwrap().from;
        for seconds in 0..5000 {
            let now = now + Duration::from_millis(seconds);
            sets.pass(stranger, Asker::Command(0), None, now).unwrap();
        }
        let later = now + Duration::from_secs(5);
        assert!(is_refused(sets.pass(stranger, Asker::Command(first.bits()), Some(SetId::new(0, 1)), later)));
        for uid in [1000, stranger] {
            let founded =
                (0..3000).filter(|number| sets.found(&launch(&format!("{uid} {number}"), uid), later).is_some());
            assert_eq!(founded.count(), 3000, "{uid}");
        }
    }

    #[test]
    fn a_launch_that_is_taken_up_keeps_its_id() {
        let (sets, now) = (Sets::default(), Instant::now());
        let mut taken_up = launch("a", 0);
        taken_up.terms.set = Some(SetId::new(0, 7));
        sets.take_up(&taken_up);
        let to = SetId::new(0, 7);
        assert!(sets.pass(0, Asker::Command(0), Some(to), now).unwrap().pass.is_some());
        assert_ne!(sets.found(&launch("b", 0), now), Some(to));
    }
}
