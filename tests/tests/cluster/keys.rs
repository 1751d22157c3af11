//! Locations of keys: only in the processes that docs/operate/security.md names. These tests require root, to run as other users, and to read the
//! memory of all processes.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use lattice_tests::memory::{contains, found, positions};
use lattice_tests::{Running, processes, script_on, turn};
use nix::unistd::geteuid;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// Runs launches of two users, one after the other. Each launch has two nodes with linked sessions: the agent of one node is root's, that
/// of the other is not. For each launch it lists all processes by their kind, and continues after the checks of the test.
const LAUNCHES: &str = include_str!("../../scripts/launches_of_users.sh");

/// The private key of a daemon, in the forms that memory could contain.
struct DaemonKey {
    /// Lines of its text, possibly without line ends.
    lines: Vec<Vec<u8>>,
    /// A part of its text that includes a line end.
    text: Vec<u8>,
    /// A part of its DER (PKCS #8 of P-256) with the whole secret number, and this number alone.
    der: Vec<u8>,
    number: Vec<u8>,
}

impl DaemonKey {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).expect("the key can be read");
        let lines: Vec<_> =
            text.lines().filter(|line| !line.starts_with('-')).map(|line| line.as_bytes().to_vec()).collect();
        let der = base64(&lines.concat());
        // RFC 5915 in RFC 5958: an octet string of 32 bytes follows 36 bytes that are the same in all keys.
        assert!(lines.len() >= 3 && der[34..36] == [4, 32], "{} is a key of P-256", path.display());
        let across = [&lines[0][lines[0].len() - 20..], b"\n", &lines[1][..20]].concat();
        Self { text: across, der: der[20..68].to_vec(), number: der[36..68].to_vec(), lines: lines[..2].to_vec() }
    }

    /// Returns the forms that a daemon does not need after it has read the key.
    fn remains(&self) -> Vec<&[u8]> {
        vec![&self.text, &self.der]
    }

    fn anything(&self) -> Vec<&[u8]> {
        self.lines.iter().map(Vec::as_slice).chain([self.number.as_slice()]).collect()
    }
}

fn base64(text: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |digit: &u8| DIGITS.iter().position(|of| of == digit).expect("a digit") as u32;
    let digits: Vec<u32> = text.iter().filter(|&&byte| byte != b'=').map(value).collect();
    let group = |group: &[u32]| {
        let bits = group.iter().fold(0, |bits, value| bits << 6 | value) << (6 * (4 - group.len()));
        bits.to_be_bytes()[1..group.len()].to_vec()
    };
    digits.chunks(4).flat_map(group).collect()
}

/// Secrets of one launch.
struct LaunchSecrets {
    /// Key of its links.
    links: Vec<u8>,
    /// The secret in the names of its PMIx namespaces, in hexadecimal digits.
    name: Vec<u8>,
    /// Value of a variable of its ranks.
    canary: Vec<u8>,
}

impl LaunchSecrets {
    /// Reads the secrets from the state of the API server, and from the environment of a rank.
    fn read(directory: &Path, processes: &Processes, canary: &str) -> Self {
        let session = processes.sessions[0];
        let keys: Vec<_> = running_launches(directory).iter().flat_map(|record| link_keys(record)).collect();
        let candidates: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let held = found(session, &candidates);
        assert_eq!(held.len(), 1, "the state and a session have the key of one launch's links");
        let links = keys[held[0]].clone();
        let environment = fs::read(format!("/proc/{}/environ", processes.ranks[0])).unwrap();
        let name = environment.split(|&byte| byte == 0).find_map(|variable| variable.strip_prefix(b"PMIX_NAMESPACE="));
        let name = name.and_then(|name| name.rsplit(|&byte| byte == b'.').next()).expect("a secret").to_vec();
        assert_eq!(name.len(), 32, "the secret has 16 bytes");
        Self { links, name, canary: canary.into() }
    }

    fn all(&self) -> [&[u8]; 3] {
        [&self.links, &self.name, &self.canary]
    }
}

/// The processes of a launch, and the daemons.
struct Processes {
    daemons: Vec<u32>,
    forks: Vec<u32>,
    sessions: Vec<u32>,
    ranks: Vec<u32>,
    commands: Vec<u32>,
}

