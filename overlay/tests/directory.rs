//! The directory of sets with real files and real processes.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use lattice_overlay::address::SetId;
use lattice_overlay::directory::names::Offer;
use lattice_overlay::directory::{
    Directory, DirectoryError, Kin, Life, Nonce, SetFacts, SetRecord, UnixSeconds, place,
};
use tempfile::TempDir;

/// Variable for a second process of this program: it must act as a set in this directory.
const MEMBER_OF: &str = "OVERLAY_TEST_MEMBER_OF";

fn facts(launch: &str) -> SetFacts {
    SetFacts {
        launch: Some(launch.to_owned()),
        ranks: 4,
        nodes: 1,
        command: "./a.out".to_owned(),
        begun: UnixSeconds::now(),
        kin: Kin::default(),
    }
}

fn found(directory: &Directory, launch: &str) -> SetRecord {
    directory.register(&Nonce::random().unwrap(), facts(launch)).unwrap()
}

fn home() -> (TempDir, Directory) {
    let home = tempfile::tempdir().unwrap();
    let directory = Directory::open(&home.path().join("deep/down/sets")).unwrap();
    (home, directory)
}

fn file_of(home: &TempDir, set: &SetRecord) -> std::path::PathBuf {
    home.path().join("deep/down/sets").join(set.id().number().to_string())
}

/// A process that is a set until it is killed.
struct Founder {
    process: Child,
    set: SetId,
}

impl Founder {
    fn start(path: &Path) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_process_that_is_a_set", "--nocapture"]).env(MEMBER_OF, path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until it is a set.
    fn join(mut process: Child) -> Self {
        let lines = BufReader::new(process.stdout.as_mut().unwrap()).lines();
        let set = lines.map_while(Result::ok).find_map(|line| line.split_once("set=")?.1.parse().ok());
        Self { set: set.expect("the process says no id"), process }
    }

    fn kill(mut self) -> SetId {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.set
    }
}

/// Not a test by itself: the process of [`Founder`].
#[test]
fn a_process_that_is_a_set() {
    let Some(path) = std::env::var_os(MEMBER_OF) else { return };
    let set = found(&Directory::open(Path::new(&path)).unwrap(), "racing");
    println!("set={}", set.id());
    // Until it is killed, or its parent has ended.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_hundred_processes_that_race_get_a_hundred_ids() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("sets");
    let processes: Vec<Child> = (0..100).map(|_| Founder::start(&path)).collect();
    let founders: Vec<Founder> = processes.into_iter().map(Founder::join).collect();
    let mut ids: Vec<SetId> = founders.iter().map(|founder| founder.set).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 100);
    let directory = Directory::open(&path).unwrap();
    assert_eq!(directory.list().unwrap().len(), 100);
    // All processes are killed. No file of their sets remains visible.
    for founder in founders {
        founder.kill();
    }
    assert_eq!(directory.list().unwrap(), []);
    let left: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"]);
}

#[test]
fn a_set_is_found_by_its_id_and_by_its_launch_until_it_is_removed() {
    let (home, directory) = home();
    let set = found(&directory, "k3jq09zmf2");
    assert_eq!(set.id().user(), nix::unistd::geteuid().as_raw() % (1 << 20));
    assert_eq!(fs::metadata(file_of(&home, &set)).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(directory.life(&set), Life::Lives);
    assert_eq!(directory.find(set.id()).unwrap().as_ref(), Some(&set));
    assert_eq!(directory.find_launch("k3jq09zmf2").unwrap().as_ref(), Some(&set));
    assert_eq!(directory.find_launch("another").unwrap(), None);
    directory.remove(&set).unwrap();
    assert_eq!((directory.find(set.id()).unwrap(), directory.list().unwrap()), (None, vec![]));
}

#[test]
fn a_directory_that_is_not_safe_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let real = home.path().join("real");
    drop(Directory::open(&real).unwrap());
    symlink(&real, home.path().join("link")).unwrap();
    fs::write(home.path().join("file"), "").unwrap();
    for name in ["link", "file"] {
        assert!(matches!(Directory::open(&home.path().join(name)), Err(DirectoryError::NoDirectory(_))), "{name}");
    }
    fs::set_permissions(&real, Permissions::from_mode(0o750)).unwrap();
    let error = Directory::open(&real).unwrap_err();
    assert!(matches!(error, DirectoryError::Open { mode: 0o750, .. }), "{error}");
    fs::set_permissions(&real, Permissions::from_mode(0o700)).unwrap();
    assert!(nix::unistd::geteuid().is_root(), "this test must run as root: it gives a directory to another user");
    std::os::unix::fs::chown(&real, Some(4711), None).unwrap();
    assert!(matches!(Directory::open(&real), Err(DirectoryError::Foreign { owner: 4711, us: 0, .. })));
}

