//! Resource limits of this shell, which ranks on this machine inherit.

use std::path::Path;

use lattice_console::formatting;
use lattice_console::limits::Limits;
use rank_spawner::{Limit, LimitedResource};

use super::check::{Check, Subject};

/// Number of ranks for which the limits of this machine should be enough.
const RANKS: u32 = 256;
/// Locked memory that a rank needs for RDMA, in bytes, as vendors of networks recommend at least.
const LOCKED: u64 = 1 << 30;
/// Directories of devices with RDMA.
const RDMA: [&str; 2] = ["/sys/class/infiniband", "/sys/class/cxi"];

pub(super) fn checks(_: &Subject) -> Vec<Check> {
    let room = room(&Limits::of_this_process());
    let resources = [LimitedResource::Nofile, LimitedResource::Memlock, LimitedResource::Nproc, LimitedResource::Core];
    let has_rdma =
        RDMA.iter().any(|directory| Path::new(directory).read_dir().is_ok_and(|mut all| all.next().is_some()));
    let limits = resources.iter().filter_map(|resource| resource.limit().ok());
    limits.map(|limit| of_limit(limit, has_rdma)).chain([room]).collect()
}

fn of_limit(limit: Limit, has_rdma: bool) -> Check {
    let Limit { resource, soft, hard } = limit;
    let name = format!("limit {resource}");
    let detail = format!("{} (hard limit {})", value(resource, soft), value(resource, hard));
    match resource {
        LimitedResource::Memlock if has_rdma && soft < LOCKED => Check::warning(
            name,
            format!("{detail}; the network of this machine needs locked memory"),
            "ulimit -l unlimited; or LimitMEMLOCK=infinity, in the unit of lattice-agent",
        ),
        LimitedResource::Core if soft == 0 => Check::ok(name, format!("{detail}: ranks leave no core files")),
        _ => Check::ok(name, detail),
    }
}

/// A limit in words.
fn value(resource: LimitedResource, value: u64) -> String {
    match resource {
        _ if value == Limit::UNLIMITED => "unlimited".to_owned(),
        LimitedResource::Memlock | LimitedResource::Core => formatting::size(value),
        _ => value.to_string(),
    }
}

/// Whether the limits that count for all ranks of this machine together are enough.
fn room(limits: &Limits) -> Check {
    const NAME: &str = "room for ranks";
    match limits.check(RANKS, 0) {
        Ok(()) => Check::ok(NAME, format!("{RANKS} ranks or more fit on this machine by its limits")),
        Err(refused) => {
            let (by, limit, fitting) = (&refused.limited_by, refused.limit, refused.fitting);
            let detail = format!("{fitting} ranks fit on this machine: {by} is {limit}");
            Check::warning(NAME, detail, "raise that limit, for more ranks on this machine")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;

    #[test]
    fn a_limit_is_shown_in_its_unit_and_judged_by_its_use() {
        let check = |resource, soft, has_rdma, expected, text: &str| {
            let check = of_limit(Limit { resource, soft, hard: Limit::UNLIMITED }, has_rdma);
            assert_eq!(check.state, expected, "{check:?}");
            assert!(check.detail.starts_with(text), "{check:?}");
        };
        check(LimitedResource::Nofile, 1024, false, State::Ok, "1024 (hard limit unlimited)");
        check(LimitedResource::Memlock, 8 << 20, false, State::Ok, "8.0 MiB (");
        check(LimitedResource::Memlock, 8 << 20, true, State::Warning, "8.0 MiB (");
        check(LimitedResource::Memlock, Limit::UNLIMITED, true, State::Ok, "unlimited (");
        check(LimitedResource::Core, 0, false, State::Ok, "0 B (hard limit unlimited): ranks leave no core files");
    }

    #[test]
    fn a_limit_that_is_too_low_for_many_ranks_is_named() {
        let limits = Limits { processes: vec![("pid_max".to_owned(), 100)], descriptors: None };
        let check = room(&limits);
        assert_eq!(
            (check.state, check.detail.as_str()),
            (State::Warning, "100 ranks fit on this machine: pid_max is 100")
        );
        assert_eq!(room(&Limits::default()).state, State::Ok);
    }
}
