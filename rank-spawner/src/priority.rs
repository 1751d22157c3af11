//! Niceness and OOM score adjustment. Ranks may have higher values than the process that starts them.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::Pid;

use crate::syscalls::{niceness, pidfd_is_unreaped, set_niceness};

/// File with the score adjustment of this process.
const SCORE: &str = "/proc/self/oom_score_adj";

/// Number of attempts to write the score of a process. The kernel continues a parent in the middle of its child's `execve`, some microseconds
/// before the child's files in `/proc` belong to the user.
const SCORE_TRIES: u32 = 50;

/// Pause between two attempts.
const SCORE_PAUSE: Duration = Duration::from_micros(100);

/// Niceness that [`give_way`] adds. On a CPU that other processes keep busy, the thread keeps a tenth of the time (`sched(7)`).
const WAY: i32 = 10;

/// Part of a rank's priority that differs from the process that starts it. Only root can raise a priority, so only greater numbers apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Priority {
    /// Niceness (`nice(1)`), from -20 to 19; `None` for the launcher's.
    pub niceness: Option<i32>,
    /// Adjustment of the score by which the kernel selects a process to kill when memory runs out (`oom_score_adj`), from -1000 to 1000; `None`
    /// for the launcher's.
    pub oom_score_adjust: Option<i32>,
}

impl Priority {
    /// Priority of this process; `None` for values that the system does not report.
    pub fn own() -> Self {
        let score = fs::read_to_string(SCORE).ok().and_then(|text| text.trim().parse().ok());
        Self { niceness: niceness().ok(), oom_score_adjust: score }
    }

    /// Values of this priority that are lower in priority than `other`, the process that starts ranks.
    #[must_use]
    pub fn below(self, other: Self) -> Self {
        let greater = |asked: Option<i32>, own: Option<i32>| asked.filter(|asked| own.is_some_and(|own| *asked > own));
        Self {
            niceness: greater(self.niceness, other.niceness),
            oom_score_adjust: greater(self.oom_score_adjust, other.oom_score_adjust),
        }
    }

    /// Sets the niceness of this process. Allocates nothing, so a child can call it between `clone` and `execve`.
    ///
    /// The parent sets the score, by [`Priority::give_score`]: before `execve` a child has its parent's memory. If that memory is not dumpable,
    /// as in a session process, the child's files in `/proc` belong to root.
    pub(crate) fn take_niceness(self) -> Result<(), Errno> {
        self.niceness.map_or(Ok(()), set_niceness)
    }

    /// Sets the score of a child that has executed its program, if it differs from the parent's. If the user may not read the program, its files
    /// in `/proc` belong to root, and it keeps its parent's score. The start does not fail for that.
    pub(crate) fn give_score(self, child: Pid, pidfd: BorrowedFd<'_>) {
        let Some(score) = self.oom_score_adjust else { return };
        for _ in 0..SCORE_TRIES {
            match write_score(score, child, pidfd) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => thread::sleep(SCORE_PAUSE),
                _ => return,
            }
        }
    }
}

/// Lowers the priority of the calling thread, and of threads that it starts later, for work that is not urgent. The thread still gets some CPU
/// time on a busy node. A failed call has no effect.
pub fn give_way() {
    // The system limits the value to 19.
    let _ = niceness().and_then(|own| set_niceness(own + WAY));
}

/// Writes the score of the process with this pidfd.
fn write_score(score: i32, pid: Pid, pidfd: BorrowedFd<'_>) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(format!("/proc/{pid}/oom_score_adj"))?;
    // The number of an unreaped process is not reused, so the file that was opened before belongs to this process.
    pidfd_is_unreaped(pidfd)?;
    file.write_all(score.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::Command;

    use super::*;
    use crate::syscalls::pidfd_open;

    #[test]
    fn only_a_lower_priority_is_taken() {
        let priority = |niceness, score| Priority { niceness, oom_score_adjust: score };
        let own = priority(Some(0), Some(-500));
        assert_eq!(priority(Some(5), Some(100)).below(own), priority(Some(5), Some(100)));
        assert_eq!(priority(Some(0), Some(-600)).below(own), Priority::default());
        assert_eq!(priority(None, Some(-499)).below(own), priority(None, Some(-499)));
        assert_eq!(priority(Some(5), Some(5)).below(Priority::default()), Priority::default(), "nobody knows our own");
        let Priority { niceness: Some(niceness), oom_score_adjust: Some(score) } = Priority::own() else {
            panic!("own")
        };
        assert!((-20..20).contains(&niceness) && (-1000..=1000).contains(&score));
    }

    #[test]
    fn a_thread_gives_way_with_those_that_it_starts_and_no_other() {
        let before = niceness().unwrap();
        let lowered = thread::spawn(|| {
            give_way();
            (niceness().unwrap(), thread::spawn(|| niceness().unwrap()).join().unwrap())
        });
        let expected = (before + WAY).min(19);
        assert_eq!(lowered.join().unwrap(), (expected, expected));
        assert_eq!(niceness().unwrap(), before);
    }

    #[test]
    fn the_score_is_written_for_the_very_process_and_not_for_a_later_one_of_its_number() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let pidfd = pidfd_open(pid).unwrap();
        let score = |pid| fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().to_owned();
        Priority { niceness: None, oom_score_adjust: Some(999) }.give_score(pid, pidfd.as_fd());
        assert_eq!(score(pid), "999");
        child.kill().unwrap();
        child.wait().unwrap();
        let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
        let number = Pid::from_raw(other.id() as i32);
        let before = score(number);
        assert_eq!(write_score(998, number, pidfd.as_fd()).unwrap_err().raw_os_error(), Some(Errno::ESRCH as i32));
        assert_eq!(score(number), before);
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
