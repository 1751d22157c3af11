//! GPUs and network interfaces that programs use, and the cores next to each of them.

use std::collections::BTreeMap;

use crate::cpus::CpuSet;
use crate::template::{OsKind, PciDevice, PciKind, Template};

/// PCI vendors of GPUs for computation: NVIDIA, AMD and Intel.
const MAKERS: [u16; 3] = [0x10de, 0x1002, 0x8086];

impl Template {
    /// GPUs for computation, in the order of their addresses: GPUs of NVIDIA, otherwise of AMD, otherwise of Intel. The display adapter of a
    /// board is not included.
    pub fn gpus(&self) -> Vec<&PciDevice> {
        let of = |maker: u16| -> Vec<&PciDevice> {
            self.pci.iter().filter(|device| device.kind == PciKind::Gpu && device.id[0] == maker).collect()
        };
        MAKERS.into_iter().map(of).find(|gpus| !gpus.is_empty()).unwrap_or_default()
    }

    /// Network interfaces for MPI traffic, in the order of their addresses: InfiniBand, RDMA over Ethernet and Slingshot if there are any,
    /// otherwise all.
    pub fn nics(&self) -> Vec<&PciDevice> {
        let all: Vec<&PciDevice> = self.pci.iter().filter(|device| device.kind == PciKind::Nic).collect();
        let is_of_fabric =
            |nic: &&PciDevice| nic.names.iter().any(|name| matches!(name.kind, OsKind::Fabric | OsKind::Cxi));
        let of_fabric: Vec<&PciDevice> = all.iter().copied().filter(is_of_fabric).collect();
        if of_fabric.is_empty() { all } else { of_fabric }
    }
}

/// For each core, given by its CPUs, the number from 1 of a device next to it; 0 for none. Devices next to the same cores divide these evenly,
/// each with a run of neighbouring cores.
pub(crate) fn shares(cores: &[&CpuSet], devices: &[&PciDevice]) -> Vec<u32> {
    let mut alike: BTreeMap<Vec<u32>, Vec<usize>> = BTreeMap::new();
    for (place, cpus) in cores.iter().enumerate() {
        let near = (1..).zip(devices).filter(|(_, device)| !device.cpus.is_disjoint(cpus));
        alike.entry(near.map(|(device, _)| device).collect()).or_default().push(place);
    }
    let mut numbers = vec![0; cores.len()];
    for (near, places) in alike.iter().filter(|(near, _)| !near.is_empty()) {
        for (index, &place) in places.iter().enumerate() {
            numbers[place] = near[index * near.len() / places.len()];
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::{Group, OsDevice};
    use crate::usable::UsableCores;

    fn device(bus: u8, kind: PciKind, vendor: u16, cpus: &str, names: &[OsKind]) -> PciDevice {
        PciDevice {
            address: format!("0000:{bus:02x}:00.0").parse().unwrap(),
            kind,
            class: 0,
            id: [vendor, 1],
            board: [0, 0],
            revision: 0,
            numa: None,
            cpus: cpus.parse().unwrap(),
            link_mb: 0,
            model: String::new(),
            names: names.iter().map(|&kind| OsDevice { kind, name: "x".to_owned() }).collect(),
        }
    }

    /// Eight cores of one thread, with these devices.
    fn node(pci: Vec<PciDevice>) -> Template {
        let core = |cpu: u16| Group { cpus: [cpu].into_iter().collect(), id: None };
        Template { cpus: "0-7".parse().unwrap(), cores: (0..8).map(core).collect(), pci, ..Template::default() }
    }

    fn gpus(of_cores: &Template, allowed: &str) -> Vec<u32> {
        let allowed: CpuSet = allowed.parse().unwrap();
        UsableCores::of(of_cores, &allowed).cores().iter().map(|core| core.gpu).collect()
    }

    #[test]
    fn cores_belong_to_the_gpu_next_to_them() {
        let check = |cpus: &[&str], allowed: &str, expected: &[u32]| {
            let pci = (1..).zip(cpus).map(|(bus, cpus)| device(bus, PciKind::Gpu, 0x10de, cpus, &[])).collect();
            assert_eq!(gpus(&node(pci), allowed), expected, "{cpus:?} within {allowed}");
        };
        check(&[], "0-7", &[0; 8]);
        // The first GPU is next to the second half.
        check(&["4-7", "0-1"], "0-7", &[2, 2, 0, 0, 1, 1, 1, 1]);
        // Devices next to the same cores divide them evenly, also on a part of the node.
        check(&["0-3", "0-3", "4-7"], "0-7", &[1, 1, 2, 2, 3, 3, 3, 3]);
        check(&["0-3", "0-3", "4-7"], "0,3,7", &[1, 2, 3]);
        check(&["0-7", "0-7", "0-7"], "0-7", &[1, 1, 1, 2, 2, 2, 3, 3]);
        check(&["0-7"; 4], "2-3", &[1, 3]);
        // One of the two devices is near to more cores.
        check(&["0-7", "4-7"], "0-7", &[1, 1, 1, 1, 1, 1, 2, 2]);
    }

    #[test]
    fn devices_that_no_program_uses_are_left_out() {
        let screen = device(1, PciKind::Gpu, 0x1a03, "0-7", &[]);
        let integrated = device(2, PciKind::Gpu, 0x8086, "0-7", &[]);
        let card = device(3, PciKind::Gpu, 0x1002, "0-7", &[]);
        assert!(node(vec![screen.clone()]).gpus().is_empty());
        assert_eq!(node(vec![screen.clone(), integrated.clone()]).gpus(), [&integrated]);
        assert_eq!(node(vec![screen, integrated, card.clone()]).gpus(), [&card]);

        let ethernet = device(1, PciKind::Nic, 0x8086, "0-3", &[OsKind::Net]);
        let fabric = [(2, OsKind::Fabric), (3, OsKind::Cxi)];
        let fabric = fabric.map(|(bus, kind)| device(bus, PciKind::Nic, 0x15b3, "4-7", &[OsKind::Net, kind]));
        assert_eq!(node(vec![ethernet.clone()]).nics(), [&ethernet]);
        let both = node([vec![ethernet], fabric.to_vec()].concat());
        assert_eq!(both.nics(), [&fabric[0], &fabric[1]]);
        let cores = UsableCores::of(&both, &both.cpus);
        assert_eq!(cores.cores().iter().map(|core| core.nic).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 2, 2]);
    }
}
