//! Limits of this machine on the number of ranks, known before the first rank starts.
//!
//! A number within the limits may still not fit, because other programs use the machine too. A job that cannot fit is refused with a number.

use std::fs;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::geteuid;

/// Descriptors of a rank: its PMI socket, its process, two output streams and its input.
const DESCRIPTORS_PER_RANK: u64 = 5;
/// Descriptors for other purposes: the standard streams, the runtime and a trace.
const OTHER_DESCRIPTORS: u64 = 32;

/// Limits on the number of ranks on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum numbers of processes, each with the name of its limit.
    pub processes: Vec<(String, u64)>,
    /// Maximum number of descriptors of this process; `None` if unlimited.
    pub descriptors: Option<u64>,
}

/// A job is larger than this machine can hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} not fit on this machine: {limited_by} is {limit}, which is enough for {}\n\
     try: {}; or further machines, as --via ssh --host NODE:SLOTS,... has them",
    if *ranks == 1 { "1 rank does".to_owned() } else { format!("{ranks} ranks do") },
    match fitting {
        0 => "none".to_owned(),
        1 => "1 rank".to_owned(),
        fitting => format!("{fitting} ranks"),
    },
    match fitting {
        0 => "a higher limit".to_owned(),
        1 => "-n 1".to_owned(),
        fitting => format!("-n {fitting} or fewer"),
    }
)]
pub struct TooManyRanks {
    /// Requested number of ranks.
    pub ranks: u32,
    /// Name of the limit that is too low.
    pub limited_by: String,
    /// Its value.
    pub limit: u64,
    /// Number of ranks that fit.
    pub fitting: u64,
}

impl Limits {
    /// Limits of this process. A limit that cannot be read does not apply.
    pub fn of_this_process() -> Self {
        let mut processes = Vec::new();
        // The kernel does not apply RLIMIT_NPROC to a privileged user.
        if !geteuid().is_root()
            && let Some(limit) = finite(Resource::RLIMIT_NPROC)
        {
            processes.push(("the limit of processes (ulimit -u)".to_owned(), limit));
        }
        for file in ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"] {
            processes.extend(number_in(Path::new(file)).map(|limit| (file.to_owned(), limit)));
        }
        if let Some(path) = fs::read_to_string("/proc/self/cgroup").ok().as_deref().and_then(cgroup_v2) {
            let file = Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/')).join("pids.max");
            processes.extend(number_in(&file).map(|limit| (file.display().to_string(), limit)));
        }
        Self { processes, descriptors: finite(Resource::RLIMIT_NOFILE) }
    }

    /// Checks that a job of `ranks` ranks that write to `files` files can fit.
    ///
    /// # Errors
    /// Returns the first limit that is too low, and the number of ranks that fit.
    pub fn check(&self, ranks: u32, files: usize) -> Result<(), TooManyRanks> {
        let processes = self.processes.iter().map(|(name, limit)| (name.as_str(), *limit, *limit));
        let descriptors = self.descriptors.map(|limit| {
            let fitting = limit.saturating_sub(OTHER_DESCRIPTORS + files as u64) / DESCRIPTORS_PER_RANK;
            ("the limit of open files (ulimit -Hn)", limit, fitting)
        });
        match processes.chain(descriptors).find(|&(_, _, fitting)| u64::from(ranks) > fitting) {
            None => Ok(()),
            Some((name, limit, fitting)) => Err(TooManyRanks { ranks, limited_by: name.to_owned(), limit, fitting }),
        }
    }
}

/// Hard limit, to which this process raises its soft limit; `None` if unlimited.
fn finite(resource: Resource) -> Option<u64> {
    let (_, hard) = getrlimit(resource).ok()?;
    (hard != nix::libc::RLIM_INFINITY).then_some(hard)
}

fn number_in(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Path of this process's control group in the single hierarchy of version 2.
fn cgroup_v2(proc_self_cgroup: &str) -> Option<&str> {
    proc_self_cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_is_named_with_what_fits() {
        let limits = Limits { processes: vec![("pid_max".to_owned(), 1000)], descriptors: Some(1032) };
        let check = |ranks, files, expected: Option<(&str, u64)>| {
            let refused = limits.check(ranks, files).err();
            let seen = refused.as_ref().map(|refused| (refused.limited_by.as_str(), refused.fitting));
            assert_eq!(seen, expected, "{ranks} ranks, {files} files");
        };
        let open_files = "the limit of open files (ulimit -Hn)";
        check(200, 0, None);
        check(201, 0, Some((open_files, 200)));
        check(200, 5, Some((open_files, 199)));
        check(1001, 0, Some(("pid_max", 1000)));
        check(1, 5000, Some((open_files, 0)));
        assert_eq!(Limits::default().check(u32::MAX, 0), Ok(()));
    }

    #[test]
    fn this_machine_has_limits_above_one_rank() {
        let limits = Limits::of_this_process();
        assert!(!limits.processes.is_empty());
        assert_eq!(limits.check(1, 0), Ok(()));
    }

    #[test]
    fn the_control_group_is_found() {
        assert_eq!(cgroup_v2("0::/user.slice/a\n"), Some("/user.slice/a"));
        assert_eq!(cgroup_v2("12:pids:/a\n1:cpu:/b\n"), None);
    }

    #[test]
    fn a_refusal_says_what_is_enough_for_how_many() {
        let limits = Limits { processes: vec![("pid_max".to_owned(), 1000)], descriptors: Some(1032) };
        assert_eq!(
            limits.check(201, 0).unwrap_err().to_string(),
            "201 ranks do not fit on this machine: the limit of open files (ulimit -Hn) is 1032, which is enough for 200 ranks\n\
             try: -n 200 or fewer; or further machines, as --via ssh --host NODE:SLOTS,... has them"
        );
        assert_eq!(
            limits.check(1, 5000).unwrap_err().to_string(),
            "1 rank does not fit on this machine: the limit of open files (ulimit -Hn) is 1032, which is enough for none\n\
             try: a higher limit; or further machines, as --via ssh --host NODE:SLOTS,... has them"
        );
        assert_eq!(
            limits.check(1001, 0).unwrap_err().to_string(),
            "1001 ranks do not fit on this machine: pid_max is 1000, which is enough for 1000 ranks\n\
             try: -n 1000 or fewer; or further machines, as --via ssh --host NODE:SLOTS,... has them"
        );
    }

    proptest::proptest! {
        /// The number of ranks in a refusal fits, and no greater number fits.
        #[test]
        fn as_many_ranks_fit_as_a_refusal_says(processes in 1_u64..5000, descriptors in 0_u64..20_000, files in 0_usize..300, ranks in 1_u32..6000) {
            let limits = Limits { processes: vec![("pid_max".to_owned(), processes)], descriptors: Some(descriptors) };
            if let Err(refused) = limits.check(ranks, files) {
                proptest::prop_assert!(refused.fitting < u64::from(ranks));
                let fitting = u32::try_from(refused.fitting).unwrap();
                let again = limits.check(fitting + 1, files);
                proptest::prop_assert!(again.is_err(), "{} fit after all", fitting + 1);
            }
        }
    }

    #[test]
    fn what_cannot_be_read_limits_nothing() {
        assert_eq!(number_in(Path::new("/nonexistent/pids.max")), None);
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, expected) in [("max\n", None), ("4096\n", Some(4096)), ("", None)] {
            fs::write(file.path(), text).unwrap();
            assert_eq!(number_in(file.path()), expected, "{text:?}");
        }
    }
}
