//! Facts for ranks about their node: a rank need not detect facts that its launcher has.

use std::fs;
use std::path::{Path, PathBuf};

use lattice_inventory::{
    AddressKind, Allowed, CpuSet, DeviceAddress, Group, Inventory, NumaNode, OsDevice, OsKind, PciDevice, PciKind,
    ThisNode, xml,
};
use lattice_tests::browser::{self, attribute, text_attribute};
use lattice_tests::mpi::{Flavour, MPIS};
use lattice_tests::{Command, Outcome, built, launch};
use nix::unistd::{geteuid, gethostname};

/// Runs two ranks under `strace`, each with a trace of the files that it opens.
fn traced(flags: &str, program: &Path, traces: &Path) -> Outcome {
    let (program, traces) = (program.display(), traces.display());
    let script = format!("exec strace -f -qq -e trace=openat,open -o {traces}/rank$LATTICE_RANK {program}");
    launch("-n 2").words(flags).bash(&script).run()
}

/// Returns the number of files about the topology of CPUs that a rank opened. hwloc reads some files for each CPU. Other libraries read the list
/// of online CPUs. On some processors UCX reads the cache sizes of the first CPU, with any launcher.
fn looked_at_cpus(traces: &Path, rank: u32) -> usize {
    let trace = fs::read_to_string(traces.join(format!("rank{rank}"))).unwrap();
    assert!(trace.contains("libmpi"), "rank {rank} uses MPI:\n{trace}");
    trace.lines().filter(|line| line.contains("/topology/")).count()
}

/// All libraries except MPICH before 4.1, which cannot receive the CPUs.
fn told_of_cpus() -> impl Iterator<Item = Flavour> {
    MPIS.into_iter().filter(|mpi| ![Flavour::WheelMpich3, Flavour::DebianMpich].contains(mpi))
}

#[test]
fn no_rank_looks_at_the_cpus_by_itself() {
    for mpi in told_of_cpus() {
        let traces = tempfile::tempdir().unwrap();
        traced("", &mpi.program("hello"), traces.path()).exits(0).prints_lines(["rank 0 of 2", "rank 1 of 2"]);
        for rank in 0..2 {
            assert_eq!(looked_at_cpus(traces.path(), rank), 0, "{mpi:?}, rank {rank}");
        }
    }
}

/// Returns the file with the topology for ranks.
fn told_file(launch: Command) -> PathBuf {
    let outcome = launch.arg(built::lattice()).words("pmi get PMI_hwloc_xmlfile").run();
    outcome.exits(0).says_nothing();
    outcome.text().trim().split_once('=').expect("a key and its value").1.into()
}

/// A mount namespace with an empty directory in place of the file's directory, as in a container that does not mount it.
#[test]
fn ranks_in_a_container_without_the_file_look_for_themselves() {
    assert!(geteuid().is_root(), "this test must run as root");
    let file = told_file(launch("-n 1"));
    let script = r#"mount -t tmpfs none "${1%/*}" && [ ! -e "$1" ] || exit 9
        exec strace -f -qq -e trace=openat,open -o "$2/rank$LATTICE_RANK" "$0""#;
    for mpi in MPIS {
        let traces = tempfile::tempdir().unwrap();
        let ranks = launch("-n 2 unshare --mount bash -c").arg(script).arg(mpi.program("hello")).arg(&file);
        let outcome = ranks.arg(traces.path()).run();
        outcome.exits(0).says_nothing().prints_lines(["rank 0 of 2", "rank 1 of 2"]);
        if mpi == Flavour::WheelMpich {
            for rank in 0..2 {
                assert_ne!(looked_at_cpus(traces.path(), rank), 0, "nobody else has told rank {rank}");
            }
        }
    }
}

/// Returns the number of files below `/sys` that two ranks opened.
fn files_of_sys(command: Command, program: &Path) -> usize {
    let traces = tempfile::tempdir().unwrap();
    let script = r#"exec strace -ff -qq -e trace=openat,open -o "$0/trace" "$1""#;
    let outcome = command.words("bash -c").arg(script).arg(traces.path()).arg(program).run();
    outcome.exits(0).prints("rank 0 of 2").prints("rank 1 of 2");
    let entries = fs::read_dir(traces.path()).unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    entries.map(|trace| trace.lines().filter(|line| line.contains("\"/sys/")).count()).sum()
}

