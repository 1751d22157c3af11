//! Addresses of sets, of their members and ranks, and of their groups.
//!
//! ```text
//! Uid    63          44 43        32 31            0
//!        │ user, mod   │ number of  │ n │ rank, or  │      n = 1: the member itself (a node of the launch),
//!        │ 2^20        │ the set    │   │ node      │      n = 0: a rank of the launch
//!        └──────── SetId ──────────┘
//! ```
//! Ids of users with uids 2^20 apart can have the same bits, because numbers are assigned per user. An id grants no rights. The kernel's
//! uid of a connection and the set's key decide which processes may connect to a set.

use std::fmt;
use std::str::FromStr;

/// Bits of a set's id for its number among the sets of its user.
const NUMBER_BITS: u32 = 12;
/// Bits of a guest's number that count the guests of one member.
const GUEST_BITS: u32 = 13;
/// Bit of the lower half of a [`Uid`] that distinguishes a member from a rank.
const NODE_BIT: u32 = 1 << 31;
/// Prefix of an address in its user form.
const SCHEME: &str = "lattice://";

/// Id of a set: of a launch, or of a tool that calls launches. Unique among the live sets of a user.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetId(u32);

/// Address of one process in all sets of a user.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(u64);

/// Process of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Process {
    /// Rank of the launch, by its number in messages; a guest from [`Process::FIRST_GUEST`] on.
    Rank(u32),
    /// Session of a node of the launch, by the node's index; number 0 is the root of the set.
    Node(u32),
}

impl Process {
    /// Number of the first guest of a set. A guest is a process that is not a rank, and is reached like one, through the member that
    /// admitted it.
    pub const FIRST_GUEST: u32 = 1 << 30;

    /// Rank number of the `count`th guest of a member. Numbers repeat after 8,192 guests. `None` for members after the first 131,072,
    /// which can have no guests.
    pub fn guest(node: u32, count: u32) -> Option<u32> {
        let is_known = node < Self::FIRST_GUEST >> GUEST_BITS;
        is_known.then_some(Self::FIRST_GUEST | node << GUEST_BITS | (count % (1 << GUEST_BITS)))
    }

    /// Index of the node that admitted this guest; `None` for a rank of the launch.
    pub fn home_of_guest(rank: u32) -> Option<u32> {
        (rank & Self::FIRST_GUEST != 0).then_some((rank & !Self::FIRST_GUEST) >> GUEST_BITS)
    }
}

/// Id of a group or a communicator, unique for the user: the id of the set that made it, and a number from the counter of the set's
/// root.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(u64);

/// Text that is not a valid address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no address of a process\ntry: lattice://SET/RANK or lattice://SET/node/I; lattice set list shows the sets"
)]
pub struct AddressError {
    /// The text, cut after 80 characters.
    text: String,
}

impl SetId {
    /// Maximum number of live sets of a user.
    pub const PER_USER: u16 = 1 << NUMBER_BITS;

    /// Id of the set with this number among the sets of a user. Only the lowest twelve bits of the number and the lowest twenty bits of
    /// the uid are used.
    pub fn new(user: u32, number: u16) -> Self {
        Self(user << NUMBER_BITS | u32::from(number % Self::PER_USER))
    }

    /// The id with these bits.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Number among the sets of its user.
    pub fn number(self) -> u16 {
        (self.0 % u32::from(Self::PER_USER)) as u16
    }

    /// The lowest twenty bits of its user's uid.
    pub fn user(self) -> u32 {
        self.0 >> NUMBER_BITS
    }

    /// Address of the session of the set's node 0.
    pub fn root(self) -> Uid {
        Uid::new(self, Process::Node(0))
    }

    /// Id of the `number`th group of the set.
    pub fn group(self, number: u32) -> GroupId {
        GroupId(u64::from(self.0) << 32 | u64::from(number))
    }
}

