//! What we write for hwloc, compared object by object with what hwloc finds by itself: on this machine, and on machines that are made up.
//!
//! hwloc reads another root by `HWLOC_FSROOT`, and from the kernel's files alone by `HWLOC_COMPONENTS=linux,stop`.

#[path = "../made_up/mod.rs"]
mod made_up;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use lattice_inventory::{Allowed, Inventory, Root, xml};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use self::made_up::Machine;

/// Objects in their order, in words: depth, type, and those attributes that both must agree in.
type Objects = Vec<String>;

/// Runs hwloc's `lstopo`, and returns the XML that it writes.
fn lstopo(arguments: &[&str], root: Option<&Path>) -> String {
    let mut command = Command::new("lstopo");
    command.args(["--of", "xml", "--no-collapse"]).args(arguments).env("HWLOC_COMPONENTS", "linux,stop");
    if let Some(root) = root {
        command.env("HWLOC_FSROOT", root).env("HWLOC_THISSYSTEM", "0");
    }
    let output = command.output().expect("`lstopo` can be run; the Debian package hwloc-nox brings it");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "lstopo: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Loads XML of ours into hwloc, and returns what hwloc makes of it.
fn loaded(xml: &str) -> String {
    let file = tempfile::NamedTempFile::with_suffix(".xml").unwrap();
    fs::write(file.path(), xml).unwrap();
    lstopo(&["-i", file.path().to_str().unwrap()], None)
}

/// Attributes that must agree, by type.
fn compared(kind: &str) -> &'static [&'static str] {
    match kind {
        "Machine" => &["cpuset", "complete_cpuset", "allowed_cpuset", "nodeset", "allowed_nodeset"],
        "NUMANode" => &["os_index", "cpuset", "nodeset", "local_memory"],
        "Group" => &["cpuset", "nodeset", "subtype"],
        "PCIDev" => &["pci_busid", "pci_type"],
        "OSDev" => &["name", "osdev_type"],
        "Bridge" => &[],
        _ if kind.ends_with("Cache") => &[
            "os_index",
            "cpuset",
            "nodeset",
            "cache_size",
            "depth",
            "cache_linesize",
            "cache_associativity",
            "cache_type",
        ],
        _ => &["os_index", "cpuset", "nodeset"],
    }
}

/// Infos that must agree.
const INFOS: &[&str] = &["Address", "NodeGUID", "SysImageGUID"];

/// Objects of a topology. Bridges between are left out, and of devices all that no MPI library chooses by.
fn objects(xml: &str) -> Objects {
    let mut reader = Reader::from_str(xml);
    let (mut objects, mut depth) = (Objects::new(), 0);
    let mut left_out = 0;
    loop {
        let event = reader.read_event().unwrap();
        let is_empty = matches!(event, Event::Empty(_));
        match event {
            Event::Eof => return objects,
            Event::Start(start) | Event::Empty(start) if start.name().0 == "object" => {
                let attributes = attributes(&start);
                let kind = &attributes["type"];
                let matters = matters(&attributes) && left_out == 0;
                if kind != "Bridge" && matters {
                    let shown =
                        compared(kind).iter().filter_map(|name| Some(format!(" {name}={}", attributes.get(*name)?)));
                    // Devices hang at bridges that are as deep as they are.
                    let depth = if ["PCIDev", "OSDev"].contains(&kind.as_str()) { 0 } else { depth };
                    objects.push(format!("{depth} {kind}{}", shown.collect::<String>()));
                }
                if !is_empty {
                    depth += 1;
                    left_out += usize::from(!matters);
                }
            }
            Event::Empty(start) if start.name().0 == "info" && left_out == 0 => {
                let attributes = attributes(&start);
                if INFOS.contains(&attributes["name"].as_str()) {
                    objects.last_mut().unwrap().push_str(&format!(" {}={}", attributes["name"], attributes["value"]));
                }
            }
            Event::End(end) if end.name().0 == "object" => {
                depth -= 1;
                left_out = left_out.saturating_sub(1);
            }
            _ => {}
        }
    }
}

fn attributes(start: &BytesStart<'_>) -> BTreeMap<String, String> {
    start.attributes().map(|attribute| attribute.unwrap()).map(|a| (a.key.0.to_owned(), a.value.into_owned())).collect()
}

/// False for PCI devices that are neither network, GPU nor NVMe disk.
fn matters(attributes: &BTreeMap<String, String>) -> bool {
    let Some(class) = attributes.get("pci_type").filter(|_| attributes["type"] == "PCIDev") else { return true };
    ["02", "0c06", "03", "12", "0108"].iter().any(|kind| class.starts_with(kind))
}

/// Compares what hwloc makes of our XML with what it finds by itself.
fn check(root: &Root, directory: Option<&Path>) -> Inventory {
    let inventory = Inventory::read(root);
    assert!(inventory.trouble.is_empty(), "{:?}", inventory.trouble);
    let xml = xml::write(&inventory, &Allowed::all(&inventory.template)).unwrap();
    let (ours, hwlocs) = (objects(&loaded(&xml)), objects(&lstopo(&["--whole-io"], directory)));
    assert!(ours == hwlocs, "ours:\n{}\n\nhwloc's:\n{}", ours.join("\n"), hwlocs.join("\n"));
    inventory
}

fn check_machine(machine: &Machine) -> Inventory {
    check(&machine.root(), Some(machine.directory()))
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
    let cores: Vec<String> = (0..16).map(|core| core.to_string()).collect();
    machine.groups("core", &cores.iter().map(String::as_str).collect::<Vec<_>>());
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
    let ours = loaded(&xml::write(&inventory, &Allowed::all(&inventory.template)).unwrap());
    assert_eq!(told(&ours), told(&lstopo(&[], Some(machine.directory()))));
}

#[test]
fn memory_without_cpus() {
    let machine = Machine::new("0-3", "0-3");
    machine.groups("core", &["0", "1", "2", "3"]).groups("package", &["0-1", "2-3"]);
    machine.numa(&[("0-1", "10 20 20"), ("2-3", "20 10 20"), ("", "20 20 10")]);
    check_machine(&machine);
}

#[test]
fn a_cpuset_leaves_what_it_leaves() {
    let machine = Machine::new("0-7", "0-7");
    machine.groups("core", &["0,4", "1,5", "2,6", "3,7"]).groups("package", &["0-1,4-5", "2-3,6-7"]);
    machine.numa(&[("0-1,4-5", "10 21"), ("2-3,6-7", "21 10")]);
    let inventory = Inventory::read(&machine.root());
    let allowed = Allowed { cpus: "2-3".parse().unwrap(), nodes: "1".parse().unwrap() };
    let seen = objects(&loaded(&xml::write(&inventory, &allowed).unwrap()));
    assert_eq!(
        seen,
        [
            "0 Machine cpuset=0x0000000c complete_cpuset=0x000000ff allowed_cpuset=0x0000000c nodeset=0x00000002 \
             allowed_nodeset=0x00000002",
            "1 Package os_index=1 cpuset=0x0000000c nodeset=0x00000002",
            "2 NUMANode os_index=1 cpuset=0x0000000c nodeset=0x00000002 local_memory=4294967296",
            "2 Core os_index=2 cpuset=0x00000004 nodeset=0x00000002",
            "3 PU os_index=2 cpuset=0x00000004 nodeset=0x00000002",
            "2 Core os_index=3 cpuset=0x00000008 nodeset=0x00000002",
            "3 PU os_index=3 cpuset=0x00000008 nodeset=0x00000002",
        ]
    );
}