/// Each library has its own launcher, which provides its facts about the node to its ranks.
#[test]
fn ranks_read_no_more_of_sys_than_below_their_own_launcher() {
    for mpi in MPIS {
        let program = mpi.program("hello");
        let own = Command::new(mpi.mpirun()).words("-n 2").env("OMPI_ALLOW_RUN_AS_ROOT", "1");
        let own = files_of_sys(own.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"), &program);
        let ours = files_of_sys(launch("-n 2"), &program);
        // Threads of the libraries sometimes read the state of an interface.
        assert!(ours <= own + own / 10 + 4, "{mpi:?}: {ours}, and {own} below its own launcher");
    }
}

/// Returns the system calls with which a rank searches for devices, or waits for devices that do not appear.
fn calls(flags: &str, program: &Path) -> String {
    let traces = tempfile::tempdir().unwrap();
    let trace = traces.path().join("trace");
    let strace = launch("-n 1").words(flags).words("strace -f -qq -e trace=clock_nanosleep,mprotect,openat,open -o");
    strace.arg(&trace).arg(program).run().exits(0).says_nothing().prints("rank 0 of 1");
    fs::read_to_string(trace).unwrap()
}

#[test]
fn ranks_do_not_wait_for_devices_that_their_node_does_not_have() {
    let waits = [
        (Flavour::WheelOpenMpi, "OMPI_MCA_btl", "^none", "{tv_sec=1, tv_nsec=0}"),
        (Flavour::WheelOpenMpi4, "OMPI_MCA_btl", "^none", "{tv_sec=1, tv_nsec=0}"),
        (Flavour::WheelOpenMpi, "OMPI_MCA_mtl", "^none", "/proc/kallsyms"),
        (Flavour::DebianOpenMpi, "OMPI_MCA_mtl", "^none", "libpsm2.so"),
        (Flavour::WheelMpich, "UCX_MEM_EVENTS", "y", "PROT_READ|PROT_WRITE|PROT_EXEC"),
    ];
    let has_devices = ThisNode::default().registers_memory();
    for (mpi, variable, choice, call) in waits {
        let program = mpi.program("hello");
        launch("-n 1 printenv").arg(variable).run().exits(i32::from(has_devices));
        assert!(has_devices || !calls("", &program).contains(call), "{mpi:?}: {call}");
        let chosen = calls(&format!("--env {variable}={choice}"), &program);
        assert!(chosen.contains(call), "{mpi:?} obeys its user, and does {call}: {chosen}");
    }
}

#[test]
fn bound_ranks_hear_of_their_places_and_others_do_not() {
    let place = Flavour::Pmix.program("pmix_place");
    let outcome = launch("-n 2").arg(&place).run();
    outcome.exits(0).says_nothing().prints_lines(["0: unbound", "1: unbound"]);
    let outcome = launch("-n 2 --cpu-bind map:0").arg(&place).run();
    outcome.exits(0).says_nothing();
    for line in outcome.sorted_lines() {
        outcome.check(line[1..].starts_with(": 0 SK0:"), || format!("should say that CPU 0 is in package 0: {line}"));
    }
}

/// Returns the topology of a node with two network interfaces: one next to the first CPU, the other one next to all other CPUs.
fn two_interfaces() -> String {
    let cpus: CpuSet = fs::read_to_string("/sys/devices/system/cpu/online").unwrap().trim().parse().unwrap();
    let first: CpuSet = cpus.first().into_iter().collect();
    let parts = [first.clone(), cpus.without(&first)];
    assert!(!parts[1].is_empty(), "this test needs two CPUs");
    let mut inventory = Inventory { memory: vec![1 << 30; 2], ..Inventory::default() };
    let template = &mut inventory.template;
    (template.arch, template.cpus) = (std::env::consts::ARCH.to_owned(), cpus);
    for (number, cpus) in (0..).zip(parts) {
        let group = Group { cpus: cpus.clone(), id: Some(number.into()) };
        template.cores.push(group.clone());
        template.packages.push(group);
        let distances = [[10, 21], [21, 10]][usize::from(number)].to_vec();
        let near = CpuSet::default();
        template.numa.push(NumaNode { id: number, cpus: cpus.clone(), near, memory_gib: 1, distances });
        let name = format!("near{number}");
        template.pci.push(PciDevice {
            address: format!("0000:{}0:00.0", number + 1).parse().unwrap(),
            kind: PciKind::Nic,
            class: 0x0200,
            id: [0x15b3, 0x1017],
            board: [0; 2],
            revision: 0,
            numa: Some(number),
            cpus,
            link_mb: 0,
            model: String::new(),
            names: vec![OsDevice { kind: OsKind::Net, name: name.clone() }],
        });
        let address = DeviceAddress { kind: AddressKind::Mac, value: format!("02:00:00:00:00:0{number}") };
        inventory.devices.insert(name, vec![address]);
    }
    xml::write(&inventory, &Allowed::all(&inventory.template)).unwrap()
}

/// Open MPI 5 assigns interfaces to unbound ranks in turn. Its libfabric has none on the PCI bus here, so that the program adds two.
#[test]
fn bound_ranks_of_open_mpi_5_take_the_interface_next_to_them() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("topology.xml");
    fs::write(&file, two_interfaces()).unwrap();
    let check = |flags: &str, expected: [&str; 2]| {
        let ranks = launch("-n 2").words(flags).env("PMIX_TOPOLOGY_CACHE", &file).env("OMPI_MCA_btl", "self,sm");
        let ranks = ranks.env("OMPI_MCA_pml", "cm").env("OMPI_MCA_mtl_ofi_provider_include", "tcp");
        let outcome = ranks.arg(Flavour::WheelOpenMpi.program("near_nic")).run();
        outcome.exits(0).says_nothing().prints_lines(expected);
    };
    check("", ["0: NIC 0", "1: NIC 1"]);
    check("--cpu-bind map:0", ["0: NIC 0", "1: NIC 0"]);
    check("--cpu-bind map:1", ["0: NIC 1", "1: NIC 1"]);
    check("--cpu-bind map:1,0", ["0: NIC 1", "1: NIC 0"]);
}

