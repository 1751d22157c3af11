//! CPU binding, read from the kernel, and the map that shows it.

use lattice_tests::mpi::{Flavour, MPIS};
use lattice_tests::{Command, built, lattice, launch, processes};

/// The CPUs that this process may use.
fn allowed() -> Vec<u32> {
    let list = processes::status(std::process::id(), "Cpus_allowed_list").unwrap();
    let ranges = list.split(',').map(|range| range.split_once('-').unwrap_or((range, range)));
    ranges.flat_map(|(first, last)| first.parse().unwrap()..=last.parse::<u32>().unwrap()).collect()
}

const PRINT_CPUS: &str = r#"while read -r name value; do
    if [ "$name" = Cpus_allowed_list: ]; then echo "$LATTICE_RANK $value"; fi
done < /proc/self/status"#;

#[test]
fn cpu_bind_is_what_the_kernel_says() {
    let cpus = allowed();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    let map = format!("--cpu-bind map:{last},{first}");
    let outcome = launch("-n 2 --pmi none").words(&map).bash(PRINT_CPUS).run();
    outcome.exits(0).says_nothing().prints_lines([format!("0 {last}"), format!("1 {first}")]);
    let outcome = launch("-n 1 --pmi none --cpu-bind threads").bash(PRINT_CPUS).run();
    outcome.exits(0).says_nothing().prints_lines([format!("0 {first}")]);
}

