//! An inventory that is stored while the kernel runs: its validity, and damaged files.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lattice_inventory::{Keeping, Root, ThisNode};
use tempfile::TempDir;

/// A node of two CPUs, and the directory that stores its inventory.
struct Node {
    directory: TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Self { directory: tempfile::tempdir().unwrap() };
        node.write("sys/devices/system/cpu/online", "0-1");
        node.write("proc/sys/kernel/random/boot_id", "first");
        node.write("proc/meminfo", "MemTotal: 1024 kB");
        node.write("proc/self/status", "Cpus_allowed_list:\t0-1\nMems_allowed_list:\t0");
        for cpu in 0..2 {
            node.write(&format!("sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"), &cpu.to_string());
        }
        node
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.directory.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn kept(&self) -> PathBuf {
        self.directory.path().join("kept")
    }

    /// The only inventory file.
    fn file(&self) -> PathBuf {
        let names = names(&self.kept());
        let mut inventories = names.iter().filter(|name| name.starts_with("inventory-"));
        let file = self.kept().join(inventories.next().expect("an inventory is kept"));
        assert_eq!(inventories.next(), None, "{names:?}");
        file
    }

    fn look(&self) -> ThisNode {
        ThisNode::below(Root::at(self.directory.path()), vec![Keeping::at(self.kept())])
    }

    /// Number of cores that a newly started process finds.
    fn cores(&self) -> usize {
        let node = self.look();
        let topology = node.topology().expect("a node without a PCI bus can be told");
        assert_eq!(topology.text().unwrap().matches("type=\"Core\"").count(), node.inventory().template.cores.len());
        node.inventory().template.cores.len()
    }

    /// Number of cores in the topology for ranks of a newly started process.
    fn cores_told(&self) -> usize {
        self.look().topology().unwrap().text().unwrap().matches("type=\"Core\"").count()
    }

    /// Sets the number of device events that the kernel has sent.
    fn messages(&self, number: u32) {
        self.write("sys/kernel/uevent_seqnum", &number.to_string());
    }

    /// Changes the node in a way that no check detects.
    fn change(&self) {
        fs::remove_dir_all(self.directory.path().join("sys/devices/system/cpu/cpu1/topology")).unwrap();
    }
}

/// Names in a directory.
fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_node_is_read_once_for_each_boot_and_set_of_cpus() {
    let node = Node::new();
    assert_eq!(node.cores(), 2);
    node.change();
    assert_eq!(node.cores(), 2, "what is kept counts");
    node.write("proc/sys/kernel/random/boot_id", "second");
    assert_eq!(node.cores(), 1, "the kernel was started anew");
    node.write("sys/devices/system/cpu/online", "0");
    assert_eq!(node.cores(), 1);
    assert_eq!(node.look().inventory().template.cpus.to_string(), "0");
    assert!(names(&node.kept()).iter().all(|name| !name.starts_with('.')), "{:?}", names(&node.kept()));
}

/// Interfaces of another network namespace are another view, and both views are stored.
#[test]
fn processes_with_other_network_interfaces_have_a_file_of_their_own() {
    let node = Node::new();
    let interface = node.directory.path().join("sys/class/net/hsn0");
    assert_eq!(node.cores(), 2);
    let without = node.file();
    fs::create_dir_all(interface.parent().unwrap()).unwrap();
    symlink("../../devices/virtual/net/bridge0", interface.with_file_name("bridge0")).unwrap();
    node.change();
    assert_eq!(node.cores(), 2, "a bridge does not count");
    symlink("../../devices/pci0000:00/0000:00:03.0/net/hsn0", &interface).unwrap();
    assert_eq!(node.cores(), 1, "it is read as it is here");
    fs::remove_file(&interface).unwrap();
    assert_eq!(node.cores(), 2, "what was kept there is still kept");
    assert!(without.exists() && names(&node.kept()).len() == 4, "{:?}", names(&node.kept()));
    for number in 0..40 {
        fs::create_dir(interface.with_file_name(format!("eth{number}"))).unwrap();
        node.cores();
    }
    assert!(names(&node.kept()).len() <= 16 + 2, "{:?}", names(&node.kept()));
}

