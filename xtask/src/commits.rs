//! Subjects of commits: at most 72 characters, so that `git log --oneline` and patches by mail do not cut them.

use anyhow::{Context, Result, ensure};

use crate::shell::{command, works};

/// Longest subject, in characters.
const SUBJECT_MAX: usize = 72;

/// The last commit before the check. History is not rewritten, so older subjects stay.
const CHECKED_AFTER: &str = "3eb0ef5a";

/// Checks the subjects of the commits after [`CHECKED_AFTER`].
pub(crate) fn check() -> Result<()> {
    if !works(&mut command("git", &format!("rev-parse --verify --quiet {CHECKED_AFTER}^{{commit}}"))) {
        println!("no history of this tree can be read, or it is shallow: no subject was checked");
        return Ok(());
    }
    let log = command("git", &format!("log --format=%s {CHECKED_AFTER}..HEAD")).output().context("cannot run git")?;
    let long = long_subjects(&String::from_utf8(log.stdout)?);
    ensure!(long.is_empty(), "subjects of commits have at most {SUBJECT_MAX} characters:\n{}", long.join("\n"));
    Ok(())
}

/// Number of digits of a hash in a number of a commit. As a seed, it leaves room for further seeds.
const DIGITS: usize = 15;

/// Number of the present commit, by which runs of it choose seeds and tests.
pub(crate) fn number() -> Result<u64> {
    let head = command("git", "rev-parse HEAD").output().context("cannot ask git for the commit")?;
    number_of(&String::from_utf8_lossy(&head.stdout))
}

/// Returns the number of a commit, from its hash in hexadecimal.
fn number_of(hash: &str) -> Result<u64> {
    let digits = hash.get(..DIGITS).with_context(|| format!("{hash:?} is no commit"))?;
    u64::from_str_radix(digits, 16).with_context(|| format!("{hash:?} is no commit"))
}

/// Returns the lines that are too long, each with its length.
fn long_subjects(log: &str) -> Vec<String> {
    let long = log.lines().map(|subject| (subject.chars().count(), subject)).filter(|(count, _)| *count > SUBJECT_MAX);
    long.map(|(count, subject)| format!("{count}: {subject}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_commit_has_a_number_of_its_own() {
        let number = |hash: &str| number_of(hash).ok();
        assert_eq!(number("00000000000000a7b2c6cc70000000000000000f\n"), Some(0xa));
        assert_eq!(number("ffffffffffffffffffffffffffffffffffffffff"), Some((1 << 60) - 1));
        assert!(number("fatal: no repository").is_none() && number("").is_none());
    }

    #[test]
    fn a_subject_of_73_characters_is_too_long() {
        let (fits, long) = ("é".repeat(72), "é".repeat(73));
        assert_eq!(long_subjects(&format!("{fits}\n{long}\n")), [format!("73: {long}")]);
    }
}
