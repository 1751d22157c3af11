//! The config file of the commands: `~/.config/lattice/config.toml`, else `/etc/lattice/config.toml`.
//!
//! ```toml
//! api = "https://head:50051"  # or unix:/run/lattice/api.sock
//! insecure = true             # for http, which has no authentication
//!
//! [tls]                       # for https; relative to the directory of this file
//! ca = "ca.pem"
//! cert = "alice.pem"
//! key = "alice.key"
//! ```

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use lattice_console::bounded_file;
use lattice_console::environment::{Environment, user_file};
use lattice_daemon::settings_file::{self, SettingsFileError};
use pmi_transport::identity::{IdentityError, Security, TlsFiles};
use serde::Deserialize;

use super::source::Source;
use super::url::{ApiUrl, ApiUrlError};

/// System-wide config file.
pub const SYSTEM: &str = "/etc/lattice/config.toml";

/// Maximum size of a config file in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Checked content of a config file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    pub(crate) api: Option<ApiUrl>,
    /// Absolute paths.
    pub(super) tls: Option<TlsFiles>,
    /// Path of the file; `None` if there is none.
    pub(super) path: Option<PathBuf>,
}

/// Refusal of a config file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is unreadable, not TOML, or has unknown keys or values.
    #[error(transparent)]
    File(#[from] SettingsFileError),
    /// `api` is not a URL.
    #[error("{}: api: {source}", path.display())]
    Url {
        /// The file.
        path: PathBuf,
        /// The fault.
        source: ApiUrlError,
    },
    /// `http` without `insecure = true`.
    #[error("{}: api is an http URL, which identifies no user\ntry: https or unix; or `insecure = true` in that file, for a group of trusted users", path.display())]
    Insecure {
        /// The file.
        path: PathBuf,
    },
    /// The certificates cannot be used.
    #[error(transparent)]
    Certificates(#[from] IdentityError),
    /// `https` without certificates.
    #[error("an https URL needs certificates\ntry: ca, cert and key in [tls] of {}, from the cluster's administrator", path.display())]
    NoCertificates {
        /// Config file that should name them.
        path: PathBuf,
    },
}

/// Content of the file, not checked yet.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    api: Option<String>,
    tls: Option<TlsFiles>,
    #[serde(default)]
    insecure: bool,
}

impl Config {
    /// Reads the user's config file, else the system-wide one. If neither exists, the default is empty.
    ///
    /// # Errors
    /// Fails for a file that exists and cannot be used.
    pub(crate) fn find(environment: &Environment) -> Result<Self, ConfigError> {
        let user = user_file("config.toml", environment);
        for path in user.into_iter().chain([PathBuf::from(SYSTEM)]) {
            match bounded_file::trusted_text(&path, BYTES_MAX) {
                Ok(text) => return Self::check(settings_file::parse(&text, &path)?, path),
                Err(source) if is_absent(&path, &source) => {}
                Err(source) => return Err(SettingsFileError::Read { path, source }.into()),
            }
        }
        Ok(Self::default())
    }

    fn check(written: Written, path: PathBuf) -> Result<Self, ConfigError> {
        let Written { api, tls, insecure } = written;
        let api = match api.map(|api| api.parse::<ApiUrl>()).transpose() {
            Ok(api) => api,
            Err(source) => return Err(ConfigError::Url { path, source }),
        };
        if api.as_ref().is_some_and(ApiUrl::is_insecure) && !insecure {
            return Err(ConfigError::Insecure { path });
        }
        let directory = path.parent().unwrap_or(Path::new("/"));
        let tls = tls.map(|files| files.seen_from(directory));
        Ok(Self { api, tls, path: Some(path) })
    }

    /// API server that the file names, with the file.
    pub(super) fn named_server(&self) -> Option<(ApiUrl, Source)> {
        Some((self.api.clone()?, Source::File(self.path.clone()?)))
    }

    /// Identity of this user for TLS.
    ///
    /// # Errors
    /// Fails if the file names no certificates, or unusable ones.
    pub(crate) fn certificates(&self) -> Result<Security, ConfigError> {
        match &self.tls {
            Some(files) => Ok(Security::from_files(files)?),
            None => {
                Err(ConfigError::NoCertificates { path: self.path.clone().unwrap_or_else(|| PathBuf::from(SYSTEM)) })
            }
        }
    }
}

