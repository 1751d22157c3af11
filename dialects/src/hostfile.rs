//! `--hostfile` and `--host`: nodes to fill, in their order, with the number of ranks of each node, if given.
//!
//! ```text
//! # Open MPI's form, MPICH's form, and a host without a number, which has a slot for each of its cores
//! node0 slots=4
//! node1:4
//! node2
//! ```
//!
//! A missing number remains `None` in [`Hosts`] until the cores of the node are known. Only `Hosts::counted` fills it in.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{fs, io};

use hostlist::{HostLine, HostfileFault, HostlistError};
use lattice_console::bounded_file;
use lattice_session::request::HostSlots;

/// Maximum size of a hostfile in bytes: room for half a million nodes.
const BYTES_MAX: u64 = 16 << 20;

/// Refusal of a hostfile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostfileError {
    /// The file cannot be read.
    #[error("cannot read the hostfile {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The slots in a line are not a number of ranks.
    #[error("{}, line {line}: the slots of {node} are {slots:?}\ntry: {node} slots=N, with N from 1 up", path.display())]
    Slots {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The host.
        node: String,
        /// Text in place of the number.
        slots: String,
    },
    /// A line has no valid form.
    #[error("{}, line {line}: {text:?} is none of HOST slots=N, HOST:N and HOST\ntry: node0 slots=4, for example", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// Text of the line, without its comment.
        text: String,
    },
    /// The file names no host.
    #[error("the hostfile {} names no host", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// Reads the hostfile at `path`.
///
/// # Errors
/// Fails if the file cannot be read, names no host, or has a line without one of the forms above.
pub fn read(path: &Path) -> Result<Hosts, HostfileError> {
    let failed = |source| HostfileError::Read { path: path.to_owned(), source };
    let text = text(path).map_err(failed)?;
    parse(&text, path)
}

/// Number of slots of all hosts.
pub fn slots_of(hosts: &[HostSlots]) -> u64 {
    hosts.iter().map(|host| u64::from(host.slots.get())).sum()
}

/// Adds slots to hosts for ranks that share them: the same number to each host, as with `--oversubscribe` of Open MPI 4.1 and 5.
pub fn add_slots(hosts: &mut [HostSlots], ranks: u64) {
    let more = ranks.saturating_sub(slots_of(hosts)).div_ceil(hosts.len().max(1) as u64);
    let more = u32::try_from(more).unwrap_or(u32::MAX);
    hosts.iter_mut().for_each(|host| host.slots = host.slots.saturating_add(more));
}

/// Texts of pipes. A pipe from `<(...)` of a shell can be read once, but a line of `mpiexec` is examined before its launch reads the hosts.
static OF_PIPES: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());

fn text(path: &Path) -> io::Result<String> {
    if !fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo()) {
        return bounded_file::text(path, BYTES_MAX);
    }
    let mut read = OF_PIPES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = read.get(path) {
        return Ok(text.clone());
    }
    let text = bounded_file::text(path, BYTES_MAX)?;
    read.insert(path.to_owned(), text.clone());
    Ok(text)
}

fn parse(text: &str, path: &Path) -> Result<Hosts, HostfileError> {
    let wrong = |HostfileFault { line, text, slots }: HostfileFault| match slots {
        Some((node, slots)) => HostfileError::Slots { path: path.to_owned(), line, node, slots },
        None => HostfileError::Line { path: path.to_owned(), line, text },
    };
    let hosts = hostlist::hostfile(text).map_err(wrong)?;
    if hosts.is_empty() { Err(HostfileError::Empty { path: path.to_owned() }) } else { Ok(Hosts(hosts)) }
}

/// Hosts of a hostfile or of `--host`, each with its number of slots if one is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(pub Vec<HostLine>);

impl Hosts {
    /// True if each line is a slot, as in lists of schedulers: a name without a number occurs several times.
    pub fn is_list_of_slots(&self) -> bool {
        let times = self.times();
        self.0.iter().any(|host| host.slots.is_none() && times[host.name.as_str()] > 1)
    }

