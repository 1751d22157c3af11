//! Names of several launches: the source of a name for a lookup, if the process's own launch does not have the name.
//!
//! ```text
//!  own launch has the name ──> that one
//!  other launches have it ──> a launch is left out if a nearer one runs the program as well, and so publishes its own name
//!                              ──> the nearest of the rest, by the nearest common ancestor of both launchers
//! ```
//! A program with other arguments may have another role. Its name is found after a delay, unless the publishing launch also looks for the name.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use lattice_overlay::directory::Kin;
use pmi_core::ids::Rank;
use pmi_core::job::Job;
use pmi_core::services::{NameError, Names, Program};
use ring::digest::{Context, SHA256};

use crate::spec::AppSpec;

/// Maximum number of ancestors of a launcher that are compared.
pub const ANCESTORS_MAX: usize = 32;
/// Maximum number of programs of a launch that are compared.
const PROGRAMS_MAX: usize = 256;
/// Delay before a doubtful name of another launch is found, after the first lookup that could find it.
pub const DOUBT: Duration = Duration::from_secs(3);
/// Maximum number of lookups that are stored for a launch, and of its doubts.
const REMEMBERED_MAX: usize = 16_384;

/// Returns the program in the form that is compared between launches.
pub fn program(app: &AppSpec) -> Program {
    let path = Path::new(&app.program);
    let name = path.file_name().unwrap_or(&app.program);
    // A path without a slash is searched in PATH, independent of the launch's directory.
    let is_relative = path.is_relative() && app.program.as_bytes().contains(&b'/');
    let directory = if is_relative { app.directory.as_os_str() } else { OsStr::new("") };
    let words = [directory, &app.program].into_iter().chain(app.args.iter().map(AsRef::as_ref));
    Program { name: hash([name]), line: hash(words) }
}

/// Programs and ancestors of a launch.
pub fn kin<'a>(apps: impl IntoIterator<Item = &'a AppSpec>, ancestors: &[u64]) -> Kin {
    let mut programs: Vec<(u64, u64)> = Vec::new();
    for Program { name, line } in apps.into_iter().take(PROGRAMS_MAX).map(program) {
        if !programs.contains(&(name, line)) {
            programs.push((name, line));
        }
    }
    Kin { ancestors: ancestors.to_vec(), programs }
}

/// Returns the program of a rank of a launched job. For a spawned job, returns the first program of the launch.
pub fn program_of(job: &Job, is_launched: bool, apps: &[AppSpec], rank: Rank) -> Program {
    let index = if is_launched { job.app_index(rank).unwrap_or_default() } else { 0 };
    apps.get(index).map(program).unwrap_or_default()
}

/// Hash of texts.
pub fn hash<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> u64 {
    let mut digest = Context::new(&SHA256);
    for word in words {
        digest.update(&(word.len() as u64).to_le_bytes());
        digest.update(word.as_bytes());
    }
    let digest = digest.finish();
    digest.as_ref().iter().take(8).fold(0, |hash, &byte| (hash << 8) | u64::from(byte))
}

fn hash_of(service: &[u8]) -> u64 {
    hash([OsStr::from_bytes(service)])
}

/// A name of another launch that a lookup may find.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The launch.
    pub launch: &'a str,
    /// Its programs and ancestors.
    pub kin: &'a Kin,
    /// Program of the publisher.
    pub program: Program,
    /// True if ranks of the launch look for the name too.
    pub sought: bool,
}

/// Result of a lookup, as the position of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// No candidate.
    None,
    /// This candidate.
    Found(usize),
    /// This candidate, unless the own launch publishes the name: it runs the program with other arguments.
    Doubtful(usize),
    /// One of several launches, which is ambiguous.
    Ambiguous(Vec<String>),
}

/// Similarity of a launch's programs to one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Likeness {
    Other,
    /// The program, with other arguments.
    Alike,
    /// The program, with the same arguments.
    Same,
}

fn likeness(kin: &Kin, program: Program) -> Likeness {
    let of = |&(name, line): &(u64, u64)| match (name == program.name, line == program.line) {
        (true, true) => Likeness::Same,
        (true, false) => Likeness::Alike,
        (false, _) => Likeness::Other,
    };
    kin.programs.iter().map(of).max().unwrap_or(Likeness::Other)
}

