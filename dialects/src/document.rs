//! The help text and the document, generated from the tables of flags.

use std::fmt::Write as _;

use lattice_console::Verbosity;

use super::flag::{Flag, Meaning, Takes};
use super::front_end::FrontEnd;
use super::idle::Notice;
#[cfg(test)]
use super::mpiexec::Name;

impl Flag {
    /// The flag as typed.
    fn typed(&self) -> String {
        let dashed = |name: &&str| if name.len() == 1 { format!("-{name}") } else { format!("--{name}") };
        let names = self.names.iter().map(dashed).collect::<Vec<_>>().join(", ");
        match self.takes {
            Takes::Nothing => names,
            Takes::Value => format!("{names} VALUE"),
            Takes::Optional => format!("{names}[=VALUE]"),
            Takes::Pair => format!("{names} NAME VALUE"),
        }
    }

    /// Meaning of the flag, in words of `lattice launch`.
    fn meaning(&self) -> String {
        match self.meaning {
            Meaning::OfProgram(flag) | Meaning::OfLaunch(flag) | Meaning::OfNodes(flag) => flag.to_owned(),
            Meaning::Made(text, _) | Meaning::MadeOfProgram(text, _) => text.to_owned(),
            Meaning::Shows(Verbosity::Quiet) => "-q".to_owned(),
            Meaning::Shows(_) => "-v".to_owned(),
            Meaning::Ignored(notice, reason) => ignored(notice, reason),
            Meaning::Refused(instead) => format!("refused: {instead}"),
        }
    }
}

/// Meaning of an ignored flag.
fn ignored(notice: Notice, reason: &str) -> String {
    let reported = match notice {
        Notice::Verbose => "",
        Notice::Unallocated => " with a note outside of an allocation",
        Notice::Always => " with a note",
    };
    format!("ignored{reported}: {reason}")
}

/// The help of a front end.
pub(super) fn help(front_end: FrontEnd) -> String {
    let name = front_end.name();
    let mut text = format!(
        "Starts a launch, with the command line of {name}. -v shows the line of `lattice launch` that it means.\n\n\
         Usage: lattice {name} [FLAGS] PROGRAM [ARGS]... [: [FLAGS] PROGRAM [ARGS]...]...\n\n\
         Flags, and the flags of `lattice launch` that they mean:\n"
    );
    for flag in front_end.flags() {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "  {}\n          {}", flag.typed(), flag.meaning());
    }
    text
}

/// The document that maps the flags of other launchers to those of `lattice launch`, in Markdown.
#[cfg(test)]
pub(super) fn coming_from() -> String {
    let mut text = String::from(INTRODUCTION);
    for (front_end, title, introduction) in
        [(FrontEnd::Srun, "srun", FROM_SRUN), (FrontEnd::Mpiexec(Name::Mpiexec), "mpiexec and mpirun", FROM_MPIEXEC)]
    {
        let _ = write!(text, "\n## Coming from {title}\n\n{introduction}\n| there | `lattice launch` |\n|---|---|\n");
        for flag in front_end.flags() {
            let meaning = flag.meaning();
            let meaning = if meaning.starts_with('-') { format!("`{meaning}`") } else { meaning };
            let _ = writeln!(text, "| `{}` | {} |", flag.typed().replace('|', "\\|"), meaning.replace('|', "\\|"));
        }
        if front_end == FrontEnd::Srun {
            for idle in super::idle::IDLE {
                let short = idle.short.map_or_else(String::new, |short| format!("-{short}, "));
                let ignored = ignored(idle.notice, idle.reason).replace('|', "\\|");
                let _ = writeln!(text, "| `{short}--{}` | {ignored} |", idle.long);
            }
        }
        let _ = write!(text, "\n| variable | in lines of | is |\n|---|---|---|\n");
        let variables = match front_end {
            FrontEnd::Srun => super::srun::variables(),
            FrontEnd::Mpiexec(_) => super::mpiexec::variables(),
        };
        for (name, of, flag) in variables {
            let _ = writeln!(text, "| `{name}` | {of} | `--{flag}` |");
        }
    }
    text
}

#[cfg(test)]
const INTRODUCTION: &str = "\
# Coming from srun, mpiexec or mpirun

<!-- Written by a test from the tables that read the flags: LATTICE_WRITE_DOCS=1 cargo test -p lattice-dialects coming_from -->

Familiar command lines work here:

```
lattice srun -N 2 -n 8 --ntasks-per-node=4 -l ./a.out
lattice mpiexec -np 4 -x OMP_NUM_THREADS=2 ./a.out
lattice mpiexec -ppn 2 -hosts node0,node1 -genv GRID fine ./a.out
```

`-v` shows the line of `lattice launch` that such a line means. A program that is linked to `lattice` under the name `srun`, `mpiexec` or
`mpirun` does the same: `ln -s $(command -v lattice) ~/bin/mpiexec`. `lattice launch` has srun's common flags itself.
";

