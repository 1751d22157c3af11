//! The book as a user reads it: the lines of a page are typed in their order in one shell, and print what the page shows.

mod page;
mod shown;

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use lattice_tests::mpi::{self, Flavour};
use lattice_tests::{Command, built, cluster, script_in};

use self::page::{Line, Typed, lines};

/// A page, and the shell in which its lines are typed.
struct Page {
    file: &'static str,
    place: Place,
    /// Shell words before the first line: programs and files that the page takes for granted.
    before: &'static str,
    /// Parts of lines, and their replacements: numbers that are too large for this machine, ids, a second terminal.
    instead: &'static [(&'static str, &'static str)],
    /// Parts of lines that are not typed and of output that is not compared, and what they need.
    left_out: &'static [(&'static str, &'static str)],
}

/// Place of the shell.
#[derive(Clone, Copy)]
enum Place {
    Machine,
    /// The same, as a user without privileges.
    PlainUser,
    /// A cluster with this number of nodes.
    Cluster(u32),
}

/// A program without MPI in the place of the user's.
const APP: &str = "printf '#!/bin/sh\\necho rank $LATTICE_RANK\\n' >app; chmod +x app; cp app a.out; ";
/// A launch that goes on, for commands that show it. Its id is in `$ID`, and that of its set in `$SET`.
const RUNNING: &str = "lattice launch -n 2 ${RUNS:-sleep 1000} >/dev/null 2>&1 & \
    until ID=$(lattice launches --json | field launch_id | head -1) && [ \"$ID\" ]; do sleep 0.05; done; \
    until lattice stacks $ID >/dev/null 2>&1; do sleep 0.05; done; \
    until SET=$(lattice set list --json | field set_id | head -1) && [ \"$SET\" ]; do sleep 0.05; done; ";

