//! Settings of a daemon's identity: `[tls]` with three files, or `insecure`. Exactly one of them must be set. `pmi-transport` reads the files.

use std::path::PathBuf;

use pmi_transport::identity::TlsFiles;
use serde::Deserialize;

/// The section `[tls]` of a settings file, or the same from flags: any of its files may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsSettings {
    /// Certificates of the trusted CAs.
    pub ca: Option<PathBuf>,
    /// The daemon's own certificate.
    pub cert: Option<PathBuf>,
    /// Private key of the certificate.
    pub key: Option<PathBuf>,
}

impl TlsSettings {
    /// These files; missing ones are taken from `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self { ca: self.ca.or(others.ca), cert: self.cert.or(others.cert), key: self.key.or(others.key) }
    }
}

/// Both settings, before the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentitySettings {
    /// The section `[tls]`.
    pub tls: TlsSettings,
    /// The daemon uses no certificates.
    pub insecure: bool,
}

/// Identity of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// No certificates and no proof of identity; for loopback addresses only.
    Insecure,
    /// Certificates in these files.
    Tls(TlsFiles),
}

/// Error of settings that name no identity, an incomplete one, or two.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentitySettingsError {
    /// Some of the three files are missing.
    #[error("tls.{given} is set, tls.{missing} is not; certificates need ca, cert and key")]
    Half {
        /// The first file that is named.
        given: &'static str,
        /// The first file that is missing.
        missing: &'static str,
    },
    /// Both are set.
    #[error("`insecure` and certificates exclude each other; take one of them out")]
    Both,
    /// Neither is set.
    #[error(
        "neither certificates ([tls] with ca, cert and key) nor `insecure` are set\n\
         try: lattice pki init DIR, which makes certificates"
    )]
    Neither,
}

impl IdentitySettings {
    /// Checks that exactly one of both is set, and is complete.
    ///
    /// # Errors
    /// See the variants of [`IdentitySettingsError`].
    pub fn check(self) -> Result<Identity, IdentitySettingsError> {
        let TlsSettings { ca, cert, key } = self.tls;
        match (ca, cert, key) {
            (None, None, None) if self.insecure => Ok(Identity::Insecure),
            (None, None, None) => Err(IdentitySettingsError::Neither),
            _ if self.insecure => Err(IdentitySettingsError::Both),
            (Some(ca), Some(cert), Some(key)) => Ok(Identity::Tls(TlsFiles { ca, cert, key })),
            (ca, cert, key) => {
                let named = [("ca", ca), ("cert", cert), ("key", key)];
                let (set, unset): (Vec<_>, Vec<_>) = named.into_iter().partition(|(_, file)| file.is_some());
                let first = |files: &[(&'static str, _)]| files.first().map_or("", |(name, _)| name);
                Err(IdentitySettingsError::Half { given: first(&set), missing: first(&unset) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(ca: bool, cert: bool, key: bool, insecure: bool) -> IdentitySettings {
        let file = |is_set: bool, name: &str| is_set.then(|| PathBuf::from(name));
        IdentitySettings {
            tls: TlsSettings { ca: file(ca, "/a"), cert: file(cert, "/b"), key: file(key, "/c") },
            insecure,
        }
    }

    #[test]
    fn exactly_one_whole_identity_is_accepted() {
        use IdentitySettingsError::{Both, Half, Neither};
        let files = TlsFiles { ca: "/a".into(), cert: "/b".into(), key: "/c".into() };
        let check = |ca, cert, key, insecure, expected| {
            assert_eq!(settings(ca, cert, key, insecure).check(), expected, "{ca} {cert} {key} {insecure}");
        };
        check(false, false, false, true, Ok(Identity::Insecure));
        check(false, false, false, false, Err(Neither));
        check(true, true, true, false, Ok(Identity::Tls(files)));
        check(true, true, true, true, Err(Both));
        check(true, false, false, true, Err(Both));
        check(true, false, true, false, Err(Half { given: "ca", missing: "cert" }));
        check(false, true, true, false, Err(Half { given: "cert", missing: "ca" }));
        check(false, false, true, false, Err(Half { given: "key", missing: "ca" }));
    }

    #[test]
    fn flags_override_files_one_by_one() {
        let flags = TlsSettings { key: Some("/flag".into()), ..TlsSettings::default() };
        let merged = flags.or(settings(true, true, true, false).tls);
        assert_eq!(merged, TlsSettings { ca: Some("/a".into()), cert: Some("/b".into()), key: Some("/flag".into()) });
    }
}
