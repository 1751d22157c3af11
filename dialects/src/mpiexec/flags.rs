//! The flags of `mpiexec` and `mpirun`, of all dialects.

use std::ffi::OsStr;

use super::super::flag::Meaning::{Ignored, Made, MadeOfProgram, OfLaunch, OfProgram, Refused};
use super::super::flag::{Flag, Meaning, Refusal, Takes};
use super::super::line::Line;
use super::binding::{bind_to, cpu_list, cpus_per_rank, map_by, membind, oversubscribe};
use super::intel;
use super::output::{output, output_filename, stream_buffering};
use super::values::{
    TOPOLOGY, display, environment, environment_of_all, error_pattern, export_list, export_one, host, hosts,
    launch_mca, max_restarts, mca, output_pattern, path, pmix_mca, rank_by, rank_map, ranks, ranks_of_each_host,
    ranks_per_host, runtime_options, set_one, spawn_timeout, universe_size, unset_one,
};
use crate::idle::Notice;

const fn flag(names: &'static [&'static str], takes: Takes, meaning: Meaning) -> Flag {
    Flag { names, takes, meaning }
}

const NO_SSH: &str = "nodes are reached through their agents";
const NO_TUNING: &str = "it is a setting of another launcher";

/// `-N` of Open MPI.
pub(super) const PER_NODE: &Flag = &flag(&["N"], Takes::Value, OfLaunch("--tasks-per-node"));

