//! The URL of an API server.

use std::fmt;
use std::str::FromStr;

use pmi_transport::address::{Address, AddressError};

/// Default port of an API server.
const PORT: u16 = 50051;

/// Default URL: the socket of an API server on this machine.
pub(crate) const DEFAULT_URL: &str = "unix:/run/lattice/api.sock";

/// Address of an API server, and the method of authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ApiUrl {
    /// `unix:PATH`: the kernel authenticates this user.
    Unix(Address),
    /// `https://HOST:PORT`: certificates authenticate both sides.
    Https(Address),
    /// `http://HOST:PORT`: no authentication. Only loopback addresses are allowed.
    Http(Address),
}

/// A text is not the URL of an API server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApiUrlError {
    /// Unknown scheme.
    #[error(
        "{text:?} names no API server; unix:/PATH, https://HOST:PORT and http://127.0.0.1:PORT do\ntry: one of these forms, such as https://head:50051"
    )]
    Scheme {
        /// The text.
        text: String,
    },
    /// No valid address after the scheme.
    #[error("{text:?} names no API server: {source}")]
    Address {
        /// The text.
        text: String,
        /// The fault.
        source: AddressError,
    },
}

impl ApiUrl {
    pub(crate) fn address(&self) -> &Address {
        match self {
            Self::Unix(address) | Self::Https(address) | Self::Http(address) => address,
        }
    }

    /// True if the URL requires certificates.
    pub(crate) fn is_secured(&self) -> bool {
        matches!(self, Self::Https(_))
    }

    /// True if there is no authentication.
    pub(crate) fn is_insecure(&self) -> bool {
        matches!(self, Self::Http(_))
    }
}

impl FromStr for ApiUrl {
    type Err = ApiUrlError;

    fn from_str(text: &str) -> Result<Self, ApiUrlError> {
        let wrong = |source| ApiUrlError::Address { text: text.to_owned(), source };
        let tcp = |rest: &str| {
            let authority = rest.strip_suffix('/').unwrap_or(rest);
            let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
            let full = if has_port { authority.to_owned() } else { format!("{authority}:{PORT}") };
            full.parse::<Address>().map_err(wrong)
        };
        if text.starts_with("unix:") {
            return text.parse().map(Self::Unix).map_err(wrong);
        }
        match text.split_once("://") {
            Some(("https", rest)) => tcp(rest).map(Self::Https),
            Some(("http", rest)) => tcp(rest).map(Self::Http),
            _ => Err(ApiUrlError::Scheme { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for ApiUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(address) => address.fmt(f),
            Self::Https(address) => write!(f, "https://{address}"),
            Self::Http(address) => write!(f, "http://{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_with_their_usual_port() {
        let check = |text: &str, expected: &str| assert_eq!(text.parse::<ApiUrl>().unwrap().to_string(), expected);
        check("unix:/run/lattice/api.sock", "unix:/run/lattice/api.sock");
        check("https://head:7000", "https://head:7000");
        check("https://head/", "https://head:50051");
        check("http://127.0.0.1", "http://127.0.0.1:50051");
        check("https://[fd00::7]", "https://[fd00::7]:50051");
        check("https://[fd00::7]:1", "https://[fd00::7]:1");
    }

    #[test]
    fn other_texts_are_refused_with_what_is_possible() {
        for text in ["", "head:50051", "ftp://head", "unix:api.sock", "https://", "http://head:x", "https://a/b"] {
            let error = text.parse::<ApiUrl>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} names no API server")), "{error}");
        }
    }

    #[test]
    fn each_scheme_says_who_is_believed() {
        for (text, secured, insecure) in
            [("unix:/run/api.sock", false, false), ("https://head", true, false), ("http://127.0.0.1", false, true)]
        {
            let url: ApiUrl = text.parse().unwrap();
            assert_eq!((url.is_secured(), url.is_insecure()), (secured, insecure), "{text}");
        }
    }

    #[test]
    fn a_text_of_no_scheme_is_answered_with_those_that_there_are() {
        for text in ["head", "ssh://head", "HTTPS://head", "https:/head", "/run/lattice/api.sock"] {
            let error = text.parse::<ApiUrl>().unwrap_err().to_string();
            let expected = "names no API server; unix:/PATH, https://HOST:PORT and http://127.0.0.1:PORT do";
            assert!(error.starts_with(&format!("{text:?} {expected}\ntry: ")), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_url_is_read_again_as_it_is_shown(host in "[a-z][a-z0-9]{0,8}(\\.[a-z][a-z0-9]{0,8}){0,2}", port in 1_u16..) {
            for text in [format!("https://{host}:{port}"), format!("http://{host}:{port}"), format!("unix:/run/{host}.sock")] {
                let url: ApiUrl = text.parse().unwrap();
                proptest::prop_assert_eq!(url.to_string(), text);
                proptest::prop_assert_eq!(url.to_string().parse::<ApiUrl>(), Ok(url));
            }
        }

        #[test]
        fn no_text_of_a_user_panics(text in "(unix:|https?://)?.{0,20}") {
            let _ = text.parse::<ApiUrl>();
        }
    }
}