#[test]
fn ranks_are_given_a_file_that_stays() {
    let node = Node::new();
    let topology = node.look().topology().unwrap();
    let file = topology.file().unwrap();
    assert_eq!(fs::read_to_string(file).unwrap(), topology.text().unwrap());
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(node.look().topology().unwrap().file(), Some(file));
    // The limits of a control group apply to no other process.
    node.write("proc/self/status", "Cpus_allowed_list:\t1\nMems_allowed_list:\t0");
    node.write("proc/self/cgroup", "0::/job");
    node.write("proc/mounts", "none /sys/fs/cgroup cgroup2 rw 0 0");
    node.write("sys/fs/cgroup/job/cpuset.cpus.effective", "1");
    let part = node.look().topology().unwrap();
    assert_eq!(part.file(), None);
    let text = part.text().unwrap();
    assert!(text.contains("allowed_cpuset=\"0x00000002\""), "{text}");
}

#[test]
fn what_is_damaged_is_read_anew_and_replaced() {
    let node = Node::new();
    assert_eq!(node.cores(), 2);
    let xml = node.look().topology().unwrap().file().unwrap().to_owned();
    node.change();
    let file = node.file();
    let whole = fs::read(&file).unwrap();
    let check = |damaged: &[u8]| {
        fs::write(&file, damaged).unwrap();
        let cores = node.look().inventory().template.cores.len();
        assert_eq!(cores, 1, "{}", String::from_utf8_lossy(damaged));
    };
    (0..whole.len()).step_by(7).for_each(|length| check(&whole[..length]));
    let body = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    for at in (body..whole.len()).step_by(11) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        check(&flipped);
    }
    // The topology file belongs to it.
    fs::write(&file, &whole).unwrap();
    fs::write(xml, "<topology/>").unwrap();
    assert_eq!(node.cores(), 1);
    assert_eq!(node.cores(), 1, "it was replaced");
}

#[test]
fn nothing_that_others_can_write_is_read() {
    let node = Node::new();
    assert_eq!(node.cores(), 2);
    node.change();
    let file = node.file();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(node.cores(), 1);
    fs::rename(&file, node.directory.path().join("elsewhere")).unwrap();
    symlink("../elsewhere", &file).unwrap();
    assert_eq!(node.cores(), 1);
    fs::set_permissions(node.kept(), fs::Permissions::from_mode(0o777)).unwrap();
    node.write("sys/devices/system/cpu/cpu1/topology/core_cpus_list", "1");
    assert_eq!(node.cores(), 2);
}

#[test]
fn a_node_that_nothing_can_be_kept_on_is_read_each_time() {
    let node = Node::new();
    fs::write(node.kept(), "no directory").unwrap();
    assert_eq!(node.cores(), 2);
    assert_eq!(node.look().topology().unwrap().file(), None);
    node.change();
    assert_eq!(node.cores(), 1);
}