/// A network namespace has its own interfaces: the stored inventory of one namespace is not used in another one.
#[test]
fn ranks_are_told_the_interfaces_of_their_network_namespace() {
    assert!(geteuid().is_root(), "this test must run as root");
    let script = r#"
        # The interfaces on the PCI bus in the file that a rank is given, against those that are seen here.
        told() {
            file=$("$LATTICE" launch -n 1 "$LATTICE" pmi get PMI_hwloc_xmlfile | sed 's|^[^/]*||')
            told=$(sed -n 's/.*"OSDev" name="\([^"]*\)" osdev_type="2".*/\1/p' "$file" | sort | paste -sd,)
            there=$(find /sys/class/net -lname '*/pci*' -printf '%f\n' | sort | paste -sd,)
            [ -s "$file" ] && [ "$told" = "$there" ] && echo "$1: as seen" || echo "$1: $file has '$told', seen is '$there'"
        }
        export LATTICE="$0"; export -f told
        told before
        "$LATTICE" dev-cluster --nodes 1 -- "$LATTICE" launch -n 1 true
        told 'after a cluster'
        unshare --net --mount bash -c 'mount -t sysfs none /sys && told namespace'
        told after"#;
    let outcome = Command::new("bash").words("-c").arg(script).arg(built::lattice()).run();
    outcome.exits(0).prints_lines([
        "before: as seen",
        "after a cluster: as seen",
        "namespace: as seen",
        "after: as seen",
    ]);
}

/// Each box has its colour at its corners, unless a later box covers them. The core to which the rank is bound has a special colour.
#[test]
fn a_browser_shows_ranks_in_their_cores() {
    let script = "until $0 nodes --topology $LATTICE_LAUNCH_ID --format svg 2>/dev/null; do sleep 0.05; done";
    let outcome = launch("-n 1 --pmi none --cpu-bind threads bash -c").arg(script).arg(built::lattice()).run();
    outcome.exits(0).says_nothing().prints(">rank 0<");
    let drawing = outcome.text();
    let picture = browser::screenshot(drawing);
    assert_eq!((picture.width, picture.height), (attribute(drawing, "width"), attribute(drawing, "height")));
    let boxes: Vec<&str> = drawing.lines().filter(|line| line.starts_with("<rect x=")).collect();
    let edges = |drawn: &str| ["x", "y", "width", "height"].map(|name| attribute(drawn, name));
    for drawn in &boxes {
        let [x, y, width, height] = edges(drawn);
        let (right, bottom) = (x + width - 2, y + height - 2);
        let covers = |other: &&&str| {
            let [x, y, width, height] = edges(other);
            (x..x + width).contains(&right) && (y..y + height).contains(&bottom)
        };
        let on_top = boxes.iter().rfind(covers).expect("it covers itself");
        assert_eq!(picture.colour(right, bottom), text_attribute(on_top, "fill"), "{drawn}");
        // Its title is inside of it.
        let is_dark = |x: usize, y: usize| picture.colour(x, y).as_str() < "#777777";
        assert!((x + 2..right).any(|x| (y + 2..bottom).any(|y| is_dark(x, y))), "{drawn}");
    }
    let own = boxes.iter().filter(|drawn| text_attribute(drawn, "fill") == "#9fc79f").count();
    assert_eq!(own, 1, "{drawing}");
}

/// The inventory that another program has stored for the node, in the form of PMIx.
#[test]
fn ranks_are_told_the_topology_that_a_variable_names() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cache.xml");
    let told = || told_file(launch("-n 1").env("PMIX_TOPOLOGY_CACHE", &file));
    let kept = told_file(launch("-n 1"));
    assert!(kept.to_str().unwrap().contains("/topology-"), "{}", kept.display());
    fs::copy(kept, &file).unwrap();
    assert_eq!(told(), file);
    // Ranks may have another working directory than the launcher.
    let relative = launch("-n 1 --chdir /").env("PMIX_TOPOLOGY_CACHE", "cache.xml").directory(directory.path());
    assert_eq!(told_file(relative), file);
}

#[test]
fn this_machine_is_shown_without_an_api_server() {
    let shown = |words: &str| Command::new(built::lattice()).words("nodes --topology").words(words).run();
    let host = gethostname().unwrap().into_string().unwrap();
    shown("").exits(0).says("there is no API server; this machine is shown").prints(&host).prints("thread");
    shown(&host).exits(0).prints(&host);
    shown("--format xml").exits(0).prints("<topology version");
    shown("elsewhere").exits(125).says("cannot reach the API server");
}
