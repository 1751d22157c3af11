//! Entry points of the fuzz targets in `fuzz/`, as plain functions. They accept any bytes, and panic if a guarantee is broken.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use crate::{CpuBind, CpuSet, Limit};

pub use crate::fork_server::fuzzing::fork_server_packet;

/// A text of a launch request is a CPU set, a binding, a limit, or an error. A parsed value prints as a text that parses to the
/// same value.
pub fn text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    round_trip::<CpuSet>(&text);
    round_trip::<CpuBind>(&text);
    if let Ok(limit) = text.parse::<Limit>() {
        assert!(limit.soft <= limit.hard, "{limit:?}");
    }
}

fn round_trip<T: FromStr + Display + PartialEq + Debug>(text: &str)
where
    T::Err: Display,
{
    match text.parse::<T>() {
        Ok(value) => {
            let printed = value.to_string();
            let again = printed.parse::<T>().unwrap_or_else(|error| panic!("{printed}: {error}"));
            assert_eq!(again, value, "{printed}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
