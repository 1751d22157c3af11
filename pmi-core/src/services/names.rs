//! Published names: the requests of ranks, their ranges and lifetimes, and the table that holds the names of one launch.
//!
//! A name belongs to the launch of its publisher. The host searches other launches.

mod error;
mod range;
mod user;

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;

pub use self::error::NameError;
pub use self::range::{NamePeer, NameRange};
pub use self::user::{NameUser, Program};
use crate::ids::Rank;

/// Lifetime of a published name. No name outlives its launch, because its port is gone by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Lifetime {
    /// Until it is withdrawn.
    #[default]
    Withdrawn,
    /// Until the first lookup that finds it.
    FirstRead,
    /// Until its publisher ends.
    Process,
}

/// A request of a process about names. A server of ranks sets only the rank; its host adds the other facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameRequest {
    /// The process.
    pub user: NameUser,
    /// Its request.
    pub call: NameCall,
}

impl NameRequest {
    /// Creates the request of a rank.
    pub fn of(rank: Rank, call: NameCall) -> Self {
        Self { user: NameUser { rank: rank.0, ..NameUser::default() }, call }
    }
}

/// One call to the name service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameCall {
    /// Publishes a port.
    Publish {
        /// The name.
        service: Bytes,
        /// The port.
        port: Bytes,
        /// Lifetime of the name.
        lifetime: Lifetime,
        /// Processes that may find it.
        range: NameRange,
    },
    /// Finds a port: first in the launch of the process, then in other launches of the user.
    Lookup {
        /// The name.
        service: Bytes,
        /// Time to wait for the name to be published; `None` does not wait.
        timeout: Option<Duration>,
        /// Publishers to search.
        range: NameRange,
    },
    /// Withdraws a name of the launch.
    Unpublish {
        /// The name.
        service: Bytes,
        /// Ranks that may have published it.
        publisher: Publisher,
    },
    /// The process has ended: withdraws names with the lifetime of the process.
    Leave,
}

/// Publishers of the names that a process may withdraw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publisher {
    /// The process itself, as in PMIx.
    Itself,
    /// Any rank of its launch, as in Hydra.
    AnyOfLaunch,
}

/// A name in the table of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its publisher.
    pub publisher: NameUser,
    /// The port.
    pub port: Bytes,
    /// Lifetime of the name.
    pub lifetime: Lifetime,
    /// Processes that may find it.
    pub range: NameRange,
}

impl Published {
    /// Returns true if `user` may find the name in a search of `range`. `session` is true for processes of the same session.
    pub fn is_visible(&self, user: &NameUser, range: &NameRange, session: bool) -> bool {
        let searched = match range {
            // A lookup has no list of publishers.
            NameRange::Listed(_) => true,
            range => range.admits(user, &self.publisher, session),
        };
        searched && self.range.admits(&self.publisher, user, session)
    }
}

/// The names that the ranks of one launch have published.
#[derive(Debug, Default)]
pub struct Names {
    services: HashMap<Bytes, Vec<Published>>,
    count: usize,
    bytes: usize,
}

impl Names {
    /// Maximum number of names of a launch.
    pub const LIMIT: usize = 16_384;
    /// Maximum length of a name and of a port, in bytes.
    pub const LENGTH_MAX: usize = error::LENGTH_MAX;
    /// Maximum number of bytes of all names and ports of a launch.
    pub const BYTES_MAX: usize = error::BYTES_MAX;

    /// Publishes a port under `service`.
    ///
    /// # Errors
    /// Refuses a name that the launch already has in this range, as MPICH's Hydra does, and a name beyond the limits.
    pub fn publish(&mut self, service: Bytes, new: Published) -> Result<(), NameError> {
        let longest = service.len().max(new.port.len());
        let bytes = self.bytes + service.len() + new.port.len();
        if longest > Self::LENGTH_MAX || bytes > Self::BYTES_MAX {
            return Err(NameError::TooLong { bytes: if longest > Self::LENGTH_MAX { longest } else { bytes } });
        }
        if let Some(holder) = self.published(&service).iter().find(|published| {
            published.range.width() == new.range.width() && new.range.is_shared(&published.publisher, &new.publisher)
        }) {
            return Err(NameError::AlreadyPublished { holder: holder.publisher.to_string() });
        }
        if self.count >= Self::LIMIT {
            return Err(NameError::Full { limit: Self::LIMIT });
        }
        (self.count, self.bytes) = (self.count + 1, bytes);
        self.services.entry(service).or_default().push(new);
        Ok(())
    }

    /// Returns the name with the narrowest range that `user` may find in a search of `range`.
    pub fn find(&self, user: &NameUser, service: &[u8], range: &NameRange) -> Option<&Published> {
        let visible = self.published(service).iter().filter(|published| published.is_visible(user, range, true));
        visible.min_by_key(|published| published.range.width())
    }