const PAGES: &[Page] = &[
    Page {
        file: "README.md",
        place: Place::Cluster(4),
        before: "running; printf '#!/bin/sh\\n#SBATCH --output=x\\nhostname\\n' >job.sh; ",
        instead: &[("-n 256 ./app", "-n 8 ./app"), (" ID ", " $ID "), ("-N 16", "-N 4")],
        left_out: &[
            ("cargo ", "Cargo"),
            ("--via ssh", "hosts"),
            ("salloc", "Slurm"),
            ("dev-cluster", "a network that is not one of a node"),
            ("alloc shell", "free nodes"),
        ],
    },
    Page {
        file: "docs/use/first-launch.md",
        place: Place::Machine,
        before: "",
        instead: &[("lattice launches ", "running; lattice launches "), (" ID ", " $ID ")],
        left_out: &[("lattice top", "a terminal")],
    },
    Page {
        file: "docs/use/laptop-to-cluster.md",
        place: Place::Machine,
        before: "",
        instead: &[("sudo ", "")],
        left_out: &[
            ("--via ssh", "hosts"),
            ("each in a network of its own", "a terminal"),
            ("the cluster ends", "a terminal"),
        ],
    },
    Page {
        file: "docs/use/output.md",
        place: Place::Cluster(2),
        before: "echo x >input; ",
        instead: &[("-n 256", "-n 16")],
        left_out: &[],
    },
    Page {
        file: "docs/use/failures.md",
        place: Place::Cluster(2),
        before: "running; printf '#!/bin/sh\\n[ $LATTICE_RANK = 3 ] && exit 0\\nexec ./hello\\n' >app; ",
        instead: &[
            (" ID ", " $ID "),
            ("-n 64 --restartable sh -c './app || ./app", "-n 4 --restartable sh -c './hello || ./hello"),
        ],
        left_out: &[],
    },
    Page {
        file: "docs/use/environment.md",
        place: Place::Cluster(2),
        before: "echo A=b >run.env; for name in train.py slurm-script.sh begin end stage-in stage-out; do cp app $name; done; \
            echo 'print(1)' >train.py; touch grid.nc run.nml; mkdir copies; ",
        instead: &[("--bcast=/scratch/", "--bcast=$PWD/copies/"), ("-n 64", "-n 8")],
        left_out: &[],
    },
    Page {
        file: "docs/use/binding.md",
        place: Place::Machine,
        before: "",
        instead: &[("-n 4 -c 8", "-n 1 -c 2")],
        left_out: &[("1:gpu", "GPUs")],
    },
    Page {
        file: "docs/use/batch.md",
        place: Place::Cluster(4),
        before: "lattice alloc release $LATTICE_ALLOC_ID >/dev/null; unset LATTICE_ALLOC_ID; cp app first.sh; cp app next.sh; \
            printf '#!/bin/sh\\nsleep 1\\n' >a.out; ",
        instead: &[
            ("job.sh input.nml ", "job.sh input.nml; lattice batch job.sh >pending #"),
            ("7yjtam8njn", "$(cat pending)"),
            ("$(seq 1 100)", "1 2"),
            ("lattice alloc release", "LATTICE_ALLOC_ID=$(lattice alloc create -N 1 --wait); lattice alloc release"),
        ],
        left_out: &[],
    },
    Page {
        file: "docs/use/dynamic.md",
        place: Place::Cluster(2),
        before: "cp app master; printf '#!/bin/sh\\nsleep ${LASTS:-0}\\n' >ocean; chmod +x ocean; cp ocean ice; ",
        instead: &[
            (
                "lattice set list",
                "export LASTS=1000; lattice launch -n 3 ./ice >/dev/null 2>&1 & RUNS=./ocean running; lattice set list",
            ),
            ("4099098", "$SET"),
        ],
        left_out: &[],
    },
    Page {
        file: "docs/use/troubleshooting.md",
        place: Place::Cluster(2),
        before: "running; ",
        instead: &[(" ...", " true"), (" ID ", " $ID ")],
        left_out: &[("lattice doctor", "no warning on the machine of the tests; `doctor` has its own tests")],
    },
    Page {
        file: "docs/use/install.md",
        place: Place::Machine,
        before: "mkdir ~/bin; ",
        instead: &[],
        left_out: &[("cargo ", "Cargo"), ("git pull", "a network"), ("export PATH=/shared", "the install before it")],
    },
    Page {
        file: "docs/operate/try-the-daemons.md",
        place: Place::PlainUser,
        before: "unset LATTICE_API_URL XDG_RUNTIME_DIR; ",
        instead: &[
            // The first terminal.
            ("lattice api --config api.toml\n", "(lattice api --config api.toml >api.log 2>&1 & echo $! >~/api.pid)\n"),
            // While the numbers appear, the user goes on in another terminal.
            ("sleep 1; done'\n", "sleep 1; done' >/dev/null 2>&1 & disown\n"),
            ("sleep 1; env -u LATTICE_API_URL", "sleep 1; ! env -u LATTICE_API_URL"),
        ],
        left_out: &[],
    },
];

/// Pages whose lines need another system, and the tests that type such lines.
const ELSEWHERE: &[(&str, &str)] = &[
    ("docs/use/slurm.md", "other_managers"),
    ("docs/use/pbs.md", "other_managers"),
    ("docs/use/lsf.md", "other_managers"),
    ("docs/use/grid-engine.md", "other_managers"),
    ("docs/use/flux.md", "other_managers"),
    ("docs/use/ssh.md", "other_launchers"),
    ("docs/use/kubernetes.md", "packaging"),
    ("docs/use/mpirun.md", "unchanged_mpirun"),
    ("docs/use/containers.md", "containers"),
    ("docs/use/terminal.md", "pty"),
    ("docs/operate/set-up.md", "cargo xtask dist --check"),
    ("docs/operate/fabric.md", "fabric"),
    ("docs/operate/security.md", "certificates"),
    ("docs/operate/faults.md", "restarts"),
    ("docs/embed/c-libraries.md", "client_libraries"),
    ("docs/embed/shared-memory.md", "job_memory"),
    ("docs/embed/which-crate.md", "the examples"),
    ("docs/embed/inventory.md", "the inventory's own tests"),
    ("docs/introduction.md", "first-launch.md"),
    ("docs/reference/exit-codes.md", "json"),
    ("docs/reference/json.md", "json"),
];