/// The flags of all dialects. `-N` and `-c`, which differ between dialects, are not included, nor are flags that print a text or name a file.
pub(crate) const FLAGS: &[Flag] = &[
    // the MPI standard
    flag(&["n", "np"], Takes::Value, MadeOfProgram("-n N", ranks)),
    flag(&["host"], Takes::Value, MadeOfProgram("--host HOSTS", host)),
    flag(&["wdir", "wd", "dir"], Takes::Value, OfProgram("--chdir")),
    flag(&["path"], Takes::Value, MadeOfProgram("the program's file in DIR", path)),
    flag(&["arch"], Takes::Value, Refused("type lattice launch -w NODES for nodes of one architecture")),
    flag(&["soft"], Takes::Value, Refused("type -n N for a number of ranks")),
    flag(
        &["initial-errhandler", "memory-alloc-kinds"],
        Takes::Value,
        Refused("set it in the program: MPI_Comm_set_errhandler, or the info of MPI_Session_init"),
    ),
    // nodes
    flag(&["hosts"], Takes::Value, Made("--host HOSTS, or -w NODES", hosts)),
    flag(&["H"], Takes::Value, MadeOfProgram("--host HOSTS", host)),
    flag(&["f", "hostfile", "default-hostfile"], Takes::Value, OfLaunch("--hostfile")),
    flag(&["machinefile", "machine"], Takes::Value, OfLaunch("--hostfile")),
    flag(
        &["ppn", "perhost", "grr"],
        Takes::Value,
        Made("-m plane=N; --tasks-per-node without -n; --tasks-per 1:core:again for allcores", ranks_per_host),
    ),
    flag(&["npernode"], Takes::Value, Made("--tasks-per-node=N, and -m plane=N with -n", ranks_of_each_host)),
    flag(&["pernode"], Takes::Nothing, OfLaunch("--tasks-per-node=1")),
    flag(
        &["map-by"],
        Takes::Value,
        Made(
            "--distribution, --tasks-per K:OBJECT, --rankfile, --host, or :over=OBJECT and :cores=N of --cpu-bind",
            map_by,
        ),
    ),
    flag(
        &["npersocket"],
        Takes::Value,
        Made("--tasks-per K:socket", |line, ranks| {
            (line.places.is_mapped, line.places.is_by_objects) = (true, true);
            line.add_to_launch("--tasks-per", Some(format!("{}:socket", ranks.to_string_lossy()).as_ref()));
            Ok(())
        }),
    ),
    flag(&["rankfile", "rf"], Takes::Value, OfLaunch("--rankfile")),
    flag(
        &["cpu-set", "cpu-list"],
        Takes::Value,
        Made("--cpu-bind=core-map:CORES, for all ranks, or one for each with --bind-to cpu-list:ordered", cpu_list),
    ),
    flag(&["rank-by"], Takes::Value, Made("--rank-by", rank_by)),
    flag(&["bind-to"], Takes::Value, Made("--cpu-bind", bind_to)),
    flag(&["membind"], Takes::Value, Made("--mem-bind=none, or local for bind:OBJECT", membind)),
    flag(&["bind-to-core"], Takes::Nothing, Made("--cpu-bind=cores", |line, _| bind_to(line, "core".as_ref()))),
    flag(&["bind-to-socket"], Takes::Nothing, Made("--cpu-bind=sockets", |line, _| bind_to(line, "socket".as_ref()))),
    flag(&["bind-to-none"], Takes::Nothing, Made("--cpu-bind=none", |line, _| bind_to(line, "none".as_ref()))),
    flag(&["bynode", "rr"], Takes::Nothing, Made("--distribution=cyclic", |line, _| map_by(line, "node".as_ref()))),
    flag(
        &["byslot"],
        Takes::Nothing,
        Made("ranks fill a node before the next one, as is usual", |line, _| map_by(line, "slot".as_ref())),
    ),
    flag(&["bysocket"], Takes::Nothing, Made(":over=sockets of --cpu-bind", |line, _| map_by(line, "socket".as_ref()))),
    flag(&["cpus-per-proc", "cpus-per-rank"], Takes::Value, Made("--cpu-bind=cores:cores=N", cpus_per_rank)),
    flag(&["gpus-per-proc"], Takes::Value, OfLaunch("--gpus-per-task")),
    flag(
        &["oversubscribe"],
        Takes::Nothing,
        Made(":overcommit of --cpu-bind; hosts get as many slots more as there are ranks", oversubscribe),
    ),
    flag(&["nooversubscribe"], Takes::Nothing, Ignored(Notice::Verbose, "it is so anyway for lines of Open MPI")),
    flag(
        &["use-hwthread-cpus"],
        Takes::Nothing,
        Made("--tasks-per=1:hwthread: a slot for each hardware thread", |line, _| {
            line.places.counts_threads = true;
            Ok(())
        }),
    ),
    flag(&["nolocal", "skip-launch-node"], Takes::Nothing, Refused("type lattice launch -x NODE to leave a node out")),
    flag(&["bycore"], Takes::Nothing, Made(":over=cores of --cpu-bind", |line, _| map_by(line, "core".as_ref()))),
    flag(
        &["ppr"],
        Takes::Value,
        Made("--tasks-per, or --tasks-per-node, as --map-by ppr:VALUE", |line, value| {
            map_by(line, format!("ppr:{}", value.to_string_lossy()).as_ref())
        }),
    ),
    flag(
        &["cpu-bind"],
        Takes::Value,
        Made(
            "--cpu-bind=map:CPUS for list:CPUS:CPUS of Intel MPI, --cpu-bind=threads:cpus=N for a number",
            intel::cpu_bind,
        ),
    ),
    flag(&["hosts-group"], Takes::Value, Made("-w NODES", hosts)),
    flag(&["rankmap"], Takes::Value, Made("--host, with the host of each rank", rank_map)),
    flag(&["add-host"], Takes::Value, MadeOfProgram("--host HOSTS", host)),
    flag(&["add-hostfile"], Takes::Value, OfLaunch("--hostfile")),
    flag(
        &["hetero-nodes"],
        Takes::Nothing,
        Ignored(Notice::Verbose, "each node binds its ranks by its own topology anyway"),
    ),
    // environment
    flag(&["genv"], Takes::Pair, Made("--env NAME=VALUE, for every program", environment_of_all)),
    flag(&["env"], Takes::Pair, MadeOfProgram("--env NAME=VALUE", environment)),
    flag(
        &["x"],
        Takes::Value,
        MadeOfProgram("--env NAME[=VALUE]; of the first program, for every program", export_one),
    ),
    flag(&["genvlist", "envlist"], Takes::Value, Made("--export=NAMES", export_list)),
    flag(&["genvnone", "envnone"], Takes::Nothing, OfLaunch("--export=NONE")),
    flag(&["genvall", "envall"], Takes::Nothing, Ignored(Notice::Verbose, "all variables are passed on anyway")),
    flag(
        &["mca", "omca", "gmca"],
        Takes::Pair,
        Made(
            "--env OMPI_MCA_NAME=VALUE, for every program, or the flag that a parameter of the launcher stands for",
            mca,
        ),
    ),
    flag(&["set-env"], Takes::Value, Made("--env NAME=VALUE, for every program", set_one)),
    flag(&["unset-env"], Takes::Value, Made("--env-remove NAME, for every program", unset_one)),
    flag(
        &["append-env", "prepend-env"],
        Takes::Pair,
        Refused("type -x NAME=\"$NAME:VALUE\", which has the whole value"),
    ),
    flag(
        &["display-comm"],
        Takes::Nothing,
        Made("--env OMPI_MCA_ompi_display_comm=mpi_init, for every program", |line, _| {
            line.add_to_every_program("--env", "OMPI_MCA_ompi_display_comm=mpi_init".as_ref());
            Ok(())
        }),
    ),
    flag(
        &["display-comm-finalize"],
        Takes::Nothing,
        Made("--env OMPI_MCA_ompi_display_comm=mpi_finalize, for every program", |line, _| {
            line.add_to_every_program("--env", "OMPI_MCA_ompi_display_comm=mpi_finalize".as_ref());
            Ok(())
        }),
    ),
    flag(
        &["prot"],
        Takes::Nothing,
        Made("--env I_MPI_PRINT_PROT=1, for every program", |line, _| {
            line.add_to_every_program("--env", "I_MPI_PRINT_PROT=1".as_ref());
            Ok(())
        }),
    ),
    flag(&["gpu-support"], Takes::Value, Ignored(Notice::Verbose, "the library in the ranks finds its GPUs itself")),
    flag(&["pmixmca", "gpmixmca"], Takes::Pair, Made("--env PMIX_MCA_NAME=VALUE, for every program", pmix_mca)),
    flag(&["prtemca"], Takes::Pair, Made("the flag that the parameter stands for, if any", launch_mca)),
    // output
    flag(&["l", "prepend-rank", "tag-output"], Takes::Nothing, OfLaunch("--label")),
    flag(&["timestamp-output", "prepend-timestamp"], Takes::Nothing, OfLaunch("--timestamp")),
    flag(&["prepend-pattern"], Takes::Value, Refused("type -prepend-rank")),
    flag(&["outfile-pattern"], Takes::Value, Made("--output, with %N for %h and %n for %p", output_pattern)),
    flag(&["errfile-pattern"], Takes::Value, Made("--error, with the same letters", error_pattern)),
    flag(
        &["output"],
        Takes::Value,
        Made("--label, --timestamp, or --output and --error for file=NAME and dir=DIRECTORY", output),
    ),
    flag(
        &["output-filename"],
        Takes::Value,
        Made("--output=DIR/1/rank.%R/stdout --error=DIR/1/rank.%R/stderr --tee", output_filename),
    ),
    flag(&["stdin"], Takes::Value, OfLaunch("--stdin")),
    flag(&["merge-stderr-to-stdout", "stderr-to-stdout"], Takes::Nothing, Refused("type 2>&1 after the line")),
    flag(&["json"], Takes::Nothing, OfLaunch("--json")),
    flag(&["xml"], Takes::Nothing, Refused("type --json, for output as JSON")),
    flag(&["xml-file"], Takes::Value, Refused("type --json, for output as JSON, with 2> FILE after the line")),
    flag(
        &["report-pid"],
        Takes::Value,
        Refused("type & after the line: the shell has the number of its process in $!"),
    ),
    flag(
        &["report-uri"],
        Takes::Value,
        Refused("leave it out: programs of different launches find each other without the address of a server"),
    ),
    flag(&["output-proctable"], Takes::Nothing, Refused("type lattice proctable ID in another shell while it runs")),
    flag(
        &["index-argv-by-rank"],
        Takes::Nothing,
        Refused("start a shell as the program: mpirun -np 4 bash -c 'exec -a a.out-$LATTICE_RANK ./a.out'"),
    ),
    flag(
        &["report-child-jobs-separately"],
        Takes::Nothing,
        Ignored(Notice::Always, "the exit code is that of the first failure, whichever job has it"),
    ),
    flag(&["xterm"], Takes::Value, Refused("start it as the program: mpiexec -n 1 xterm -e ./a.out")),
    flag(
        &["ordered-output"],
        Takes::Nothing,
        Ignored(Notice::Always, "lines are shown as they come; --output-filename has a file for each rank"),
    ),
    flag(
        &["stream-buffering"],
        Takes::Value,
        Made("--unbuffered for 0; 1 and 2 are ignored, for output is passed on by whole lines", stream_buffering),
    ),
    flag(&["show-progress"], Takes::Nothing, Ignored(Notice::Verbose, "on a terminal the start is shown anyway")),
    flag(&["print-all-exitcodes"], Takes::Nothing, Ignored(Notice::Always, "-v reports how each rank ends")),
    flag(
        &[
            "report-bindings",
            "display-map",
            "print-rank-map",
            "display-allocation",
            "display-devel-map",
            "display-devel-allocation",
            "display-diffable-map",
        ],
        Takes::Nothing,
        OfLaunch("--show-map"),
    ),
    flag(&["display-topo"], Takes::Nothing, Refused(TOPOLOGY)),
    flag(&["display"], Takes::Value, Made("--show-map for map, bind and allocation; others are refused", display)),
    flag(&["do-not-launch"], Takes::Nothing, OfLaunch("--dry-run")),
    // failures and time
    flag(&["timeout"], Takes::Value, OfLaunch("--timeout")),
    flag(&["disable-auto-cleanup", "enable-recovery", "continuous"], Takes::Nothing, OfLaunch("--kill-on-bad-exit=0")),
    flag(&["with-ft"], Takes::Value, Made("-Krecover and OMPI_MCA_mpi_ft_enable=1, unless it is no", fault_tolerance)),
    flag(
        &["report-state-on-timeout", "get-stack-traces"],
        Takes::Nothing,
        Ignored(Notice::Verbose, "the call stacks of ranks are shown anyway when --timeout is over"),
    ),
    flag(&["disable-recovery"], Takes::Nothing, Ignored(Notice::Verbose, "a rank that fails ends the launch anyway")),
    flag(&["silent-abort"], Takes::Nothing, Ignored(Notice::Verbose, "the cause of an abort is one line")),
    flag(
        &["spawn-timeout"],
        Takes::Value,
        Made("nothing for 0; others are refused: type --timeout SECONDS", spawn_timeout),
    ),
    flag(&["stop-on-exec"], Takes::Nothing, OfLaunch("--stop-at-start")),
    flag(
        &["stop-in-init", "stop-in-app"],
        Takes::Nothing,
        Refused("type --stop-on-exec, which stops ranks when they start"),
    ),
    flag(
        &["runtime-options", "rtos"],
        Takes::Value,
        Made("the flag that each of its words stands for", runtime_options),
    ),
    flag(
        &["forward-signals"],
        Takes::Value,
        Ignored(Notice::Always, "all signals that the launcher may catch are passed on to ranks"),
    ),
    // PMI
    flag(&["usize"], Takes::Value, Made("--universe-size N", universe_size)),
    flag(&["pmi-port"], Takes::Nothing, OfLaunch("--pmi-port")),
    flag(&["pset"], Takes::Value, OfProgram("--pset-literal")),
    // settings of other launchers
    flag(
        &[
            "bootstrap",
            "bootstrap-exec",
            "launcher",
            "launcher-exec",
            "launch-agent",
            "bootstrap-exec-args",
            "rmk",
            "prefix",
        ],
        Takes::Value,
        Ignored(Notice::Verbose, NO_SSH),
    ),
    flag(
        &[
            "nameserver",
            "demux",
            "topolib",
            "localhost",
            "order-nodes",
            "personality",
            "ompi-server",
            "cf",
            "cartofile",
            "report-events",
            "app-pmix-prefix",
            "pmix-prefix",
            "tmpdir",
            "keepalive",
            "singleton",
        ],
        Takes::Value,
        Ignored(Notice::Verbose, NO_TUNING),
    ),
    flag(
        &[
            "disable-hostname-propagation",
            "disable-x",
            "noprefix",
            "leave-session-attached",
            "debug-daemons",
            "debug-devel",
            "d",
            "debug-daemons-file",
            "do-not-resolve",
            "enable-instant-on-support",
            "fwd-mpirun-port",
            "novm",
            "use-regexp",
            "profile",
            "no-app-prefix",
            "hybrid-hosts",
            "no-ready-msg",
            "system-server",
            "set-sid",
        ],
        Takes::Nothing,
        Ignored(Notice::Verbose, NO_TUNING),
    ),
    flag(&["ckpointlib", "ckpoint-prefix"], Takes::Value, Ignored(Notice::Always, "ranks are not checkpointed")),
    flag(
        &["iface"],
        Takes::Value,
        Ignored(Notice::Always, "it is for the launcher; the library in the ranks has variables for its network"),
    ),
    flag(
        &["gpu-subdevs-per-proc"],
        Takes::Value,
        Refused("type -gpus-per-proc N, or lattice launch --gpu-bind for GPUs of each rank"),
    ),
    flag(
        &["max-vm-size"],
        Takes::Value,
        Refused("type lattice launch -N NODES, for the nodes that jobs of MPI_Comm_spawn may have"),
    ),
    flag(
        &["enable-x"],
        Takes::Nothing,
        Ignored(Notice::Always, "no X11 connection is forwarded; DISPLAY is passed on to ranks"),
    ),
    flag(
        &["allow-run-as-root"],
        Takes::Nothing,
        Ignored(Notice::Verbose, "root may run launches, unless `allow_root` of an agent forbids it"),
    ),
    flag(&["am"], Takes::Value, Refused("type --mca NAME VALUE for each line of the file")),
    flag(
        &["tune"],
        Takes::Value,
        Refused("type --mca NAME VALUE for each line of Open MPI's file, -genv I_MPI_TUNING_BIN FILE for Intel MPI's"),
    ),
    flag(
        &["trace", "check_mpi", "ilp64"],
        Takes::Nothing,
        Refused("type -genv LD_PRELOAD FILE, with the library that it stands for"),
    ),
    flag(
        &["max-restarts"],
        Takes::Value,
        Made("nothing for 0; others are refused: type a loop around the line", max_restarts),
    ),
    flag(&["preload-binary"], Takes::Nothing, Made("--bcast, for all programs", preload_binary)),
    flag(&["preload-files"], Takes::Value, OfLaunch("--preload-files")),
    flag(&["preload-files-dest-dir"], Takes::Value, OfLaunch("--preload-dest-dir")),
    flag(
        &["set-cwd-to-session-dir"],
        Takes::Nothing,
        Refused("type lattice launch --tmpdir sh -c 'cd \"$TMPDIR\" && exec PROGRAM'"),
    ),
    flag(&["dvm"], Takes::Nothing, Refused("type lattice start for nodes that stay, and lattice launch in it")),
    flag(&["hnp"], Takes::Value, Refused("type lattice launch --alloc ID for nodes that are there")),
    flag(&["aps", "mps"], Takes::Nothing, Refused("start it as the program: mpiexec -n 4 aps ./a.out")),
    flag(
        &["gtool", "gtoolfile"],
        Takes::Value,
        Refused("start the tool as the program, for some ranks after a `:`: mpiexec -n 1 TOOL ./a.out : -n 3 ./a.out"),
    ),
    flag(
        &["debugger", "gdb-args"],
        Takes::Value,
        Refused("start it as the program: mpiexec -n 1 gdb --args ./a.out; or type lattice debug ID while it runs"),
    ),
    flag(
        &["gdb", "tv", "debug", "valgrind"],
        Takes::Nothing,
        Refused("start it as the program: mpiexec -n 1 gdb --args ./a.out"),
    ),
];

/// Open MPI's user-level failure mitigation, in the values that mpirun takes.
fn fault_tolerance(line: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    match value.to_str() {
        Some("no" | "false" | "0") => {}
        Some("yes" | "true" | "1" | "ulfm" | "mpi") => {
            line.add_to_launch("--kill-on-bad-exit", Some("recover".as_ref()));
            line.add_to_every_program("--env", "OMPI_MCA_mpi_ft_enable=1".as_ref());
        }
        _ => {
            let (value, reason) = (value.to_string_lossy().into_owned(), "type ulfm or no".to_owned());
            return Err(Refusal::Value { flag: "--with-ft", value, reason });
        }
    }
    Ok(())
}

/// Adds `--bcast` once: several programs may have the flag.
pub(super) fn preload_binary(line: &mut Line, _: &OsStr) -> Result<(), Refusal> {
    if !line.has("--bcast") {
        line.add_to_launch("--bcast", None);
    }
    Ok(())
}