    /// Finds a port, and withdraws the name if it was published for one reader.
    ///
    /// # Errors
    /// Fails with [`NameError::NotFound`] if the launch has no such name in range.
    pub fn look_up(&mut self, user: &NameUser, service: &[u8], range: &NameRange) -> Result<Bytes, NameError> {
        let found = self.find(user, service, range).ok_or(NameError::NotFound)?.clone();
        if found.lifetime == Lifetime::FirstRead {
            self.remove(service, &found);
        }
        Ok(found.port)
    }

    /// All names under `service`, one for each range in which it is published.
    pub fn published(&self, service: &[u8]) -> &[Published] {
        self.services.get(service).map_or(&[], Vec::as_slice)
    }

    /// Withdraws one name; returns false if it does not exist any more.
    pub fn remove(&mut self, service: &[u8], name: &Published) -> bool {
        self.retain(service, |published| published != name) > 0
    }

    /// Withdraws `service` in all ranges in which `user` may do so.
    ///
    /// # Errors
    /// Fails if the launch has no such name, and if only other processes may withdraw it.
    pub fn unpublish(&mut self, user: &NameUser, service: &[u8], publisher: Publisher) -> Result<(), NameError> {
        let holder = self.published(service).first().map(|published| published.publisher.to_string());
        let holder = holder.ok_or(NameError::NotFound)?;
        let is_own = |published: &Published| publisher == Publisher::AnyOfLaunch || published.publisher.is(user);
        match self.retain(service, |published| !is_own(published)) {
            0 => Err(NameError::NotPublisher { holder }),
            _ => Ok(()),
        }
    }

    /// Withdraws the names that end with their publisher `user`, and returns them.
    pub fn leave(&mut self, user: &NameUser) -> Vec<Bytes> {
        let goes = |published: &Published| published.lifetime == Lifetime::Process && published.publisher.is(user);
        let services = self.services.iter().filter(|(_, published)| published.iter().any(goes));
        let services: Vec<Bytes> = services.map(|(service, _)| service.clone()).collect();
        for service in &services {
            self.retain(service, |published| !goes(published));
        }
        services
    }

