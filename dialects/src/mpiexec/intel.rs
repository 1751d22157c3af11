//! Values of Intel MPI's `I_MPI_PIN` and similar variables, as values of `--bind-to`, and values of its `-cpu-bind`.

use std::ffi::OsStr;

use super::super::flag::Refusal;
use super::super::line::Line;
use super::binding::bind_to;

/// `list:CPUS:CPUS`, a list for each rank of a node, or the number of CPUs of each rank (from its `-help`).
pub(super) fn cpu_bind(line: &mut Line, how: &OsStr) -> Result<(), Refusal> {
    let text = how.to_string_lossy();
    if let Some(lists) = text.strip_prefix("list:") {
        let user = format!("user:{}", lists.replace(',', "+").replace(':', ","));
        return bind_to(line, user.as_ref());
    }
    if text.parse::<std::num::NonZeroU32>().is_ok() {
        return bind_to(line, format!("hwthread:{text}").as_ref());
    }
    let reason = "list:CPUS:CPUS and a number of CPUs are; type -bind-to core for objects".to_owned();
    Err(Refusal::Value { flag: "-cpu-bind", value: text.into_owned(), reason })
}

/// `I_MPI_PIN`: switches the binding off; other values mean the default binding.
pub(super) fn pin(value: &str) -> Option<String> {
    let is_off = ["0", "no", "off", "disable"].iter().any(|off| value.eq_ignore_ascii_case(off));
    is_off.then(|| "none".to_owned())
}

/// `I_MPI_PIN_DOMAIN`: an object. Other domains (sizes, `omp`, `auto`, masks) have no equivalent here.
pub(super) fn pin_domain(value: &str) -> Option<String> {
    let object = match value.to_ascii_lowercase().as_str() {
        "node" => "none",
        "core" => "core",
        "socket" | "sock" => "socket",
        "numa" => "numa",
        "cache3" => "l3cache",
        _ => return None,
    };
    Some(object.to_owned())
}

/// Maximum number of CPUs in a list.
const CPUS_MAX: usize = 1 << 12;

/// `I_MPI_PIN_PROCESSOR_LIST`: one CPU for each rank of a node in order, such as `0,4-7`, starting again after the last CPU; or all CPUs of a
/// kind.
pub(super) fn pin_processor_list(value: &str) -> Option<String> {
    match value {
        "allcores" => return Some("core".to_owned()),
        "all" => return Some("hwthread".to_owned()),
        _ => {}
    }
    let mut cpus: Vec<String> = Vec::new();
    for range in value.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || cpus.len() + last - first >= CPUS_MAX {
            return None;
        }
        cpus.extend((first..=last).map(|cpu| cpu.to_string()));
    }
    Some(format!("user:{}", cpus.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bindings of the ranks of `mpiexec -n 2` of Intel MPI 2021.18.1 with these values.
    #[test]
    fn pins_are_bindings() {
        for (value, expected) in [("0", Some("none")), ("disable", Some("none")), ("on", None), ("1", None)] {
            assert_eq!(pin(value).as_deref(), expected, "{value}");
        }
        for (value, expected) in [
            ("core", Some("core")),
            ("node", Some("none")),
            ("4:compact", None),
            ("[1,2]", None),
            ("sock", Some("socket")),
        ] {
            assert_eq!(pin_domain(value).as_deref(), expected, "{value}");
        }
        for (value, expected) in [
            ("1,0", Some("user:1,0")),
            ("4-6,1", Some("user:4,5,6,1")),
            ("allcores", Some("core")),
            ("all:grain=2", None),
            ("3-1", None),
            ("0-99999999999999999999", None),
            ("0-18446744073709551615", None),
        ] {
            assert_eq!(pin_processor_list(value).as_deref(), expected, "{value}");
        }
    }
}
