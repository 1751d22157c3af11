//! Cores of a node, numbered among the cores that a launch may use. Rankfiles and lists of cores use these numbers.

use std::fmt;
use std::str::FromStr;

use lattice_inventory::{CpuSet, UsableCore, UsableCores};

/// Cores of one rank.
///
/// As text, parts that are joined by `+`:
///
/// ```text
/// *        all cores                     3, 2-5      cores by their numbers, from 0
/// 1/*      all cores of socket 1         1/0, 1/2-3  cores of socket 1, from 0 on each socket
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreSet(Vec<Part>);

/// Range of consecutive cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    /// Socket on which the cores are counted; `None` to count on the whole node.
    socket: Option<u16>,
    /// First and last core; `None` for all.
    cores: Option<(u16, u16)>,
}

/// Error for a text that is not a [`CoreSet`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{text:?} names no cores; possible are CORE, FIRST-LAST and *, after SOCKET/ those of a socket, and several joined by +"
)]
pub struct CoreSetParseError {
    /// The text.
    pub text: String,
}

impl FromStr for CoreSet {
    type Err = CoreSetParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split('+').map(part).collect::<Option<_>>();
        parts.map(Self).ok_or_else(|| CoreSetParseError { text: text.to_owned() })
    }
}

fn part(text: &str) -> Option<Part> {
    let (socket, cores) = match text.split_once('/') {
        Some((socket, cores)) => (Some(socket.parse().ok()?), cores),
        None => (None, text),
    };
    if cores == "*" {
        return Some(Part { socket, cores: None });
    }
    let (first, last) = cores.split_once('-').unwrap_or((cores, cores));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some(Part { socket, cores: Some((first, last)) })
}

impl fmt::Display for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Part { socket, cores }) in self.0.iter().enumerate() {
            f.write_str(if index > 0 { "+" } else { "" })?;
            if let Some(socket) = socket {
                write!(f, "{socket}/")?;
            }
            match cores {
                None => f.write_str("*")?,
                Some((first, last)) if first == last => write!(f, "{first}")?,
                Some((first, last)) => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl CoreSet {
    /// CPUs of these cores; `None` if a core does not exist.
    pub(super) fn cpus(&self, usable: &UsableCores) -> Option<CpuSet> {
        let mut cpus = CpuSet::default();
        for part in &self.0 {
            let cores = part.of(usable.cores())?;
            cores.iter().for_each(|core| cpus.add(&core.cpus));
        }
        Some(cpus)
    }
}

impl Part {
    fn of(self, cores: &[UsableCore]) -> Option<&[UsableCore]> {
        let cores = match self.socket {
            Some(socket) => cores.chunk_by(|one, other| one.package == other.package).nth(socket.into())?,
            None => cores,
        };
        match self.cores {
            Some((first, last)) => cores.get(first.into()..=last.into()),
            None => Some(cores).filter(|cores| !cores.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_cores_are_written_as_they_are_read() {
        for text in ["0", "3-5", "*", "1/0", "1/2-3", "0/*", "0+2+4-5", "0/1+1/0"] {
            assert_eq!(text.parse::<CoreSet>().unwrap().to_string(), text);
        }
        assert_eq!("2-2".parse::<CoreSet>().unwrap().to_string(), "2");
        for text in ["", "+", "1+", "x", "3-1", "1:0", "/0", "0/", "1/x", "0-", "70000"] {
            let refused = text.parse::<CoreSet>().unwrap_err().to_string();
            assert!(refused.starts_with(&format!("{text:?} names no cores")), "{refused}");
        }
    }
}
