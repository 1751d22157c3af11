//! Invocations from public documentation and scripts (manuals of Slurm, MPICH, Intel MPI and Open MPI, guides of computing centres), with their
//! translations. Each entry is a line, and below it the flags of `lattice launch`, or after `!` a part of the error.

use super::{means, read};

/// Placeholder for the flags of srun's defaults.
const USUAL: &str = "[usual]";
const OF_SRUN: &str = "--kill-on-bad-exit=0 --stdin=all --slurm-env";

#[track_caller]
fn check(table: &str) {
    let lines: Vec<&str> = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(lines.len() >= 120, "{} lines", lines.len());
    let mut wrong = Vec::new();
    for pair in lines.chunks(2) {
        let [line, expected] = pair else { panic!("{pair:?} has no meaning") };
        let expected = expected.trim().replace(USUAL, OF_SRUN);
        let seen = read(line).map(|(words, _)| words);
        let is_right = match (expected.strip_prefix("! "), &seen) {
            (Some(part), Err(error)) => error.contains(part),
            (None, Ok(words)) => *words == expected,
            _ => false,
        };
        match is_right {
            true if seen.is_ok() => means(line, &expected),
            true => {}
            false => wrong.push(format!("{line}\n    {}\n", seen.unwrap_or_else(|error| format!("! {error}")))),
        }
    }
    assert!(wrong.is_empty(), "these mean something else:\n{}", wrong.concat());
}

#[test]
fn lines_of_srun_that_people_type() {
    check(include_str!("../../testdata/srun.txt"));
}

#[test]
fn lines_of_hydra_that_people_type() {
    check(include_str!("../../testdata/hydra.txt"));
}

#[test]
fn lines_of_open_mpi_that_people_type() {
    check(include_str!("../../testdata/openmpi.txt"));
}
