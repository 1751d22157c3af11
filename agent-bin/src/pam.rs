//! PAM processes of this node: each opens the PAM session of one session's user, and logs the messages of the modules.

use std::time::Duration;

use lattice_session::session_process::{Admitted, PamTerms};
use rank_spawner::{Account, PamRole, serve_pam};

use crate::log_to_stderr;

/// Directories of PAM services, as in `pam.d(5)`.
const DIRECTORIES: [&str; 2] = ["/etc/pam.d", "/usr/lib/pam.d"];

/// Maximum length of a service name.
const NAME_MAX: usize = 64;

/// Error in the setting `pam_service`.
#[derive(Debug, thiserror::Error)]
pub enum PamConfigError {
    /// The name is not a file name.
    #[error("pam_service is {name:?}; it is the name of a file in /etc/pam.d, of letters, digits, `-`, `_` and `.`")]
    Name {
        /// The setting.
        name: String,
    },
    /// PAM would use the service `other`, which may admit every user.
    #[error("pam_service is {name:?}, and there is no /etc/pam.d/{name}; make one, or leave pam_service out")]
    NoService {
        /// The setting.
        name: String,
    },
    /// Only root can open sessions of users.
    #[error(
        "pam_service is set, and this agent is not root; only root opens PAM sessions; leave it out, or start the agent as root"
    )]
    NotRoot,
    /// The time limit is too short or too long.
    #[error("pam_timeout is {seconds} seconds; it can be 1 to {TIMEOUT_MAX}")]
    Timeout {
        /// The setting.
        seconds: u64,
    },
}

/// Time limit for a service to open a session, and to close one, in seconds: the default and the maximum.
const TIMEOUT: u64 = 30;
const TIMEOUT_MAX: u64 = 300;

/// The terms for the settings `pam_service` and `pam_timeout`.
pub(crate) fn terms(
    service: Option<String>,
    timeout: Option<u64>,
    is_root: bool,
) -> Result<Option<PamTerms>, PamConfigError> {
    let within = match timeout.unwrap_or(TIMEOUT) {
        seconds @ 1..=TIMEOUT_MAX => Duration::from_secs(seconds),
        seconds => return Err(PamConfigError::Timeout { seconds }),
    };
    let Some(name) = service else { return Ok(None) };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !(1..=NAME_MAX).contains(&name.len()) || name.starts_with('.') || !name.bytes().all(is_plain) {
        return Err(PamConfigError::Name { name });
    }
    if !is_root {
        return Err(PamConfigError::NotRoot);
    }
    if !DIRECTORIES.iter().any(|directory| std::path::Path::new(directory).join(&name).is_file()) {
        return Err(PamConfigError::NoService { name });
    }
    Ok(Some(PamTerms { service: name, within }))
}

/// PAM processes of a node with these terms.
pub(crate) fn role(PamTerms { service, within }: PamTerms) -> PamRole {
    let main = move |session, admitted: &[u8]| {
        // Work for the node needs no PAM session.
        let Some(Admitted { uid, host }) = Admitted::decode(admitted).filter(|admitted| !admitted.host.is_empty())
        else {
            return;
        };
        log_to_stderr();
        match Account::of(uid) {
            Ok(account) => {
                serve_pam(&service, &account, &session, &mut |text| tracing::info!(service, uid, host, "PAM: {text}"));
            }
            Err(error) => tracing::error!(service, uid, "{error}"),
        }
    };
    PamRole { main: Box::new(main), closes_within: within }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_a_file_and_a_root_to_open_its_sessions() {
        let check = |service: &str, timeout, is_root| {
            terms(Some(service.to_owned()), timeout, is_root)
                .map(|terms| terms.unwrap().within)
                .map_err(|error| error.to_string().split_once("; ").unwrap().0.to_owned())
        };
        assert_eq!(check("other", None, true), Ok(Duration::from_secs(TIMEOUT)));
        assert_eq!(check("other", Some(3), true), Ok(Duration::from_secs(3)));
        assert_eq!(check("other", Some(0), true), Err("pam_timeout is 0 seconds".to_owned()));
        assert!(check("other", None, false).unwrap_err().contains("this agent is not root"));
        for name in ["", "..", "../passwd", "a b", "a/b"] {
            assert_eq!(check(name, None, true), Err(format!("pam_service is {name:?}")));
        }
        assert!(check("no-such-service", None, true).unwrap_err().contains("there is no /etc/pam.d/no-such-service"));
        assert!(terms(None, None, false).unwrap().is_none());
    }
}