    /// Bytes of all names and ports.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if no name is published.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Keeps some names of a service; returns the number of removed names.
    fn retain(&mut self, service: &[u8], stays: impl Fn(&Published) -> bool) -> usize {
        let Some(all) = self.services.get_mut(service) else { return 0 };
        let (before, mut bytes) = (all.len(), 0);
        all.retain(|published| {
            let stays = stays(published);
            if !stays {
                bytes += service.len() + published.port.len();
            }
            stays
        });
        let gone = before - all.len();
        if all.is_empty() {
            self.services.remove(service);
        }
        (self.count, self.bytes) = (self.count - gone, self.bytes - bytes);
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(job: &str, rank: u32, host: &str) -> NameUser {
        NameUser {
            launch: "l".to_owned(),
            job: job.to_owned(),
            rank,
            host: host.to_owned(),
            program: Program::default(),
        }
    }

    fn published(publisher: &NameUser, port: &'static str, lifetime: Lifetime, range: NameRange) -> Published {
        Published { publisher: publisher.clone(), port: port.into(), lifetime, range }
    }

    #[test]
    fn each_range_admits_those_that_the_standard_names() {
        let of = user("a", 0, "n0");
        let users = [&of, &user("a", 1, "n0"), &user("a", 2, "n1"), &user("b", 0, "n0"), &user("b", 0, "n1")];
        let listed = NameRange::Listed(vec![
            NamePeer { job: "a".to_owned(), rank: Some(2) },
            NamePeer { job: "b".to_owned(), rank: None },
        ]);
        let cases = [
            (NameRange::User, [true; 5]),
            (NameRange::Session, [true; 5]),
            (NameRange::Node, [true, true, false, true, false]),
            (NameRange::Job, [true, true, true, false, false]),
            (NameRange::Process, [true, false, false, false, false]),
            (NameRange::Host, [false; 5]),
            (listed, [false, false, true, true, true]),
        ];
        for (range, expected) in cases {
            let mut names = Names::default();
            names.publish("x".into(), published(&of, "1", Lifetime::Withdrawn, range.clone())).unwrap();
            let found = users.map(|user| names.look_up(user, b"x", &NameRange::User).is_ok());
            assert_eq!(found, expected, "published in {range:?}");
            if matches!(range, NameRange::Listed(_)) {
                continue;
            }
            let mut names = Names::default();
            names.publish("x".into(), published(&of, "1", Lifetime::Withdrawn, NameRange::User)).unwrap();
            let found = users.map(|user| names.look_up(user, b"x", &range).is_ok());
            assert_eq!(found, expected, "searched in {range:?}");
        }
        let other = published(&of, "1", Lifetime::Withdrawn, NameRange::Session);
        let search = |range| other.is_visible(users[3], &range, false);
        assert_eq!([search(NameRange::User), search(NameRange::Session)], [false, false], "another session");
    }

    #[test]
    fn a_name_is_published_once_in_each_range_and_the_narrowest_is_found() {
        let (one, two, other) = (user("a", 0, "n0"), user("a", 1, "n0"), user("b", 0, "n1"));
        let mut names = Names::default();
        for (publisher, port, range, taken) in [
            (&one, "user", NameRange::User, true),
            (&two, "again", NameRange::User, false),
            (&other, "again", NameRange::User, false),
            (&one, "session", NameRange::Session, true),
            (&one, "node", NameRange::Node, true),
            (&two, "again", NameRange::Node, false),
            (&other, "other node", NameRange::Node, true),
            (&one, "job", NameRange::Job, true),
            (&two, "again", NameRange::Job, false),
            (&other, "other job", NameRange::Job, true),
            (&one, "own", NameRange::Process, true),
            (&one, "again", NameRange::Process, false),
            (&two, "own of two", NameRange::Process, true),
        ] {
            let result = names.publish("x".into(), published(publisher, port, Lifetime::Withdrawn, range.clone()));
            let holder = || "rank 0 of launch l".to_owned();
            match taken {
                true => assert_eq!(result, Ok(()), "{port}"),
                false => assert_eq!(result, Err(NameError::AlreadyPublished { holder: holder() }), "{range:?}"),
            }
        }
        let mut found = |user: &NameUser| names.look_up(user, b"x", &NameRange::User).unwrap();
        assert_eq!([found(&one), found(&two), found(&other)], ["own", "own of two", "other job"].map(Bytes::from));
        assert_eq!(found(&user("a", 5, "n7")), "job");
        assert_eq!(found(&user("c", 0, "n0")), "node");
        assert_eq!(found(&user("c", 0, "n7")), "session");
    }

    #[test]
    fn a_name_goes_with_its_first_reader_with_its_process_and_with_its_publisher_alone() {
        let (one, two) = (user("a", 0, "n0"), user("a", 1, "n0"));
        let mut names = Names::default();
        for (service, lifetime) in
            [("once", Lifetime::FirstRead), ("life", Lifetime::Process), ("stays", Lifetime::Withdrawn)]
        {
            names.publish(service.into(), published(&one, "1", lifetime, NameRange::User)).unwrap();
        }
        assert_eq!(names.look_up(&two, b"once", &NameRange::Session), Ok("1".into()));
        assert_eq!(names.look_up(&two, b"once", &NameRange::Session), Err(NameError::NotFound));
        assert_eq!(names.leave(&two), Vec::<Bytes>::new());
        assert_eq!(names.leave(&one), ["life"]);
        assert_eq!(names.look_up(&two, b"life", &NameRange::User), Err(NameError::NotFound));
        let refused = Err(NameError::NotPublisher { holder: "rank 0 of launch l".to_owned() });
        assert_eq!(names.unpublish(&two, b"stays", Publisher::Itself), refused);
        assert_eq!(names.unpublish(&one, b"stays", Publisher::Itself), Ok(()));
        assert_eq!(names.unpublish(&one, b"stays", Publisher::Itself), Err(NameError::NotFound));
        names.publish("any".into(), published(&one, "1", Lifetime::Withdrawn, NameRange::User)).unwrap();
        assert_eq!(names.unpublish(&two, b"any", Publisher::AnyOfLaunch), Ok(()));
        assert!(names.is_empty() && (names.count, names.bytes) == (0, 0));
    }

    #[test]
    fn a_table_has_limits_and_room_again_for_what_was_withdrawn() {
        let of = user("a", 0, "n0");
        let small = || published(&of, "", Lifetime::Withdrawn, NameRange::User);
        let large = || Published { port: vec![7; Names::LENGTH_MAX].into(), ..small() };
        let mut names = Names::default();
        let name = |number: usize| Bytes::from(number.to_string());
        (0..Names::LIMIT).for_each(|number| names.publish(name(number), small()).unwrap());
        let full = Err(NameError::Full { limit: Names::LIMIT });
        assert_eq!(names.publish(name(Names::LIMIT), small()), full);
        names.unpublish(&of, b"7", Publisher::Itself).unwrap();
        names.publish(name(Names::LIMIT), small()).unwrap();

        let mut names = Names::default();
        let most = (Names::BYTES_MAX - 4096) / Names::LENGTH_MAX;
        (0..most).for_each(|number| names.publish(name(number), large()).unwrap());
        assert!(matches!(names.publish(name(most), large()), Err(NameError::TooLong { .. })));
        names.unpublish(&of, b"7", Publisher::Itself).unwrap();
        names.publish(name(most), large()).unwrap();
        let longer = vec![7; Names::LENGTH_MAX + 1].into();
        assert!(matches!(names.publish(longer, small()), Err(NameError::TooLong { .. })));
    }
}
