//! Detects words of a program that name descriptors of the shell, as bash writes them for `<(command)`.
//!
//! Ranks inherit only the standard streams of the launcher. Ranks on other nodes cannot inherit any other descriptor.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// Flag of a descriptor that `exec` closes (open(2)), as the kernel prints it in `fdinfo`. The launcher's own descriptors have it.
const CLOSE_ON_EXEC: u32 = 0o2_000_000;

/// Returns true if `word` names an open descriptor above the standard streams that this process has inherited.
pub(super) fn is_inherited_descriptor(word: &OsStr) -> bool {
    let path = Path::new(word);
    let number = ["/dev/fd", "/proc/self/fd"].iter().find_map(|directory| path.strip_prefix(directory).ok()?.to_str());
    let number = number.and_then(|number| number.parse::<u32>().ok());
    number.is_some_and(|number| number > 2 && is_inherited(number))
}

fn is_inherited(number: u32) -> bool {
    let Ok(information) = fs::read_to_string(format!("/proc/self/fdinfo/{number}")) else { return false };
    let flags = information.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & CLOSE_ON_EXEC == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    use nix::fcntl::{FcntlArg, FdFlag, fcntl};

    #[test]
    fn descriptors_of_the_shell_are_known_by_their_names() {
        let (inherited, _writer) = std::io::pipe().unwrap();
        let own = fs::File::open("/dev/null").unwrap();
        fcntl(&inherited, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
        let check = |word: String, expected| assert_eq!(is_inherited_descriptor(word.as_ref()), expected, "{word}");
        let (inherited, own) = (inherited.as_raw_fd(), own.as_raw_fd());
        check(format!("/dev/fd/{inherited}"), true);
        check(format!("/proc/self/fd/{inherited}"), true);
        check(format!("/dev/fd/{own}"), false);
        check(format!("/dev/fd/{inherited}/x"), false);
        check(format!("--file=/dev/fd/{inherited}"), false);
        for word in ["/dev/fd/0", "/dev/fd/2", "/dev/fd/99999", "/dev/fd", "63"] {
            check(word.to_owned(), false);
        }
    }
}