impl Uid {
    /// Address of a process of a set. The highest bit of its number is ignored.
    pub fn new(set: SetId, process: Process) -> Self {
        let low = match process {
            Process::Rank(rank) => rank & !NODE_BIT,
            Process::Node(node) => node | NODE_BIT,
        };
        Self(u64::from(set.0) << 32 | u64::from(low))
    }

    /// The address with these bits.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Set of the process.
    pub fn set(self) -> SetId {
        SetId((self.0 >> 32) as u32)
    }

    /// The process in its set.
    pub fn process(self) -> Process {
        let low = self.0 as u32;
        if low & NODE_BIT == 0 { Process::Rank(low) } else { Process::Node(low & !NODE_BIT) }
    }

    /// Returns true if both are in the same set.
    pub fn is_of_set_of(self, other: Self) -> bool {
        self.set() == other.set()
    }
}

impl GroupId {
    /// The id with these bits.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Its bits: the set's id above the number.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Set that made the group.
    pub fn set(self) -> SetId {
        SetId((self.0 >> 32) as u32)
    }
}

impl fmt::Display for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Formats the id for logs.
impl fmt::Debug for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for SetId {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        number(text).map(Self).ok_or_else(|| AddressError::of(text))
    }
}

/// Formats the address for users: `lattice://SET/RANK`, or `lattice://SET/node/I`.
impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.set();
        match self.process() {
            Process::Rank(rank) => write!(f, "{SCHEME}{set}/{rank}"),
            Process::Node(node) => write!(f, "{SCHEME}{set}/node/{node}"),
        }
    }
}

/// Formats the address for logs: both halves in hexadecimal digits.
impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}:{:08x}", self.0 >> 32, self.0 as u32)
    }
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}/{}", self.0 >> 32, self.0 as u32)
    }
}

/// Formats the id for users: `SET/NUMBER`.
impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.set(), self.0 as u32)
    }
}

/// Parses the forms for users and for logs. `lattice://SET` is the root of the set.
impl FromStr for Uid {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let read = match text.strip_prefix(SCHEME) {
            Some(rest) => of_users(rest),
            None => of_logs(text),
        };
        read.ok_or_else(|| AddressError::of(text))
    }
}

fn of_users(rest: &str) -> Option<Uid> {
    let (set, process) = match rest.split_once('/') {
        None => (rest, Process::Node(0)),
        Some((set, process)) => match process.strip_prefix("node/") {
            Some(node) => (set, Process::Node(number(node)?)),
            None => (set, Process::Rank(number(process)?)),
        },
    };
    let (Process::Node(index) | Process::Rank(index)) = process;
    (index & NODE_BIT == 0).then_some(())?;
    Some(Uid::new(SetId(number(set)?), process))
}

fn of_logs(text: &str) -> Option<Uid> {
    let half = |text: &str| {
        let is_whole = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_whole.then(|| u64::from_str_radix(text, 16).ok()).flatten()
    };
    let (set, process) = text.split_once(':')?;
    Some(Uid(half(set)? << 32 | half(process)?))
}

