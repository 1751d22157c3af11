//! Paths that processes look up, and the user of each look-up, from the output of `strace -ff -y`. For tests that root follows no path into
//! files of a user.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Words for `strace -e`: calls that take a path, that change the user of a process, or that create a process.
pub const CALLS: &str = "trace=%file,%creds,%process,connect,bind";

/// One look-up of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LookUp {
    /// Effective user.
    pub uid: u32,
    /// Name of the system call.
    pub call: String,
    /// The path; relative if the call has no directory for it.
    pub path: PathBuf,
    /// True if the call follows a link with this name.
    pub follows: bool,
}

impl LookUp {
    /// Returns true if the call created the directory with this name, so that the name did not exist before.
    pub fn makes_directory(&self) -> bool {
        matches!(&*self.call, "mkdir" | "mkdirat")
    }
}

/// Returns all look-ups of the traced processes. The directory has a file `NAME.THREAD` of each thread. `uids` has the user of each process that
/// ran at the start of the trace. A thread without a recorded start counts as root, because its parent was killed during the start.
///
/// # Panics
/// Panics if there is no such directory, or if it contains another file.
pub fn look_ups(directory: &Path, uids: &BTreeMap<u32, u32>) -> Vec<LookUp> {
    let mut traces: BTreeMap<u32, String> = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("strace has written").flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let thread = name.rsplit_once('.').and_then(|(_, number)| number.parse().ok());
        let bytes = fs::read(entry.path()).expect("a trace can be read");
        traces.insert(thread.expect("a name ends with a number"), String::from_utf8_lossy(&bytes).into_owned());
    }
    let (mut look_ups, mut begun) = (Vec::new(), uids.clone());
    while let Some(&first) = traces.keys().next() {
        let thread = traces.keys().copied().find(|thread| begun.contains_key(thread)).unwrap_or(first);
        let text = traces.remove(&thread).unwrap_or_default();
        let uid = begun.get(&thread).copied().unwrap_or(0);
        follow(&text, uid, &mut begun, &mut look_ups);
    }
    look_ups
}

/// Processes the calls of a thread that starts as this user.
fn follow(trace: &str, mut uid: u32, begun: &mut BTreeMap<u32, u32>, look_ups: &mut Vec<LookUp>) {
    for line in trace.lines() {
        let Some((call, rest)) = line.split_once('(') else { continue };
        let result = rest.rsplit_once(" = ").and_then(|(_, result)| result.split(' ').next()?.parse::<u32>().ok());
        match call {
            "clone" | "clone3" | "fork" | "vfork" => begun.extend(result.map(|child| (child, uid))),
            "setuid" | "setreuid" | "setresuid" | "setfsuid" if result == Some(0) => uid = effective(call, rest, uid),
            _ => {
                let follows = follows(call, rest);
                let found = paths(call, rest).into_iter();
                look_ups.extend(found.map(|path| LookUp { uid, call: call.to_owned(), path, follows }));
            }
        }
    }
}

/// Returns true if a call follows a link at the end of its path.
fn follows(call: &str, arguments: &str) -> bool {
    const NEVER: [&str; 16] = [
        "mkdir",
        "mkdirat",
        "rmdir",
        "unlink",
        "unlinkat",
        "rename",
        "renameat",
        "renameat2",
        "link",
        "linkat",
        "symlink",
        "symlinkat",
        "readlink",
        "readlinkat",
        "lstat",
        "lchown",
    ];
    // O_EXCL creates a file, and opens no existing one.
    !NEVER.contains(&call) && !["NOFOLLOW", "O_EXCL"].iter().any(|flag| arguments.contains(flag))
}

/// Returns the effective user after a call that changed the user.
fn effective(call: &str, arguments: &str, before: u32) -> u32 {
    let position = usize::from(matches!(call, "setreuid" | "setresuid"));
    let argument = arguments.split([',', ')']).nth(position);
    argument.and_then(|word| word.trim().parse().ok()).unwrap_or(before)
}

/// Returns the paths in the arguments of a call that are looked up.
fn paths(call: &str, arguments: &str) -> Vec<PathBuf> {
    if matches!(call, "connect" | "bind") {
        // A name that begins with @ is not in a file system.
        let name = arguments.split_once("sun_path=\"").and_then(|(_, name)| name.split_once('"'));
        return name.map(|(name, _)| name.into()).into_iter().collect();
    }
    let all = strings(arguments);
    let (first, count) = match call {
        // The target of a link is not looked up when the link is created.
        "symlink" | "symlinkat" => (1, 1),
        "rename" | "renameat" | "renameat2" | "link" | "linkat" | "mount" | "pivot_root" => (0, 2),
        "prctl" | "wait4" | "waitid" | "exit" | "exit_group" | "kill" | "tgkill" => (0, 0),
        _ => (0, 1),
    };
    // An empty path refers to the descriptor itself.
    all.into_iter().skip(first).take(count).filter(|path| !path.as_os_str().is_empty()).collect()
}

