//! The flags of `srun`, except those of [`IDLE`](crate::idle::IDLE).

use lattice_console::Verbosity;

use super::super::flag::Meaning::{Ignored, Made, MadeOfProgram, OfLaunch, OfNodes, OfProgram, Refused, Shows};
use super::super::flag::{Flag, Meaning, Takes};
use super::gpus::{accel_bind, cpus_per_gpu, gpu_bind, gpus_per_task, ntasks_per_gpu, tres_bind, tres_per_task};
use super::values::{
    compress, cpu_bind, distribution, epilog, error, exclude, export, group, mpi, no_kill, node_file, node_list, nodes,
    open_mode, output, prolog, pty, send_libs, signal, user, x11,
};
use crate::idle::{ALL_GPUS, NO_MEMORY_LIMIT, Notice};

const fn flag(names: &'static [&'static str], takes: Takes, meaning: Meaning) -> Flag {
    Flag { names, takes, meaning }
}

const OF_SLURM: &str = "it is a setting of Slurm";
const SEARCH: &str = "nodes are not searched for by what they have; -w NODES names them";
const NO_CLOCK: &str = "neither clock rates nor idle states of processors are changed";
const NOT_SHARED_OUT: &str = "it is not shared out here, so that another launch may use it as well";

pub(crate) const FLAGS: &[Flag] = &[
    flag(&["n", "ntasks"], Takes::Value, OfProgram("--ntasks")),
    flag(&["N", "nodes"], Takes::Value, MadeOfProgram("-N N or -N MIN-MAX", nodes)),
    flag(&["ntasks-per-node", "tasks-per-node"], Takes::Value, OfNodes("--tasks-per-node")),
    flag(&["ntasks-per-core"], Takes::Value, OfLaunch("--tasks-per-core")),
    flag(&["ntasks-per-socket"], Takes::Value, OfLaunch("--tasks-per-socket")),
    flag(
        &["w", "nodelist"],
        Takes::Value,
        MadeOfProgram("-w NODES; with more of -N than these, --include NODES", node_list),
    ),
    flag(&["F", "nodefile"], Takes::Value, MadeOfProgram("-w NODES, those of the file", node_file)),
    flag(&["x", "exclude"], Takes::Value, Made("-x NODES", exclude)),
    flag(
        &["m", "distribution"],
        Takes::Value,
        Made(
            "--distribution=block|cyclic|plane=N[:block|cyclic|fcyclic[:...]]; arbitrary is --hostfile $SLURM_HOSTFILE; Pack is refused",
            distribution,
        ),
    ),
    flag(&["cpu-bind", "cpu_bind"], Takes::Value, Made("--cpu-bind", cpu_bind)),
    flag(&["c", "cpus-per-task"], Takes::Value, OfLaunch("--cpus-per-task")),
    flag(&["mem-bind", "mem_bind"], Takes::Value, OfLaunch("--mem-bind")),
    flag(&["hint"], Takes::Value, OfLaunch("--hint")),
    flag(&["threads-per-core"], Takes::Value, OfLaunch("--threads-per-core")),
    flag(&["gpus-per-task"], Takes::Value, Made("--gpus-per-task, without the type of GPU", gpus_per_task)),
    flag(&["gpu-bind"], Takes::Value, Made("--gpu-bind, without verbose", gpu_bind)),
    flag(
        &["ntasks-per-gpu"],
        Takes::Value,
        Made("--gpu-bind=single:N unless there is one, and -n N times --gpus, else --tasks-per N:gpu", ntasks_per_gpu),
    ),
    flag(
        &["cpus-per-gpu"],
        Takes::Value,
        Made("-c N times --gpus-per-task; ignored with a note without that", cpus_per_gpu),
    ),
    flag(&["tres-bind"], Takes::Value, Made("--gpu-bind=HOW for gres/gpu:HOW; refused for others", tres_bind)),
    flag(
        &["tres-per-task"],
        Takes::Value,
        Made("-c N for cpu=N, --gpus-per-task=N for gres/gpu=N; refused for others", tres_per_task),
    ),
    flag(&["accel-bind"], Takes::Value, Made("--gpu-bind=closest for g; other letters with a note", accel_bind)),
    flag(&["O", "overcommit"], Takes::Nothing, OfLaunch("--overcommit")),
    flag(&["jobid"], Takes::Value, OfLaunch("--alloc")),
    flag(&["o", "output"], Takes::Value, Made("-o FILE, and -e FILE unless there is one; a task is refused", output)),
    flag(&["e", "error"], Takes::Value, Made("-e FILE; a task is refused", error)),
    flag(&["i", "input"], Takes::Value, OfLaunch("--stdin")),
    flag(&["J", "job-name"], Takes::Value, OfLaunch("--job-name")),
    flag(&["l", "label"], Takes::Nothing, OfLaunch("--label")),
    flag(&["u", "unbuffered"], Takes::Nothing, OfLaunch("--unbuffered")),
    flag(&["open-mode"], Takes::Value, Made("--append", open_mode)),
    flag(&["json"], Takes::Nothing, OfLaunch("--json")),
    flag(&["D", "chdir"], Takes::Value, OfProgram("--chdir")),
    flag(&["export"], Takes::Value, Made("--export, without names that are not set", export)),
    flag(&["bcast"], Takes::Optional, OfLaunch("--bcast")),
    flag(&["bcast-exclude"], Takes::Value, OfLaunch("--bcast-exclude")),
    flag(&["compress"], Takes::Optional, Made("--compress, which is gzip, unless it is none", compress)),
    flag(&["send-libs"], Takes::Optional, Made("--send-libs=yes|no", send_libs)),
    flag(&["propagate"], Takes::Optional, OfLaunch("--propagate")),
    flag(&["multi-prog"], Takes::Nothing, OfLaunch("--multi-prog")),
    flag(&["mpi"], Takes::Value, Made("--pmi=none for none; all others are served anyway", mpi)),
    flag(&["t", "time"], Takes::Value, OfLaunch("--time")),
    flag(&["signal"], Takes::Value, Made("--signal, with -t on the same line; without R:", signal)),
    flag(&["K", "kill-on-bad-exit"], Takes::Optional, OfLaunch("--kill-on-bad-exit")),
    flag(&["k", "no-kill"], Takes::Optional, Made("--no-kill, unless it is off", no_kill)),
    flag(&["W", "wait"], Takes::Value, OfLaunch("--wait")),
    flag(&["v", "verbose"], Takes::Nothing, Shows(Verbosity::Verbose)),
    flag(&["quiet", "Q"], Takes::Nothing, Shows(Verbosity::Quiet)),
    flag(&["test-only"], Takes::Nothing, OfLaunch("--dry-run")),
    flag(&["uid"], Takes::Value, MadeOfProgram("nothing, for yourself; others are refused", user)),
    flag(&["gid"], Takes::Value, MadeOfProgram("nothing, for your own group; others are refused", group)),
    flag(&["pty"], Takes::Optional, Made("--pty", pty)),
    flag(&["r", "relative"], Takes::Value, OfLaunch("--relative")),
    flag(&["het-group", "pack-group"], Takes::Value, Refused("separate programs by a lone `:`")),
    flag(&["container-image", "container"], Takes::Value, OfLaunch("--container")),
    flag(
        &["container-mounts", "container-workdir", "container-name", "uenv", "view", "environment"],
        Takes::Value,
        Refused("type --container IMAGE with a profile of your own in ~/.config/lattice/containers.toml"),
    ),
    flag(
        &["x11"],
        Takes::Optional,
        MadeOfProgram("DISPLAY is passed on; refused in an allocation if it is a display of this machine", x11),
    ),
    flag(&["task-prolog"], Takes::Value, OfLaunch("--task-prolog")),
    flag(&["task-epilog"], Takes::Value, OfLaunch("--task-epilog")),
    flag(&["prolog"], Takes::Value, Made("--prolog, unless it is none", prolog)),
    flag(&["epilog"], Takes::Value, Made("--epilog, unless it is none", epilog)),
    // Order and time of the start.
    flag(&["b", "begin", "deadline"], Takes::Value, Refused("type it to `at`, or a timer")),
    flag(
        &["d", "dependency"],
        Takes::Value,
        Refused("start it by the command before it: lattice srun A && lattice srun B"),
    ),
    flag(&["H", "hold"], Takes::Nothing, Refused("start it when it may run")),
    flag(&["M", "clusters", "cluster"], Takes::Value, Refused("type --api URL to lattice launch for another cluster")),
    // Resources that Lattice does not allocate.
    flag(&["mem-per-gpu"], Takes::Value, Ignored(Notice::Always, NO_MEMORY_LIMIT)),
    flag(&["gpus-per-socket"], Takes::Value, Ignored(Notice::Always, ALL_GPUS)),
    flag(&["L", "licenses"], Takes::Value, Ignored(Notice::Always, NOT_SHARED_OUT)),
    flag(&["bb", "bbf", "network"], Takes::Value, Ignored(Notice::Always, NOT_SHARED_OUT)),
    flag(&["S", "core-spec", "thread-spec"], Takes::Value, Ignored(Notice::Always, "no core is kept free of ranks")),
    flag(&["resv-ports"], Takes::Optional, Ignored(Notice::Always, "no port is kept for it")),
    flag(&["gpu-freq", "cpu-freq"], Takes::Value, Ignored(Notice::Always, NO_CLOCK)),
    flag(&["mail-type"], Takes::Value, Ignored(Notice::Always, "no mail is sent")),
    flag(&["profile", "acctg-freq"], Takes::Value, Ignored(Notice::Always, "nothing is sampled; --summary has totals")),
    flag(
        &["E", "preserve-env"],
        Takes::Nothing,
        Ignored(Notice::Always, "SLURM_NTASKS and SLURM_NNODES are those of the launch"),
    ),
    flag(
        &["use-min-nodes"],
        Takes::Nothing,
        Ignored(Notice::Always, "of -N MIN-MAX a launch has as many nodes as its ranks need"),
    ),
    // Constraints on the nodes of an allocation.
    flag(
        &["mincpus", "tmp", "B", "extra-node-info", "cores-per-socket", "sockets-per-node", "cluster-constraint"],
        Takes::Value,
        Ignored(Notice::Unallocated, SEARCH),
    ),
    flag(&["switches"], Takes::Value, Ignored(Notice::Unallocated, SEARCH)),
    flag(&["contiguous", "spread-job", "reboot"], Takes::Nothing, Ignored(Notice::Unallocated, SEARCH)),
    // Settings of Slurm's daemons and queue. The long name --qos is in the table of ignored flags, without its letter: `lattice launch` uses
    // `-q`.
    flag(
        &["q"],
        Takes::Value,
        Ignored(Notice::Verbose, "launches start at once, in an allocation that is there already"),
    ),
    flag(
        &[
            "power",
            "mcs-label",
            "slurmd-debug",
            "priority",
            "wckey",
            "time-min",
            "mail-user",
            "gres-flags",
            "treewidth",
            "delay-boot",
            "T",
            "threads",
        ],
        Takes::Value,
        Ignored(Notice::Verbose, OF_SLURM),
    ),
    flag(
        &["Z", "no-allocate", "interactive", "X", "bell", "no-bell"],
        Takes::Nothing,
        Ignored(Notice::Verbose, OF_SLURM),
    ),
    flag(&["nice"], Takes::Optional, Ignored(Notice::Verbose, OF_SLURM)),
    flag(
        &["quit-on-interrupt"],
        Takes::Nothing,
        Ignored(Notice::Verbose, "Ctrl-C ends the launch in order, a second one at once"),
    ),
];