#[cfg(test)]
const FROM_SRUN: &str = "\
`lattice srun` has srun's defaults: standard input goes to all tasks, a failed task does not end the remaining tasks (`-K` ends them), standard error follows
`-o`, and tasks have `SLURM_PROCID` and similar variables. Flags may be abbreviated if unambiguous. srun's environment variables are defaults of flags (second
table); `-v` lists those in effect and those that are ignored (`SLURM_PARTITION`, `SLURM_EXIT_ERROR` and similar). In an allocation `SLURM_JOB_NUM_NODES`, else `SLURM_NNODES`, is the greatest
number of nodes, and `SLURM_DIST_PLANESIZE` the number of `SLURM_DISTRIBUTION=plane`; `LATTICE_ALLOC_ID` replaces `SLURM_JOB_ID`, and `SLURM_CONF` is left to Slurm. Without a number of tasks or nodes there is one
task on each node of the allocation, or on each that `-w` or `-F` names. In an allocation each task has a CPU of its node (`-c` of them) or is refused, unless there is `-O`.
Tasks are placed and bound as by srun of Slurm 22.05, with few exceptions: `-w` names the nodes of the launch, where srun
may add nodes, unless `-N` asks for more than it names; ranks are bound only on request; with one thread of each core the remaining threads are not in the masks.
Flags that would change the result and are not supported are refused. Flags that are ignored and may be missed, such as `--mem` and `--exact`, are reported
by a note, which `-q` and `-Q` leave out; `-v` reports all that are ignored. After a `:` a program has `-n`, `-N`, `-w`, `-F`, `--ntasks-per-node`
and `-D` of its own. All other flags are the same for all programs: a line whose components would differ in one, as `srun -c2 A : -c1 B`, is refused.
Scripts that call `scontrol show hostnames` and `scontrol show hostlist` find both in `lattice scontrol`, and `lattice batch` takes scripts with
`#SBATCH` lines as they are ([batch jobs](../use/batch.md)).
";

#[cfg(test)]
const FROM_MPIEXEC: &str = "\
Flags take any number of dashes, and `=` before a value. A line follows the rules of one launcher: MPICH's Hydra, Intel MPI's, or Open MPI's. The launcher is
selected by `LATTICE_MPIEXEC=hydra|intel|ompi`, else by flags that only one launcher has, else by a name that only one has (`mpiexec.hydra`, `mpiexec.mpich`,
`mpirun.openmpi`, `prterun`, `orterun`), else by the MPI library of the program. For a program without MPI library, such as Python or a script, `mpirun` follows
Open MPI's rules, and `mpiexec` Hydra's, which refuse nothing. Flags of one launcher only are `-hosts`, `-ppn`, `-l`, `-genv`, `-bind-to user:0` and `rr` for
MPICH, `-perhost` and `-genv I_MPI_...` for Intel MPI, and for Open MPI `-x`, `-H`, `--mca`, `--rank-by`, `--npernode`, `--oversubscribe`, `--bind-to cpu-list`,
and `--map-by` with `slot`, `node`, `ppr:`, `seq`, `rankfile`, `pe-list=` or qualifiers such as `:PE=2` after an object. `-N` is the number of ranks for MPICH; for Open
MPI and in addition to `-n` it is the number of ranks on a node.

**Binding.** Lines of Open MPI bind ranks as `mpirun` of Open MPI 4.1 does by default: up to two ranks to cores, more to NUMA domains in turn, and none if there
are more ranks than cores or `--oversubscribe` is given. Ranks that only `--bind-to` binds are distributed over NUMA domains if they are more than two
([binding](../use/binding.md) has the differences). Lines of Intel MPI (`LATTICE_MPIEXEC=intel`, or a flag that MPICH does not have) divide the cores of each node
among its ranks. In other lines only `--bind-to` and similar flags bind ranks.

**Slots.** A host without a number has a slot for each of its cores; in a list with repeated names each line is a slot. This holds for hostfiles,
`lattice start`, `--via` and the files that an unchanged `mpirun` reads. Lines of Open MPI have a slot for each core (with `--use-hwthread-cpus` for each
hardware thread) unless the line or its hostfile has numbers; `--host a,b` has one for each name. Without `-np` all slots are filled, and more ranks than slots are
refused without `--oversubscribe`. Lines of Intel MPI fill the cores of each host, and begin again with the
first host: `-n 2 -hosts a,b` is two ranks on a, unless `-ppn` or `I_MPI_PERHOST` sets the number. Lines of MPICH have one rank on each host without a number, or one
rank without hosts. They reuse named hosts when each has its number of ranks, as does `-machinefile` for Intel MPI; more ranks than CPUs are started without a
warning.

**Jobs that programs spawn** (`MPI_Comm_spawn`) run on the nodes of the launch: those that its ranks need. In an allocation a line with
`-np 1` takes all nodes, or all that it names (`lattice launch -N all -n 1`), as under the daemons of `mpirun`; for more ranks give `-N` to `lattice launch`.
In a line of Open MPI with `-np`, `MPI_UNIVERSE_SIZE` is the number of slots of these nodes, so that a program can spawn slots - 1 ranks; in other
lines `-usize` (`--universe-size N|slots`) sets it. A program of MPICH that runs without a launcher spawns through `mpiexec -pmi_args`; this program answers under that
name.

**Programs.** A program after a `:` may have a `-host` list, a directory (`-wdir`) and variables (`-env`, `-x`) of its own. Other flags are for all programs,
and a line with two different values of one flag is refused. `-configfile`,
`--app` and `--appfile` name a file with a program on each line; a line continues in the next one after a `\\` at its end. `--pset NAME` names a set NAME;
`lattice launch` adds `app://` before the name.

**Variables** are defaults of flags. `--mca` and `--prtemca` set the parameters of Open MPI's launcher as well, and override variables. `-v` lists the variables
in effect, and those of the line's own launcher that are ignored (`HYDRA_ENV`, which has no effect in Hydra 4.0
either, `HYDRA_IFACE`, `I_MPI_PIN_ORDER`, `OMPI_MCA_orte_xterm` and similar). `HYDRA_CONFIG_FILE` names the file of programs of a line without one.
Variables by which an MPI's own launcher reaches nodes (`HYDRA_LAUNCHER`, `HYDRA_BOOTSTRAP`, `I_MPI_HYDRA_BOOTSTRAP`, `OMPI_MCA_plm` and similar) are not reported:
shells of an allocation set them ([mpirun](../use/mpirun.md)).
";
