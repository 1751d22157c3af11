//! Hostfiles: hosts in order, with the number of ranks of each, in the forms of Open MPI and MPICH, and as lists of names.
//!
//! ```text
//! # Open MPI's form, MPICH's form, and a host without a number
//! node0 slots=4
//! node1:4
//! node2
//! ```

use std::num::NonZeroU32;

/// One line of a hostfile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLine {
    /// Name of the host.
    pub name: String,
    /// Number of ranks on the host; `None` if the line has none, which is one rank in MPICH, and one for each core in Open MPI.
    pub slots: Option<NonZeroU32>,
}

/// A line that is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostfileFault {
    /// Line number, from 1.
    pub line: usize,
    /// Text of the line, without its comment.
    pub text: String,
    /// The host, and the text in place of its slots, if only the slots are wrong.
    pub slots: Option<(String, String)>,
}

/// Reads the lines of a hostfile. Comments start with `#`; Open MPI's `max_slots` has no effect.
///
/// # Errors
/// Returns the first line that has none of the forms.
pub fn hostfile(text: &str) -> Result<Vec<HostLine>, HostfileFault> {
    let mut hosts = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let content = text.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            continue;
        }
        let fault = |slots| HostfileFault { line, text: content.to_owned(), slots };
        let (name, slots) = host(content).ok_or_else(|| fault(None))?;
        let count = |text: &str| text.parse().map_err(|_| fault(Some((name.to_owned(), text.to_owned()))));
        let slots = slots.map(count).transpose()?;
        hosts.push(HostLine { name: name.to_owned(), slots });
    }
    Ok(hosts)
}

/// The host in a line without its comment, and the text for its slots.
fn host(line: &str) -> Option<(&str, Option<&str>)> {
    // Open MPI's limit for ranks beyond the slots, which do not exist here.
    let is_bound = |word: &&str| ["max_slots=", "max-slots="].iter().any(|bound| word.starts_with(bound));
    let mut words = line.split_whitespace().filter(|word| !is_bound(word));
    let (name, slots) = match (words.next()?, words.next()) {
        (name, Some(slots)) => (name, Some(slots.strip_prefix("slots=")?)),
        (word, None) => word.split_once(':').map_or((word, None), |(name, slots)| (name, Some(slots))),
    };
    if words.next().is_some() {
        return None;
    }
    let plain = !name.is_empty()
        && !name.contains([':', '=', ',', '[', ']'])
        && !slots.is_some_and(|slots| slots.contains(':'));
    plain.then_some((name, slots))
}
