//! `--rankfile`: host and cores of each rank, in the form of Open MPI's mpirun.
//!
//! ```text
//! rank 0=node0 slot=0          # core 0 of the usable cores
//! rank 1=node0 slot=1:0-2      # the first three cores of socket 1
//! rank 2=node1 slot=0,4-5      # or `0:*` for all cores of socket 0; sockets are separated by `;`
//! rank 3=node1                 # all usable cores
//! ```

use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use lattice_console::bounded_file;
use lattice_session::request::{Candidates, HostSlots};
use rank_spawner::{CoreSet, CpuBind};

/// Maximum size of a rankfile in bytes: room for about 200,000 ranks.
const BYTES_MAX: u64 = 8 << 20;

/// Refusal of a rankfile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RankfileError {
    /// The file cannot be read.
    #[error("cannot read the rankfile {}: {source}\ntry: the path of a file with lines such as rank 0=HOST slot=0", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A line has no valid form.
    #[error("{}, line {line}: {text:?} is not `rank N=HOST slot=CORES`, with CORES such as 0, 0-2,5 or SOCKET:CORES\ntry: a line such as: rank 0=node0 slot=0-1", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// Text of the line, without its comment.
        text: String,
    },
    /// A host is given by its index in the allocation.
    #[error("{}, line {line}: {host} is no name of a host\ntry: the host's name; lattice alloc list shows the nodes", path.display())]
    Relative {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// Text in place of the host.
        host: String,
    },
    /// A rank has several lines, or a rank before the last one has no line.
    #[error("{}: rank {rank} has {lines} lines\ntry: one line for each rank from 0 to the last one", path.display())]
    Ranks {
        /// The file.
        path: PathBuf,
        /// The rank.
        rank: usize,
        /// Number of its lines.
        lines: usize,
    },
}

/// Places of the ranks, in rank order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rankfile {
    hosts: Vec<String>,
    cores: Vec<CoreSet>,
}

impl Rankfile {
    /// Reads the rankfile at `path`.
    pub(super) fn read(path: &Path) -> Result<Self, RankfileError> {
        let failed = |source| RankfileError::Read { path: path.to_owned(), source };
        Self::parse(&bounded_file::text(path, BYTES_MAX).map_err(failed)?, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, RankfileError> {
        let mut places = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let content = text.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let place = place(content);
            let place = place.ok_or_else(|| RankfileError::Line { path: path.into(), line, text: content.into() })?;
            if place.1.starts_with('+') {
                return Err(RankfileError::Relative { path: path.into(), line, host: place.1 });
            }
            places.push(place);
        }
        places.sort_by_key(|&(rank, ..)| rank);
        let ranks = places.last().map_or(0, |&(last, ..)| last);
        for rank in 0..=ranks {
            let found = places.iter().skip(rank).take_while(|place| place.0 == rank).count();
            if found != 1 {
                return Err(RankfileError::Ranks { path: path.into(), rank, lines: found });
            }
        }
        let (hosts, cores) = places.into_iter().map(|(_, host, cores)| (host, cores)).unzip();
        Ok(Self { hosts, cores })
    }

    /// Hosts, with one slot for each rank.
    pub(super) fn candidates(&self) -> Candidates {
        let slot = |node: &String| HostSlots { node: node.clone(), slots: NonZeroU32::MIN };
        Candidates::Hostfile(self.hosts.iter().map(slot).collect())
    }

    /// Cores of each rank.
    pub(super) fn binding(&self) -> CpuBind {
        CpuBind::RankCoreMap(self.cores.clone())
    }
}

/// Rank, host and cores of a line.
fn place(line: &str) -> Option<(usize, String, CoreSet)> {
    let rest = line.strip_prefix("rank")?.trim_start();
    let (rank, rest) = rest.split_once('=')?;
    let rank = rank.trim().parse().ok()?;
    let rest = rest.trim();
    let (host, behind) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let behind = behind.trim();
    let cores = match behind.strip_prefix("slots").or_else(|| behind.strip_prefix("slot")) {
        Some(slots) => cores(slots.trim_start().strip_prefix('=')?.trim())?,
        None if behind.is_empty() => "*".parse().ok()?,
        None => return None,
    };
    (!host.is_empty()).then(|| (rank, host.to_owned(), cores))
}

/// Parses cores in the form of a rankfile: `SOCKET:CORES` separated by `;`, or cores of the whole node.
fn cores(text: &str) -> Option<CoreSet> {
    let mut parts = Vec::new();
    for item in text.split(';') {
        match item.split_once(':') {
            Some((socket, cores)) => parts.extend(cores.split(',').map(|core| format!("{}/{core}", socket.trim()))),
            None => parts.extend(item.split(',').map(str::to_owned)),
        }
    }
    parts.join("+").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Rankfile, String> {
        Rankfile::parse(text, Path::new("ranks")).map_err(|error| error.to_string())
    }

    #[test]
    fn each_rank_has_its_host_and_cores() {
        let text = "# Open MPI's own example\nrank 1=bb slot=0:0,1\nrank 0=aa slot=1:0-2\n\nrank 2 = bb slots = 1-2\nrank 3=aa slot=0:*;1:0\nrank 4=cc";
        let rankfile = parsed(text).unwrap();
        assert_eq!(rankfile.hosts, ["aa", "bb", "bb", "aa", "cc"]);
        assert_eq!(rankfile.binding().to_string(), "rank-core-map:1/0-2,0/0+0/1,1-2,0/*+1/0,*");
        let Candidates::Hostfile(hosts) = rankfile.candidates() else { panic!("a hostfile") };
        assert!(hosts.iter().all(|host| host.slots == NonZeroU32::MIN));
    }

    #[test]
    fn other_lines_and_ranks_without_a_place_are_refused() {
        for wrong in
            ["node0", "rank=a slot=0", "rank x=a slot=0", "rank 0=a slot=", "rank 0=a slot=x", "rank 0=a core=1"]
        {
            let error = parsed(&format!("rank 0=a slot=0\n{wrong}")).unwrap_err();
            assert!(error.starts_with(&format!("ranks, line 2: {wrong:?} is not `rank N=HOST slot=CORES`")), "{error}");
        }
        let error = parsed("rank 0=+n1 slot=0").unwrap_err();
        assert!(error.starts_with("ranks, line 1: +n1 is no name of a host"), "{error}");
        let error = parsed("rank 0=a\nrank 2=a").unwrap_err();
        assert_eq!(error, "ranks: rank 1 has 0 lines\ntry: one line for each rank from 0 to the last one");
        assert!(parsed("rank 0=a\nrank 0=b").unwrap_err().contains("rank 0 has 2 lines"));
        assert!(parsed("# nobody\n").unwrap_err().contains("rank 0 has 0 lines"));
    }
}
