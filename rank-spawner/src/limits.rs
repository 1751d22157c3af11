//! Resource limits: limits for ranks, and the number of descriptors that this process may hold.

use std::fmt;
use std::str::FromStr;

use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

macro_rules! limited_resources {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $constant:ident;)*) => {
        /// Resources of `setrlimit(2)`, with the names that `prlimit(1)` uses.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        #[non_exhaustive]
        pub enum LimitedResource {
            $($(#[$doc])* $variant,)*
        }

        impl LimitedResource {
            /// All resources.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            pub(crate) fn to_nix(self) -> Resource {
                match self { $(Self::$variant => Resource::$constant,)* }
            }
        }
    };
}

limited_resources! {
    /// Address space, in bytes.
    As = "as", RLIMIT_AS;
    /// Size of a core file, in bytes.
    Core = "core", RLIMIT_CORE;
    /// Processor time, in seconds.
    Cpu = "cpu", RLIMIT_CPU;
    /// Data segment, in bytes.
    Data = "data", RLIMIT_DATA;
    /// Size of a written file, in bytes.
    Fsize = "fsize", RLIMIT_FSIZE;
    /// Locked memory, in bytes; RDMA needs much of it.
    Memlock = "memlock", RLIMIT_MEMLOCK;
    /// One more than the highest descriptor number.
    Nofile = "nofile", RLIMIT_NOFILE;
    /// Processes and threads of the user.
    Nproc = "nproc", RLIMIT_NPROC;
    /// Resident memory, in bytes; Linux ignores it.
    Rss = "rss", RLIMIT_RSS;
    /// Stack of the main thread, in bytes.
    Stack = "stack", RLIMIT_STACK;
}

impl fmt::Display for LimitedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LimitedResource {
    type Err = LimitParseError;

    /// Parses a name; case is ignored.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.iter().find(|known| known.name().eq_ignore_ascii_case(text));
        known.copied().ok_or_else(|| LimitParseError::Resource { name: text.to_owned() })
    }
}

impl LimitedResource {
    /// Limit of this process.
    ///
    /// # Errors
    /// Fails if the system does not support the resource.
    pub fn limit(self) -> nix::Result<Limit> {
        let (soft, hard) = getrlimit(self.to_nix())?;
        Ok(Limit { resource: self, soft, hard })
    }
}

/// One limit for a rank.
///
/// As text `resource=both` or `resource=soft:hard`; a value is a number or `unlimited`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// Resource that is limited.
    pub resource: LimitedResource,
    /// The effective limit; [`Limit::UNLIMITED`] for none.
    pub soft: u64,
    /// Value up to which the rank may raise the limit; [`Limit::UNLIMITED`] for any.
    pub hard: u64,
}

impl Limit {
    /// Value for no limit.
    pub const UNLIMITED: u64 = libc::RLIM_INFINITY;
}

/// Error for a text that is not a [`Limit`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitParseError {
    /// The text has no `=`, or a value is not a number.
    #[error("{text:?} is not of the form resource=soft:hard with numbers or `unlimited`")]
    Form {
        /// The text.
        text: String,
    },
    /// Unknown resource.
    #[error("there is no limit {name:?}; there are {}", known())]
    Resource {
        /// The name.
        name: String,
    },
    /// The soft limit exceeds the hard limit.
    #[error("{text:?}: the soft limit is above the hard one")]
    Order {
        /// The text.
        text: String,
    },
}

fn known() -> String {
    LimitedResource::ALL.iter().map(|resource| resource.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for Limit {
    type Err = LimitParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || LimitParseError::Form { text: text.to_owned() };
        let value = |word: &str| match word {
            "unlimited" => Ok(Self::UNLIMITED),
            number => number.parse().map_err(|_| form()),
        };
        let (name, values) = text.split_once('=').ok_or_else(form)?;
        let (soft, hard) = values.split_once(':').unwrap_or((values, values));
        let limit = Self { resource: name.parse()?, soft: value(soft)?, hard: value(hard)? };
        if limit.soft > limit.hard {
            return Err(LimitParseError::Order { text: text.to_owned() });
        }
        Ok(limit)
    }
}

/// Raises this process's soft limit on descriptors to the hard limit, and returns the previous limit.
///
/// A rank uses up to five descriptors, so the common limit of 1,024 allows about 200 ranks. Ranks should get the
/// previous soft limit: programs that use `select(2)` rely on it.
///
/// # Errors
/// Fails if the system call fails.
pub fn raise_descriptor_limit() -> nix::Result<Limit> {
    let limit = LimitedResource::Nofile.limit()?;
    if limit.soft < limit.hard {
        setrlimit(Resource::RLIMIT_NOFILE, limit.hard, limit.hard)?;
    }
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_limit_is_read_as_it_was_written_and_never_with_the_soft_value_above_the_hard(
            which in 0..LimitedResource::ALL.len(), soft: u64, hard: u64,
        ) {
            let resource = LimitedResource::ALL[which];
            let read = format!("{resource}={soft}:{hard}").parse::<Limit>();
            if soft <= hard {
                prop_assert_eq!(read, Ok(Limit { resource, soft, hard }));
            } else {
                prop_assert!(matches!(read, Err(LimitParseError::Order { .. })), "{:?}", read);
            }
            prop_assert_eq!(format!("{resource}={soft}").parse(), Ok(Limit { resource, soft, hard: soft }));
        }
    }

    #[test]
    fn limits_are_read_from_text() {
        let check = |text: &str, resource, soft, hard| {
            assert_eq!(text.parse(), Ok(Limit { resource, soft, hard }), "{text}");
        };
        check("nofile=1024:4096", LimitedResource::Nofile, 1024, 4096);
        check("core=0", LimitedResource::Core, 0, 0);
        check("memlock=unlimited", LimitedResource::Memlock, Limit::UNLIMITED, Limit::UNLIMITED);
        check("stack=8388608:unlimited", LimitedResource::Stack, 8_388_608, Limit::UNLIMITED);
        check("NOFILE=7", LimitedResource::Nofile, 7, 7);
        for &resource in LimitedResource::ALL {
            assert_eq!(resource.to_string().parse(), Ok(resource));
        }
    }

    #[test]
    fn a_wrong_limit_is_explained() {
        let check = |text: &str, expected: &str| {
            assert_eq!(text.parse::<Limit>().unwrap_err().to_string(), expected);
        };
        check("nofile", r#""nofile" is not of the form resource=soft:hard with numbers or `unlimited`"#);
        check("nofile=-1", r#""nofile=-1" is not of the form resource=soft:hard with numbers or `unlimited`"#);
        check("nofile=2:1", r#""nofile=2:1": the soft limit is above the hard one"#);
        let names = "as, core, cpu, data, fsize, memlock, nofile, nproc, rss, stack";
        check("files=1", &format!(r#"there is no limit "files"; there are {names}"#));
    }
}