#[test]
fn a_file_that_is_a_link_or_holds_nonsense_is_no_set_and_its_number_is_given_out() {
    let (home, directory) = home();
    let place = home.path().join("deep/down/sets");
    fs::write(home.path().join("elsewhere"), "precious").unwrap();
    for number in 0..SetId::PER_USER {
        match number % 2 {
            0 => symlink(home.path().join("elsewhere"), place.join(number.to_string())).unwrap(),
            _ => fs::write(place.join(number.to_string()), "{\"version\": 1, \"set\"").unwrap(),
        }
    }
    assert_eq!(directory.list().unwrap(), []);
    let set = found(&directory, "a");
    assert_eq!(directory.list().unwrap(), [set]);
    assert_eq!(fs::read_to_string(home.path().join("elsewhere")).unwrap(), "precious");
}

#[test]
fn a_file_of_somebody_else_is_no_set() {
    assert!(nix::unistd::geteuid().is_root(), "this test must run as root: it gives a file to another user");
    let (home, directory) = home();
    let set = found(&directory, "a");
    std::os::unix::fs::chown(file_of(&home, &set), Some(4711), None).unwrap();
    assert_eq!((directory.find(set.id()).unwrap(), directory.list().unwrap()), (None, vec![]));
    assert!(file_of(&home, &set).exists());
}

#[test]
fn the_last_id_is_given_out_and_the_next_set_is_refused() {
    let (home, directory) = home();
    let first = found(&directory, "first");
    let text = fs::read_to_string(file_of(&home, &first)).unwrap();
    let copy = |number: u16| {
        let set = SetId::new(first.uid, number);
        let text = text.replace(&format!("\"set\": {}", first.id()), &format!("\"set\": {set}"));
        fs::write(home.path().join("deep/down/sets").join(number.to_string()), text).unwrap();
    };
    let left = (first.id().number() + 1) % SetId::PER_USER;
    (0..SetId::PER_USER).filter(|&number| number != first.id().number() && number != left).for_each(copy);
    assert_eq!(found(&directory, "last").id().number(), left);
    let error = directory.register(&Nonce::random().unwrap(), facts("one too many")).unwrap_err();
    assert_eq!(error.to_string(), "4096 sets of this user live already, which is the most\ntry: lattice set list");
}

#[test]
fn a_new_set_that_took_the_id_of_a_dead_one_is_not_removed_for_it() {
    let (home, directory) = home();
    let place = home.path().join("deep/down/sets");
    let founder = Founder::join(Founder::start(&place));
    let dead = directory.find(founder.set).unwrap().unwrap();
    let id = founder.kill();
    assert_eq!(directory.life(&dead), Life::Gone);
    // A new set replaces a dead one between its inspection and its removal.
    let new = found(&directory, "new");
    let text = fs::read_to_string(file_of(&home, &new)).unwrap();
    directory.remove(&new).unwrap();
    fs::write(file_of(&home, &dead), text.replace(&format!("\"set\": {}", new.id()), &format!("\"set\": {id}")))
        .unwrap();
    directory.remove(&dead).unwrap();
    let found = directory.find(id).unwrap().unwrap();
    assert_eq!(found.launch.as_deref(), Some("new"));
}

