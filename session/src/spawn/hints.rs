//! Hints of a spawn, with the names of MPI 4.1 (11.8.4), Hydra, Open MPI and PMIx: directory of the program file, working directory, variables,
//! hosts of the ranks, and number of ranks per host. Unknown hints have no effect, as the standard requires.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::Read;
use std::num::NonZeroU32;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bytes::Bytes;
use hostlist::HostLine;
use nix::libc;
use pmi_core::services::{SpawnApp, SpawnRequest};
use rank_spawner::{CpuBind, Object};

use super::SpawnRefusal;
use crate::process_set::ProcessSetName;

/// Keys for hosts.
const HOSTS: [&[u8]; 5] = [b"host", b"hosts", b"add-host", b"pmix.host", b"pmix.addhost"];
/// Maximum number of hosts of a program.
const HOSTS_MAX: usize = 1 << 16;
/// Maximum number of ranks for a host.
const SLOTS_MAX: u32 = 1 << 20;

/// Requested host for ranks of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WishedHost {
    pub(super) name: String,
    /// Number of ranks that it gets before the next one is filled.
    pub(super) slots: u32,
}

/// Returns the hosts of a program's ranks, in their order: `node0:2,node1` or `node[0-3]`. Empty if the program names no host.
pub(super) fn hosts(app: &SpawnApp) -> Result<Vec<WishedHost>, SpawnRefusal> {
    let named = app.info.iter().filter(|(key, _)| HOSTS.contains(&&**key)).map(|(_, value)| value);
    let mut hosts = Vec::new();
    for value in named {
        let wrong = || SpawnRefusal::Hosts { text: String::from_utf8_lossy(value).into_owned() };
        let text = std::str::from_utf8(value).map_err(|_| wrong())?;
        for part in hostlist::parts(text) {
            let (names, slots) = part.split_once(':').unwrap_or((part, "1"));
            let slots = slots.parse().ok().filter(|slots| (1..=SLOTS_MAX).contains(slots)).ok_or_else(wrong)?;
            let names = hostlist::expand(names).ok().filter(|names| !names.is_empty()).ok_or_else(wrong)?;
            hosts.extend(names.into_iter().map(|name| WishedHost { name, slots }));
            if hosts.len() > HOSTS_MAX {
                return Err(wrong());
            }
        }
    }
    Ok(hosts)
}

/// Keys for files of hosts.
const HOSTFILES: [&[u8]; 4] = [b"hostfile", b"add-hostfile", b"pmix.hostfile", b"pmix.addhostfile"];
/// Maximum number of bytes of such a file.
const HOSTFILE_MAX: u64 = 1 << 20;

/// Returns true if a program of the request names its hosts by a file.
pub(crate) fn names_files(request: &SpawnRequest) -> bool {
    request.apps.iter().flat_map(|app| &app.info).any(|(key, _)| HOSTFILES.contains(&&**key))
}

/// Replaces files of hosts by their hosts. The files are read on the requesting rank's node, as its user. This may block.
///
/// # Errors
/// Refuses a file that cannot be read, and a file without a host.
pub(crate) fn hosts_of_files(request: &mut SpawnRequest, directory: &Path) -> Result<(), SpawnRefusal> {
    for (key, value) in request.apps.iter_mut().flat_map(|app| &mut app.info) {
        if HOSTFILES.contains(&&**key) {
            let path = Path::new(OsStr::from_bytes(value));
            let refused = |reason| SpawnRefusal::Hostfile { path: path.display().to_string(), reason };
            let hosts = hosts_of_file(&directory.join(path)).map_err(refused)?;
            (*key, *value) = (Bytes::from_static(b"host"), hosts.into());
        }
    }
    Ok(())
}