/// Returns quoted words of the arguments, each below the directory before it.
fn strings(arguments: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut rest = arguments;
    while let Some((before, after)) = rest.split_once('"') {
        let mut is_escaped = false;
        let end = after.find(|letter| {
            let ends = letter == '"' && !is_escaped;
            is_escaped = letter == '\\' && !is_escaped;
            ends
        });
        let word = &after[..end.unwrap_or(after.len())];
        let directory = before.strip_suffix(">, ").and_then(|before| before.rsplit_once('<')).map(|(_, path)| path);
        let path = match directory {
            Some(directory) if !word.is_empty() => Path::new(directory).join(word),
            _ => word.into(),
        };
        found.push(path);
        rest = end.map_or("", |end| &after[end + 1..]);
    }
    found
}

/// Returns true if this user can control the target of a path: a component belongs to the user, or every user can create it. `/proc` and `/sys`
/// belong to the kernel, except links there to resources of a process.
pub fn is_controlled(path: &Path, user: u32) -> bool {
    if path.starts_with("/proc") || path.starts_with("/sys") {
        let words: Vec<_> = path.iter().skip(2).map(|word| word.to_string_lossy()).collect();
        return match &words[..] {
            [of, link, ..] => &**of != "self" && matches!(&**link, "root" | "cwd" | "exe" | "fd" | "map_files"),
            _ => false,
        };
    }
    let mut walked = PathBuf::new();
    let mut anybody_adds = !path.is_absolute();
    for word in path {
        walked.push(word);
        let Ok(found) = fs::symlink_metadata(&walked) else { return anybody_adds };
        let is_sticky = found.mode() & 0o1000 != 0;
        anybody_adds = found.mode() & 0o002 != 0 && found.is_dir();
        let leads_away = || found.is_symlink() && fs::canonicalize(&walked).is_ok_and(|to| is_controlled(&to, user));
        if found.uid() == user || (anybody_adds && !is_sticky) || leads_away() {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_ups_of(traces: &[(u32, &str)], uids: &[(u32, u32)]) -> Vec<(u32, String, String)> {
        let directory = tempfile::tempdir().unwrap();
        for (thread, text) in traces {
            fs::write(directory.path().join(format!("t.{thread}")), text).unwrap();
        }
        let found = look_ups(directory.path(), &uids.iter().copied().collect());
        found.into_iter().map(|found| (found.uid, found.call, found.path.display().to_string())).collect()
    }

    fn of(uid: u32, call: &str, path: &str) -> (u32, String, String) {
        (uid, call.to_owned(), path.to_owned())
    }

    #[test]
    fn paths_are_looked_up_by_whoever_a_process_is_by_then() {
        let parent = "openat(AT_FDCWD</>, \"etc/passwd\", O_RDONLY) = 3</etc/passwd>\n\
            clone(child_stack=NULL, flags=SIGCHLD) = 12\nmkdir(\"/sys/a\", 0777) = 0\n";
        let child = "unlinkat(4</home/a>, \"b\", 0) = 0\nsetresuid(5, 5, 5) = 0\nsetuid(0) = -1 EPERM (no)\n\
            execve(\"/bin/sh\", [\"sh\", \"-c\"], 0x7 /* 8 vars */) = 0\nstatx(3</a>, \"\", AT_EMPTY_PATH, 0) = 0\n";
        let expected = [of(0, "openat", "/etc/passwd"), of(0, "mkdir", "/sys/a"), of(0, "unlinkat", "/home/a/b")];
        let as_user = [of(5, "execve", "/bin/sh")];
        assert_eq!(look_ups_of(&[(12, child), (3, parent)], &[(3, 0)]), [&expected[..], &as_user].concat());
    }

    #[test]
    fn of_two_paths_those_that_are_looked_up_count() {
        let trace = "rename(\"/a\\\"\", \"/b\") = 0\nsymlink(\"/c\", \"/d\") = 0\nreadlink(\"/e\", \"/f\", 256) = 2\n\
            connect(1<socket:[7]>, {sa_family=AF_UNIX, sun_path=\"/g\"}, 110) = 0\n\
            bind(1<socket:[7]>, {sa_family=AF_UNIX, sun_path=@\"h\"}, 47) = 0\n";
        let expected =
            [("rename", "/a\\\""), ("rename", "/b"), ("symlink", "/d"), ("readlink", "/e"), ("connect", "/g")];
        assert_eq!(look_ups_of(&[(1, trace)], &[(1, 9)]), expected.map(|(call, path)| of(9, call, path)));
    }

    #[test]
    fn what_a_user_can_put_on_a_path_is_controlled() {
        let directory = tempfile::tempdir().unwrap();
        let own = fs::metadata(directory.path()).unwrap().uid();
        let path = |name: &str| directory.path().join(name);
        std::os::unix::fs::symlink(directory.path(), path("link")).unwrap();
        for (path, user, expected) in [
            (path("absent/file"), own, true),
            (path("link/file"), own, true),
            (path("link/file"), own + 1, false),
            ("/etc/absent".into(), own + 1, false),
            ("/tmp/absent of all".into(), own + 1, true),
            ("relative".into(), own + 1, true),
            ("/proc/1/status".into(), own, false),
            ("/proc/1/root/etc".into(), own + 1, true),
            ("/proc/self/fd/3".into(), own + 1, false),
        ] {
            assert_eq!(is_controlled(&path, user), expected, "{}", path.display());
        }
    }
}
