//! Job control: a shell above this process that continues it after Ctrl-Z has stopped it.
//!
//! Ctrl-Z stops no process of an orphaned process group, since nobody could continue it: POSIX.1-2017, 2.4.3 Signal Actions. The kernel
//! sees to that for programs that leave SIGTSTP alone; one that handles the signal and stops itself by SIGSTOP asks here first.

use std::fs;
use std::iter::successors;

/// Most ancestors that are looked at.
const ANCESTORS_MAX: usize = 1000;

/// What `proc_pid_stat(5)` tells of the family of a process.
#[derive(Clone, Copy, Debug)]
struct Relations {
    parent: u32,
    group: u32,
    session: u32,
}

/// Returns true if a shell, or what stands for one, has put this process into a group of its own, and can continue it. Under `ssh -t HOST
/// lattice` and in a container whose first process this is, there is none. The shell is looked for among the ancestors alone.
pub(crate) fn has_shell() -> bool {
    relations(std::process::id()).is_some_and(|own| is_continued(own, relations))
}

/// The first ancestor outside of the process group decides: it must be of the same session.
fn is_continued(own: Relations, find: impl Fn(u32) -> Option<Relations>) -> bool {
    let mut ancestors = successors(find(own.parent), |process| find(process.parent)).take(ANCESTORS_MAX);
    ancestors.find(|process| process.group != own.group).is_some_and(|process| process.session == own.session)
}

fn relations(pid: u32) -> Option<Relations> {
    let line = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses, and may have some itself.
    let end = line.iter().rposition(|&byte| byte == b')')?;
    let mut numbers = str::from_utf8(&line[end + 1..]).ok()?.split_ascii_whitespace().skip(1);
    let mut number = || numbers.next()?.parse().ok();
    Some(Relations { parent: number()?, group: number()?, session: number()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True if a launcher is continued whose process group is 30, in session 10, and whose ancestors have these groups and sessions.
    fn continued(ancestors: &[(u32, u32)]) -> bool {
        let find = |pid: u32| {
            let &(group, session) = ancestors.get((pid as usize).checked_sub(1)?)?;
            Some(Relations { parent: pid + 1, group, session })
        };
        is_continued(Relations { parent: 1, group: 30, session: 10 }, find)
    }

    #[test]
    fn only_a_shell_of_the_same_session_continues_what_ctrl_z_stopped() {
        assert!(continued(&[(10, 10), (5, 5)]), "a shell with job control");
        assert!(continued(&[(30, 10), (30, 10), (10, 10)]), "a script, which the shell has started");
        assert!(!continued(&[(5, 5)]), "a child of sshd, which has its own session");
        assert!(!continued(&[(30, 10), (5, 5)]), "a script that sshd has started");
        assert!(!continued(&[]), "the first process of a container");
    }

    #[test]
    fn our_own_relations_are_read() {
        let own = relations(std::process::id()).unwrap();
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert_eq!(own.group, nix::unistd::getpgrp().as_raw().cast_unsigned());
    }
}
