//! Fabric section of the configuration, and creation of the manager from it. Secrets are in separate files, so that the
//! configuration itself is not secret.
//!
//! ```toml
//! backend = "rest"                       # or "vnid", "pool"
//! url = "https://fabric.example:8443"    # not for "pool"
//! vnis = "1024-65535"                    # not for "vnid"
//! [tls]
//! ca = "/etc/lattice/fabric-ca.pem"
//! [auth]
//! method = "oauth"
//! token_url = "https://login.example/realms/shasta/protocol/openid-connect/token"
//! client_id = "lattice"
//! client_secret_file = "/etc/lattice/fabric-client-secret"
//! ```

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use thiserror::Error;
use ureq::http::Uri;
use ureq::tls::{Certificate, PemItem, PrivateKey, parse_pem};
use zeroize::Zeroizing;

use crate::authorise::{Authoriser, OAuth};
use crate::client::Client;
use crate::clock::{Clock, SystemClock};
use crate::fabric::FabricManager;
use crate::local::LocalFabric;
use crate::node::TrafficClasses;
use crate::rest::RestFabric;
use crate::retry::Backoff;
use crate::scrubber::Scrubber;
use crate::secret::Secret;
use crate::vni::{Vni, VniRange};
use crate::vnid::{VniCount, VnidFabric};
use crate::wire::{Http, Tls};

/// Limit on the size of a secret or certificate file.
const LARGEST_FILE: u64 = 1 << 20;
/// Time limit of one try; the launch's deadline limits all tries together.
const TRY_TIMEOUT: Duration = Duration::from_secs(5);

/// Fabric section of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricConfig {
    /// Kind of manager.
    pub backend: Backend,
    /// Base URL of the manager, without the paths of the calls.
    pub url: Option<String>,
    /// Partition of a vnid.
    #[serde(default = "default_partition")]
    pub partition: String,
    /// VNIs that this cluster assigns, if it assigns them itself.
    #[serde(default)]
    pub vnis: VniRange,
    /// Ranges that other resource managers of the fabric assign, or that the site reserves. None may overlap `vnis`.
    #[serde(default)]
    pub foreign_vnis: Vec<VniRange>,
    /// True to give each allocation a second VNI, for runtimes that need one between its launches. `SLINGSHOT_VNIS` has it
    /// after the first. Not possible with `rest`, where services have one VNI.
    #[serde(default)]
    pub job_vni: bool,
    /// Traffic classes that ranks may use.
    #[serde(default)]
    pub traffic_classes: TrafficClasses,
    /// Certificates: trusted authorities, and this client's own.
    pub tls: Option<TlsFiles>,
    /// Authentication of requests.
    #[serde(default)]
    pub auth: Authentication,
}

fn default_partition() -> String {
    "WLM".to_owned()
}

/// Kind of manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Manager with the three endpoints of the design document.
    Rest,
    /// HPE's vnid.
    Vnid,
    /// No manager: only VNIs from this cluster's own pool.
    Pool,
}

/// PEM files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// Trusted authorities. They replace the authorities that this machine trusts.
    pub ca: Option<PathBuf>,
    /// Client certificate and its chain, for managers that require one.
    pub cert: Option<PathBuf>,
    /// Key of the client certificate.
    pub key: Option<PathBuf>,
}

/// Authentication of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(tag = "method", rename_all = "lowercase", deny_unknown_fields)]
pub enum Authentication {
    /// No authentication, or only by client certificate.
    #[default]
    None,
    /// Name and password.
    Basic {
        /// The user.
        user: String,
        /// File with the password.
        password_file: PathBuf,
    },
    /// Token that an authorisation server issues for a client secret.
    OAuth {
        /// URL of the authorisation server.
        token_url: String,
        /// Registered client identifier.
        client_id: String,
        /// File with the client secret.
        client_secret_file: PathBuf,
        /// Scope of the token.
        scope: Option<String>,
    },
}

/// Error of a configuration.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The back end needs a URL, and none is set.
    #[error("fabric: back end {0:?} needs `url`")]
    UrlMissing(Backend),
    /// The text is not a URL, or has parts that a base URL must not have.
    #[error("fabric: `{0}` is no base URL; write https://host:port, without user, password or query")]
    Url(String),
    /// Keys would cross the network without encryption.
    #[error("fabric: `{0}` would carry keys in the clear; use https, or a loopback address")]
    Clear(String),
    /// A file could not be read.
    #[error("fabric: cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The mode of a secret's file allows other users to read it.
    #[error("fabric: {} holds a secret and has mode {mode:03o}; take the rights of others away (chmod o= FILE)", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// The file does not have the expected content.
    #[error("fabric: {} holds no {expected}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Expected content.
        expected: &'static str,
    },
    /// This machine trusts no authority.
    #[error(
        "fabric: this machine trusts no authority{}; name that of the manager in `tls.ca`",
        .0.as_ref().map_or(String::new(), |error| format!(": {error}"))
    )]
    NoAuthority(#[source] Option<rustls_native_certs::Error>),
    /// Only one of certificate and key is set.
    #[error("fabric: `tls.cert` and `tls.key` belong together; one of them is missing")]
    HalfIdentity,
    /// A second VNI is set for services that have only one.
    #[error("fabric: services of back end \"rest\" have one VNI each; take out `job_vni`, or use \"vnid\" or \"pool\"")]
    JobVni,
    /// The range has the VNI of the driver's default service, which all users may use.
    #[error("fabric: VNIs {ours} hold {default}, which is that of the NICs' default service; leave it out of `vnis`")]
    DefaultService {
        /// Range of this cluster.
        ours: VniRange,
        /// The VNI of the default service.
        default: Vni,
    },
    /// Two resource managers would assign the same numbers.
    #[error(
        "fabric: VNIs {ours} overlap {theirs}, which another system gives out; ranks of different jobs would receive each other's packets"
    )]
    Overlap {
        /// Range of this cluster.
        ours: VniRange,
        /// The foreign range.
        theirs: VniRange,
    },
}