/// As with a launcher that a batch system or a control group binds.
#[test]
fn a_launch_that_may_use_one_cpu_is_planned_and_drawn_there() {
    let cpus = allowed();
    let last = cpus[cpus.len() - 1];
    assert!(cpus.len() > 1, "this test needs a machine, or a control group, of two CPUs");
    let limited = |flags: &str| Command::new("taskset").words(&format!("-c {last}")).arg(built::lattice()).words(flags);
    let binds = "-n 2 --pmi none --cpu-bind cores --show-map";
    let plan = limited("launch --dry-run").words(binds).arg("true").run();
    let rows = |text: &str| {
        let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.filter(|row| row.len() > 3 && row[0].parse::<u32>().is_ok())
            .map(|row| row[3].to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(rows(plan.exits(0).text()), [last.to_string(), last.to_string()]);
    limited("launch")
        .words(binds)
        .bash(PRINT_CPUS)
        .run()
        .exits(0)
        .prints_lines([format!("0 {last}"), format!("1 {last}")]);
    limited("launch -n 1 -c 2 true").run().exits(125).says(&format!("but CPUs {last}, which this launch may use"));
    // The command that draws it may use other CPUs.
    let look = "until taskset -c 0-1023 $0 nodes --topology $LATTICE_LAUNCH_ID; do sleep 0.05; done 2>/dev/null";
    let drawn = limited("launch -n 1 --pmi none --cpu-bind cores bash -c").arg(look).arg(built::lattice()).run();
    drawn.exits(0).prints(&format!("ranks may use CPUs {last} only; × marks cores without one\n"));
}

#[test]
fn cores_are_shared_out_among_the_ranks() {
    let cpus = allowed();
    if cpus.len() < 2 {
        let outcome = launch("-n 1 --pmi none --cpu-bind cores").bash(PRINT_CPUS).run();
        outcome.exits(0).prints_lines([format!("0 {}", cpus[0])]);
        return;
    }
    let outcome = launch("-n 2 --pmi none --cpu-bind cores").bash(PRINT_CPUS).run();
    outcome.exits(0).says_nothing();
    let lines = outcome.sorted_lines();
    let lists: Vec<&str> = lines.iter().map(|line| &line[2..]).collect();
    outcome.check(lists.len() == 2, || "should have printed the CPUs of both ranks".into());
    outcome.check(lists[0] != lists[1], || "both ranks have the same cores".into());
}

/// Even if the libraries' own binding options, which are for their launchers, request other CPUs.
#[test]
fn mpi_libraries_keep_the_cpus_that_ranks_are_bound_to() {
    let cpus = allowed();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    for mpi in MPIS {
        let bound = format!(
            "-n 2 --cpu-bind map:{last},{first} --env I_MPI_PIN=1 --env I_MPI_PIN_DOMAIN=core --env OMPI_MCA_hwloc_base_binding_policy=core"
        );
        let outcome = launch(&bound).arg(mpi.program("kept_cpus")).run();
        outcome.exits(0).prints_lines([format!("rank 0: {last}"), format!("rank 1: {first}")]);
    }
}

/// Returns the CPUs of each rank according to `--show-map`, and according to the kernel.
fn planned_and_kernels(flags: &str) -> (Vec<String>, Vec<String>) {
    let outcome = launch("--pmi none --show-map").words(flags).bash(PRINT_CPUS).run();
    outcome.exits(0);
    let kernels = outcome.sorted_lines().iter().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect();
    let rows = outcome
        .errors()
        .lines()
        .filter(|line| line.split_whitespace().next().is_some_and(|word| word.parse::<u32>().is_ok()));
    let planned = rows.map(|row| row.split_whitespace().nth(3).unwrap().to_owned()).collect();
    (planned, kernels)
}

#[test]
fn what_the_map_says_is_what_the_kernel_does() {
    let cpus = allowed().len();
    let each = format!("-n {cpus} -c 1 --cpu-bind threads");
    let all = format!("-n 1 -c {cpus}");
    let shared = format!("-n 3 -c {cpus} --overcommit -m block:cyclic");
    for flags in [
        "-n 3 --cpu-bind sockets",
        "-n 2 --cpu-bind numa",
        "-n 3 --cpu-bind l3caches",
        "-n 3 --cpu-bind rank",
        "-n 2 --hint nomultithread",
        "-n 2 --hint memory_bound",
        "-n 2 --threads-per-core 1 -m *:fcyclic:cyclic",
        &each,
        &all,
        &shared,
    ] {
        let (planned, kernels) = planned_and_kernels(flags);
        assert!(!planned.is_empty(), "{flags}: no map");
        assert_eq!(planned, kernels, "{flags}");
    }
}

/// The name of a core in Linux is the list of its threads.
#[test]
fn without_multithreading_a_rank_has_the_first_thread_of_a_core() {
    let script = format!(
        r#"{PRINT_CPUS}
        for cpu in /sys/devices/system/cpu/cpu[0-9]*; do cut -d, -f1 $cpu/topology/thread_siblings_list | cut -d- -f1; done | sort -un"#
    );
    for flags in ["-n 1 --pmi none --hint nomultithread", "-n 1 --pmi none --threads-per-core 1 --cpu-bind cores"] {
        let outcome = launch(flags).bash(&script).run();
        let lines: Vec<String> = outcome.exits(0).text().lines().map(str::to_owned).collect();
        let (own, firsts) = lines.split_first().expect("the rank's own CPU");
        let own = own.trim_start_matches("0 ");
        outcome.check(firsts.iter().any(|first| first == own), || format!("{own} is not the first thread of a core"));
    }
}

#[test]
fn ranks_that_have_no_room_are_refused_before_any_starts() {
    let cpus = allowed().len();
    let outcome = launch(&format!("-n 2 -c {cpus}")).words("touch started").run();
    outcome.exits(125).says("enough for 1").says("--overcommit").prints_lines([""; 0]);
    launch("-n 1 -c 2 --env A=1 --export ALL,OMP_NUM_THREADS=7 --overcommit")
        .bash("echo $OMP_NUM_THREADS")
        .run()
        .prints_lines(["7"]);
    launch("-n 1 -c 2 --slurm-env --export NONE")
        .bash("echo $OMP_NUM_THREADS $SLURM_CPUS_PER_TASK")
        .run()
        .prints_lines(["2 2"]);
}

#[test]
fn without_binding_ranks_may_run_anywhere() {
    let here = processes::status(std::process::id(), "Cpus_allowed_list").unwrap();
    let outcome = launch("-n 2 --pmi none").bash(PRINT_CPUS).run();
    outcome.exits(0).prints_lines([format!("0 {here}"), format!("1 {here}")]);
}

#[test]
fn a_cpu_that_is_not_there_is_refused() {
    launch("-n 1 --cpu-bind map:99999").arg("true").run().exits(125).says("--cpu-bind").says("99999");
}

#[test]
fn dry_run_prints_the_map_and_starts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let command = launch("-n 3 --dry-run").words("touch started : -n 1 true").directory(directory.path());
    let outcome = command.run();
    outcome.exits(0).says_nothing().prints("touch").prints("true");
    for rank in 0..4 {
        let known = outcome.text().lines().any(|line| line.split_whitespace().any(|word| word == rank.to_string()));
        outcome.check(known, || format!("rank {rank} is not in the map"));
    }
    assert!(!directory.path().join("started").exists());
}

#[test]
fn show_map_prints_it_and_starts_the_ranks() {
    launch("-n 2 --pmi none --show-map").words("echo hello").run().exits(0).prints_lines(["hello"; 2]).says("echo");
}

/// No node has this many GPUs.
#[test]
fn ranks_get_no_gpus_that_are_not_there() {
    for flags in ["--gpus-per-task 4096", "--gpu-bind map:4095"] {
        let outcome = launch("-n 2 --pmi none").words(flags).words("echo never").run();
        outcome.exits(125).says("this node knows of none").prints_lines([""; 0]);
    }
    launch("-n 2 --pmi none --gpu-bind none").words("echo here").run().exits(0).prints_lines(["here"; 2]);
}

/// On a kernel with NUMA, `numa_maps` shows the policy of a process for each of its mappings.
#[test]
fn memory_is_bound_as_the_kernel_says() {
    let script = r#"read -r _ policy _ < /proc/self/numa_maps; echo "$LATTICE_RANK $policy""#;
    let has_numa = std::path::Path::new("/proc/self/numa_maps").exists();
    for (flags, expected) in [
        ("--cpu-bind cores --mem-bind local", "bind:0"),
        ("--mem-bind local", "local"),
        ("--mem-bind map_mem:0", "bind:0"),
        ("--mem-bind prefer,mask_mem:0x1", "prefer:0"),
        ("--mem-bind none", "default"),
    ] {
        let outcome = launch("-n 1 --pmi none").words(flags).bash(script).run();
        match has_numa || expected == "default" {
            true => outcome.exits(0).prints_lines([format!("0 {expected}")]),
            false => outcome.exits(125).says("the kernel of this node has none"),
        };
    }
    let outcome = launch("-n 1 --pmi none --mem-bind map_mem:999").words("touch started").run();
    outcome.exits(125).says("NUMA node");
}

/// Returns the masks of the ranks that a launcher starts by a line without a binding option.
fn masks(launcher: Command, dialect: &str, line: &str) -> Vec<String> {
    let allowed = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
    let command = allowed.into_iter().fold(launcher, |command, name| command.env(name, "1"));
    let command = command.env("LATTICE_MPIEXEC", dialect).words(line);
    let outcome = command.words("grep Cpus_allowed_list: /proc/self/status").run();
    outcome.exits(0).sorted_lines().into_iter().map(str::to_owned).collect()
}

#[test]
fn lines_of_open_mpi_bind_as_its_own_mpirun() {
    let lines = ["-np 1", "-np 2", "--map-by slot -np 2", "--map-by node -np 2", "--map-by ppr:2:node", "-npernode 1"];
    let crowded = format!("--map-by ppr:{0}:node -H localhost:{0}", allowed().len() + 1);
    for line in lines.into_iter().chain([crowded.as_str()]).take(if allowed().len() > 1 { usize::MAX } else { 1 }) {
        let theirs = masks(Command::new(Flavour::DebianOpenMpi.mpirun()), "", line);
        assert_eq!(masks(lattice("mpirun"), "ompi", line), theirs, "{line}");
    }
}

#[test]
fn lines_of_intel_mpi_bind_as_its_own_mpiexec() {
    for ranks in [1, 2, allowed().len(), allowed().len() + 1] {
        let line = format!("-n {ranks}");
        let theirs = masks(Command::new(Flavour::IntelMpi.mpirun()), "", &line);
        assert_eq!(masks(lattice("mpiexec"), "intel", &line), theirs, "{line}");
    }
    let (cpus, ranks) = (allowed(), allowed().len().min(2));
    let list = format!("{},{}", cpus[cpus.len() - 1], cpus[0]);
    for (name, value) in [
        ("I_MPI_PIN", "0"),
        ("I_MPI_PIN_DOMAIN", "core"),
        ("I_MPI_PIN_DOMAIN", "socket"),
        ("I_MPI_PIN_DOMAIN", "node"),
        ("I_MPI_PIN_PROCESSOR_LIST", &list),
        ("I_MPI_PIN_PROCESSOR_LIST", "allcores"),
    ] {
        let line = format!("-n {ranks}");
        let theirs = masks(Command::new(Flavour::IntelMpi.mpirun()).env(name, value), "", &line);
        assert_eq!(masks(lattice("mpiexec").env(name, value), "intel", &line), theirs, "{name}={value}");
    }
}
