//! Job control: a shell that can continue this process after Ctrl-Z has stopped it.
//!
//! Ctrl-Z stops no process of an orphaned process group, because no process could continue it: POSIX.1-2017, 2.4.3 Signal Actions. The kernel
//! ensures this for programs with the default action of SIGTSTP. A program that handles the signal and stops itself by SIGSTOP checks here
//! first.

use std::fs;
use std::iter::successors;

/// Maximum number of ancestors in the search.
const ANCESTORS_MAX: usize = 1000;

/// Relations of a process, from `proc_pid_stat(5)`.
#[derive(Clone, Copy, Debug)]
struct Relations {
    parent: u32,
    group: u32,
    session: u32,
}

/// Returns true if a shell, or a similar program, has put this process into a separate process group, and can continue it. There is no shell
/// under `ssh -t HOST lattice`, and in a container with this program as its first process. The search includes only ancestors.
pub fn has_shell() -> bool {
    relations(std::process::id()).is_some_and(|own| is_continued(own, relations))
}

/// The first ancestor outside of the process group decides. It must be in the same session.
fn is_continued(own: Relations, find: impl Fn(u32) -> Option<Relations>) -> bool {
    let mut ancestors = successors(find(own.parent), |process| find(process.parent)).take(ANCESTORS_MAX);
    ancestors.find(|process| process.group != own.group).is_some_and(|process| process.session == own.session)
}

fn relations(pid: u32) -> Option<Relations> {
    let line = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses, and may itself contain parentheses.
    let end = line.iter().rposition(|&byte| byte == b')')?;
    let mut numbers = str::from_utf8(&line[end + 1..]).ok()?.split_ascii_whitespace().skip(1);
    let mut number = || numbers.next()?.parse().ok();
    Some(Relations { parent: number()?, group: number()?, session: number()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True if a launcher in process group 30 and session 10 can be continued. Its ancestors have these groups and sessions.
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
