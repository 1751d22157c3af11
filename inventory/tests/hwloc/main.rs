//! Compares the XML of this crate, object by object, with the results of hwloc itself: on this machine, and on generated machines.
//!
//! The generated machines have the shapes of machines that were captured for hwloc. `captured` has captured machines, and the example
//! `compare_trees` compares further ones.

#[path = "../lstopo/mod.rs"]
mod lstopo;
#[path = "../made_up/mod.rs"]
mod made_up;

mod allowed;
mod captured;
mod numa;
mod odd;

use std::path::Path;

use lattice_inventory::{Allowed, Inventory, Root, xml};

use self::lstopo::{loaded, lstopo, objects};
use self::made_up::Machine;

/// Compares hwloc's view of this crate's XML with hwloc's own results.
fn check(root: &Root, directory: Option<&Path>) -> Inventory {
    let inventory = Inventory::read(root);
    assert!(inventory.trouble.is_empty(), "{:?}", inventory.trouble);
    // The test ignores the control groups of the machine that it runs on.
    let allowed = directory.and_then(|_| Allowed::to_this_process(root, &inventory.template.cpus));
    let allowed = allowed.unwrap_or_else(|| Allowed::all(&inventory.template));
    let xml = xml::write(&inventory, &allowed).unwrap();
    let hwlocs = objects(&lstopo(&["--whole-io"], directory, &[]).unwrap());
    let ours = objects(&loaded(&xml).unwrap());
    assert!(ours == hwlocs, "ours:\n{}\n\nhwloc's:\n{}", ours.join("\n"), hwlocs.join("\n"));
    inventory
}

fn check_machine(machine: &Machine) -> Inventory {
    check(&machine.root(), Some(machine.directory()))
}

/// One list per number, each with this number only.
fn singles(numbers: std::ops::Range<u16>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

fn words(lists: &[String]) -> Vec<&str> {
    lists.iter().map(String::as_str).collect()
}

#[test]
fn this_machine_is_what_hwloc_finds() {
    let inventory = check(&Root::default(), None);
    assert_eq!(inventory, Inventory::read(&Root::default()));
}

#[test]
fn two_packages_of_four_numa_nodes_with_devices() {
    let machine = Machine::new("0-31", "0-31");
    let cores: Vec<String> = (0..16).map(|core| format!("{core},{}", core + 16)).collect();
    let cores: Vec<&str> = cores.iter().map(String::as_str).collect();
    machine.groups("core", &cores).groups("package", &["0-7,16-23", "8-15,24-31"]);
    machine.groups("die", &["0-7,16-23", "8-15,24-31"]);
    let pairs =
        ["0-1,16-17", "2-3,18-19", "4-5,20-21", "6-7,22-23", "8-9,24-25", "10-11,26-27", "12-13,28-29", "14-15,30-31"];
    for cores in &cores {
        machine.caches(&[(0, 1, "Data", 32, cores), (1, 1, "Instruction", 32, cores), (2, 2, "Unified", 512, cores)]);
    }
    for pair in pairs {
        machine.caches(&[(3, 3, "Unified", 16384, pair)]);
    }
    let near = |node: usize| {
        let distance = |other: usize| {
            if other == node {
                "10"
            } else if other / 4 == node / 4 {
                "12"
            } else {
                "32"
            }
        };
        (0..8).map(distance).collect::<Vec<_>>().join(" ")
    };
    let distances: Vec<String> = (0..8).map(near).collect();
    let nodes: Vec<_> = pairs.iter().zip(&distances).map(|(cpus, distances)| (*cpus, distances.as_str())).collect();
    machine.numa(&nodes);
    machine.pci("0000:21:00.0", 0x0002_0700, [0x15b3, 0x101b], 1, pairs[1]);
    machine.os_device("infiniband", "mlx5_0", "0000:21:00.0", ("node_guid", "b8ce:f603:0012:3456"));
    machine.os_device("net", "ib0", "0000:21:00.0", ("address", "00:00:10:29:fe:80"));
    machine.pci("0000:a1:00.0", 0x0002_0000, [0x17db, 0x0501], 5, pairs[5]);
    machine.os_device("net", "hsn0", "0000:a1:00.0", ("address", "02:00:00:00:00:01"));
    machine.pci("0000:c1:00.0", 0x0003_0200, [0x10de, 0x2330], 6, pairs[6]);
    machine.pci("0000:00:14.0", 0x000c_0330, [0x1022, 0x1234], 0, "0-31");
    let inventory = check_machine(&machine);
    assert_eq!(inventory.template.pci.len(), 3);
}

#[test]
fn cpus_that_are_offline() {
    let machine = Machine::new("0-7", "0-2,4-7");
    machine.groups("core", &["0,4", "1,5", "2,6", "7"]).groups("package", &["0-1,4-5", "2,6-7"]);
    machine.caches(&[
        (0, 1, "Data", 48, "0,4"),
        (0, 1, "Data", 48, "1,5"),
        (0, 1, "Data", 48, "2,6"),
        (0, 1, "Data", 48, "7"),
    ]);
    machine.numa(&[("0-1,4-5", "10 21"), ("2,6-7", "21 10")]);
    assert_eq!(check_machine(&machine).template.offline.to_string(), "3");
}

#[test]
fn a_kernel_without_numa() {
    let machine = Machine::new("0-3", "0-3");
    machine.groups("core", &["0", "1", "2", "3"]).groups("package", &["0-3"]);
    machine.caches(&[(0, 2, "Unified", 1024, "0-3")]);
    check_machine(&machine);
}

#[test]
fn an_arm_machine_of_clusters_without_caches() {
    let machine = Machine::new("0-15", "0-15");
    machine.groups("core", &words(&singles(0..16)));
    machine.groups("cluster", &["0-3", "4-7", "8-11", "12-15"]).groups("package", &["0-7", "8-15"]);
    machine.numa(&[("0-7", "10 20"), ("8-15", "20 10")]);
    check_machine(&machine);
}

#[test]
fn cores_of_two_kinds() {
    let machine = Machine::new("0-7", "0-7");
    machine.groups("core", &["0-1", "2-3", "4", "5", "6", "7"]).groups("package", &["0-7"]);
    machine.groups("cluster", &["0-1", "2-3", "4-7"]);
    let small: Vec<_> = ["4", "5", "6", "7"].into_iter().map(|cpu| (0, 1, "Data", 32, cpu)).collect();
    machine.caches(&[(0, 1, "Data", 48, "0-1"), (0, 1, "Data", 48, "2-3")]).caches(&small);
    machine.caches(&[(1, 2, "Unified", 1280, "0-1"), (1, 2, "Unified", 1280, "2-3"), (1, 2, "Unified", 2048, "4-7")]);
    machine.caches(&[(2, 3, "Unified", 24576, "0-7")]).numa(&[("0-7", "10")]);
    for cpu in 0..8 {
        let capacity = if cpu < 4 { "1024" } else { "600" };
        machine.write(&format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity"), capacity);
    }
    let inventory = check_machine(&machine);
    let kinds: Vec<_> = inventory.template.core_kinds.iter().map(|kind| kind.cpus.to_string()).collect();
    assert_eq!(kinds, ["4-7", "0-3"]);
    let told = |xml: &str| -> Vec<String> {
        xml.lines().map(str::trim).filter(|line| line.starts_with("<cpukind ")).map(str::to_owned).collect()
    };
    let ours = loaded(&xml::write(&inventory, &Allowed::all(&inventory.template)).unwrap()).unwrap();
    assert_eq!(told(&ours), told(&lstopo(&[], Some(machine.directory()), &[]).unwrap()));
}
