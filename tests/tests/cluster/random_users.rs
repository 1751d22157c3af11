//! Compares the identity of ranks, according to the kernel, with docs/operate/security.md and docs/operate/set-up.md. The users, groups and limits are from a
//! seed. The user database of the nodes is mounted over their files. These tests require root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use lattice_tests::malformed::Dice;
use lattice_tests::{Outcome, script_on, turn};
use nix::libc;
use nix::unistd::{User as Known, geteuid};

/// Number of users in each run.
const USERS: usize = 200;
/// Number of groups that can have members.
const GROUPS: usize = 90;

/// Prints the identity of a rank: one line of `name=value` words with tabs between them.
const SHOW: &str = r#"use POSIX; $| = 1;
    sub content { open(my $file, "<", "/proc/self/$_[0]") or die; local $/; <$file> }
    my %said = content("status") =~ /^(\w+):[\t ]*(.*?)[\t ]*$/mg;
    my @words = map { my $value = $said{$_}; $value =~ s/\s+/ /g; "$_=$value" }
        qw(Uid Gid Groups CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Umask);
    content("limits") =~ /^Max open files +(\S+) +(\S+)/m and push @words, "files=$1 $2";
    content("cgroup") =~ /^0::(.*)/m and push @words, "cgroup=$1";
    my $ring = syscall($ENV{KEYCTL}, 0, -3, 0); my $text = "\0" x 200;
    my $length = syscall($ENV{KEYCTL}, 6, $ring, $text, 200); push @words, "keyring=" . substr($text, 0, $length - 1);
    opendir(my $open, "/proc/self/fd"); my $own = fileno $open;
    push @words, "descriptors=" . join(" ", sort { $a <=> $b } grep { /\d/ && $_ != $own } readdir $open);
    push @words, map { "$_=$ENV{$_}" } qw(HOME USER LOGNAME SHELL);
    push @words, "root=" . (defined POSIX::setuid(0) || defined POSIX::setgid(0) || chroot("/") ? "yes" : "no");
    print join("\t", "node=" . (uname())[1], @words), "\n";"#;

/// Both nodes have the users of `$1`. node1 allows programs to gain privileges, and limits open files. Each line of `$1/users` has the number of
/// a user, the groups of its shell, and the limits of its shell. The user does not have these groups on the nodes.
const SCRIPT: &str = r#"cd "$LATTICE_DEV_CLUSTER"; chmod 711 .; lattice alloc release $LATTICE_ALLOC_ID >/dev/null
    sed -i '1i setuid_programs = true\nlimits = ["nofile=700"]' node1.toml; kill_agent node1; start_agent node1
    for node in node0 node1; do
        for file in passwd group; do nsenter -t $(daemon $node) -m mount --bind $1/$file /etc/$file || exit; done
    done
    until nodes_up 2; do sleep 0.05; done
    grep -c 'have no control groups' node0.log; sed -n 's/^CapBnd:\t//p' /proc/$(daemon node1)/status
    prlimit --pid $(daemon node0) --nofile --output HARD --noheadings
    while read -r uid gid groups mask files <&3; do
        env -u HOME -u USER -u LOGNAME -u SHELL setpriv --reuid $uid --regid $gid --groups $groups bash --noprofile -c 'umask $1; ulimit -Sn $2; unset SHELL
            alloc=$(lattice alloc create --wait -N 2) && lattice launch --alloc $alloc --chdir / -N 2 -n 2 perl -e "$SHOW" &&
            lattice alloc release $alloc >/dev/null' bash $mask $files || { echo "user $uid: $?"; exit 1; }
    done 3<$1/users"#;

/// A user of the nodes, and the shell of the user.
struct User {
    uid: u32,
    gid: u32,
    /// Groups with the user as a member.
    groups: BTreeSet<u32>,
    /// Groups of the user's shell, which the user does not have on the nodes.
    brings: Vec<u32>,
    umask: u32,
    files: u64,
}

/// Returns an unused number from `least` on; -1 is not a valid number.
fn unused(dice: &mut Dice, least: u32, used: &mut BTreeSet<u32>) -> u32 {
    loop {
        let number = match dice.below(3) {
            0 => least + dice.below(70_000) as u32,
            1 => u32::MAX - 1 - dice.below(1000) as u32,
            _ => dice.number() as u32,
        };
        let is_known = || Known::from_uid(number.into()).is_ok_and(|user| user.is_some());
        if number >= least && number != u32::MAX && !is_known() && used.insert(number) {
            return number;
        }
    }
}

/// Returns the users, including the one with the highest number, and the numbers of all their groups.
fn made_up(dice: &mut Dice) -> (Vec<User>, Vec<u32>) {
    let (mut uids, mut gids) = (BTreeSet::new(), (0..1000).collect());
    let groups: Vec<u32> = (0..GROUPS).map(|_| unused(dice, 1000, &mut gids)).collect();
    let users = (0..USERS).map(|number| {
        let uid = match number {
            0..3 => [i32::MAX as u32, 1 << 31, u32::MAX - 1][number],
            _ => unused(dice, 1000, &mut uids),
        };
        uids.insert(uid);
        let any = |dice: &mut Dice, count: usize| (0..count).map(|_| *dice.one_of(&groups)).collect::<Vec<_>>();
        let own = if dice.once_in(5) { 0 } else { dice.below(40) };
        let brings = 1 + dice.below(9);
        User {
            uid,
            gid: if dice.once_in(3) { *dice.one_of(&groups) } else { unused(dice, 1000, &mut gids.clone()) },
            groups: any(dice, own).into_iter().collect(),
            brings: any(dice, brings).into_iter().chain([0, 4]).collect(),
            umask: dice.below(0o1000) as u32,
            files: 64 + dice.below(900) as u64,
        }
    });
    (users.collect(), groups)
}

