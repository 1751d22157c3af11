//! What the tables say, as a help text and as a document.

use std::fmt::Write as _;

#[cfg(test)]
use super::Name;
use super::{Flag, FrontEnd, Meaning, Notice, Takes};
use crate::console::Verbosity;

impl Flag {
    /// The flag as it is typed.
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

    /// What it means here, in words of `lattice launch`.
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

/// The meaning of a flag that is ignored.
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
    let wrapped = match front_end {
        FrontEnd::Mpiexec(_) => {
            "       lattice mpiexec --wrap MPIEXEC ...    # runs that of Hydra, under HYDRA_LAUNCHER=manual\n"
        }
        FrontEnd::Srun => "",
    };
    let mut text = format!(
        "Starts a launch, with the command line of {name}. -v shows the line of `lattice launch` that it means.\n\n\
         Usage: lattice {name} [FLAGS] PROGRAM [ARGS]... [: [FLAGS] PROGRAM [ARGS]...]...\n{wrapped}\n\
         Flags, and the flags of `lattice launch` that they mean:\n"
    );
    for flag in front_end.flags() {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "  {}\n          {}", flag.typed(), flag.meaning());
    }
    text
}

/// The document that maps the flags of other launchers to ours, in Markdown.
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
            for idle in super::super::idle::IDLE {
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

<!-- Written by a test from the tables that read the flags: LATTICE_WRITE_DOCS=1 cargo test -p lattice coming_from -->

The lines that you know start launches here:

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
`lattice srun` does what srun does without being asked: standard input goes to all tasks, a task that fails leaves the others running
(`-K` ends them), standard error goes where `-o` says, and tasks find `SLURM_PROCID` and its like. A flag may be cut as long as it is the
only one that begins so. Variables of srun stand for flags that a line does not have, as the table below the flags has them; `-v` names those that count, and
those that are ignored here (`SLURM_PARTITION`, `SLURM_EXIT_ERROR` and their like). In an allocation `SLURM_JOB_NUM_NODES`, else `SLURM_NNODES`, is the greatest
number of nodes, and `SLURM_DIST_PLANESIZE` the number of `SLURM_DISTRIBUTION=plane`; `LATTICE_ALLOC_ID` stands in the place of `SLURM_JOB_ID`, and `SLURM_CONF` is Slurm's own. Without a number of tasks or nodes there is one
task on each node of the allocation, or on each that `-w` or `-F` names. In an allocation each task has a CPU of its node (`-c` of them) or is refused, unless there is `-O`.
Tasks are placed and bound as by srun of Slurm 22.05, with few exceptions: `-w` names the nodes of the launch, where srun
takes others as well, unless `-N` asks for more than it names; nothing is bound without a word about it; with one thread of each core the others are not in the masks.
Flags that would change what runs and are not there are refused. Flags that are ignored and may be missed, such as `--mem` and `--exact`, are reported
by a note, which `-q` and `-Q` leave out; `-v` reports all that are ignored. Behind a `:` a program has `-n`, `-N`, `-w`, `-F`, `--ntasks-per-node`
and `-D` of its own. All other flags are the same for all programs: a line whose components would differ in one, as `srun -c2 A : -c1 B`, is refused.
Scripts that call `scontrol show hostnames` and `scontrol show hostlist` find both in `lattice scontrol`, and `lattice batch` takes scripts with
`#SBATCH` lines as they are ([batch.md](batch.md)).
";

#[cfg(test)]
const FROM_MPIEXEC: &str = "\
Any number of dashes will do, and `=` before a value. The rules of a line are those of one launcher: MPICH's Hydra, Intel MPI's, or Open MPI's. They follow
from `LATTICE_MPIEXEC=hydra|intel|ompi`, else from flags that one launcher alone has, else from a name that one alone has (`mpiexec.hydra`, `mpiexec.mpich`,
`mpirun.openmpi`, `prterun`, `orterun`), else from the MPI library of the program. For a program without one, such as Python or a script, `mpirun` follows Open
MPI's rules, and `mpiexec` Hydra's, which refuse nothing. Flags that only one launcher has are
such as `-hosts`, `-ppn`, `-l`, `-genv`, `-bind-to user:0` and `rr` for MPICH, `-perhost` and `-genv I_MPI_...` for Intel MPI, and for Open MPI `-x`, `-H`, `--mca`, `--rank-by`,
`--npernode`, `--oversubscribe`, `--bind-to cpu-list`, and `--map-by` with `slot`, `node`, `ppr:`, `seq`, `rankfile`, `pe-list=` or words such as `:PE=2` behind an object.
`-N` is the number of ranks for MPICH, and that of ranks on a node for Open MPI and beside `-n`.

**Binding.** Lines of Open MPI bind ranks as `mpirun` of Open MPI 4.1 does without being asked: up to two of them to cores, more to NUMA domains in turn,
and none where there are more ranks than cores or `--oversubscribe` lets there be. Ranks that `--bind-to` alone binds are dealt out over NUMA domains where they
are more than two ([binding.md](binding.md) says what differs). Lines of Intel MPI, which `LATTICE_MPIEXEC=intel` or such a flag tells from MPICH's, divide the cores of each node among its
ranks. In other lines nothing binds ranks but `--bind-to` and its like.

**Slots.** A host without a number has a slot for each of its cores; in a list in which names stand several times each line is a slot. So it is in hostfiles,
for `lattice start`, `--via` and the files that an unchanged `mpirun` reads. Lines of Open MPI have a slot for each core (with `--use-hwthread-cpus` for each
hardware thread) unless they or their hostfile count; `--host a,b` counts one for each name, as there. Without `-np` all slots are filled, and more ranks than slots are
refused unless there is `--oversubscribe`. Lines of Intel MPI fill the cores of each host, and begin again with the
first one: `-n 2 -hosts a,b` is two ranks on a, unless `-ppn` or `I_MPI_PERHOST` says how many. Lines of MPICH have one rank on each host without a number, or one
rank without hosts, and go through named hosts again when each has its number of ranks, as does `-machinefile` for Intel MPI; more ranks than
CPUs are started without a word.

**Jobs that programs spawn** (`MPI_Comm_spawn`) run on the nodes of the launch, which has those that its ranks need. In an allocation a line with
`-np 1` takes all nodes, or all that it names (`lattice launch -N all -n 1`), as under the daemons of `mpirun`; for more ranks say `-N` to `lattice launch`.
A line of Open MPI with `-np` tells `MPI_UNIVERSE_SIZE` as the number of slots of these nodes, of which programs spawn as many less one; in other
lines `-usize` (`--universe-size N|slots`) says it. A program of MPICH that nothing launched spawns through `mpiexec -pmi_args`, which this program answers under that
name.

**Programs.** Those behind a `:` may have a `-host` list, a directory (`-wdir`) and variables (`-env`, `-x`) of their own. Other flags are for all programs,
and a line in which two of them have different values of one is refused. `-configfile`,
`--app` and `--appfile` name a file with a program on each line, which goes on in the next one behind a `\\` at its end. `--pset NAME` names a set NAME, where
that of `lattice launch` puts `app://` before it.

**Variables** stand for flags that a line does not have. The parameters of Open MPI's launcher among them count behind `--mca` and `--prtemca` as well, before
variables. `-v` names those that count, and those of the line's own launcher that are ignored here (`HYDRA_ENV`, which has no effect in Hydra 4.0
either, `HYDRA_IFACE`, `I_MPI_PIN_ORDER`, `OMPI_MCA_orte_xterm` and their like). `HYDRA_CONFIG_FILE` names the file of programs of a line without one.
By what an MPI's own launcher reaches nodes (`HYDRA_LAUNCHER`, `HYDRA_BOOTSTRAP`, `I_MPI_HYDRA_BOOTSTRAP`, `OMPI_MCA_plm` and their like) is not told:
shells of an allocation set it for those ([mpirun.md](mpirun.md)).
";
