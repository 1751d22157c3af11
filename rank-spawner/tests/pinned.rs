//! Random programs that register resources and end: only their own resources are removed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, SystemTime};

use nix::unistd::{Pid, getpid};
use pmi_core::ids::JobId;
use pmi_core::resources::{Resource, ResourceStep};
use proptest::prelude::*;
use rank_spawner::{Claimant, LaunchTag, Pinned};

/// This process as a rank of a launch that began earlier. It lacks the launch's mark; any process with the mark belongs to the
/// launch.
fn claimant(since: SystemTime) -> Claimant {
    let tag = LaunchTag::new(JobId::new(&format!("pinned-{}", getpid())).unwrap());
    Claimant { tag, rank: getpid(), ranks: vec![getpid()], since }
}

fn resource(kind: &str, path: &Path) -> Resource {
    Resource::parse(format!("{kind}:{}", path.display()).as_bytes()).unwrap()
}

/// Random event for one of the names.
#[derive(Clone, Copy, Debug)]
enum Operation {
    /// The rank registers a file (false) or a directory (true).
    Intend(bool),
    Hold(bool),
    /// The rank makes a file or directory.
    MakeFile,
    MakeDirectory,
    /// Another owner replaces the name by its own file, directory or link.
    ReplaceByFile,
    ReplaceByDirectory,
    ReplaceByLink,
    /// The parent directory is replaced by a link to another owner's directory.
    ReplaceParent,
    /// The rank ends.
    End,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        any::<bool>().prop_map(Operation::Intend),
        any::<bool>().prop_map(Operation::Hold),
        Just(Operation::MakeFile),
        Just(Operation::MakeDirectory),
        Just(Operation::ReplaceByFile),
        Just(Operation::ReplaceByDirectory),
        Just(Operation::ReplaceByLink),
        Just(Operation::ReplaceParent),
        Just(Operation::End),
    ]
}

/// Names below one directory, and their owners.
struct World {
    root: tempfile::TempDir,
    pinned: Vec<(usize, Pinned)>,
    /// True if another owner has the name now; false also if it took the name while the rank was about to make a file.
    foreign: [bool; NAMES],
    intended: [bool; NAMES],
}

const NAMES: usize = 3;

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("above")).unwrap();
        fs::create_dir_all(root.path().join("elsewhere/deep")).unwrap();
        for name in 0..NAMES {
            fs::write(root.path().join(format!("elsewhere/{name}")), "theirs").unwrap();
        }
        fs::write(root.path().join("elsewhere/deep/x"), "theirs").unwrap();
        Self { root, pinned: Vec::new(), foreign: [false; NAMES], intended: [false; NAMES] }
    }

    fn path(&self, name: usize) -> PathBuf {
        self.root.path().join("above").join(name.to_string())
    }

    /// Frees a name. The old file stays: at the pace of a test, an inode that is reused at once would have the same birth time.
    fn clear(&self, name: usize) {
        let kept = self.root.path().join(format!("kept-{}", fs::read_dir(self.root.path()).unwrap().count()));
        let _ = fs::rename(self.path(name), kept);
    }

    fn take(&mut self, name: usize) {
        self.clear(name);
        // A file that appears while the rank is about to make one of this name cannot be distinguished from the rank's.
        self.foreign[name] = !self.intended[name];
    }

    fn perform(&mut self, name: usize, operation: Operation) {
        let path = self.path(name);
        let kind = |is_directory| resource(if is_directory { "dir" } else { "file" }, &path);
        let claimant = claimant(SystemTime::now() - Duration::from_secs(60));
        match operation {
            Operation::Intend(is_directory) => {
                let there = path.symlink_metadata().is_ok();
                let pinned = Pinned::new(&kind(is_directory), ResourceStep::Intend, &claimant).unwrap();
                self.intended[name] |= !there;
                self.pinned.push((name, pinned));
            }
            // A rank does not register another owner's file as its own.
            Operation::Hold(_) if self.foreign[name] => {}
            Operation::Hold(is_directory) => {
                if let Ok(pinned) = Pinned::new(&kind(is_directory), ResourceStep::Hold, &claimant) {
                    self.pinned.push((name, pinned));
                }
            }
            Operation::MakeFile if !self.foreign[name] => {
                self.clear(name);
                fs::write(&path, "own").unwrap();
            }
            Operation::MakeDirectory if !self.foreign[name] => {
                self.clear(name);
                fs::create_dir_all(path.join("deep")).unwrap();
                fs::write(path.join("deep/x"), "own").unwrap();
                symlink(self.root.path().join("elsewhere"), path.join("link")).unwrap();
            }
            Operation::MakeFile | Operation::MakeDirectory => {}
            Operation::ReplaceByFile => {
                self.take(name);
                fs::write(&path, "theirs").unwrap();
            }
            Operation::ReplaceByDirectory => {
                self.take(name);
                fs::create_dir_all(path.join("deep")).unwrap();
                fs::write(path.join("deep/x"), "theirs").unwrap();
            }
            Operation::ReplaceByLink => {
                self.take(name);
                symlink(self.root.path().join("elsewhere"), &path).unwrap();
            }
            Operation::ReplaceParent => {
                let above = self.root.path().join("above");
                let count = fs::read_dir(self.root.path()).unwrap().count();
                fs::rename(&above, self.root.path().join(format!("moved-{count}"))).unwrap();
                symlink(self.root.path().join("elsewhere"), &above).unwrap();
                self.end();
                fs::remove_file(&above).unwrap();
                fs::create_dir(&above).unwrap();
                (self.foreign, self.intended) = ([false; NAMES], [false; NAMES]);
            }
            Operation::End => self.end(),
        }
    }

    /// Removes all registered resources; files of other owners must still exist.
    fn end(&mut self) {
        for (_, pinned) in self.pinned.drain(..) {
            pinned.remove();
        }
        for name in 0..NAMES {
            assert!(self.root.path().join(format!("elsewhere/{name}")).exists(), "elsewhere/{name} was removed");
            let is_there = self.path(name).symlink_metadata().is_ok();
            assert!(is_there || !self.foreign[name], "{name} was somebody else's");
        }
        assert!(self.root.path().join("elsewhere/deep/x").exists());
        self.intended = [false; NAMES];
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn whatever_a_rank_registers_nobody_elses_is_removed(
        operations in prop::collection::vec((0..NAMES, operation()), 0..40),
    ) {
        let mut world = World::new();
        for (name, operation) in operations {
            world.perform(name, operation);
        }
        world.end();
    }
}