/// Selects one of the names that other launches have published. `others` are all other live launches of the user.
pub fn choose(own: &Kin, others: &[(&str, &Kin)], candidates: &[Candidate<'_>]) -> Choice {
    let distance = |kin: &Kin| own.ancestors.iter().position(|process| kin.ancestors.contains(process));
    let distance = |kin: &Kin| distance(kin).unwrap_or(usize::MAX);
    let mut nearest: Vec<(usize, usize, bool)> = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        let far = distance(candidate.kin);
        let nearer = others.iter().filter(|(id, kin)| *id != candidate.launch && distance(kin) < far);
        let of_own = likeness(own, candidate.program);
        let of_nearer = nearer.map(|(_, kin)| likeness(kin, candidate.program)).max().unwrap_or(Likeness::Other);
        let is_left_out = of_own.max(of_nearer) == Likeness::Same || of_own == Likeness::Alike && candidate.sought;
        if !is_left_out && nearest.first().is_none_or(|&(_, least, _)| far <= least) {
            nearest.retain(|&(_, least, _)| least == far);
            nearest.push((index, far, of_own.max(of_nearer) == Likeness::Alike));
        }
    }
    let Some(&(index, far, doubtful)) = nearest.first() else { return Choice::None };
    let chosen = &candidates[index];
    let offer = |id: &str| candidates.iter().any(|candidate| candidate.launch == id);
    let twins = others
        .iter()
        .filter(|(id, kin)| !offer(id) && distance(kin) == far && likeness(kin, chosen.program) == Likeness::Same);
    let rivals = nearest.iter().map(|&(index, ..)| candidates[index].launch).chain(twins.map(|&(id, _)| id));
    let mut rivals: Vec<String> = rivals.map(str::to_owned).collect();
    if rivals.len() > 1 {
        rivals.sort_unstable();
        return Choice::Ambiguous(rivals);
    }
    if doubtful { Choice::Doubtful(index) } else { Choice::Found(index) }
}

/// The names of a launch, and the history of its lookups.
#[derive(Debug, Default)]
pub struct LaunchNames {
    /// Its names.
    pub table: Names,
    /// Hashes of the names that its ranks have looked up.
    sought: HashSet<u64>,
    /// First time at which a doubtful name of another launch was seen, by the hash of the name and by launch.
    doubts: HashMap<(u64, String), Instant>,
    /// Launches with names that were found.
    trusted: HashSet<String>,
}

/// Result of a lookup in other launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The candidate at this position.
    Found(usize),
    /// The candidate is found at this time, unless the candidates change before.
    Later(Instant),
}

impl LaunchNames {
    /// Records that ranks look for a name. Returns true if the name is new.
    pub fn seek(&mut self, service: &[u8]) -> bool {
        self.sought.len() < REMEMBERED_MAX && self.sought.insert(hash_of(service))
    }

    /// Returns true if ranks of the launch have looked up a name.
    pub fn has_sought(&self, service: &[u8]) -> bool {
        // A launch with this many lookups is assumed to look for all names.
        self.sought.len() >= REMEMBERED_MAX || self.sought.contains(&hash_of(service))
    }