impl FabricConfig {
    /// Checks all settings that can be checked without the network, and makes the manager. Does not connect.
    ///
    /// # Errors
    /// Returns errors that an operator has to correct.
    pub fn manager(&self) -> Result<Box<dyn FabricManager>, ConfigError> {
        if self.backend != Backend::Vnid {
            self.check_ranges()?;
        }
        if self.backend == Backend::Pool {
            return Ok(Box::new(LocalFabric { job_vni: self.job_vni }));
        }
        if self.job_vni && self.backend == Backend::Rest {
            return Err(ConfigError::JobVni);
        }
        let url = self.url.as_deref().ok_or(ConfigError::UrlMissing(self.backend))?;
        let scrubber = Arc::new(Scrubber::default());
        let authoriser = self.authoriser(&scrubber)?;
        let client = self.client(url, authoriser, &scrubber)?;
        Ok(match self.backend {
            Backend::Vnid => {
                let vnis = if self.job_vni { VniCount::Two } else { VniCount::One };
                Box::new(VnidFabric::new(client, &self.partition, vnis))
            }
            _ => Box::new(RestFabric::new(client)),
        })
    }

    fn check_ranges(&self) -> Result<(), ConfigError> {
        let default = Vni::OF_DEFAULT_SERVICE.into_iter().find(|vni| self.vnis.contains(*vni));
        if let Some(default) = default {
            return Err(ConfigError::DefaultService { ours: self.vnis, default });
        }
        match self.foreign_vnis.iter().find(|foreign| foreign.overlaps(&self.vnis)) {
            Some(foreign) => Err(ConfigError::Overlap { ours: self.vnis, theirs: *foreign }),
            None => Ok(()),
        }
    }

    fn client(&self, url: &str, authoriser: Authoriser, scrubber: &Arc<Scrubber>) -> Result<Client, ConfigError> {
        authoriser.teach(scrubber);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        Ok(Client {
            base: base(url)?.into(),
            wire: Box::new(Http::new(self.tls(url)?)),
            clock,
            authoriser: Box::new(authoriser),
            backoff: Backoff::default(),
            try_timeout: TRY_TIMEOUT,
            random: Mutex::new(fastrand::Rng::new()),
            scrubber: scrubber.clone(),
        })
    }

    fn authoriser(&self, scrubber: &Arc<Scrubber>) -> Result<Authoriser, ConfigError> {
        Ok(match &self.auth {
            Authentication::None => Authoriser::None,
            Authentication::Basic { user, password_file } => {
                Authoriser::Basic { user: user.clone(), password: secret(password_file)? }
            }
            Authentication::OAuth { token_url, client_id, client_secret_file, scope } => {
                let (server, path) = split(token_url)?;
                Authoriser::OAuth(Box::new(OAuth {
                    client: self.client(&server, Authoriser::None, scrubber)?,
                    path,
                    client_id: client_id.clone(),
                    client_secret: secret(client_secret_file)?,
                    scope: scope.clone(),
                    token: Mutex::new(None),
                }))
            }
        })
    }

    fn tls(&self, url: &str) -> Result<Tls, ConfigError> {
        let files = self.tls.clone().unwrap_or_default();
        let authorities = match &files.ca {
            Some(path) => certificates(path)?,
            None if url.starts_with("https:") => trusted_by_this_machine()?,
            None => Vec::new(),
        };
        let identity = match (&files.cert, &files.key) {
            (Some(cert), Some(key)) => Some((certificates(cert)?, private_key(key)?)),
            (None, None) => None,
            _ => return Err(ConfigError::HalfIdentity),
        };
        Ok(Tls { authorities, identity })
    }
}

