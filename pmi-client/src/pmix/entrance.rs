//! Data of the launcher in the environment of a rank with PMIx.

use std::ffi::OsString;

use pmix_core::wire::Encoding;

use super::PmixError;

/// The route to a PMIx server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entrance {
    pub(super) namespace: String,
    pub(super) rank: u32,
    /// `host:port`.
    pub(super) address: String,
    /// Name of the encoding that belongs to the variable of the address.
    pub(super) module: &'static str,
    pub(super) security: Security,
}

/// Proof of identity that a server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Security {
    /// The numbers of user and group.
    Native,
    /// None.
    None,
}

/// Variables with the address, and the encoding of each. By the variable that it reads, a client selects the encoding.
const ADDRESSES: [(&str, &str); 4] = [
    ("PMIX_SERVER_URI41", "v41"),
    ("PMIX_SERVER_URI4", "v4"),
    ("PMIX_SERVER_URI3", "v3"),
    ("PMIX_SERVER_URI21", "v21"),
];

impl Entrance {
    /// Finds the route with `lookup`, which returns the value of an environment variable.
    pub(super) fn find(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, PmixError> {
        let text = |variable: &str| lookup(variable).map(|value| value.to_string_lossy().into_owned());
        let needed = |variable| text(variable).ok_or(PmixError::Missing { variable });
        let namespace = needed("PMIX_NAMESPACE")?;
        let rank = needed("PMIX_RANK")?;
        let wrong =
            |variable, value: &str, expected| PmixError::Variable { variable, value: value.to_owned(), expected };
        if namespace.is_empty() || namespace.len() > 255 || namespace.contains('\0') {
            return Err(wrong("PMIX_NAMESPACE", &namespace, "a name of 1 to 255 bytes"));
        }
        let rank = rank.parse().map_err(|_| wrong("PMIX_RANK", &rank, "a rank"))?;
        let uri = ADDRESSES.iter().find_map(|&(variable, module)| Some((variable, module, text(variable)?)));
        let (variable, module, uri) = uri.ok_or(PmixError::Missing { variable: "PMIX_SERVER_URI41" })?;
        let address = address_of(&uri).ok_or_else(|| wrong(variable, &uri, "NAMESPACE.RANK;tcp4://HOST:PORT"))?;
        let modules = text("PMIX_SECURITY_MODE").unwrap_or_else(|| "native".to_owned());
        let mut offered = modules.split(',');
        let security = offered.find_map(|module| match module {
            "native" => Some(Security::Native),
            "none" => Some(Security::None),
            _ => None,
        });
        let security = security.ok_or(PmixError::Security { modules })?;
        Ok(Self { namespace, rank, address, module, security })
    }

    pub(super) fn encoding(&self) -> Encoding {
        if self.module.starts_with("v4") { Encoding::Flex } else { Encoding::Fixed }
    }
}

/// Returns the `host:port` of `NAMESPACE.RANK;tcp4://HOST:PORT`. The other parts are ignored.
fn address_of(uri: &str) -> Option<String> {
    let (_, location) = uri.split_once(';')?;
    let address = location.strip_prefix("tcp4://").or_else(|| location.strip_prefix("tcp6://"))?;
    // More fields may follow: other addresses, the version of the server.
    let address = address.split(';').next()?;
    let port = address.rsplit_once(':')?.1;
    port.parse::<u16>().ok().map(|_| address.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)]) -> Result<Entrance, String> {
        let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        Entrance::find(lookup).map_err(|error| error.to_string())
    }

    const RANK: [(&str, &str); 2] = [("PMIX_NAMESPACE", "job"), ("PMIX_RANK", "3")];

    #[test]
    fn the_newest_encoding_that_is_offered_is_spoken() {
        let check = |variables: &[(&str, &str)], module: &str, address: &str| {
            let found = find(&[&RANK[..], variables].concat()).unwrap();
            assert_eq!((found.module, found.address.as_str(), found.rank), (module, address, 3));
        };
        let old = ("PMIX_SERVER_URI3", "a.0;tcp4://127.0.0.1:3");
        let new = ("PMIX_SERVER_URI41", "prterun-h-1@0.0;tcp4://10.0.0.1:41");
        check(&[old], "v3", "127.0.0.1:3");
        check(&[old, new], "v41", "10.0.0.1:41");
        check(&[("PMIX_SERVER_URI4", "a.0;tcp6://[::1]:9")], "v4", "[::1]:9");
    }

    #[test]
    fn half_an_environment_is_refused() {
        let check = |variables: &[(&str, &str)], expected: &str| {
            let error = find(variables).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check(&[], "no PMIX_NAMESPACE: this process was not started by a launcher that serves PMIx");
        check(&RANK[..1], "no PMIX_RANK");
        check(&RANK, "no PMIX_SERVER_URI41");
        check(&[("PMIX_NAMESPACE", "job"), ("PMIX_RANK", "-1")], "PMIX_RANK=\"-1\" in the environment is not a rank");
        let uri = |uri| [RANK[0], RANK[1], ("PMIX_SERVER_URI41", uri)];
        check(&uri("a.0;usock:/tmp/x"), "is not NAMESPACE.RANK;tcp4://HOST:PORT");
        check(&uri("a.0;tcp4://127.0.0.1:99999"), "is not NAMESPACE.RANK;tcp4://HOST:PORT");
        let munge = [&uri("a.0;tcp4://h:1")[..], &[("PMIX_SECURITY_MODE", "munge")]].concat();
        check(&munge, "asks for the security module \"munge\"");
    }
}
