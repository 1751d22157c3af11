//! Content of the file of a set.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use nix::unistd::geteuid;
use ring::hmac;
use serde::{Deserialize, Serialize};

use super::mark::Mark;
use super::{DirectoryError, VERSION, random};
use crate::address::SetId;

/// Maximum stored characters of a command.
const COMMAND_MAX: usize = 1024;

/// Seconds since the beginning of 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixSeconds(u64);

/// Facts for the choice of the nearest of several launches that offer the same name.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Kin {
    /// Hashes of the launcher's ancestor processes, the nearest first.
    pub ancestors: Vec<u64>,
    /// Hashes of the launch's programs: of the last part of the path, and of path and arguments.
    pub programs: Vec<(u64, u64)>,
}

/// Facts about a set from its founder.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SetFacts {
    /// The launch; `None` for a tool.
    pub launch: Option<String>,
    /// Number of its ranks.
    pub ranks: u32,
    /// Number of its nodes.
    pub nodes: u32,
    /// Command line, for users.
    pub command: String,
    /// Start time, which may be before its id is assigned.
    pub begun: UnixSeconds,
    /// Its programs and its launcher's ancestors.
    pub kin: Kin,
}

/// A set as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetRecord {
    version: u32,
    /// Id of the set.
    pub(super) set: u32,
    /// Random number of the set. It distinguishes its file from that of a later set with the same id.
    pub(super) nonce: Nonce,
    /// User of the set.
    pub uid: u32,
    /// The launch; `None` for a tool.
    pub launch: Option<String>,
    /// Number of its ranks.
    pub ranks: u32,
    /// Number of its nodes.
    pub nodes: u32,
    /// Start time.
    pub begun: UnixSeconds,
    /// Command line, for users.
    pub command: String,
    /// Its programs and its launcher's ancestors.
    pub kin: Kin,
    /// Process of the root.
    #[serde(flatten)]
    pub mark: Mark,
    key: SetKey,
}

/// Socket and key for connections to the session of a set; its text is in an environment variable of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// The set.
    pub set: SetId,
    /// Random number in the name of the socket.
    pub nonce: Nonce,
    /// The key.
    pub key: SetKey,
}

/// Random number of a set, unique over time and over machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Nonce(u128);

/// Key of a set: it grants access to the set.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SetKey([u8; 32]);

impl UnixSeconds {
    /// The current time.
    pub fn now() -> Self {
        Self(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
    }

    /// Time since then; zero for a time in the future.
    pub fn elapsed(self) -> Duration {
        Duration::from_secs(Self::now().0.saturating_sub(self.0))
    }
}

impl SetRecord {
    /// Record of a new set.
    pub(super) fn new(number: u16, nonce: &Nonce, facts: SetFacts, mark: Mark) -> Result<Self, DirectoryError> {
        let SetFacts { launch, ranks, nodes, command, begun, kin } = facts;
        let uid = geteuid().as_raw();
        Ok(Self {
            version: VERSION,
            set: SetId::new(uid, number).bits(),
            nonce: nonce.clone(),
            uid,
            launch,
            ranks,
            nodes,
            begun,
            command: command.chars().take(COMMAND_MAX).collect(),
            kin,
            mark,
            key: SetKey(random()?),
        })
    }

    /// Id of the set.
    pub fn id(&self) -> SetId {
        SetId::from_bits(self.set)
    }

    /// Random number of the set.
    pub fn nonce(&self) -> &Nonce {
        &self.nonce
    }

    /// Key of the set.
    pub fn key(&self) -> &SetKey {
        &self.key
    }

    /// Socket and key for connections to its root.
    pub fn contact(&self) -> Contact {
        Contact { set: self.id(), nonce: self.nonce.clone(), key: self.key.clone() }
    }

    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Parses a file; `None` if it is malformed or of another version.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok().filter(|record: &Self| record.version == VERSION)
    }
}

impl Contact {
    /// Variable with the contact in the environment of ranks on a cluster.
    pub const VARIABLE: &str = "LATTICE_SET";

    /// Contact for guests on the nodes of a cluster set. This key is public, so only the kernel's uid of the guest counts.
    pub fn of_guests(set: SetId) -> Self {
        Self { set, nonce: Nonce(set.bits().into()), key: SetKey([0; 32]) }
    }

