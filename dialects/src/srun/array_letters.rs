//! `%A` and `%a` in file names: job and task of a job array of sbatch, from the variables that srun reads. Outside of an array, `%A` is the job,
//! and `%a` is Slurm's number for no value (NO_VAL, slurm.h).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Number for no task.
const NO_TASK: &str = "4294967294";

/// The file name with these letters replaced by their values, or by placeholders of a launch.
pub(super) fn filled(file: &OsStr) -> OsString {
    let number = |name: &str| std::env::var(name).ok().filter(|value| value.parse::<u32>().is_ok());
    filled_with(file, number("SLURM_ARRAY_JOB_ID").as_deref(), number("SLURM_ARRAY_TASK_ID").as_deref())
}

fn filled_with(file: &OsStr, job: Option<&str>, task: Option<&str>) -> OsString {
    let (mut name, mut rest) = (Vec::new(), file.as_bytes());
    while let Some(sign) = rest.iter().position(|&byte| byte == b'%') {
        name.extend_from_slice(&rest[..sign]);
        let behind = &rest[sign + 1..];
        let digits = behind.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (width, letters) = behind.split_at(digits);
        let padded = |number: &str| {
            // srun limits widths to 10.
            let width = String::from_utf8_lossy(width).parse::<usize>().unwrap_or_default().min(10);
            format!("{number:0>width$}").into_bytes()
        };
        let (shown, taken) = match (letters.first(), job) {
            (Some(b'A'), Some(job)) => (padded(job), 1),
            (Some(b'A'), None) => ([b"%", width, b"j"].concat(), 1),
            (Some(b'a'), _) => (padded(task.unwrap_or(NO_TASK)), 1),
            // Both characters of `%%`.
            (Some(b'%'), _) => ([b"%", width, b"%"].concat(), 1),
            _ => ([b"%", width].concat(), 0),
        };
        name.extend(shown);
        rest = &letters[taken..];
    }
    name.extend_from_slice(rest);
    OsString::from_vec(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_of_arrays_are_those_of_srun() {
        for (file, outside, within) in [
            ("out.%t", "out.%t", "out.%t"),
            ("%A_%a.out", "%j_4294967294.out", "7_3.out"),
            ("%6A-%4a", "%6j-4294967294", "000007-0003"),
            ("a%%A%", "a%%A%", "a%%A%"),
            ("%", "%", "%"),
        ] {
            assert_eq!(filled_with(file.as_ref(), None, None), outside);
            assert_eq!(filled_with(file.as_ref(), Some("7"), Some("3")), within);
        }
    }
}
