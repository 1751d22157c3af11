//! The gate of a daemon that is not root: admits orders of the API server, each once, and only for this node.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lattice_session::nics::NicsTask;
use lattice_session::random;
use lattice_session::session_process::Admitted;
use lattice_session::wire::WireError;
use lattice_session::wire::order::{Head, StartOrder, decode_last_serial};
use pmi_transport::error_chain::chain;
use pmi_transport::identity::IdentityError;
use pmi_transport::signature::{Authorities, CHALLENGE_LEN, Challenge, VerifyError};
use rank_spawner::Gate;

use super::numbers::{NotNew, Numbers, Use};
use super::root_path::{self, PathError};
use crate::daemon::Config;

/// Time limit for the API server's answer to a challenge.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// The gate.
pub(crate) struct Signed {
    /// Settings that root has read.
    config: Config,
    /// File with the certificates of the CAs.
    ca: PathBuf,
    authorities: Authorities,
    /// Inode and change time of the file when it was read.
    stamp: Option<(u64, i64, i64)>,
    /// Challenge that awaits its answer.
    challenge: Option<(Challenge, Instant)>,
    numbers: Numbers,
}

/// Error of a gate that cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GateError {
    /// Root cannot trust the CA's certificate.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The CA's certificate is not usable.
    #[error(transparent)]
    Authority(#[from] IdentityError),
    /// No CA certificate is set.
    #[error("a daemon that gives up root needs certificates: set [tls]")]
    NoAuthority,
}

/// Reason why an order is refused.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the order for a session cannot be understood: {0}")]
    Wire(#[from] WireError),
    #[error("{}", chain(.0))]
    Signature(#[from] VerifyError),
    #[error("the launch is not for {node}, but for {named} as its node {index}")]
    AnotherNode { node: String, named: String, index: u32 },
    #[error("{0}")]
    User(String),
    #[error(transparent)]
    NotNew(#[from] NotNew),
}

/// Reason why an answer of the API server is not accepted.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error("the number of the last launch cannot be understood: {0}")]
    Wire(#[from] WireError),
    #[error("the number of the last launch was not asked for, or comes late")]
    NotAsked,
    #[error("the number of the last launch: {}", chain(.0))]
    Signature(#[from] VerifyError),
}

impl Signed {
    /// A gate that trusts the CAs in the settings.
    pub(super) fn new(config: &Config) -> Result<Self, GateError> {
        let ca = config.tls.as_ref().ok_or(GateError::NoAuthority)?.ca.clone();
        root_path::check(&ca)?;
        let authorities = Authorities::read(&ca)?;
        let (challenge, numbers) = (None, Numbers::default());
        let mut gate = Self { config: config.clone(), ca, authorities, stamp: None, challenge, numbers };
        gate.stamp = gate.stamp_now();
        Ok(gate)
    }

    fn admit_at(&mut self, order: Vec<u8>, now: Instant) -> Result<Admitted, Refusal> {
        let order = StartOrder::decode(order)?;
        match &order.nics {
            None => {
                let Head { uid, .. } = self.launch_of(&order)?;
                self.numbers.spend(order.serial, Use::Session, now)?;
                Ok(Admitted { uid, host: self.config.node_id.clone() })
            }
            Some(NicsTask::Claim { credentials, .. }) => {
                let Head { uid, launch_id, .. } = self.launch_of(&order)?;
                let (text, signer) = (credentials.signed_text(&launch_id), &order.signature.signer);
                self.verified(|by| by.verify(order.serial, text.expose(), credentials.signature(), signer))?;
                self.numbers.spend(order.serial, Use::Services, now)?;
                Ok(errand(uid))
            }
            // The process that ends services checks their users itself. All users may list services.
            Some(_) => Ok(errand(0)),
        }
    }

    /// The launch of an order, if the API server has signed it for this node, and its user may start processes here.
    fn launch_of(&mut self, order: &StartOrder) -> Result<Head, Refusal> {
        let StartOrder { serial, spec, signature, .. } = order;
        self.verified(|by| by.verify(*serial, spec, &signature.signature, &signature.signer))?;
        // From here on the bytes are the API server's.
        let head = order.head()?;
        let (node, index) = (&self.config.node_id, order.node.0);
        let named = head.nodes.get(order.node.index());
        if named != Some(node) {
            let named = named.map_or_else(|| "nobody".to_owned(), String::clone);
            return Err(Refusal::AnotherNode { node: node.clone(), named, index });
        }
        self.config.refuse_user(head.uid).map_or(Ok(head), |why| Err(Refusal::User(why)))
    }

    fn hear_at(&mut self, word: Vec<u8>, now: Instant) -> Result<(), Unanswered> {
        let (last, signature) = decode_last_serial(word)?;
        let asked = self.challenge.take().filter(|(_, asked)| now.duration_since(*asked) <= ANSWER_WITHIN);
        let (challenge, _) = asked.ok_or(Unanswered::NotAsked)?;
        let node = self.config.node_id.clone();
        self.verified(|by| by.verify_last_serial(&node, &challenge, last, &signature))?;
        self.numbers.hear(last, now);
        Ok(())
    }

    /// A challenge that was never used; `None` if the system has no random bytes.
    fn new_challenge(&mut self, now: Instant) -> Option<Challenge> {
        let challenge = random::bytes::<CHALLENGE_LEN>().ok()?;
        self.challenge = Some((challenge, now));
        Some(challenge)
    }

    /// Checks a signature with the CAs' certificates in memory. If their chain does not fit, reads the file again and repeats the check.
    fn verified(&mut self, check: impl Fn(&Authorities) -> Result<(), VerifyError>) -> Result<(), VerifyError> {
        match check(&self.authorities) {
            Err(VerifyError::Chain(_)) if self.read_again() => check(&self.authorities),
            checked => checked,
        }
    }

    /// Reads the CAs' certificates again if the file has changed and only root can have changed it.
    fn read_again(&mut self) -> bool {
        let stamp = self.stamp_now();
        if stamp == self.stamp || root_path::check(&self.ca).is_err() {
            return false;
        }
        if self.authorities.read_again(&self.ca).is_err() {
            return false;
        }
        self.stamp = stamp;
        true
    }

    fn stamp_now(&self) -> Option<(u64, i64, i64)> {
        let metadata = fs::metadata(&self.ca).ok()?;
        Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
    }
}

/// Admission of a process that stays root.
fn errand(uid: u32) -> Admitted {
    Admitted { uid, host: String::new() }
}

impl Gate for Signed {
    fn admit(&mut self, order: Vec<u8>) -> Result<Vec<u8>, String> {
        let admitted = self.admit_at(order, Instant::now()).map_err(|refusal| refusal.to_string())?;
        Ok(admitted.encode())
    }

    /// Answers an empty message with a challenge. Answers a valid response with an empty message, and an invalid one with its error.
    fn hear(&mut self, word: Vec<u8>) -> Vec<u8> {
        let now = Instant::now();
        if word.is_empty() {
            return self.new_challenge(now).map(Vec::from).unwrap_or_default();
        }
        self.hear_at(word, now).map_or_else(|error| error.to_string().into_bytes(), |()| Vec::new())
    }
}

#[cfg(test)]
mod tests;
