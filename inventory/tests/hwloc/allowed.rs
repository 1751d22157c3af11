//! Control groups that allow processes only a part of a machine.

use lattice_inventory::{Allowed, Inventory, xml};

use crate::lstopo::{loaded, objects};
use crate::made_up::Machine;
use crate::{check_machine, words};

#[test]
fn a_cpuset_leaves_what_it_leaves() {
    let machine = Machine::new("0-7", "0-7");
    machine.groups("core", &["0,4", "1,5", "2,6", "3,7"]).groups("package", &["0-1,4-5", "2-3,6-7"]);
    machine.numa(&[("0-1,4-5", "10 21"), ("2-3,6-7", "21 10")]);
    let inventory = Inventory::read(&machine.root());
    let allowed = Allowed { cpus: "2-3".parse().unwrap(), nodes: "1".parse().unwrap() };
    let seen = objects(&loaded(&xml::write(&inventory, &allowed).unwrap()).unwrap());
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

/// Two packages of four cores of two threads, each with two NUMA nodes.
fn four_nodes() -> Machine {
    let machine = Machine::new("0-15", "0-15");
    let cores: Vec<String> = (0..8).map(|core| format!("{core},{}", core + 8)).collect();
    machine.groups("core", &words(&cores)).groups("package", &["0-3,8-11", "4-7,12-15"]);
    machine.caches(&[(0, 3, "Unified", 8192, "0-3,8-11"), (0, 3, "Unified", 8192, "4-7,12-15")]);
    machine.numa(&[
        ("0-1,8-9", "10 12 20 20"),
        ("2-3,10-11", "12 10 20 20"),
        ("4-5,12-13", "20 20 10 12"),
        ("6-7,14-15", "20 20 12 10"),
    ]);
    machine
}

#[test]
fn control_groups_leave_what_hwloc_sees_in_them() {
    let check = |mount: &str, cpus: &str, nodes: &str| {
        let machine = four_nodes();
        // A mounted group of version 2 applies only if it has the controller.
        let directory = mount.split(' ').nth(1).unwrap();
        let directory = directory.trim_start_matches('/');
        machine.write(&format!("{directory}/cgroup.controllers"), "cpuset cpu memory");
        machine.control_group(mount, "/uid_7/job_9", [(cpus, "2-3,6,10-11"), (nodes, "1-2")]);
        check_machine(&machine);
    };
    check("none /sys/fs/cgroup cgroup2 rw,nosuid", "cpuset.cpus.effective", "cpuset.mems.effective");
    check("cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset", "cpuset.cpus", "cpuset.mems");
    check("none /cgroup/cpuset cgroup rw,relatime,cpuset", "cpuset.cpus", "cpuset.mems");
    check("none /dev/cpuset cgroup rw,cpuset,noprefix", "cpus", "mems");
    check("none /dev/cpuset cpuset rw", "cpus", "mems");
}

#[test]
fn a_control_group_without_the_memory_of_its_cpus() {
    let machine = four_nodes();
    machine.control_group("none /dev/cpuset cpuset rw", "/far", [("cpus", "0-1,8-9"), ("mems", "3")]);
    check_machine(&machine);
}
