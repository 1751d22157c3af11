//! Comparison of a node with its expected kind: the differences as text.

use crate::template::{PciKind, Template};

/// Tolerated difference of memory, as a fraction 1/N: firmware and kernel reserve different amounts on each node.
const MEMORY_SHARE: u64 = 32;

/// One line for each number that is smaller or larger in `seen` than in `expected`, such as `2 of 4 NICs of "milan" are
/// missing`. `name` is the name of `expected`.
pub fn differences(name: &str, expected: &Template, seen: &Template) -> Vec<String> {
    let counts = |template: &Template| {
        let devices = |kind| template.pci.iter().filter(|device| device.kind == kind).count();
        [
            ("package", template.packages.len()),
            // hwloc shows a kernel without NUMA as one node.
            ("NUMA node", template.numa.len().max(1)),
            ("core", template.cores.len()),
            ("CPU", template.cpus.len()),
            ("NIC", devices(PciKind::Nic)),
            ("GPU", devices(PciKind::Gpu)),
            ("NVMe disk", devices(PciKind::Nvme)),
        ]
    };
    let mut lines = Vec::new();
    for ((word, wanted), (_, there)) in counts(expected).into_iter().zip(counts(seen)) {
        let plural = |number: usize| if number == 1 { "" } else { "s" };
        match wanted.saturating_sub(there) {
            0 if there > wanted => lines.push(format!("{there} {word}{}, and \"{name}\" has {wanted}", plural(there))),
            0 => {}
            1 => lines.push(format!("1 of {wanted} {word}{} of \"{name}\" is missing", plural(wanted))),
            missing => lines.push(format!("{missing} of {wanted} {word}{} of \"{name}\" are missing", plural(wanted))),
        }
    }
    let (wanted, there) = (expected.memory_gib(), seen.memory_gib());
    if wanted > 0 && there > 0 && wanted.abs_diff(there) > (wanted / MEMORY_SHARE).max(1) {
        lines.push(format!("{there} GiB of memory, and \"{name}\" has {wanted}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::{Group, NumaNode, PciDevice};

    fn node(cpus: &str, nics: usize, memory_gib: u64) -> Template {
        let nic = |bus: usize| PciDevice {
            address: format!("0000:{bus:02x}:00.0").parse().unwrap(),
            kind: PciKind::Nic,
            class: 0x0200,
            id: [0; 2],
            board: [0; 2],
            revision: 0,
            numa: None,
            cpus: "0".parse().unwrap(),
            link_mb: 0,
            model: String::new(),
            names: Vec::new(),
        };
        let cpus: crate::CpuSet = cpus.parse().unwrap();
        Template {
            packages: vec![Group { cpus: cpus.clone(), id: Some(0) }],
            cores: cpus.iter().map(|cpu| Group { cpus: [cpu].into_iter().collect(), id: None }).collect(),
            numa: vec![NumaNode { id: 0, cpus: cpus.clone(), memory_gib, ..NumaNode::default() }],
            pci: (0..nics).map(nic).collect(),
            cpus,
            ..Template::default()
        }
    }

    #[test]
    fn memory_that_no_node_has_ends_nothing() {
        let mut vast = node("0", 0, u64::MAX);
        vast.numa.push(vast.numa[0].clone());
        let lines = differences("milan", &node("0", 0, 1), &vast);
        assert!(lines.iter().any(|line| line.contains("18446744073709551615 GiB of memory")), "{lines:?}");
        assert!(crate::picture::summary(&vast).contains("18446744073709551615 GiB"));
    }

    #[test]
    fn what_is_missing_is_counted() {
        let milan = node("0-7", 4, 512);
        let check = |seen: &Template, expected: &[&str]| assert_eq!(differences("milan", &milan, seen), expected);
        check(&milan, &[]);
        check(&node("0-7", 2, 508), &["2 of 4 NICs of \"milan\" are missing"]);
        check(
            &node("0-6", 3, 512),
            &[
                "1 of 8 cores of \"milan\" is missing",
                "1 of 8 CPUs of \"milan\" is missing",
                "1 of 4 NICs of \"milan\" is missing",
            ],
        );
        assert_eq!(differences("plain", &node("0", 0, 1), &node("0", 1, 1)), ["1 NIC, and \"plain\" has 0"]);
        check(&node("0-7", 5, 480), &["5 NICs, and \"milan\" has 4", "480 GiB of memory, and \"milan\" has 512"]);
    }
}
