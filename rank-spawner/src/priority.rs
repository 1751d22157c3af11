//! Niceness and the kernel's score for its search for memory, which ranks may have higher than the process that starts them.

use std::fs;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::write;

use crate::syscalls::{niceness, set_niceness};

/// File of the score of a process.
const SCORE: &str = "/proc/self/oom_score_adj";

/// What of a rank's priority differs from that of the process that starts it. Nobody may raise it, so that only greater numbers count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Priority {
    /// Niceness (`nice(1)`), from -20 to 19; `None` for that of the launcher.
    pub niceness: Option<i32>,
    /// Adjustment of the score by which the kernel chooses a process when there is no memory left (`oom_score_adj`), from -1000 to 1000;
    /// `None` for that of the launcher.
    pub oom_score_adjust: Option<i32>,
}

impl Priority {
    /// Priority of this process; what the system does not tell is `None`.
    pub fn own() -> Self {
        let score = fs::read_to_string(SCORE).ok().and_then(|text| text.trim().parse().ok());
        Self { niceness: niceness().ok(), oom_score_adjust: score }
    }

    /// The part of this priority that is lower than another one, that of a process that starts ranks.
    #[must_use]
    pub fn below(self, other: Self) -> Self {
        let greater = |asked: Option<i32>, own: Option<i32>| asked.filter(|asked| own.is_some_and(|own| *asked > own));
        Self {
            niceness: greater(self.niceness, other.niceness),
            oom_score_adjust: greater(self.oom_score_adjust, other.oom_score_adjust),
        }
    }

    /// Gives it to this process; between `clone` and `execve` it allocates nothing.
    pub(crate) fn take(self) -> Result<(), Errno> {
        if let Some(niceness) = self.niceness {
            set_niceness(niceness)?;
        }
        if let Some(score) = self.oom_score_adjust {
            let file = open(c"/proc/self/oom_score_adj", OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
            let mut digits = [0; 8];
            write(&file, decimal(score, &mut digits))?;
        }
        Ok(())
    }
}

/// A number of at most seven digits as text.
fn decimal(number: i32, room: &mut [u8; 8]) -> &[u8] {
    let mut at = room.len();
    let mut left = number.unsigned_abs();
    while at > 1 {
        at -= 1;
        room[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        room[at] = b'-';
    }
    &room[at..]
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn scores_are_written_in_decimal() {
        for number in [0, 7, 1000, -1000, -17, 999] {
            assert_eq!(decimal(number, &mut [0; 8]), number.to_string().as_bytes());
        }
    }
}