/// The user without privileges.
const NOBODY: u32 = 65534;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Types a page, and compares what each line prints.
fn check(name: &str) {
    let page = PAGES.iter().find(|page| page.file.ends_with(name)).expect("it is a page");
    let text = fs::read_to_string(root().join(page.file)).unwrap();
    let (directory, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (file, content) in page::files(&text) {
        fs::write(directory.path().join(file), content).unwrap();
    }
    fs::copy(Flavour::WheelMpich.program("hello"), directory.path().join("hello")).unwrap();
    let lines: Vec<Line> = lines(&text).into_iter().filter(|line| !page.leaves_out(line)).collect();
    assert!(!lines.is_empty(), "{name} has lines");
    let script = page.script(&lines);
    let shell = match page.place {
        Place::Machine => Command::new("env"),
        Place::PlainUser => {
            for path in [directory.path(), home.path()] {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
            Command::new("setpriv").words("--clear-groups --reuid").arg(NOBODY.to_string()).words("--regid 65534")
        }
        Place::Cluster(nodes) => cluster(nodes),
    };
    let mpicc = mpi::environment_program("mpich-5.0.2", "mpicc");
    let outcome = script_in(shell, &script)
        .directory(directory.path())
        .env("BIN", built::lattice().parent().unwrap())
        .env("MPI", mpicc.parent().unwrap())
        .env("HOME", home.path())
        .env("SHELL", "/bin/bash")
        .run();
    let typed = page::typed(outcome.text());
    let wrong: Vec<String> = lines
        .iter()
        .enumerate()
        .filter_map(|(number, line)| line.complaint(typed.get(&number), page.left_out))
        .collect();
    outcome.check(wrong.is_empty(), || format!("the page {name} is wrong:\n{}", wrong.join("\n")));
}

impl Page {
    fn leaves_out(&self, line: &Line) -> bool {
        self.left_out.iter().any(|(part, _)| line.words.contains(part))
    }

    /// The lines as one script. A mark with the number of the line is before its output, and one with its exit code after it.
    fn script(&self, lines: &[Line]) -> String {
        let mut script = format!(
            "exec 2>&1; set -m; PATH=$BIN:$MPI:$PATH; {APP}running() {{ {RUNNING}}}\n\
            trap 'kill $(jobs -p) $(cat ~/api.pid) 2>/dev/null; wait' EXIT\n{}\n",
            self.before
        );
        for (number, line) in lines.iter().enumerate() {
            let mut words = format!("{}\n", line.words);
            for (part, replacement) in self.instead {
                words = words.replace(part, replacement);
            }
            script += &format!("printf '\\n{}{number}\\n'; {words}printf '\\n{}%s\\n' $?\n", Typed::BEGIN, Typed::END);
        }
        script
    }
}

#[test]
fn lines_of_readme() {
    check("README.md");
}

#[test]
fn lines_of_first_launch() {
    check("first-launch.md");
}

#[test]
fn lines_of_laptop_to_cluster() {
    check("laptop-to-cluster.md");
}

#[test]
fn lines_of_output() {
    check("output.md");
}

#[test]
fn lines_of_failures() {
    check("failures.md");
}

#[test]
fn lines_of_environment() {
    check("environment.md");
}

#[test]
fn lines_of_binding() {
    check("binding.md");
}

#[test]
fn lines_of_batch() {
    check("batch.md");
}

#[test]
fn lines_of_dynamic() {
    check("dynamic.md");
}

#[test]
fn lines_of_troubleshooting() {
    check("troubleshooting.md");
}

#[test]
fn lines_of_install() {
    check("install.md");
}

#[test]
fn lines_of_try_the_daemons() {
    check("try-the-daemons.md");
}

#[test]
fn each_page_with_lines_is_typed_here_or_elsewhere() {
    let directories =
        ["docs", "docs/use", "docs/operate", "docs/embed", "docs/reference"].map(|path| root().join(path));
    let files = directories.iter().flat_map(|path| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let with_lines = files.filter(is_page).filter(|path| !lines(&fs::read_to_string(path).unwrap()).is_empty());
    let named = |path: &PathBuf| path.strip_prefix(root()).unwrap().display().to_string();
    let mut expected: Vec<String> = with_lines.map(|path| named(&path)).chain(["README.md".to_owned()]).collect();
    let typed = PAGES.iter().map(|page| page.file);
    let mut listed: Vec<&str> = typed.chain(ELSEWHERE.iter().map(|(file, _)| *file)).collect();
    expected.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, expected);
}