/// Returns the hosts of a file, in the form of a hint.
fn hosts_of_file(path: &Path) -> Result<String, String> {
    // The open or read of a special file could block, or have no end.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|error| error.to_string())?;
    if !file.metadata().is_ok_and(|file| file.is_file()) {
        return Err("it is no file".to_owned());
    }
    let mut text = String::new();
    let length = file.take(HOSTFILE_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if length as u64 > HOSTFILE_MAX {
        return Err(format!("it has more than {HOSTFILE_MAX} bytes"));
    }
    let hosts = hostlist::hostfile(&text).map_err(|fault| {
        format!("line {} is {:?}; HOST slots=N, HOST:N and HOST are possible", fault.line, fault.text)
    })?;
    if hosts.is_empty() {
        return Err("it names no host".to_owned());
    }
    let slots = |host: &HostLine| host.slots.map_or(1, NonZeroU32::get);
    let hosts: Vec<String> = hosts.iter().map(|host| format!("{}:{}", host.name, slots(host))).collect();
    Ok(hosts.join(","))
}

/// Returns the number of ranks of a program: the requested number, or the greatest number up to it in the hint `soft` (MPI 4.1, 11.8.4). The
/// hint lists numbers, and FIRST:LAST or FIRST:LAST:STEP for several, with commas between them.
pub(super) fn ranks(app: &SpawnApp) -> Result<u32, SpawnRefusal> {
    let Some(soft) = hint(app, "soft") else { return Ok(app.ranks) };
    let wrong = || SpawnRefusal::Soft { text: String::from_utf8_lossy(soft).into_owned(), asked: app.ranks };
    let mut most = None;
    for part in std::str::from_utf8(soft).map_err(|_| wrong())?.split(',') {
        let numbers = part.split(':').map(|number| number.trim().parse::<i64>().ok()).collect::<Option<Vec<_>>>();
        let greatest = match numbers.ok_or_else(wrong)?[..] {
            [number] => series(number, number, 1, app.ranks),
            [first, last] => series(first, last, 1, app.ranks),
            [first, last, step] => series(first, last, step, app.ranks),
            _ => return Err(wrong()),
        };
        most = most.max(greatest);
    }
    most.filter(|&most| most > 0).ok_or_else(wrong)
}

/// Returns the greatest number of FIRST, FIRST + STEP, ... up to LAST that is at most `bound`.
fn series(first: i64, last: i64, step: i64, bound: u32) -> Option<u32> {
    let bound = i64::from(bound);
    let distance = match step {
        // Upwards, at most to the bound.
        1.. => last.min(bound).checked_sub(first)? / step * step,
        // Downwards, at least to the bound.
        ..0 => {
            let steps = first.checked_sub(bound)?.max(0).checked_add(step.checked_abs()? - 1)? / step.checked_abs()?;
            steps.checked_mul(step)?
        }
        0 => return None,
    };
    let number = first.checked_add(distance)?;
    let is_within = if step > 0 { distance >= 0 && first <= last } else { number >= last };
    u32::try_from(number).ok().filter(|_| is_within)
}

/// Returns the binding of its ranks, in the words of Open MPI (`bind_to`) and PMIx (PMIX_BINDTO); `None` for no binding. Unknown words bind no
/// rank.
pub(super) fn binding(app: &SpawnApp) -> Option<CpuBind> {
    let text = ["bind_to", "bindto", "pmix.bindto"].into_iter().find_map(|key| hint(app, key))?;
    let word = std::str::from_utf8(text).ok()?.trim().to_ascii_lowercase();
    Object::called(word.split(':').next()?).map(CpuBind::to)
}

/// Returns the number of ranks that a node gets before the next one is filled, in the words of Open MPI (`npernode`, `map_by`) and PMIx
/// (PMIX_MAPBY, PMIX_PPR): `2`, `ppr:2:node`, `2:node`, or `node` for one. Words about objects of a node have no effect: they bind no spawned
/// rank.
pub(super) fn per_node(app: &SpawnApp) -> Option<u32> {
    let text = |key: &str| std::str::from_utf8(hint(app, key)?).ok().map(str::trim);
    let number = |text: &str| text.parse().ok().filter(|ranks| (1..=SLOTS_MAX).contains(ranks));
    let mapped = |text: &str| match text.to_ascii_lowercase().split(':').collect::<Vec<_>>()[..] {
        ["node", ..] => Some(1),
        ["ppr", ranks, "node", ..] | [ranks, "node"] => number(ranks),
        _ => None,
    };
    let by_number = ["npernode", "pmix.ppr"].into_iter().find_map(|key| number(text(key)?));
    by_number.or_else(|| ["map_by", "mapby", "pmix.mapby", "pmix.ppr"].into_iter().find_map(|key| mapped(text(key)?)))
}

/// Returns the hint `key`, if there is one.
pub(super) fn hint<'app>(app: &'app SpawnApp, key: &str) -> Option<&'app Bytes> {
    app.info.iter().find(|(known, _)| *known == *key.as_bytes()).map(|(_, value)| value)
}