    /// Number of occurrences of each name.
    pub fn times(&self) -> HashMap<&str, usize> {
        let mut times = HashMap::new();
        self.0.iter().for_each(|host| *times.entry(host.name.as_str()).or_default() += 1);
        times
    }

    /// True if the number of slots of each host is given, or follows from the list.
    pub fn is_counted(&self) -> bool {
        self.0.iter().all(|host| host.slots.is_some()) || self.is_list_of_slots()
    }

    /// The names, if each occurs once and none has a number of slots.
    pub fn bare_names(&self) -> Option<Vec<String>> {
        let is_bare = self.0.iter().all(|host| host.slots.is_none()) && !self.is_list_of_slots();
        is_bare.then(|| self.names())
    }

    /// The names in their order.
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|host| host.name.clone()).collect()
    }

    /// The hosts, with one slot for each name without a number.
    pub fn one_by_name(&self) -> Vec<HostSlots> {
        let slots = |host: &HostLine| host.slots.unwrap_or(NonZeroU32::MIN);
        self.0.iter().map(|host| HostSlots { node: host.name.clone(), slots: slots(host) }).collect()
    }

    /// The hosts with their slots. A name without a number gets `room` slots, or one slot in a [list of slots](Self::is_list_of_slots). A host
    /// without room is omitted.
    ///
    /// # Errors
    /// Fails if `room` fails.
    pub fn counted<E>(&self, room: impl Fn(&str) -> Result<Option<NonZeroU32>, E>) -> Result<Vec<HostSlots>, E> {
        let is_list = self.is_list_of_slots();
        let slots = |host: &HostLine| match host.slots {
            None if !is_list => room(&host.name),
            slots => Ok(Some(slots.unwrap_or(NonZeroU32::MIN))),
        };
        let with_slots = |host: &HostLine| {
            let slots = slots(host).transpose()?;
            Some(slots.map(|slots| HostSlots { node: host.name.clone(), slots }))
        };
        self.0.iter().filter_map(with_slots).collect()
    }
}

/// Refusal of a value of `--host`.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// A part has no valid form.
    #[error("{text:?} is none of HOST and HOST:N, with N from 1 up")]
    Form {
        /// The text.
        text: String,
    },
    /// The brackets cannot be parsed.
    #[error(transparent)]
    List(#[from] HostlistError),
}

/// Parses hosts with their slots: `node0:4,node1` or `node[0-3]:4`.
///
/// # Errors
/// Fails for a text that names no host, or has a part without a valid form.
pub fn parse_hosts(text: &str) -> Result<Hosts, HostsError> {
    let mut hosts = Vec::new();
    for part in hostlist::parts(text) {
        let wrong = || HostsError::Form { text: part.to_owned() };
        let (names, slots) = part.split_once(':').map_or((part, None), |(names, slots)| (names, Some(slots)));
        let slots: Option<NonZeroU32> = slots.map(|slots| slots.parse().map_err(|_| wrong())).transpose()?;
        let nodes = hostlist::expand(names)?;
        if nodes.is_empty() {
            return Err(wrong());
        }
        hosts.extend(nodes.into_iter().map(|name| HostLine { name, slots }));
    }
    Ok(Hosts(hosts))
}

#[cfg(test)]
mod tests {
    const EXAMPLE: &str = "\ntry: node0 slots=4, for example";
    use super::*;

    fn parsed(text: &str) -> Result<Hosts, String> {
        parse(text, Path::new("hosts")).map_err(|error| error.to_string())
    }

    /// Names with their numbers of slots; 0 if no number is given.
    fn seen(hosts: &Hosts) -> Vec<(&str, u32)> {
        hosts.0.iter().map(|host| (host.name.as_str(), host.slots.map_or(0, NonZeroU32::get))).collect()
    }