/// Parses a number of decimal digits, without a sign.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl AddressError {
    fn of(text: &str) -> Self {
        Self { text: text.chars().take(80).collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn process() -> impl Strategy<Value = Process> {
        let index = 0..NODE_BIT;
        prop_oneof![index.clone().prop_map(Process::Rank), index.prop_map(Process::Node)]
    }

    proptest! {
        #[test]
        fn a_set_has_the_bits_of_its_user_and_its_number(user: u32, number in 0..SetId::PER_USER) {
            let set = SetId::new(user, number);
            prop_assert_eq!((set.user(), set.number()), (user % (1 << 20), number));
            prop_assert_eq!(set.bits(), (user % (1 << 20)) << 12 | u32::from(number));
            prop_assert_eq!(SetId::new(user.wrapping_add(1 << 20), number), set);
            prop_assert_eq!(set.to_string().parse(), Ok(set));
        }

        #[test]
        fn an_address_is_its_set_and_its_process(bits: u32, process in process()) {
            let set = SetId::from_bits(bits);
            let uid = Uid::new(set, process);
            prop_assert_eq!((uid.set(), uid.process()), (set, process));
            prop_assert_eq!(uid.bits() >> 32, u64::from(bits));
            prop_assert_eq!(uid.bits() >> 31 & 1 == 1, matches!(process, Process::Node(_)));
            prop_assert_eq!(Uid::from_bits(uid.bits()), uid);
        }

        #[test]
        fn a_guest_is_with_the_member_that_has_taken_it(node: u32, count: u32) {
            let guest = Process::guest(node, count);
            prop_assert_eq!(guest.is_some(), node < 131_072);
            if let Some(guest) = guest {
                prop_assert_eq!((guest & !NODE_BIT, guest >= Process::FIRST_GUEST), (guest, true));
                prop_assert_eq!(Process::home_of_guest(guest), Some(node));
                prop_assert_eq!(Process::guest(node, count.wrapping_add(8192)), Some(guest));
                prop_assert_ne!(Process::guest(node, count.wrapping_add(8191)), Some(guest));
            }
            prop_assert_eq!(Process::home_of_guest(count % Process::FIRST_GUEST), None);
        }

        #[test]
        fn an_address_is_read_as_it_was_written(bits: u64) {
            let uid = Uid::from_bits(bits);
            prop_assert_eq!(uid.to_string().parse(), Ok(uid));
            prop_assert_eq!(format!("{uid:?}").parse(), Ok(uid));
        }

        #[test]
        fn one_set_is_told_by_the_value(a: u64, b: u64) {
            let (first, second) = (Uid::from_bits(a), Uid::from_bits(b));
            prop_assert_eq!(first.is_of_set_of(second), a >> 32 == b >> 32);
        }

        #[test]
        fn no_text_is_read_otherwise_than_it_is_written(text in "(lattice://)?[0-9a-f:/+ node]{0,24}") {
            if let Ok(uid) = text.parse::<Uid>() {
                let again = [uid.to_string(), format!("{uid:?}")];
                let leading_zeros = text.replace('0', "") != text;
                let is_root = !text.trim_start_matches(SCHEME).contains(['/', ':']);
                prop_assert!(again.contains(&text) || leading_zeros || is_root, "{text} means {uid}");
            }
        }

        #[test]
        fn groups_of_two_sets_have_no_id_in_common(a: u32, b: u32, first: u32, second: u32) {
            let group = SetId::from_bits(a).group(first);
            prop_assert_eq!((group.set().bits(), group.bits() as u32), (a, first));
            prop_assert_eq!((GroupId::from_bits(group.bits()), group.to_string()), (group, format!("{a}/{first}")));
            prop_assert_eq!(group == SetId::from_bits(b).group(second), (a, first) == (b, second));
        }
    }

    #[test]
    fn addresses_look_as_documented() {
        let uid = Uid::new(SetId::from_bits(0xf620_6a1a), Process::Rank(17));
        assert_eq!(
            (uid.to_string(), format!("{uid:?}")),
            ("lattice://4129319450/17".into(), "f6206a1a:00000011".into())
        );
        let node = Uid::new(SetId::from_bits(3098), Process::Node(2));
        assert_eq!(node.to_string(), "lattice://3098/node/2");
        assert_eq!("lattice://3098".parse(), Ok(SetId::from_bits(3098).root()));
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_to_type() {
        for text in [
            "",
            "lattice://",
            "lattice://1/",
            "lattice://1/-1",
            "lattice://1/+1",
            "1/2",
            "lattice://1/2147483648",
            "lattice://4294967296/0",
            "lattice://1/node/",
            "lattice://1/node/2/3",
            "f6206a1a:11",
            "f6206a1a:+0000011",
        ] {
            let error = text.parse::<Uid>().unwrap_err().to_string();
            assert!(error.contains("try: lattice://SET/RANK"), "{text}: {error}");
        }
    }
}