    /// Its text form.
    pub fn to_text(&self) -> String {
        let Self { set, nonce, key } = self;
        format!("{set}:{nonce}:{}", String::from(key.clone()))
    }

    /// Parses the text form.
    pub fn parse(text: &str) -> Option<Self> {
        let (set, rest) = text.split_once(':')?;
        let (nonce, key) = rest.split_once(':')?;
        let (nonce, key) = (Nonce::try_from(nonce.to_owned()).ok()?, SetKey::try_from(key.to_owned()).ok()?);
        Some(Self { set: set.parse().ok()?, nonce, key })
    }
}

impl Nonce {
    /// Makes a new random number.
    ///
    /// # Errors
    /// Fails if the kernel returns no random numbers.
    pub fn random() -> Result<Self, DirectoryError> {
        Ok(Self(u128::from_be_bytes(random()?)))
    }

    /// Name in the abstract namespace of Unix sockets at which the set's root accepts connections. If the number is random, no
    /// other process can occupy the name first. The name disappears with the process.
    pub fn socket_name(&self) -> String {
        format!("lattice-set-{self}")
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl TryFrom<String> for Nonce {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_one = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_one.then(|| u128::from_str_radix(&text, 16).ok()).flatten().map(Self).ok_or("it has 32 hexadecimal digits")
    }
}

impl From<Nonce> for String {
    fn from(nonce: Nonce) -> Self {
        nonce.to_string()
    }
}

impl SetKey {
    /// The key with these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Proof that its owner has received `challenge`, in this role.
    pub fn prove(&self, role: &[u8], challenge: &[u8]) -> [u8; 32] {
        let mut proof = [0; 32];
        proof.copy_from_slice(hmac::sign(&self.hmac(), &[role, challenge].concat()).as_ref());
        proof
    }

    /// Verifies such a proof, in constant time.
    pub fn verifies(&self, role: &[u8], challenge: &[u8], proof: &[u8]) -> bool {
        hmac::verify(&self.hmac(), &[role, challenge].concat(), proof).is_ok()
    }

    fn hmac(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

/// Omits the key, so that no log contains it.
impl fmt::Debug for SetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SetKey")
    }
}

impl TryFrom<String> for SetKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let bytes = STANDARD_NO_PAD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or("a key has 32 bytes, in base64")
    }
}

impl From<SetKey> for String {
    fn from(key: SetKey) -> Self {
        STANDARD_NO_PAD.encode(key.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> SetRecord {
        let facts = SetFacts {
            launch: Some("k3jq09zmf2".into()),
            ranks: 4,
            nodes: 1,
            command: "./a.out \"x\"\n".into(),
            begun: UnixSeconds::now(),
            kin: Kin { ancestors: vec![1, u64::MAX], programs: vec![(2, 3)] },
        };
        SetRecord::new(17, &Nonce::random().unwrap(), facts, Mark::of_this_process()).unwrap()
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let record = record();
        assert_eq!(SetRecord::parse(record.to_text().as_bytes()), Some(record.clone()));
        assert_eq!(record.id(), SetId::new(geteuid().as_raw(), 17));
        assert!(!format!("{record:?}").contains(&String::from(record.key.clone())));
    }

    #[test]
    fn a_contact_is_read_as_it_was_written() {
        let contact = record().contact();
        let text = contact.to_text();
        assert_eq!(Contact::parse(&text), Some(contact));
        for wrong in ["", "1", "1:2:3", &text[1..text.len() - 1], &text.replace(':', ";")] {
            assert_eq!(Contact::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_no_file_of_a_set_is_none() {
        let text = record().to_text();
        for wrong in [
            "",
            "{}",
            &text[..text.len() / 2],
            &text.replace("\"version\": 2", "\"version\": 1"),
            &text.replace("\"key\": \"", "\"key\": \"AA"),
        ] {
            assert_eq!(SetRecord::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_proof_is_of_its_role_and_its_challenge() {
        let key = record().key;
        let proof = key.prove(b"caller", b"1234");
        assert!(key.verifies(b"caller", b"1234", &proof));
        assert!(!key.verifies(b"called", b"1234", &proof));
        assert!(!key.verifies(b"caller", b"1235", &proof));
        assert!(!record().key.verifies(b"caller", b"1234", &proof));
    }
}