#[test]
fn the_place_is_what_is_named_else_in_the_home() {
    let place = |named: Option<&str>, home: Option<&str>| place(named.map(Path::new), home.map(Path::new)).ok();
    assert_eq!(place(Some("/a"), Some("/home/x")), Some("/a".into()));
    assert_eq!(place(Some(""), Some("/home/x")), Some("/home/x/.lattice/sets".into()));
    assert_eq!(place(None, None), None);
}

fn offer(content: &[u8], once: bool) -> Offer {
    Offer { once, content: content.to_owned() }
}

/// Launches that offer a name, with the content of each offer.
fn offered(directory: &Directory, service: &[u8]) -> Vec<(String, Vec<Offer>)> {
    let offered = directory.offers(service).unwrap().into_iter();
    let mut offered: Vec<_> = offered.map(|offered| (offered.set.launch.unwrap(), offered.offers)).collect();
    offered.sort_by(|one, other| one.0.cmp(&other.0));
    offered
}

fn names_left(directory: &Directory) -> usize {
    fs::read_dir(directory.names_path()).unwrap().count()
}

#[test]
fn each_launch_offers_a_name_by_itself_until_it_withdraws_it_or_ends() {
    let (_home, directory) = home();
    let [a, b] = ["a", "b"].map(|launch| found(&directory, launch));
    let odd = &b"an ocean\n\0\xff"[..];
    let (one, two, other) = (offer(b"1", false), offer(&[0xff; 100_000], false), offer(b"3", false));
    assert_eq!(offered(&directory, odd), []);
    assert!(!directory.names_path().exists(), "a look leaves no trace");
    let both = [one.clone(), two.clone()];
    directory.offer(&a, odd, |_| both.to_vec()).unwrap();
    directory.offer(&b, odd, |_| vec![other.clone()]).unwrap();
    let of_b = || ("b".to_owned(), vec![other.clone()]);
    assert_eq!(offered(&directory, odd), [("a".to_owned(), vec![one, two.clone()]), of_b()]);
    directory.offer(&a, odd, |current| current[1..].to_vec()).unwrap();
    assert_eq!(offered(&directory, odd), [("a".to_owned(), vec![two]), of_b()]);
    directory.offer(&a, odd, |_| vec![]).unwrap();
    assert_eq!(offered(&directory, odd), [of_b()]);
    directory.remove(&b).unwrap();
    assert_eq!((offered(&directory, odd), names_left(&directory)), (vec![], 0));
}

#[test]
fn an_offer_for_one_reader_is_taken_once() {
    let (_home, directory) = home();
    let a = found(&directory, "a");
    let (once, stays) = (offer(b"1", true), offer(b"2", false));
    directory.offer(&a, b"bay", |_| vec![once.clone(), stays.clone()]).unwrap();
    let taken = [(); 2].map(|()| directory.take(&a, b"bay", &once).unwrap());
    assert_eq!((taken, offered(&directory, b"bay")), ([true, false], vec![("a".to_owned(), vec![stays])]));
    directory.offer(&a, b"bay", |_| vec![once.clone()]).unwrap();
    assert!(directory.take(&a, b"bay", &once).unwrap());
    assert_eq!(names_left(&directory), 0);
}

#[test]
fn names_of_a_set_that_was_killed_are_not_offered_and_go_with_its_file() {
    let (home, directory) = home();
    let founder = Founder::join(Founder::start(&home.path().join("deep/down/sets")));
    let theirs = directory.find(founder.set).unwrap().unwrap();
    for name in 0..100_u32 {
        directory.offer(&theirs, &name.to_le_bytes(), |_| vec![offer(b"1", false)]).unwrap();
    }
    assert_eq!(directory.offers(&7_u32.to_le_bytes()).unwrap().len(), 1);
    founder.kill();
    assert_eq!((directory.offers(&7_u32.to_le_bytes()).unwrap(), names_left(&directory)), (vec![], 100));
    assert_eq!((directory.list().unwrap(), names_left(&directory)), (vec![], 0));
}