impl Processes {
    fn listed(output: &str) -> Self {
        let kind = |kind| listed(output, kind);
        let [daemons, forks, sessions, ranks, commands] = ["daemon", "forks", "session", "rank", "command"].map(kind);
        assert_eq!((daemons.len(), sessions.len(), ranks.len()), (3, 2, 4), "{output}");
        assert!(forks.len() >= 2 && !commands.is_empty(), "{output}");
        Self { daemons, forks, sessions, ranks, commands }
    }

    fn of_the_user(&self) -> impl Iterator<Item = u32> {
        self.sessions.iter().chain(&self.ranks).chain(&self.commands).copied()
    }

    fn all(&self) -> impl Iterator<Item = u32> {
        self.daemons.iter().chain(&self.forks).copied().chain(self.of_the_user())
    }
}

/// Returns the numbers of the processes of this kind.
fn listed(output: &str, kind: &str) -> Vec<u32> {
    let numbers = output.lines().filter_map(|line| line.strip_prefix(kind)?.strip_prefix(' ')?.parse().ok());
    numbers.collect()
}

fn name_of(pid: u32) -> String {
    processes::status(pid, "Name").unwrap_or_default()
}

/// Returns the records of the launches in the API server's state. A record is sealed: a slot of the file of keys, a nonce, the ciphertext.
fn running_launches(directory: &Path) -> Vec<Vec<u8>> {
    let copy = tempfile::NamedTempFile::new().unwrap();
    // The API server has locked its own file.
    fs::copy(directory.join("api.redb"), copy.path()).unwrap();
    let keys = fs::read(directory.join("api.redb.keys")).unwrap();
    let unsealed = |id: &str, sealed: &[u8]| {
        let (slot, sealed) = sealed.split_first_chunk().expect("a slot");
        let (nonce, text) = sealed.split_first_chunk().expect("a nonce");
        let key = &keys[u32::from_le_bytes(*slot) as usize * 32..][..32];
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).unwrap());
        let mut text = text.to_vec();
        key.open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(id), &mut text).unwrap().to_vec()
    };
    let database = Database::create(copy.path()).unwrap();
    let launches = TableDefinition::<&str, &[u8]>::new("launches");
    let table = database.begin_read().unwrap().open_table(launches).unwrap();
    let rows = table.iter().unwrap().map(Result::unwrap);
    rows.map(|(id, sealed)| unsealed(id.value(), sealed.value())).collect()
}

/// Returns the keys of links in the record of a launch: the field `link_key` (22) of its spec, 32 bytes.
fn link_keys(state: &[u8]) -> BTreeSet<Vec<u8>> {
    let field = [0xb2, 0x01, 32];
    positions(state, &field)
        .filter_map(|at| state.get(at + field.len()..at + field.len() + 32))
        .map(<[u8]>::to_vec)
        .collect()
}

/// Returns all files below a directory, except certificates.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let below = |path: PathBuf| if path.is_dir() && !path.ends_with("pki") { files(&path) } else { vec![path] };
    entries.flat_map(below).filter(|path| path.is_file()).collect()
}

/// The secrets that the test searches for.
struct Search {
    directory: PathBuf,
    keys: Vec<DaemonKey>,
}

impl Search {
    const NAMES: [&str; 4] = ["ca.key.pem", "api/key.pem", "agent-node0/key.pem", "agent-node1/key.pem"];

    fn new(output: &str) -> Self {
        let directory = output.lines().find_map(|line| line.strip_prefix("directory ")).expect("it was said");
        let directory = PathBuf::from(directory);
        let keys = Self::NAMES.iter().map(|name| DaemonKey::read(&directory.join("pki").join(name))).collect();
        Self { directory, keys }
    }

    /// Checks keys of daemons in the memory of processes.
    fn assert_daemon_keys_are_theirs(&self, processes: &Processes, planted: u32) {
        let remains: Vec<_> = self.keys.iter().flat_map(DaemonKey::remains).collect();
        // Control: the search must find the text of all four keys.
        assert_eq!(found(planted, &remains), [0, 2, 4, 6]);
        for &daemon in &processes.daemons {
            assert_eq!(found(daemon, &remains), [0; 0], "two of each of {:?} in {}", Self::NAMES, name_of(daemon));
        }
        let anything: Vec<_> = self.keys.iter().flat_map(DaemonKey::anything).collect();
        for process in processes.forks.iter().copied().chain(processes.of_the_user()) {
            let name = name_of(process);
            assert_eq!(found(process, &anything), [0; 0], "three of each of {:?} in {name}", Self::NAMES);
        }
    }

