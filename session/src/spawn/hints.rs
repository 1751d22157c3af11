//! Hints of a spawn, as MPI 4.1 (11.8.4), Hydra, Open MPI and PMIx name them: where to look for a program, its directory, its variables,
//! and the hosts of its ranks, or how many a host gets. Unknown hints choose nothing, as the standard has it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use bytes::Bytes;
use pmi_core::services::SpawnApp;

use super::SpawnRefusal;
use crate::process_set::ProcessSetName;

/// Keys under which hosts are named.
const HOSTS: [&[u8]; 5] = [b"host", b"hosts", b"add-host", b"pmix.host", b"pmix.addhost"];
/// Most hosts that a program may name.
const HOSTS_MAX: usize = 1 << 16;
/// Most ranks that a host may be named for.
const SLOTS_MAX: u32 = 1 << 20;

/// Host on which ranks of a program are wished for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WishedHost {
    pub(super) name: String,
    /// Number of ranks that it gets before the next one is filled.
    pub(super) slots: u32,
}

/// Hosts of a program's ranks, in their order: `node0:2,node1` or `node[0-3]`; none if it names none.
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

/// Number of ranks that a node gets before the next one is filled, as Open MPI (`npernode`, `map_by`) and PMIx (PMIX_MAPBY, PMIX_PPR) say it: `2`,
/// `ppr:2:node`, `2:node`, or `node` for one. Words about objects of a node choose nothing: ranks that are spawned are not bound.
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

/// The hint `key`, if there is one.
pub(super) fn hint<'app>(app: &'app SpawnApp, key: &str) -> Option<&'app Bytes> {
    app.info.iter().find(|(known, _)| *known == *key.as_bytes()).map(|(_, value)| value)
}

/// The program, in the directory of the hint `path` if that names one. A list of directories is left to `PATH`.
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

/// Name that its ranks have together; one that cannot be is none.
pub(super) fn process_set(app: &SpawnApp) -> Option<ProcessSetName> {
    std::str::from_utf8(hint(app, "pmix.pset.nm")?).ok()?.parse().ok()
}

/// Variables of the hint `env`, `NAME=VALUE` on each line.
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
            ("soft", "a", &[]),
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
