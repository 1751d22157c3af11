//! Sources of an inventory: the results of each, and the results that remain when one fails.

#[allow(dead_code, reason = "benches and tests use a part of it each")]
mod made_up;

use std::fs;

use lattice_inventory::{AddressKind, Inventory, NodeRecord, PciKind, deliver};
use made_up::Machine;

/// A node with a network interface, an InfiniBand device with this GUID, a Slingshot device, and GPUs of two vendors.
fn node(guid: &str) -> Machine {
    let machine = Machine::new("0-3", "0-3");
    machine
        .groups("core", &["0", "1", "2", "3"])
        .groups("package", &["0-3"])
        .numa(&[("0-1", "10 20"), ("2-3", "20 10")]);
    machine.pci("0000:21:00.0", 0x0002_0700, [0x15b3, 0x101b], 0, "0-1");
    machine.os_device("infiniband", "mlx5_0", "0000:21:00.0", ("node_guid", guid));
    machine.pci("0000:a1:00.0", 0x0002_0000, [0x17db, 0x0501], 1, "2-3");
    machine.os_device("net", "hsn0", "0000:a1:00.0", ("address", "02:00:00:00:00:01"));
    machine.os_device("cxi_user", "cxi0", "0000:a1:00.0", ("device/properties/nid", "0x1a2b"));
    machine.pci("0000:c1:00.0", 0x0003_0200, [0x10de, 0x2330], 1, "2-3");
    let about = "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-0123\nVideo BIOS: \t ??.??";
    machine.write("proc/driver/nvidia/gpus/0000:c1:00.0/information", about);
    machine.pci("0000:d1:00.0", 0x0012_0000, [0x1002, 0x74a1], 0, "0-1");
    machine.write("sys/bus/pci/devices/0000:d1:00.0/unique_id", "91c2b5f7e4");
    machine
}

#[test]
fn devices_are_known_with_their_addresses() {
    let inventory = Inventory::read(&node("b8ce:f603:0012:3456").root());
    assert!(inventory.trouble.is_empty(), "{:?}", inventory.trouble);
    let seen: Vec<_> = inventory.template.pci.iter().map(|device| (device.kind, device.numa, device.link_mb)).collect();
    let speed = 31508;
    assert_eq!(
        seen,
        [
            (PciKind::Nic, Some(0), speed),
            (PciKind::Nic, Some(1), speed),
            (PciKind::Gpu, Some(1), speed),
            (PciKind::Gpu, Some(0), speed)
        ]
    );
    assert_eq!(inventory.template.pci[2].model, "NVIDIA H100");
    let address = |device, kind| inventory.address(device, kind).unwrap_or_default();
    assert_eq!(address("mlx5_0", AddressKind::NodeGuid), "b8ce:f603:0012:3456");
    assert_eq!(address("hsn0", AddressKind::Mac), "02:00:00:00:00:01");
    assert_eq!(address("cxi0", AddressKind::Nid), "0x1a2b");
    assert_eq!(address("0000:c1:00.0", AddressKind::Uuid), "GPU-0123");
    assert_eq!(address("0000:d1:00.0", AddressKind::Uuid), "91c2b5f7e4");
}

#[test]
fn equal_nodes_have_one_signature_whatever_their_addresses_are() {
    let [one, other] = ["b8ce:f603:0012:3456", "b8ce:f603:0012:9999"].map(|guid| Inventory::read(&node(guid).root()));
    assert_eq!(one.template.encode(), other.template.encode());
    assert_eq!(one.template.signature(), other.template.signature());
    assert_ne!(one.devices, other.devices);
    let third = node("b8ce:f603:0012:3456");
    fs::remove_dir_all(third.path("sys/bus/pci/devices/0000:d1:00.0")).unwrap();
    assert_ne!(Inventory::read(&third.root()).template.signature(), one.template.signature());
}

/// Idle GPUs of some vendors have a slower link, and the kind of a node must not change with time.
#[test]
fn nodes_whose_gpus_are_idle_are_of_the_same_kind() {
    let template = |speed: &str, width: &str| {
        let machine = node("b8ce:f603:0012:3456");
        for gpu in ["0000:c1:00.0", "0000:d1:00.0"].map(|gpu| format!("sys/bus/pci/devices/{gpu}")) {
            machine.write(&format!("{gpu}/max_link_speed"), "32.0 GT/s PCIe");
            machine.write(&format!("{gpu}/max_link_width"), "16");
            machine.write(&format!("{gpu}/current_link_speed"), speed);
            machine.write(&format!("{gpu}/current_link_width"), width);
        }
        Inventory::read(&machine.root()).template
    };
    let (busy, idle) = (template("32.0 GT/s PCIe", "16"), template("2.5 GT/s PCIe", "8"));
    assert_eq!(busy.pci[2].link_mb, 63015);
    assert_eq!(busy.signature(), idle.signature());
}

#[test]
fn a_source_that_fails_takes_nothing_from_the_others() {
    let machine = node("b8ce:f603:0012:3456");
    machine.write("sys/devices/system/node/node1/cpulist", "two or three");
    machine.write("sys/bus/pci/devices/0000:a1:00.0/local_cpulist", "\u{1}");
    let inventory = Inventory::read(&machine.root());
    let failed: Vec<&str> = inventory.trouble.iter().map(|trouble| trouble.source.as_str()).collect();
    assert_eq!(failed, ["memory", "pci"]);
    assert!(inventory.trouble[0].reason.contains("node1/cpulist"), "{:?}", inventory.trouble);
    assert_eq!(inventory.template.cores.len(), 4);
    // Other devices keep their places and names.
    let others: Vec<String> = inventory.template.pci.iter().map(|device| device.address.to_string()).collect();
    assert!(!others.contains(&"0000:a1:00.0".to_owned()) && others.contains(&"0000:d1:00.0".to_owned()), "{others:?}");
    assert!(inventory.template.pci.iter().any(|device| !device.names.is_empty()));
    assert_eq!(inventory.address("mlx5_0", AddressKind::NodeGuid), Some("b8ce:f603:0012:3456"));
}

#[test]
fn two_nodes_with_one_address_are_told() {
    let [one, other] = ["b8ce:f603:0012:3456"; 2].map(|guid| Inventory::read(&node(guid).root()));
    let records =
        [("n1", &one), ("n2", &other)].map(|(node, inventory)| NodeRecord { node, devices: &inventory.devices });
    let told: Vec<String> = deliver(&records).into_iter().map(|trouble| trouble.reason).collect();
    assert_eq!(
        told,
        [
            "0000:c1:00.0 of n2 and 0000:c1:00.0 of n1 have the same UUID, GPU-0123",
            "0000:d1:00.0 of n2 and 0000:d1:00.0 of n1 have the same UUID, 91c2b5f7e4",
            "cxi0 of n2 and cxi0 of n1 have the same Slingshot address, 0x1a2b",
            "mlx5_0 of n2 and mlx5_0 of n1 have the same node GUID, b8ce:f603:0012:3456",
        ]
    );
    assert_eq!(deliver(&records[..1]), []);
}