/// Returns the files of a user database that includes the users of this machine.
fn databases(users: &[User], groups: &[u32]) -> (String, String) {
    let read = |file: &str| fs::read_to_string(file).expect("every machine has users");
    let (mut passwd, mut group) = (read("/etc/passwd"), read("/etc/group"));
    for User { uid, gid, .. } in users {
        passwd += &format!("user{uid}:x:{uid}:{gid}::/homes/user{uid}:/bin/of/{uid}\n");
    }
    for gid in groups {
        let members = users.iter().filter(|user| user.groups.contains(gid)).map(|user| format!("user{}", user.uid));
        group += &format!("group{gid}:x:{gid}:{}\n", members.collect::<Vec<_>>().join(","));
    }
    (passwd, group)
}

/// Differences between the nodes, as the script reports them at its start.
struct Nodes {
    have_cgroups: bool,
    /// Capabilities that programs could gain, if this is allowed.
    all_capabilities: String,
    most_files: String,
}

impl Nodes {
    /// Returns the expected words of a rank of this user on this node, except its control group.
    fn expected(&self, user: &User, node: &str) -> BTreeMap<String, String> {
        let User { uid, gid, umask, .. } = user;
        let may_gain = node == "node1";
        let groups: Vec<_> = user.groups.iter().copied().chain([*gid]).collect::<BTreeSet<_>>().into_iter().collect();
        let groups = groups.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let (none, name) = ("0".repeat(16), format!("user{uid}"));
        let files = if may_gain {
            format!("{} 700", user.files.min(700))
        } else {
            format!("{} {}", user.files, self.most_files)
        };
        let words = [
            ("node", node.to_owned()),
            ("Uid", [uid; 4].map(u32::to_string).join(" ")),
            ("Gid", [gid; 4].map(u32::to_string).join(" ")),
            ("Groups", groups),
            ("CapInh", none.clone()),
            ("CapPrm", none.clone()),
            ("CapEff", none.clone()),
            ("CapAmb", none.clone()),
            ("CapBnd", if may_gain { self.all_capabilities.clone() } else { none }),
            ("NoNewPrivs", u32::from(!may_gain).to_string()),
            ("Seccomp", "0".to_owned()),
            ("Umask", format!("{umask:04o}")),
            ("files", files),
            // The possessor has all rights, the user may view and read it. The kernel prints the numbers as signed here.
            ("keyring", format!("keyring;{};{};3f030000;_ses", *uid as i32, *gid as i32)),
            ("descriptors", "0 1 2 30 31".to_owned()),
            ("HOME", format!("/homes/{name}")),
            ("USER", name.clone()),
            ("LOGNAME", name),
            ("SHELL", format!("/bin/of/{uid}")),
            ("root", "no".to_owned()),
        ];
        words.map(|(word, value)| (word.to_owned(), value)).into()
    }
}

/// Returns the words of a line, and its control group separately.
fn words(line: &str) -> (BTreeMap<String, String>, Option<String>) {
    let pairs = line.split('\t').filter_map(|word| word.split_once('='));
    let mut words: BTreeMap<_, _> = pairs.map(|(word, value)| (word.to_owned(), value.to_owned())).collect();
    let cgroup = words.remove("cgroup");
    (words, cgroup)
}

fn run(users: &[User], groups: &[u32]) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    let (passwd, group) = databases(users, groups);
    let lines = users.iter().map(|User { uid, brings, umask, files, .. }| {
        let all = brings.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        format!("{uid} {} {all} {umask:04o} {files}\n", brings[0])
    });
    for (file, text) in [("passwd", passwd), ("group", group), ("users", lines.collect())] {
        fs::write(directory.path().join(file), text).unwrap();
    }
    let script = script_on(2, SCRIPT).env("SHOW", SHOW).env("KEYCTL", libc::SYS_keyctl.to_string());
    script.arg(directory.path()).run()
}

/// Two hundred users in turn, each from a shell with its own groups, umask and limits.
#[test]
fn ranks_of_any_user_are_what_the_documents_say() {
    assert!(geteuid().is_root(), "this test must run as root");
    let _machine = turn::heavy();
    let (users, groups) = made_up(&mut Dice::new(2009));
    let outcome = run(&users, &groups);
    outcome.exits(0);
    let mut lines = outcome.text().lines();
    let mut word = || lines.next().unwrap_or_default().trim().to_owned();
    let nodes = Nodes { have_cgroups: word() == "0", all_capabilities: word(), most_files: word() };
    let mut cgroups = BTreeSet::new();
    for user in &users {
        let mut seen: Vec<_> = (0..2).map(|_| words(&word())).collect();
        seen.sort_by(|(one, _), (other, _)| one["node"].cmp(&other["node"]));
        for ((seen, cgroup), node) in seen.into_iter().zip(["node0", "node1"]) {
            assert_eq!(seen, nodes.expected(user, node), "user {}", user.uid);
            let is_own = cgroup.is_some_and(|group| group.contains("/lattice-forks-") && cgroups.insert(group));
            assert!(is_own || !nodes.have_cgroups, "user {}: a session has another's control group", user.uid);
        }
    }
    assert_eq!(word(), "", "lines of nobody");
}
