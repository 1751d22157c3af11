//! Renewal of agents' certificates, if this server has the key of the CA. Certificates can then be valid for a day. A stolen certificate is
//! usable for that time, or until it is revoked.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lattice_pki::{Authority, PkiError, Validity};
use parking_lot::Mutex;
use pmi_transport::identity::Caller;
use serde::Deserialize;
use tokio::time::Instant;

/// Default validity of a certificate, in hours.
const HOURS: u32 = 24;
/// Time that a node must wait for its next certificate, because each certificate is written to disk.
const PAUSE: Duration = Duration::from_secs(30);

/// The authority that renews certificates, and their validity.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenewalSettings {
    /// The directory of the authority, as `lattice pki init` creates it.
    pub authority: PathBuf,
    /// Validity of certificates, in hours.
    #[serde(default = "default_hours")]
    pub hours: u32,
}

fn default_hours() -> u32 {
    HOURS
}

/// Reason why a certificate is not renewed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RenewalError {
    #[error("this API server renews no certificates; its settings name no authority")]
    NoAuthority,
    #[error("certificates are renewed by a certificate, and none was shown")]
    NoCertificate,
    #[error("{node} was given a certificate less than {PAUSE:?} ago")]
    TooSoon { node: String },
    #[error("the certificate is not renewed")]
    Pki(#[from] PkiError),
}

/// The authority, opened.
pub(crate) struct Renewal {
    settings: RenewalSettings,
    authority: Authority,
    /// Time at which each node received its last certificate.
    given: Mutex<HashMap<String, Instant>>,
}

impl Renewal {
    /// Opens the authority.
    ///
    /// # Errors
    /// Fails if the authority cannot be used, or if other users can read its key.
    pub(crate) fn open(settings: RenewalSettings) -> Result<Self, PkiError> {
        Ok(Self { authority: Authority::open_private(&settings.authority)?, settings, given: Mutex::default() })
    }

    /// Time for which certificates are valid.
    pub(crate) fn validity(&self) -> Duration {
        Duration::from_secs(3600) * self.settings.hours
    }

    /// Issues a certificate (in PEM) to the agent of `node` for the key of `request`. `present` is the certificate that the agent
    /// presented.
    ///
    /// # Errors
    /// See the variants of [`RenewalError`].
    pub(crate) async fn renew(
        self: Arc<Self>,
        node: String,
        present: Vec<u8>,
        request: Vec<u8>,
    ) -> Result<String, RenewalError> {
        self.take_turn(&node)?;
        // The renewal waits for the disk, and for a revocation that is in progress.
        let renewing = tokio::task::spawn_blocking(move || self.issue(node, &present, &request));
        match renewing.await {
            Ok(renewed) => Ok(renewed?),
            // The task is never cancelled; a panic continues here.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    fn issue(&self, node: String, present: &[u8], request: &[u8]) -> Result<String, PkiError> {
        let (directory, subject): (&Path, _) = (&self.settings.authority, Caller::Agent(node));
        self.authority.renew(directory, &subject, present, request, Validity::hours(self.settings.hours)?)
    }

    fn take_turn(&self, node: &str) -> Result<(), RenewalError> {
        let (mut given, now) = (self.given.lock(), Instant::now());
        given.retain(|_, at| now.saturating_duration_since(*at) < PAUSE);
        match given.insert(node.to_owned(), now) {
            Some(at) => {
                given.insert(node.to_owned(), at);
                Err(RenewalError::TooSoon { node: node.to_owned() })
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_node_gets_one_certificate_in_a_while() {
        let directory = tempfile::tempdir().unwrap();
        Authority::create(directory.path()).unwrap();
        let settings = RenewalSettings { authority: directory.path().to_owned(), hours: 24 };
        let renewal = Renewal::open(settings).unwrap();
        renewal.take_turn("node0").unwrap();
        renewal.take_turn("node1").unwrap();
        assert!(matches!(renewal.take_turn("node0"), Err(RenewalError::TooSoon { .. })));
        tokio::time::advance(PAUSE).await;
        renewal.take_turn("node0").unwrap();
        assert_eq!(renewal.given.lock().len(), 1, "who waited long enough is forgotten");
    }

    #[test]
    fn a_key_that_everybody_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        Authority::create(directory.path()).unwrap();
        let open = || Renewal::open(RenewalSettings { authority: directory.path().to_owned(), hours: 24 }).map(drop);
        open().unwrap();
        let key = directory.path().join("ca.key.pem");
        for (mode, refused) in [(0o644, true), (0o604, true), (0o640, false), (0o600, false)] {
            fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
            let opened = open().map_err(|error| error.to_string());
            let words = format!("the key {} can be read by other users; run chmod 600", key.display());
            assert_eq!(opened, if refused { Err(words) } else { Ok(()) }, "{mode:o}");
        }
    }

    #[test]
    fn without_an_authority_nothing_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let settings = toml::from_str(&format!("authority = '{}'", directory.path().display()));
        let settings: RenewalSettings = settings.unwrap();
        assert_eq!(settings.hours, 24);
        assert!(Renewal::open(settings).is_err());
    }
}
