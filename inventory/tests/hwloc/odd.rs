//! Processors that report more, less or other properties than most.

use crate::made_up::Machine;
use crate::{check_machine, singles, words};

#[test]
fn drawers_and_books() {
    let machine = Machine::new("0-15", "0-15");
    machine.arch("s390x").groups("core", &words(&singles(0..16)));
    machine.groups("package", &["0-2", "3-5", "6-7", "8-11", "12-13", "14-15"]);
    // The last book has one package, and the same CPUs as this package.
    machine.books("book", &["0-5", "6-11", "12-13", "14-15"]).books("drawer", &["0-11", "12-15"]);
    let template = check_machine(&machine).template;
    assert_eq!((template.books.len(), template.drawers.len()), (4, 2));
}

#[test]
fn books_that_only_other_processors_have_are_not_looked_for() {
    let machine = Machine::new("0-1", "0-1");
    machine.groups("core", &["0", "1"]).groups("package", &["0-1"]).books("book", &["0", "1"]);
    assert_eq!(check_machine(&machine).template.books.len(), 0);
}

#[test]
fn several_dies_of_several_clusters() {
    let machine = Machine::new("0-31", "0-31");
    let pairs: Vec<String> = (0..16).map(|core| format!("{},{}", 2 * core, 2 * core + 1)).collect();
    let clusters: Vec<String> = (0..8).map(|number| format!("{}-{}", 4 * number, 4 * number + 3)).collect();
    machine.groups("core", &words(&pairs)).groups("cluster", &words(&clusters));
    machine.groups("die", &["0-7", "8-15", "16-23", "24-31"]).groups("package", &["0-15", "16-31"]);
    machine.numa(&[("0-15", "10 20"), ("16-31", "20 10")]);
    let template = check_machine(&machine).template;
    assert_eq!((template.dies.len(), template.clusters.len()), (4, 8));
}

#[test]
fn threads_with_numbers_of_their_own_are_cores_of_a_module() {
    let machine = Machine::new("0-7", "0-7");
    let modules = ["0-1", "2-3", "4-5", "6-7"];
    machine.write("proc/cpuinfo", "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 21\nmodel\t\t: 1");
    machine
        .arch("x86_64")
        .groups("core", &modules)
        .groups("package", &["0-7"])
        .numa(&[("0-3", "10 16"), ("4-7", "16 10")]);
    for cpu in 0..8 {
        machine.write(&format!("sys/devices/system/cpu/cpu{cpu}/topology/core_id"), &(cpu % 4).to_string());
        machine.caches(&[(0, 1, "Data", 16, &cpu.to_string())]);
    }
    for cpus in modules {
        machine.caches(&[(1, 1, "Instruction", 64, cpus), (2, 2, "Unified", 2048, cpus)]);
    }
    machine.caches(&[(3, 3, "Unified", 6144, "0-3"), (3, 3, "Unified", 6144, "4-7")]);
    assert_eq!(check_machine(&machine).template.cores.len(), 8);
}

#[test]
fn caches_with_gaps_between_their_indexes() {
    let machine = Machine::new("0-3", "0-3");
    machine.groups("core", &words(&singles(0..4))).groups("package", &["0-1", "2-3"]);
    machine.caches(&[(0, 1, "Data", 32, "0"), (2, 2, "Unified", 4096, "0-1"), (2, 2, "Unified", 4096, "2-3")]);
    machine.caches(&[(3, 3, "Unified", 8192, "2-3")]);
    let sizes = check_machine(&machine).template.caches.into_iter().map(|cache| (cache.level, cache.instances.len()));
    assert_eq!(sizes.collect::<Vec<_>>(), [(1, 1), (2, 2), (3, 1)]);
}

#[test]
fn caches_that_name_no_cpus_are_those_of_the_core() {
    let machine = Machine::new("0-3", "0-3");
    machine.groups("core", &["0-1", "2-3"]).groups("package", &["0-3"]);
    for core in ["0-1", "2-3"] {
        machine.caches(&[
            (0, 1, "Data", 16, core),
            (1, 1, "Instruction", 16, core),
            (2, 2, "Data", 256, core),
            (3, 2, "Instruction", 1024, core),
            (4, 3, "Unified", 9216, core),
        ]);
    }
    for (cpu, index) in (0..4).flat_map(|cpu| [(cpu, 3), (cpu, 4)]) {
        let about = format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
        machine.write(&format!("{about}/shared_cpu_list"), "").write(&format!("{about}/shared_cpu_map"), "00000000");
    }
    assert_eq!(check_machine(&machine).template.caches.len(), 5);
}

#[test]
fn packages_without_cores() {
    let machine = Machine::new("0-3", "0-3");
    machine.groups("package", &["0-1", "2-3"]);
    assert_eq!(check_machine(&machine).template.packages.len(), 2);
}

#[test]
fn cpus_with_numbers_above_a_thousand() {
    let machine = Machine::new("0-7,2040-2055", "0-7,2041-2055");
    machine.groups("core", &["0-3", "4-7", "2041-2043", "2044-2047", "2048-2051", "2052-2055"]);
    machine.groups("package", &["0-7", "2041-2055"]).caches(&[(0, 2, "Unified", 1024, "2044-2047")]);
    machine.numbered_numa(&[(0, "0-7", "10 20"), (300, "2041-2055", "20 10")]);
    assert_eq!(check_machine(&machine).template.offline.to_string(), "2040");
}
