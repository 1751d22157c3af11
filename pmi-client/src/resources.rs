//! Resources that outlive their process. The launcher removes registered resources that a rank leaves.

use crate::error::{ClientError, quote};

/// Name of these requests in the list of the server.
pub(crate) const EXTENSION: &str = "resource";

/// Maximum length of the name of a resource, in bytes.
const NAME_MAX: usize = 1024;

/// Kinds of resources: the prefixes of their names.
const KINDS: [&str; 9] = ["shm", "sem", "msg", "pshm", "psem", "mq", "file", "dir", "pid"];

/// A call about a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResourceCall {
    Intend,
    Register,
    BeginRelease { seconds: u32 },
    EndRelease,
}

impl ResourceCall {
    /// Name of the method of [`Client`](crate::Client).
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Intend => "intend_resource",
            Self::Register => "register_resource",
            Self::BeginRelease { .. } => "begin_release",
            Self::EndRelease => "end_release",
        }
    }

    /// Phase of a registration.
    pub(crate) fn phase(self) -> Option<&'static str> {
        match self {
            Self::Intend => Some("intent"),
            Self::Register => Some("done"),
            Self::BeginRelease { .. } | Self::EndRelease => None,
        }
    }
}

/// Checks the parts that every server would refuse. The server checks the text after the kind.
pub(crate) fn check_name(name: &str) -> Result<(), ClientError> {
    let is_known = name.split_once(':').is_some_and(|(kind, _)| KINDS.contains(&kind));
    if is_known && name.len() <= NAME_MAX && !name.contains(|c: char| c.is_ascii_control()) {
        return Ok(());
    }
    Err(ClientError::ResourceName { name: quote(name.as_bytes()), max: NAME_MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_known_kind_and_fit_a_line() {
        for good in ["shm:", "shm:7", "file:/a b;c=d", "pid:12", "pshm:/x"] {
            check_name(good).unwrap();
        }
        for bad in ["", "myipc", "SHM:1", "file", "file:/a\nb", &format!("file:/{}", "x".repeat(1024))] {
            assert!(check_name(bad).is_err(), "{bad:?} was taken");
        }
    }
}