/// URL without a slash at its end. Fails if keys must not be sent there.
fn base(url: &str) -> Result<String, ConfigError> {
    let bad = || ConfigError::Url(shown(url));
    let uri: Uri = url.parse().map_err(|_| bad())?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(bad()) };
    if authority.as_str().contains('@') || uri.query().is_some() {
        return Err(bad());
    }
    let host = authority.host().trim_matches(['[', ']']);
    let is_loopback =
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    match scheme {
        "https" => {}
        "http" if is_loopback => {}
        "http" => return Err(ConfigError::Clear(shown(url))),
        _ => return Err(bad()),
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// Splits a URL into server and path.
fn split(url: &str) -> Result<(String, String), ConfigError> {
    let checked = base(url)?;
    let authority = checked.find("://").map_or(0, |at| at + 3);
    let path = checked[authority..].find('/').map_or(checked.len(), |at| authority + at);
    Ok((checked[..path].to_owned(), checked[path..].to_owned()))
}

/// URL for messages: hides a password in it.
fn shown(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => format!("{}://[secret]{}", &url[..scheme], &url[at..]),
        _ => url.chars().take(200).collect(),
    }
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, ConfigError> {
    let failed = |source| ConfigError::File { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(4096));
    file.take(LARGEST_FILE).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Reads a file that other users must not be able to read.
fn read_private(path: &Path) -> Result<Zeroizing<Vec<u8>>, ConfigError> {
    let failed = |source| ConfigError::File { path: path.to_owned(), source };
    let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o007 == 0 { read(path) } else { Err(ConfigError::Exposed { path: path.to_owned(), mode }) }
}

fn secret(path: &Path) -> Result<Secret, ConfigError> {
    let bytes = read_private(path)?;
    // Editors add a line end, which is not part of the password.
    let end = bytes.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
    if end == 0 {
        return Err(ConfigError::Content { path: path.to_owned(), expected: "secret" });
    }
    Ok(Secret::new(&bytes[..end]))
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, ConfigError> {
    let bytes = read(path)?;
    let found: Vec<_> = parse_pem(&bytes)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        return Err(ConfigError::Content { path: path.to_owned(), expected: "certificate in PEM" });
    }
    Ok(found)
}

/// Certificates of the authorities that programs of this machine trust; OpenSSL's variables override them.
fn trusted_by_this_machine() -> Result<Vec<Certificate<'static>>, ConfigError> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        return Err(ConfigError::NoAuthority(found.errors.into_iter().next()));
    }
    Ok(found.certs.iter().map(|der| Certificate::from_der(der).to_owned()).collect())
}

fn private_key(path: &Path) -> Result<PrivateKey<'static>, ConfigError> {
    let bytes = read_private(path)?;
    PrivateKey::from_pem(&bytes)
        .map_err(|_| ConfigError::Content { path: path.to_owned(), expected: "private key in PEM" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> FabricConfig {
        toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn refusal(text: &str) -> String {
        config(text).manager().map(|_| ()).expect_err("a refusal").to_string()
    }

    #[test]
    fn what_an_operator_gets_wrong_is_told() {
        for (text, expected) in [
            ("backend = 'rest'", "fabric: back end Rest needs `url`"),
            ("backend = 'rest'\nurl = 'fabric'", "`fabric` is no base URL"),
            ("backend = 'rest'\nurl = 'http://fabric.example'", "would carry keys in the clear"),
            ("backend = 'rest'\nurl = 'https://me:canary@fm'", "`https://[secret]@fm` is no base URL"),
            ("backend = 'vnid'\nurl = 'ftp://fm'", "`ftp://fm` is no base URL"),
            ("backend = 'rest'\nurl = 'https://fm'\ntls = { cert = '/x' }", "belong together"),
            ("backend = 'rest'\nurl = 'https://fm'\ntls = { ca = '/nonexistent' }", "cannot read /nonexistent"),
            ("backend = 'pool'\nvnis = '2-10'", "VNIs 2-10 hold 10, which is that of the NICs' default service"),
            ("backend = 'rest'\nurl = 'https://fm'\njob_vni = true", "back end \"rest\" have one VNI each"),
            ("backend = 'pool'\nforeign_vnis = ['1-100', '5000-6000']", "VNIs 1024-65535 overlap 5000-6000"),
        ] {
            let refusal = refusal(text);
            assert!(refusal.contains(expected) && !refusal.contains("canary"), "{refusal}");
        }
        for text in ["urls = 'x'", "traffic_classes = []", "traffic_classes = ['fast']"] {
            assert!(toml::from_str::<FabricConfig>(&format!("backend = 'pool'\n{text}")).is_err(), "{text} was taken");
        }
        let classes = config("backend = 'pool'\ntraffic_classes = ['bulk_data', 'best_effort']").traffic_classes;
        assert_eq!(classes.to_string(), "0xc");
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("password");
        std::fs::write(&file, "hunter22\n").expect("a file");
        let text = format!(
            "backend = 'rest'\nurl = 'https://fm'\nauth = {{ method = 'basic', user = 'me', password_file = '{}' }}",
            file.display()
        );
        let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("its mode");
        mode(0o644);
        assert!(refusal(&text).contains("has mode 644"), "{}", refusal(&text));
        mode(0o600);
        assert!(config(&text).manager().is_ok());
        assert_eq!(secret(&file).expect("readable"), Secret::new("hunter22"));
    }

    #[test]
    fn a_token_url_is_split_where_its_path_begins() {
        let (server, path) = split("https://login:8443/realms/x/token").expect("a URL");
        assert_eq!((server.as_str(), path.as_str()), ("https://login:8443", "/realms/x/token"));
    }
}
