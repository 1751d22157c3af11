//! Reads the data of the launcher in the environment: a descriptor, an address, or nothing.
//!
//! `PMI_FD` (with `PMI_RANK` and `PMI_SIZE`) overrides `PMI_PORT` (with `PMI_ID`). Without both the program runs alone, unless a launcher
//! serves PMIx to it.
//! Some libraries treat a missing `PMI_SIZE` as 1, so that one job of N ranks becomes N jobs of one rank. This client returns an error.

use alloc::string::{String, ToString};
use core::str::FromStr;

use crate::error::ClientError;

/// Variable of every rank of a launcher that serves PMIx.
const PMIX_VARIABLE: &str = "PMIX_NAMESPACE";

/// The route to the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// An inherited socket; the environment contains the rank.
    Descriptor { fd: i32, rank: u32, size: u32 },
    /// An address for a connection; `id` is the rank to claim.
    Port { address: String, id: u32 },
    /// No launcher.
    None,
}

impl Door {
    /// Finds the route with `lookup`, which returns the value of an environment variable.
    pub(crate) fn find(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ClientError> {
        let environment = Environment { lookup };
        if let Some(fd) = environment.number("PMI_FD", "the number of a descriptor")? {
            let rank = environment.needed("PMI_RANK", "PMI_FD", "a rank")?;
            let size = environment.needed("PMI_SIZE", "PMI_FD", "a number of ranks")?;
            if rank >= size {
                let expected = "a rank below PMI_SIZE";
                return Err(ClientError::Variable { variable: "PMI_RANK", value: rank.to_string(), expected });
            }
            return Ok(Self::Descriptor { fd, rank, size });
        }
        if let Some(address) = environment.text("PMI_PORT") {
            let id = environment.needed("PMI_ID", "PMI_PORT", "a number")?;
            return Ok(Self::Port { address, id });
        }
        // As in MPICH: a rank that acts as the only rank would compute a wrong result.
        match environment.text(PMIX_VARIABLE) {
            Some(_) => Err(ClientError::OnlyPmix { variable: PMIX_VARIABLE }),
            None => Ok(Self::None),
        }
    }
}

/// Returns true if, by the environment, another job started this one. In PMI-2 the protocol contains this fact.
pub(crate) fn is_spawned(lookup: impl Fn(&str) -> Option<String>) -> bool {
    matches!(Environment { lookup }.number("PMI_SPAWNED", "0 or 1"), Ok(Some(1..=i32::MAX)))
}

struct Environment<L> {
    lookup: L,
}

impl<L: Fn(&str) -> Option<String>> Environment<L> {
    fn text(&self, variable: &str) -> Option<String> {
        (self.lookup)(variable)
    }

    fn number<T: FromStr>(&self, variable: &'static str, expected: &'static str) -> Result<Option<T>, ClientError> {
        let Some(value) = self.text(variable) else { return Ok(None) };
        match value.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(ClientError::Variable { variable, value, expected }),
        }
    }

    fn needed(&self, missing: &'static str, present: &'static str, expected: &'static str) -> Result<u32, ClientError> {
        self.number(missing, expected)?.ok_or(ClientError::VariableMissing { present, missing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)]) -> Result<Door, String> {
        let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Door::find(lookup).map_err(|error| error.to_string())
    }

    #[test]
    fn the_descriptor_wins_over_the_port() {
        let fd = [("PMI_FD", "7"), ("PMI_RANK", "1"), ("PMI_SIZE", "4")];
        let port = [("PMI_PORT", "node1:4000"), ("PMI_ID", "3")];
        assert_eq!(find(&[fd.as_slice(), &port].concat()), Ok(Door::Descriptor { fd: 7, rank: 1, size: 4 }));
        assert_eq!(find(&port), Ok(Door::Port { address: "node1:4000".into(), id: 3 }));
        assert_eq!(find(&[("PMI_RANK", "1"), ("PMI_SIZE", "4")]), Ok(Door::None));
        let pmix = [("PMIX_NAMESPACE", "job")];
        assert!(find(&[port.as_slice(), &pmix].concat()).is_ok());
        assert!(
            find(&pmix).unwrap_err().starts_with("the environment has PMIX_NAMESPACE, and neither PMI_FD nor PMI_PORT")
        );
    }

    #[test]
    fn a_spawned_job_is_marked_with_a_number() {
        let spawned = |value: Option<&str>| is_spawned(|_| value.map(str::to_owned));
        assert_eq!([None, Some("0"), Some("1"), Some("yes")].map(spawned), [false, false, true, false]);
    }

    #[test]
    fn half_an_environment_is_refused() {
        let check = |variables: &[(&str, &str)], expected: &str| {
            assert_eq!(find(variables), Err(expected.to_owned()));
        };
        check(
            &[("PMI_FD", "7"), ("PMI_RANK", "1")],
            "the environment has PMI_FD but no PMI_SIZE; a launcher sets both",
        );
        check(&[("PMI_PORT", "a:1")], "the environment has PMI_PORT but no PMI_ID; a launcher sets both");
        check(&[("PMI_FD", "seven")], "PMI_FD=\"seven\" in the environment is not the number of a descriptor");
        check(
            &[("PMI_FD", "7"), ("PMI_RANK", "4"), ("PMI_SIZE", "4")],
            "PMI_RANK=\"4\" in the environment is not a rank below PMI_SIZE",
        );
        check(&[("PMI_FD", "7"), ("PMI_RANK", "-1")], "PMI_RANK=\"-1\" in the environment is not a rank");
    }
}