    /// Evaluates a choice among candidates of these launches.
    ///
    /// # Errors
    /// Fails with [`NameError::NotFound`] if no name is found, and with [`NameError::Ambiguous`] if several launches have it.
    pub fn decide(
        &mut self,
        service: &[u8],
        choice: Choice,
        launches: &[impl AsRef<str>],
        now: Instant,
    ) -> Result<Outcome, NameError> {
        let found = match choice {
            Choice::None => return Err(NameError::NotFound),
            Choice::Ambiguous(launches) => return Err(NameError::Ambiguous { launches }),
            Choice::Found(index) => index,
            Choice::Doubtful(index) => {
                let launch = launches[index].as_ref();
                if self.doubts.len() >= REMEMBERED_MAX {
                    self.doubts.clear();
                }
                let first = *self.doubts.entry((hash_of(service), launch.to_owned())).or_insert(now);
                if !self.trusted.contains(launch) && now < first + DOUBT {
                    return Ok(Outcome::Later(first + DOUBT));
                }
                index
            }
        };
        if self.trusted.len() < REMEMBERED_MAX {
            self.trusted.insert(launches[found].as_ref().to_owned());
        }
        Ok(Outcome::Found(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: (u64, u64) = (1, 10);
    const OTHER_SERVER: (u64, u64) = (1, 11);
    const CLIENT: (u64, u64) = (2, 20);
    const OTHER_CLIENT: (u64, u64) = (2, 21);

    fn launch(ancestors: &[u64], programs: &[(u64, u64)]) -> Kin {
        Kin { ancestors: ancestors.to_vec(), programs: programs.to_vec() }
    }

    /// Checks the choice of a lookup among these live launches. A mark means that the launch has published the name: `p` plainly, `s` if it
    /// also looks for the name.
    fn check(case: &str, own: &Kin, others: &[(&str, Kin, char)], expected: Choice) {
        let launches: Vec<(&str, &Kin)> = others.iter().map(|(id, kin, _)| (*id, kin)).collect();
        let candidates: Vec<Candidate<'_>> = others
            .iter()
            .filter(|(_, _, mark)| *mark != ' ')
            .map(|(launch, kin, mark)| {
                let (name, line) = kin.programs[0];
                Candidate { launch, kin, program: Program { name, line }, sought: *mark == 's' }
            })
            .collect();
        assert_eq!(choose(own, &launches, &candidates), expected, "{case}");
    }

    #[test]
    fn a_lookup_finds_the_server_of_its_own_program_and_no_other() {
        use Choice::{Ambiguous, Doubtful, Found, None};
        let (shell, script, other_script) = (100, &[200, 100][..], &[300, 100][..]);
        let client = |ancestors: &[u64]| launch(ancestors, &[CLIENT]);
        let server = |ancestors: &[u64]| launch(ancestors, &[SERVER]);
        let both = launch(&[shell], &[SERVER, CLIENT]);
        check("no other launch", &client(script), &[], None);
        check("a server of the shell", &client(&[shell]), &[("a", server(&[shell]), 'p')], Found(0));
        check("a server from elsewhere", &client(&[shell]), &[("a", server(&[7]), 'p')], Found(0));
        check("a copy of a launch of both", &both, &[("a", both.clone(), 'p')], None);
        check("a copy that looks itself", &both, &[("a", both.clone(), 's')], None);
        let of_both_scripts = |mark| [("a", server(script), mark), ("b", server(other_script), 'p')];
        check("the server of the script", &client(script), &of_both_scripts('p'), Found(0));
        check("before that has published", &client(script), &of_both_scripts(' '), None);
        check("for the other one", &client(other_script), &of_both_scripts(' '), Found(0));
        let twice = [("a", server(&[shell]), 'p'), ("b", server(&[shell]), 'p')];
        check("two servers of one shell", &client(&[shell]), &twice, Ambiguous(vec!["a".into(), "b".into()]));
        let soon = [("a", server(&[shell]), 'p'), ("b", server(&[shell]), ' ')];
        check("of which one has published", &client(&[shell]), &soon, Ambiguous(vec!["a".into(), "b".into()]));
        let (host, guest) = (launch(&[shell], &[SERVER]), launch(&[shell], &[OTHER_SERVER]));
        check("one program in two roles", &guest, &[("a", host.clone(), 'p')], Doubtful(0));
        check("that looks for it itself", &guest, &[("a", host.clone(), 's')], None);
        let nearer = [("a", launch(script, &[OTHER_SERVER]), ' '), ("b", server(&[shell]), 'p')];
        check("a nearer server with other arguments", &client(script), &nearer, Doubtful(0));
        let clients = [("a", launch(script, &[OTHER_CLIENT]), ' '), ("b", server(&[shell]), 'p')];
        check("a nearer client", &client(script), &clients, Found(0));
        let unrelated = [("a", server(&[8]), 'p'), ("b", server(&[9]), 'p')];
        check("two of elsewhere", &client(script), &unrelated, Ambiguous(vec!["a".into(), "b".into()]));
    }

    #[test]
    fn a_doubtful_name_is_found_after_a_delay_and_its_launch_is_known_then() {
        let mut names = LaunchNames::default();
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let mut decide =
            |service: &'static str, at| names.decide(service.as_bytes(), Choice::Doubtful(0), &["a"], begin + at);
        assert_eq!(decide("x", Duration::ZERO), Ok(Outcome::Later(begin + DOUBT)));
        assert_eq!(decide("y", second), Ok(Outcome::Later(begin + second + DOUBT)));
        assert_eq!(decide("x", second), Ok(Outcome::Later(begin + DOUBT)));
        assert_eq!(decide("x", DOUBT), Ok(Outcome::Found(0)));
        assert_eq!(decide("y", DOUBT), Ok(Outcome::Found(0)));
        assert_eq!(decide("z", DOUBT), Ok(Outcome::Found(0)));
    }

    #[test]
    fn programs_are_compared_by_path_and_arguments() {
        let app = |program: &str, args: &[&str], directory: &str| AppSpec {
            program: program.into(),
            args: args.iter().map(Into::into).collect(),
            directory: directory.into(),
            set: Vec::new(),
            remove: Vec::new(),
            process_set: None,
        };
        let one = program(&app("./server", &["in"], "/run"));
        assert_eq!(program(&app("./server", &["in"], "/run")), one);
        for other in
            [app("./server", &["in"], "/other"), app("/bin/server", &["in"], "/run"), app("./server", &[], "/run")]
        {
            let other = program(&other);
            assert!(other.name == one.name && other.line != one.line, "{other:?}");
        }
        assert_ne!(program(&app("./client", &["in"], "/run")).name, one.name);
        assert_eq!(program(&app("server", &[], "/run")), program(&app("server", &[], "/other")));
    }
}