    #[test]
    fn what_has_no_end_is_no_hostfile() {
        let error = read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(error, "cannot read the hostfile /dev/zero: it has more than 16777216 bytes");
    }

    #[test]
    fn every_form_of_line_is_read_in_order() {
        let text = "# all nodes\n\nnode1 slots=4\n node0:2 # slow\nnode2\nnode1:1\n";
        assert_eq!(seen(&parsed(text).unwrap()), [("node1", 4), ("node0", 2), ("node2", 0), ("node1", 1)]);
    }

    #[test]
    fn other_lines_are_refused_with_their_number() {
        for wrong in ["a b", "a slots=1 cpu=2", ":3", "a:1:2", "a[0-3]"] {
            let error = parsed(&format!("node0\n{wrong}")).unwrap_err();
            assert_eq!(error, format!("hosts, line 2: {wrong:?} is none of HOST slots=N, HOST:N and HOST{EXAMPLE}"));
        }
        for (wrong, slots) in [("a:0", "0"), ("a:x", "x"), ("a slots=", ""), ("a slots=x", "x")] {
            let error = parsed(&format!("node0\n{wrong}")).unwrap_err();
            let expected = format!("hosts, line 2: the slots of a are {slots:?}\ntry: a slots=N, with N from 1 up");
            assert_eq!(error, expected, "{wrong}");
        }
        assert_eq!(parsed("# nobody\n"), Err("the hostfile hosts names no host".to_owned()));
        let error = read(Path::new("/nonexistent/hosts")).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }

