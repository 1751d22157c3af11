//! Hostfiles: hosts in their order, and how many ranks each takes, in the forms of Open MPI, MPICH and of lists of names.
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
    /// Number of ranks that it takes; `None` where the line does not say, which is one to MPICH, and one for each core to Open MPI.
    pub slots: Option<NonZeroU32>,
}

/// A line that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostfileFault {
    /// Its number, counted from 1.
    pub line: usize,
    /// Text of the line, without its comment.
    pub text: String,
    /// Host and text in place of its slots, if those alone are wrong.
    pub slots: Option<(String, String)>,
}

/// Reads the lines of a hostfile. Comments begin with `#`; Open MPI's `max_slots` says nothing.
///
/// # Errors
/// Returns the first line that is none of the forms.
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

/// The host that a line names, without its comment, and what stands there for its slots.
fn host(line: &str) -> Option<(&str, Option<&str>)> {
    // Open MPI's bound for ranks beyond the slots, of which there are none here.
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