/// A file of another program is passed to ranks unchanged, if it belongs to this node and no other user can have
/// written it.
#[test]
fn a_cached_topology_is_told_if_it_can_be() {
    let node = Node::new();
    let file = node.directory.path().join("cache.xml");
    let machine =
        |cpuset: &str| format!(r#"<topology version="2.0"><object type="Machine" cpuset="{cpuset}"/></topology>"#);
    let told = || node.look().with_cache(&file).topology().unwrap();
    let own = node.look().topology().unwrap();
    assert_eq!(told(), own, "there is none");
    fs::write(&file, machine("0x00000003")).unwrap();
    assert_eq!((&*told().text().unwrap(), told().file()), (&*machine("0x00000003"), Some(&*file)));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(told(), own, "anybody can write it");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    for text in [machine("0x00000007"), machine("0x00000003").replace("/>", ">"), String::new()] {
        fs::write(&file, &text).unwrap();
        assert_eq!(told(), own, "{text}");
    }
}

/// No check is made while the signs are equal, and each sign matters.
#[test]
fn nothing_is_looked_at_while_the_signs_are_the_same() {
    let node = Node::new();
    let online = |cpus: &str| node.write("sys/devices/system/cpu/online", cpus);
    node.messages(7);
    assert_eq!(node.cores_told(), 2);
    online("0");
    assert_eq!(node.cores_told(), 2, "a CPU does not go offline without a message");
    node.messages(8);
    assert_eq!((node.cores_told(), node.cores()), (1, 1));
    online("0-1");
    node.messages(9);
    assert_eq!((node.cores_told(), node.cores()), (2, 2));
    // Another boot, by chance with the same number of events.
    let (sys, aside) = (node.directory.path().join("sys"), node.directory.path().join("aside"));
    node.change();
    node.write("proc/sys/kernel/random/boot_id", "second");
    assert_eq!(node.cores_told(), 2);
    fs::rename(&sys, &aside).unwrap();
    fs::rename(&aside, &sys).unwrap();
    assert_eq!(node.cores_told(), 1, "this /sys is another one");
}

#[test]
fn what_control_groups_leave_is_seen_without_a_message() {
    let node = Node::new();
    node.messages(7);
    node.write("sys/devices/system/node/online", "0");
    let is_whole = |cpus: &str, nodes: &str| {
        node.write("proc/self/status", &format!("Cpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{nodes}"));
        node.look().topology().unwrap().file().is_some()
    };
    let signs = || names(&node.kept()).into_iter().filter(|name| name.starts_with("unchanged-")).count();
    assert!(is_whole("1", "0"), "somebody has bound this process");
    assert_eq!(signs(), 0, "others may be bound elsewhere");
    assert!(is_whole("0-1", "0"));
    assert_eq!(signs(), 1);
    node.write("proc/self/cgroup", "0::/job");
    node.write("proc/mounts", "none /sys/fs/cgroup cgroup2 rw 0 0");
    node.write("sys/fs/cgroup/job/cpuset.cpus.effective", "1");
    assert!(!is_whole("1", "0"));
    assert!(!is_whole("0-1", "1"));
    assert!(is_whole("0-1", "0"));
}

/// Signs show that the file has not been written since its sum was checked.
#[test]
fn a_file_that_was_written_since_is_read_anew() {
    let node = Node::new();
    node.messages(7);
    assert_eq!((node.cores_told(), node.cores_told()), (2, 2));
    let topology = node.look().topology().unwrap();
    let file = topology.file().unwrap();
    let other = topology.text().unwrap().replace("Core", "Corf");
    fs::write(file, &other).unwrap();
    assert!(topology.text().is_err(), "it was another one when it was found");
    assert_eq!(node.cores_told(), 2);
    fs::remove_file(file).unwrap();
    assert_eq!(node.cores_told(), 2);
    for signs in ["", "{}", "no signs"] {
        let name = names(&node.kept()).into_iter().find(|name| name.starts_with("unchanged-")).unwrap();
        fs::write(node.kept().join(name), signs).unwrap();
        assert_eq!(node.cores_told(), 2);
    }
}

#[test]
fn users_keep_signs_of_what_root_has_kept() {
    let node = Node::new();
    let user = node.directory.path().join("user");
    assert_eq!(node.cores(), 2);
    node.messages(7);
    let look = || {
        let keepings = vec![Keeping::at(node.kept()), Keeping::at(&user)];
        ThisNode::below(Root::at(node.directory.path()), keepings).topology().unwrap()
    };
    let file = look().file().unwrap().to_owned();
    assert_eq!((file.parent(), names(&user).len()), (Some(&*node.kept()), 1));
    node.write("sys/devices/system/cpu/online", "0");
    assert_eq!(look().file(), Some(&*file), "nobody has looked");
}

/// Ranks of a running launch may open their file at any time, even if many other views of the node are added.
#[test]
fn a_file_that_ranks_are_told_stays_until_nobody_has_used_it_for_long() {
    let node = Node::new();
    let file = node.look().topology().unwrap().file().unwrap().to_owned();
    let grow = |cpu: u32| {
        node.write(&format!("sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"), &cpu.to_string());
        node.write("sys/devices/system/cpu/online", &format!("0-{cpu}"));
        assert_eq!(node.look().inventory().template.cores.len(), cpu as usize + 1);
    };
    (2..22).for_each(grow);
    assert!(file.exists(), "{:?}", names(&node.kept()));
    let long_ago = SystemTime::now() - Duration::from_secs(31 * 24 * 3600);
    let unused = FileTimes::new().set_accessed(long_ago).set_modified(long_ago);
    File::options().write(true).open(&file).unwrap().set_times(unused).unwrap();
    grow(22);
    assert!(!file.exists(), "{:?}", names(&node.kept()));
}

#[test]
fn a_change_is_seen_once_the_kernel_has_told_of_one() {
    let node = Node::new();
    node.messages(7);
    let known = node.look();
    assert_eq!(known.inventory().template.cores.len(), 2);
    node.change();
    assert!(!known.may_have_changed(), "the kernel has told of nothing");
    node.messages(8);
    assert!(known.may_have_changed());
    let changed = known.changed().expect("it has changed");
    assert_eq!((changed.inventory().template.cores.len(), changed.may_have_changed()), (1, false));
    assert!(known.may_have_changed(), "who has not taken it yet can ask again");
    assert_eq!(node.cores(), 1, "it is kept");
    node.messages(9);
    assert!(changed.may_have_changed());
    assert!(changed.changed().is_none() && !changed.may_have_changed(), "it is what it was");
}