/// True if an error for a default path means that there is no file. A directory that cannot be searched counts as absent: HOME may belong
/// to another user, as after `sudo`.
fn is_absent(path: &Path, error: &io::Error) -> bool {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => true,
        ErrorKind::PermissionDenied => path.symlink_metadata().is_err(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Config, String> {
        let path = Path::new("/home/u/.config/lattice/config.toml");
        let written = settings_file::parse(text, path).map_err(|error| error.to_string())?;
        Config::check(written, path.to_owned()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_config_file_is_checked_as_a_whole() {
        let config = parsed("api = 'https://head'\n[tls]\nca = 'ca.pem'\ncert = '/c.pem'\nkey = 'k'").unwrap();
        assert_eq!(config.api.unwrap().to_string(), "https://head:50051");
        let directory = Path::new("/home/u/.config/lattice");
        let files = TlsFiles { ca: directory.join("ca.pem"), cert: "/c.pem".into(), key: directory.join("k") };
        assert_eq!(config.tls, Some(files));
        assert!(parsed("").unwrap().api.is_none());
        assert!(parsed("api = 'http://127.0.0.1:1'\ninsecure = true").is_ok());
    }

    #[test]
    fn what_is_wrong_in_it_is_said_with_its_name() {
        let check = |text: &str, expected: &str| {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with("/home/u/.config/lattice/config.toml: ") && error.contains(expected), "{error}");
        };
        check("api = 5", "api");
        check("apl = 'x'", "unknown field");
        check("api = 'head'", "api: \"head\" names no API server");
        check("api = 'http://127.0.0.1'", "or `insecure = true`");
        check("[tls]\nca = 'a'\nkey = 'b'", "missing field `cert`");
        let error = parsed("api = 'https://head'").unwrap().certificates().unwrap_err().to_string();
        assert!(error.contains("try: ca, cert and key in [tls] of /home/u/.config/lattice/config.toml"), "{error}");
    }

    /// A home directory with a config file, and the environment that names it.
    fn home(text: &str) -> (tempfile::TempDir, Vec<(std::ffi::OsString, std::ffi::OsString)>) {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join(".config/lattice");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("config.toml"), text).unwrap();
        let environment = vec![("HOME".into(), home.path().into())];
        (home, environment)
    }

    #[test]
    fn the_file_is_found_below_home_unless_xdg_names_another_place() {
        let (_home, mut environment) = home("api = 'unix:/home.sock'");
        let api = |environment: &Environment| Config::find(environment).unwrap().api.map(|api| api.to_string());
        assert_eq!(api(&environment).as_deref(), Some("unix:/home.sock"));
        let (other, _) = home("");
        std::fs::create_dir(other.path().join("lattice")).unwrap();
        std::fs::write(other.path().join("lattice/config.toml"), "api = 'unix:/xdg.sock'").unwrap();
        environment.push(("XDG_CONFIG_HOME".into(), other.path().into()));
        assert_eq!(api(&environment).as_deref(), Some("unix:/xdg.sock"));
        environment[1].1 = "".into();
        assert_eq!(api(&environment).as_deref(), Some("unix:/home.sock"), "an empty variable is none");
    }

    #[test]
    fn a_file_that_is_there_and_wrong_is_not_passed_over() {
        let (home, environment) = home("api = 'nonsense'");
        let error = Config::find(&environment).unwrap_err().to_string();
        let path = home.path().join(".config/lattice/config.toml");
        assert!(error.starts_with(&format!("{}: api: \"nonsense\" names no API server", path.display())), "{error}");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(matches!(Config::find(&environment), Err(ConfigError::File(SettingsFileError::Read { .. }))));
    }

    #[test]
    fn a_home_that_is_no_directory_has_no_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let environment = [("HOME".into(), file.path().into())];
        assert!(Config::find(&environment).is_ok());
    }

    #[test]
    fn certificates_that_cannot_be_read_are_named() {
        let (home, environment) = home("[tls]\nca = 'ca.pem'\ncert = 'c.pem'\nkey = 'k.pem'");
        let error = Config::find(&environment).unwrap().certificates().unwrap_err().to_string();
        let directory = home.path().join(".config/lattice");
        assert!(error.contains(directory.to_str().unwrap()), "{error}");
    }
}