#[test]
fn what_was_made_goes_and_what_was_there_before_is_refused_or_stays() {
    let root = tempfile::tempdir().unwrap();
    let (old, file, tree) = (root.path().join("old"), root.path().join("file"), root.path().join("tree"));
    fs::write(&old, "x").unwrap();
    let later = claimant(SystemTime::now() + Duration::from_secs(60));
    let error = Pinned::new(&resource("file", &old), ResourceStep::Hold, &later).unwrap_err();
    assert_eq!(error.to_string(), "it is older than this launch");
    let now = claimant(SystemTime::now());
    let intents = [("file", &old), ("file", &file), ("dir", &tree)];
    let intents = intents.map(|(kind, path)| Pinned::new(&resource(kind, path), ResourceStep::Intend, &now).unwrap());
    fs::write(&file, "x").unwrap();
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/c"), "x").unwrap();
    let error = Pinned::new(&resource("file", &tree), ResourceStep::Hold, &now).unwrap_err();
    assert_eq!(error.to_string(), "it is a directory");
    intents.into_iter().for_each(Pinned::remove);
    assert!(old.exists() && !file.exists() && !tree.exists());
    let error = Pinned::new(&resource("file", &file), ResourceStep::Hold, &now).unwrap_err();
    assert_eq!(error.to_string(), "there is no such file");
}

/// A process that sleeps, with this variable.
fn sleeper(name: &str, value: &str) -> Child {
    Command::new("sleep").arg("1000").env(name, value).spawn().unwrap()
}

#[test]
fn a_process_is_ended_if_it_bears_the_mark_and_is_no_rank() {
    let mut now = claimant(SystemTime::now());
    let mut marked = sleeper(LaunchTag::VARIABLE, now.tag.value());
    let mut rank = sleeper(LaunchTag::VARIABLE, now.tag.value());
    let mut stranger = sleeper("X", "y");
    // Descendants of a rank belong to it with or without the mark; here the rank has none.
    now.rank = Pid::from_raw(marked.id().cast_signed());
    now.ranks = vec![Pid::from_raw(rank.id().cast_signed())];
    let pin = |child: &Child, now: &Claimant| {
        let resource = Resource::Process(Some(child.id().cast_signed()));
        Pinned::new(&resource, ResourceStep::Hold, now)
    };
    assert!(pin(&rank, &now).is_err() && pin(&stranger, &now).is_err());
    let init = Resource::Process(Some(2));
    assert!(Pinned::new(&init, ResourceStep::Hold, &now).is_err());
    pin(&marked, &now).unwrap().remove();
    assert!(!marked.wait().unwrap().success());
    for survivor in [&mut rank, &mut stranger] {
        assert!(survivor.try_wait().unwrap().is_none());
        survivor.kill().unwrap();
        survivor.wait().unwrap();
    }
}

/// Numbers of the existing segments of shared memory.
fn segments() -> Vec<String> {
    let list = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    list.lines().skip(1).map(|line| line.split_ascii_whitespace().nth(1).unwrap().to_owned()).collect()
}

#[test]
fn a_segment_that_another_process_has_made_is_nobodys_to_register_or_to_hunt() {
    let printed = Command::new("ipcmk").args(["-M", "4096"]).output().unwrap();
    let id = String::from_utf8(printed.stdout).unwrap().rsplit(' ').next().unwrap().trim().to_owned();
    let now = claimant(SystemTime::now());
    let held = Pinned::new(&Resource::parse(format!("shm:{id}").as_bytes()).unwrap(), ResourceStep::Hold, &now);
    assert_eq!(held.unwrap_err().to_string(), "no running process of this rank has made it");
    let hunt = Pinned::new(&Resource::parse(b"shm:").unwrap(), ResourceStep::Intend, &now).unwrap();
    hunt.remove();
    assert!(segments().contains(&id));
    assert!(Command::new("ipcrm").args(["-m", &id]).status().unwrap().success());
    assert!(!segments().contains(&id));
}