/// Returns the program, in the directory of the hint `path` if that names one. A list of directories is left to `PATH`.
pub(super) fn program(app: &SpawnApp) -> OsString {
    let name = OsStr::from_bytes(&app.program);
    let directory = hint(app, "path").filter(|path| !path.is_empty() && !path.contains(&b':'));
    match directory {
        Some(directory) if !app.program.contains(&b'/') => {
            OsString::from_vec([directory, &b"/"[..], &app.program].concat())
        }
        _ => name.to_owned(),
    }
}

/// Returns the process set name of its ranks; an invalid name is ignored.
pub(super) fn process_set(app: &SpawnApp) -> Option<ProcessSetName> {
    std::str::from_utf8(hint(app, "pmix.pset.nm")?).ok()?.parse().ok()
}

/// Returns the variables of the hint `env`, `NAME=VALUE` on each line.
pub(super) fn variables(app: &SpawnApp) -> Vec<(OsString, OsString)> {
    let lines = hint(app, "env").into_iter().flat_map(|lines| lines.split(|&byte| byte == b'\n'));
    let own = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    let pair = |line: &[u8]| {
        let equals = line.iter().position(|&byte| byte == b'=').filter(|&equals| equals > 0)?;
        Some((own(&line[..equals]), own(&line[equals + 1..])))
    };
    lines.filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app(info: &[(&str, &str)]) -> SpawnApp {
        let own = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let info = info.iter().map(|(key, value)| (own(key), own(value))).collect();
        SpawnApp { program: "worker".into(), ranks: 2, info, ..SpawnApp::default() }
    }

    #[test]
    fn hosts_are_read_in_every_spelling() {
        for (key, value, expected) in [
            ("host", "a", &[("a", 1)][..]),
            ("hosts", "a:2,b", &[("a", 2), ("b", 1)]),
            ("add-host", "n[0-1]:3", &[("n0", 3), ("n1", 3)]),
            ("pmix.host", "a,b", &[("a", 1), ("b", 1)]),
            ("softer", "a", &[]),
        ] {
            let hosts = hosts(&app(&[(key, value)])).unwrap();
            let seen: Vec<_> = hosts.iter().map(|host| (host.name.as_str(), host.slots)).collect();
            assert_eq!(seen, expected, "{key}={value}");
        }
        for value in ["", "a,", "a:0", "a:x", "n[0-", "a:99999999"] {
            let refusal = hosts(&app(&[("host", value)])).unwrap_err();
            assert_eq!(refusal, SpawnRefusal::Hosts { text: value.to_owned() }, "{value}");
        }
    }

    #[test]
    fn fewer_ranks_are_started_where_those_alone_are_wanted() {
        let check = |soft: &str, expected: Option<u32>| {
            let app = SpawnApp { ranks: 10, ..app(&[("soft", soft)]) };
            let refused = SpawnRefusal::Soft { text: soft.to_owned(), asked: 10 };
            assert_eq!(ranks(&app), expected.ok_or(refused), "{soft}");
        };
        for (soft, expected) in [
            ("10", 10),
            ("4", 4),
            ("0:10", 10),
            ("1:20", 10),
            ("2,4,8,16", 8),
            ("1:20:4", 9),
            ("20:1:-4", 8),
            ("3:3", 3),
            ("0, 2", 2),
            ("20:1:-30,1", 1),
        ] {
            check(soft, Some(expected));
        }
        for soft in ["", "x", "11", "0", "11:20", "5:4", "1:2:3:4", "1:5:0", "-3:-1", "9223372036854775807:0:-1x"] {
            check(soft, None);
        }
        let extremes = format!("{}:{}:{},{}:{}:1", i64::MIN, i64::MAX, i64::MIN, i64::MIN, i64::MAX);
        assert!(ranks(&SpawnApp { ranks: 10, ..app(&[("soft", &extremes)]) }).is_err());
        assert_eq!(ranks(&app(&[])), Ok(2));
    }

    #[test]
    fn spawned_ranks_are_bound_to_what_they_ask_for() {
        for (key, value, expected) in [
            ("bind_to", "core", Some("cores")),
            ("pmix.bindto", "SOCKET:if-supported", Some("sockets")),
            ("bind_to", "none", None),
            ("bind_to", "board", None),
        ] {
            let seen = binding(&app(&[(key, value)]));
            assert_eq!(seen.map(|bind| bind.to_string()), expected.map(str::to_owned), "{key}={value}");
        }
    }

    #[test]
    fn ranks_of_a_node_are_counted_in_every_spelling() {
        for (key, value, expected) in [
            ("npernode", "2", Some(2)),
            ("map_by", "node", Some(1)),
            ("map_by", "ppr:3:node", Some(3)),
            ("pmix.mapby", "PPR:3:NODE:OVERSUBSCRIBE", Some(3)),
            ("pmix.ppr", "4:node", Some(4)),
            ("map_by", "core", None),
            ("map_by", "ppr:1:socket", None),
            ("npernode", "0", None),
            ("npernode", "many", None),
        ] {
            assert_eq!(per_node(&app(&[(key, value)])), expected, "{key}={value}");
        }
    }

    #[test]
    fn hosts_are_read_from_files() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("hosts"), "# two\nn0 slots=2\nn1:3\n").unwrap();
        std::fs::write(directory.path().join("empty"), "# none\n").unwrap();
        std::fs::write(directory.path().join("wrong"), "n0\nn1 cpu=2\n").unwrap();
        let read = |key: &str, name: &str| {
            let mut request = SpawnRequest { apps: vec![app(&[(key, name)])], ..SpawnRequest::default() };
            hosts_of_files(&mut request, directory.path()).map(|()| hosts(&request.apps[0]).unwrap())
        };
        for key in ["hostfile", "add-hostfile", "pmix.hostfile"] {
            let hosts = read(key, "hosts").unwrap();
            let seen: Vec<_> = hosts.iter().map(|host| (host.name.as_str(), host.slots)).collect();
            assert_eq!(seen, [("n0", 2), ("n1", 3)], "{key}");
        }
        assert_eq!(read("wdir", "hosts").unwrap(), []);
        let refused = |name: &str| read("hostfile", name).unwrap_err().to_string();
        assert_eq!(refused("empty"), "the hostfile empty: it names no host");
        assert!(refused("wrong").contains("line 2 is \"n1 cpu=2\""), "{}", refused("wrong"));
        assert!(refused("none").contains("No such file"), "{}", refused("none"));
        assert_eq!(refused("/dev/zero"), "the hostfile /dev/zero: it is no file");
        assert_eq!(refused("."), "the hostfile .: it is no file");
    }

    #[test]
    fn a_program_is_in_the_directory_of_its_path() {
        let check = |name: &'static str, path: &str, expected: &str| {
            let app = SpawnApp { program: name.into(), ..app(&[("path", path)]) };
            assert_eq!(program(&app), expected, "{name} in {path}");
        };
        check("worker", "/opt/bin", "/opt/bin/worker");
        check("./worker", "/opt/bin", "./worker");
        check("worker", "", "worker");
        check("worker", "/a:/b", "worker");
    }

    #[test]
    fn variables_stand_on_lines() {
        let set = variables(&app(&[("env", "A=1\nB=x=y\n\nC\n=2")]));
        assert_eq!(set, [("A", "1"), ("B", "x=y")].map(|(name, value)| (name.into(), value.into())));
    }
}