    /// Checks that, of the processes to which the user has access, only sessions have the key of links in their memory. Ranks also have the
    /// secret and the variables.
    fn assert_launch_secrets_are_its_own(processes: &Processes, own: &LaunchSecrets, others: &[LaunchSecrets]) {
        let mut wrong = String::new();
        let others: Vec<_> = others.iter().flat_map(LaunchSecrets::all).collect();
        for process in processes.of_the_user() {
            let has = found(process, &others);
            if !has.is_empty() {
                writeln!(wrong, "{process} {} has {has:?} of another user's launch", name_of(process)).unwrap();
            }
        }
        for &process in processes.ranks.iter().chain(&processes.commands) {
            if !found(process, &[&own.links]).is_empty() {
                writeln!(wrong, "{process} {} has the key of links", name_of(process)).unwrap();
            }
        }
        for &process in &processes.commands {
            if !found(process, &[&own.name]).is_empty() {
                writeln!(wrong, "{process} {} has the launch's secret", name_of(process)).unwrap();
            }
        }
        for &process in &processes.ranks {
            assert_eq!(found(process, &[&own.name, &own.canary]), [0, 1], "what a rank has is seen");
        }
        assert!(wrong.is_empty(), "links, secret, canary:\n{wrong}");
    }

    /// Checks files, including the API server's state, the arguments of all processes, and environments except those of ranks and their
    /// command.
    fn assert_nothing_is_shown(&self, processes: &Processes, own: &LaunchSecrets) {
        let digits: String = own.links.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        });
        let list = format!("{:?}", own.links);
        let lines: Vec<_> = self.keys.iter().flat_map(DaemonKey::anything).collect();
        let of_links = [own.links.as_slice(), digits.as_bytes(), list.trim_matches(['[', ']']).as_bytes()];
        let everywhere: Vec<_> = of_links.into_iter().chain(lines).collect();
        let but_in_ranks: Vec<_> = everywhere.iter().copied().chain([own.name.as_slice(), &own.canary]).collect();
        let written = files(&self.directory).into_iter();
        let of = |pid: u32, file: &str| PathBuf::from(format!("/proc/{pid}/{file}"));
        let strangers = processes.daemons.iter().chain(&processes.forks).chain(&processes.sessions);
        let strict = written.chain(processes.all().map(|pid| of(pid, "cmdline")));
        let strict = strict.chain(strangers.map(|&pid| of(pid, "environ")));
        let lenient = processes.ranks.iter().chain(&processes.commands).map(|&pid| of(pid, "environ"));
        for (path, needles) in strict.map(|path| (path, &but_in_ranks)).chain(lenient.map(|path| (path, &everywhere))) {
            let bytes = fs::read(&path).unwrap_or_default();
            let shown: Vec<_> = (0..needles.len()).filter(|&at| contains(&bytes, needles[at])).collect();
            assert_eq!(shown, [0; 0], "links (3 spellings), keys of daemons, secret, canary in {}", path.display());
        }
    }
}

/// Waits until a launch runs, and returns its processes.
fn launch_of(running: &mut Running, user: u32, before: &mut usize) -> Processes {
    running.wait_for_stdout(&format!("ready {user}"));
    let output = running.said();
    let said = output[*before..].to_owned();
    *before = output.len();
    Processes::listed(&said)
}

#[test]
fn keys_are_with_those_whose_they_are_and_nowhere_else() {
    assert!(geteuid().is_root(), "this test must run as root");
    let _machine = turn::heavy();
    // The test reads all memory of twenty processes twice.
    let mut running = script_on(2, LAUNCHES).start();
    let (mut before, mut others) = (0, Vec::new());
    for (user, canary) in [(65534, "canary-of-the-first-user"), (5, "canary-of-the-second-user")] {
        let processes = launch_of(&mut running, user, &mut before);
        let search = Search::new(&running.said());
        let own = LaunchSecrets::read(&search.directory, &processes, canary);
        search.assert_daemon_keys_are_theirs(&processes, listed(&running.said(), "planted")[0]);
        Search::assert_launch_secrets_are_its_own(&processes, &own, &others);
        search.assert_nothing_is_shown(&processes, &own);
        fs::write(search.directory.join(format!("looked-{user}")), "").unwrap();
        others.push(own);
    }
    running.finish().exits(0).prints("looked");
}