    #[test]
    fn a_pipe_can_be_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let writing = std::thread::spawn({
            let path = path.clone();
            move || fs::write(path, "node1:2\n")
        });
        let hosts = [("node1", 2)];
        assert_eq!(seen(&read(&path).unwrap()), hosts);
        writing.join().unwrap().unwrap();
        assert_eq!(seen(&read(&path).unwrap()), hosts);
    }

    /// Hostfiles of other launchers.
    #[test]
    fn files_of_other_launchers_are_read_as_far_as_they_mean_the_same() {
        let check = |text: &str, expected: &[(&str, u32)]| {
            let hosts = parsed(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(seen(&hosts), expected, "{text}");
        };
        // Open MPI
        check("node0 slots=4\nnode1 slots=4\n", &[("node0", 4), ("node1", 4)]);
        check("node0 slots=2 max_slots=4\nnode1 slots=3 max-slots=3\n", &[("node0", 2), ("node1", 3)]);
        check("node0 max_slots=4 slots=2\nnode1 max-slots=4\n", &[("node0", 2), ("node1", 0)]);
        check("# cluster\nnode0.site slots=2 # slow\n\n\tnode1\tslots=3\n", &[("node0.site", 2), ("node1", 3)]);
        // MPICH and Intel MPI
        check("node0:4\nnode1:2\n", &[("node0", 4), ("node1", 2)]);
        check("node0\nnode1\n", &[("node0", 0), ("node1", 0)]);
        // Slurm's `scontrol show hostnames`, `srun hostname`: a name for each rank
        check("node0\nnode0\nnode1", &[("node0", 0), ("node0", 0), ("node1", 0)]);
        // PBS_NODEFILE with the line ends of another system
        check("node0\r\nnode1\r\n", &[("node0", 0), ("node1", 0)]);
        check("10.0.0.1:2\n", &[("10.0.0.1", 2)]);
    }

    #[test]
    fn what_another_launcher_would_do_and_this_one_does_not_is_refused_by_its_line() {
        for text in [
            "node0 cpu=4",
            "node0:2 binding=user:0,1",
            "node0:2:4",
            "node[0-3]:2",
            "node0,node1",
            "[fd00::7]:2",
            "slots=4",
        ] {
            let error = parsed(&format!("# first\nnode9\n{text}\n")).unwrap_err();
            assert_eq!(error, format!("hosts, line 3: {text:?} is none of HOST slots=N, HOST:N and HOST{EXAMPLE}"));
        }
    }

    #[test]
    fn slots_are_a_number_of_ranks() {
        for slots in ["0", "-1", "4.5", "4294967296", "0x4", "many"] {
            for text in [format!("node0 slots={slots}"), format!("node0:{slots}")] {
                let error = parsed(&text).unwrap_err();
                let expected =
                    format!("hosts, line 1: the slots of node0 are {slots:?}\ntry: node0 slots=N, with N from 1 up");
                assert_eq!(error, expected);
            }
        }
        assert_eq!(seen(&parsed("node0:4294967295").unwrap()), [("node0", u32::MAX)]);
    }

    #[test]
    fn hosts_of_a_line_have_the_slots_that_it_gives() {
        let check = |text: &str, expected: &[(&str, u32)]| {
            assert_eq!(seen(&parse_hosts(text).unwrap()), expected, "{text}");
        };
        check("a", &[("a", 0)]);
        check("a:2,b", &[("a", 2), ("b", 0)]);
        check("b,a,b", &[("b", 0), ("a", 0), ("b", 0)]);
        check("n[0,2-3]:4,m", &[("n0", 4), ("n2", 4), ("n3", 4), ("m", 0)]);
        for text in ["", "a,", ",a", "a:0", "a:x", "a:1:2", ":3", "n[0-1", "a b:x"] {
            assert!(parse_hosts(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_name_without_a_number_has_its_cores_or_a_slot_for_each_line_of_a_list() {
        let check = |text: &str, expected: &[(&str, u32)]| {
            let hosts = parse_hosts(text).unwrap();
            let counted = hosts.counted(|name| Ok::<_, ()>(NonZeroU32::new(if name == "gone" { 0 } else { 2 })));
            let counted = counted.unwrap();
            let seen: Vec<_> = counted.iter().map(|host| (host.node.as_str(), host.slots.get())).collect();
            assert_eq!(seen, expected, "{text}");
            assert_eq!(hosts.is_counted(), hosts.counted(|_| Err(())).is_ok(), "{text}");
        };
        check("a,b", &[("a", 2), ("b", 2)]);
        check("a:3,b", &[("a", 3), ("b", 2)]);
        check("a,a,a,b", &[("a", 1), ("a", 1), ("a", 1), ("b", 1)]);
        check("a:1,a:1,b", &[("a", 1), ("a", 1), ("b", 2)]);
        check("a:4,a", &[("a", 4), ("a", 1)]);
        check("a:1,b:5", &[("a", 1), ("b", 5)]);
        check("gone,a", &[("a", 2)]);
    }

    #[test]
    fn bytes_that_are_no_text_are_no_hostfile() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"node\xff").unwrap();
        let error = read(file.path()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot read the hostfile {}: ", file.path().display())), "{error}");
        assert!(matches!(read(Path::new("/")), Err(HostfileError::Read { .. })));
    }

    proptest::proptest! {
        #[test]
        fn every_host_of_a_file_is_read_in_its_order(hosts in proptest::collection::vec(("[a-z][a-z0-9.-]{0,8}", 1_u32..1000, 0..3), 1..20)) {
            let line = |(name, slots, form): &(String, u32, i32)| match form {
                0 => format!("{name} slots={slots}"),
                1 => format!("{name}:{slots}"),
                _ => format!("  {name}:{slots}\t# {name}"),
            };
            let text: Vec<String> = hosts.iter().map(line).collect();
            let read = parsed(&text.join("\n")).unwrap();
            let expected: Vec<_> = hosts.iter().map(|(name, slots, _)| (name.as_str(), *slots)).collect();
            proptest::prop_assert_eq!(seen(&read), expected);
        }

        #[test]
        fn no_bytes_of_a_file_panic(text in ".{0,60}") {
            let _ = parsed(&text);
        }
    }
}
