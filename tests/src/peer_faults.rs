//! Faults of other launchers and MPI libraries that sometimes affect tests of their programs, under any launcher.
//!
//! [`FAULTS`] is the only list of them: the peer with its version, the signature of the fault, and its source.
//! [`Command::run`](crate::Command::run) checks for them. If a fault appears, it runs the peer's own launcher as a control, reports
//! both on standard output, and repeats the command. No command is repeated for another reason.

use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{self, ExitStatus, Output, Stdio};

use nix::sys::signal::Signal;

use crate::command::Command;
use crate::mpi::Flavour::{self, DebianOpenMpi, WheelMpich, WheelMpich3, WheelOpenMpi, WheelOpenMpi4};
use crate::outcome::Outcome;

/// A fault of a peer.
#[derive(Debug)]
pub struct PeerFault {
    /// Libraries with the fault in their programs or launchers. Their names contain the version.
    pub peers: &'static [Flavour],
    /// Text of the command line without which the fault does not appear: a program of `programs/` or the launcher.
    pub at: &'static str,
    /// Signature in the outcome of the command.
    pub signature: Signature,
    /// Description of the fault, and where it was observed.
    pub source: &'static str,
    /// Program and arguments of the control; `None` for `hostname`.
    pub control: Option<(&'static str, &'static [&'static str])>,
}

/// Signature of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// A line of the output contains all of these texts.
    Line(&'static [&'static str]),
    /// `timeout` ended the peer's launcher.
    Hangs,
    /// A rank was killed by SIGSEGV, and this was reported.
    Crash,
    /// The peer's launcher was killed by SIGPIPE and printed nothing.
    BrokenPipe,
}

/// Exit code of `timeout`, with which scripts of the tests end a launcher that hangs.
const TIMED_OUT: i32 = 124;

/// Maximum number of repetitions of one command.
const REPETITIONS_MAX: usize = 2;

/// Maximum number of runs of a control. The first run with the fault is the last one.
const CONTROLS_MAX: usize = 10;

/// Prefix of a line that reports a fault.
const REPORT: &str = "fault of a peer: ";

/// The known faults.
pub const FAULTS: [PeerFault; 6] = [
    PeerFault {
        peers: &[WheelOpenMpi],
        at: "bin/mpirun",
        signature: Signature::Hangs,
        source: "prterun of Open MPI 5.0.11 hangs at its start, or after its ranks have ended, now and then, on a loaded machine above all; \
                 with daemons that a shell script starts as well",
        control: None,
    },
    PeerFault {
        peers: &[WheelOpenMpi],
        at: "bin/mpirun",
        signature: Signature::Line(&["setpgid", "Permission denied"]),
        source: "prterun of Open MPI 5.0.11 prints a warning of its own about setpgid (Permission denied); seen once on a loaded machine",
        control: None,
    },
    PeerFault {
        peers: &[DebianOpenMpi, WheelOpenMpi4],
        at: "mpirun",
        signature: Signature::Line(&["abort is already in progress"]),
        source: "mpirun of Open MPI 4.1 stands still now and then when its daemons end while it aborts by itself",
        control: None,
    },
    PeerFault {
        peers: &[WheelMpich],
        at: "bin/mpiexec",
        signature: Signature::BrokenPipe,
        source: "mpiexec of MPICH 5.0.2 is killed by SIGPIPE at its start; seen once on a loaded machine",
        control: None,
    },
    PeerFault {
        peers: &[WheelMpich, WheelMpich3],
        at: "/spawn",
        signature: Signature::Crash,
        source: "ranks of MPICH crash (SIGSEGV) when a job that they have spawned aborts; seen once on a loaded machine",
        control: Some(("spawn_abort", &["9"])),
    },
    PeerFault {
        peers: &[DebianOpenMpi],
        at: "/",
        signature: Signature::Crash,
        source: "programs of Debian's Open MPI 4.1.4 crash; seen once in 55 starts on a loaded machine",
        control: Some(("hello", &[])),
    },
];

/// Runs the command to its end. Repeats it if the outcome shows a fault of a peer.
#[track_caller]
pub(crate) fn run(command: &Command) -> Outcome {
    let mut outcome = command.clone().start().finish();
    for _ in 0..REPETITIONS_MAX {
        let Some((fault, peer)) = shown(command, &outcome) else { break };
        report(&format!("{}; {}; the command is run again: {command}", fault.source, fault.tried(peer)));
        outcome = command.clone().start().finish();
    }
    outcome
}

/// Writes a line that libtest does not capture.
fn report(text: &str) {
    // libtest would capture the output of `println!`.
    let _ = writeln!(io::stdout(), "\n{REPORT}{text}");
}

/// Returns the fault of a peer in the outcome of a command.
fn shown(command: &Command, outcome: &Outcome) -> Option<(&'static PeerFault, Flavour)> {
    let words: Vec<String> = command.arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    FAULTS.iter().find_map(|fault| Some((fault, fault.peer_in(&words)?)).filter(|_| fault.signature.is_in(outcome)))
}

impl PeerFault {
    /// Returns the peer that this command line starts, if it can have the fault.
    fn peer_in(&self, words: &[String]) -> Option<Flavour> {
        // A test of a crash expects one.
        let is_of = |peer: &&Flavour| {
            let marks = marks(**peer);
            let is_meant = |word: &String| marks.iter().any(|mark| word.contains(mark)) && word.contains(self.at);
            words.iter().any(|word| is_meant(word) && !word.ends_with("/crash"))
        };
        self.peers.iter().find(is_of).copied()
    }

    /// Runs the control until it shows the fault. Returns a description of the result.
    fn tried(&self, peer: Flavour) -> String {
        for number in 1..=CONTROLS_MAX {
            if self.signature.is_in_output(&self.own_launcher(peer)) {
                return format!("control: run {number} of its own launcher has it as well");
            }
        }
        format!("control: none of {CONTROLS_MAX} runs of its own launcher has it")
    }

    /// Performs one run of the control.
    fn own_launcher(&self, peer: Flavour) -> Output {
        let (program, arguments) = match self.control {
            Some((name, arguments)) => (peer.program(name), arguments),
            None => (PathBuf::from("hostname"), &[][..]),
        };
        let mut control = process::Command::new("timeout");
        control.args(["-k", "5", "25"]).arg(peer.mpirun()).args(["-n", "2"]).arg(program).args(arguments);
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"] {
            control.env(name, "1").env(format!("{name}_CONFIRM"), "1");
        }
        control.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("cannot run {control:?}: {error}"))
    }
}

/// Returns texts in the paths of a peer's launcher and programs.
fn marks(peer: Flavour) -> Vec<String> {
    let launcher = peer.mpirun().display().to_string();
    vec![launcher, format!("e2e-programs/{peer:?}/")]
}

impl Signature {
    fn is_in(self, outcome: &Outcome) -> bool {
        let [stdout, stderr] = [&outcome.stdout, &outcome.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        self.matches(outcome.status, &stdout, &stderr)
    }

    fn is_in_output(self, output: &Output) -> bool {
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        self.matches(output.status, &stdout, &stderr)
    }

    fn matches(self, status: ExitStatus, stdout: &str, stderr: &str) -> bool {
        let has = |texts: &[&str]| {
            stdout.lines().chain(stderr.lines()).any(|line| texts.iter().all(|text| line.contains(text)))
        };
        match self {
            Self::Line(texts) => has(texts),
            Self::Hangs => {
                let timed_out = format!("code {TIMED_OUT}");
                status.code() == Some(TIMED_OUT) || stdout.lines().any(|line| line == timed_out)
            }
            // The texts of `lattice`, of Hydra, and of Open MPI's own handler.
            Self::Crash => {
                [&["killed by signal 11"][..], &["EXIT CODE: 139"], &["Signal: Segmentation fault"], &["signal 11"]]
                    .iter()
                    .any(|texts| has(texts))
            }
            Self::BrokenPipe => {
                status.signal() == Some(Signal::SIGPIPE as i32) && stdout.is_empty() && stderr.is_empty()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first words of the source of the fault in an outcome.
    fn found(words: &[&str], (code, stdout, stderr): (i32, &str, &str)) -> Option<&'static str> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let shows = |fault: &&PeerFault| {
            fault.peer_in(&words).is_some() && fault.signature.matches(ExitStatus::from_raw(code << 8), stdout, stderr)
        };
        FAULTS.iter().find(shows).map(|fault| fault.source.split(" of ").next().unwrap_or_default())
    }

    #[test]
    fn a_fault_is_known_by_its_peer_and_its_signature_alone() {
        let prterun = WheelOpenMpi.mpirun().display().to_string();
        let (hydra, debian) = (WheelMpich.mpirun().display().to_string(), "/t/e2e-programs/DebianOpenMpi/hello");
        let warning = (0, "node0\n", "[n:1] setpgid(7, 7) failed: Permission denied\n");
        assert_eq!(found(&["bash", &prterun], warning), Some("prterun"));
        assert_eq!(found(&["bash", &hydra], warning), None);
        assert_eq!(found(&[&prterun], (124, "", "")), Some("prterun"));
        assert_eq!(found(&[&prterun], (0, "code 124\n", "")), Some("prterun"));
        assert_eq!(found(&[&prterun], (124, "node0\n", "")), Some("prterun"));
        assert_eq!(found(&[&prterun], (1, "", "")), None);
        assert_eq!(found(&[&hydra], (124, "", "")), None);
        let crash = (139, "", "lattice: rank 0 on n was killed by signal 11 (SIGSEGV)\n");
        assert_eq!(found(&[debian], crash), Some("programs"));
        assert_eq!(found(&["/t/e2e-programs/DebianOpenMpi/crash"], crash), None, "it is meant to");
        assert_eq!(found(&["/t/e2e-programs/WheelMpich/spawn_abort"], crash), Some("ranks"));
        assert_eq!(found(&["/t/e2e-programs/WheelMpich/hello"], crash), None);
        assert_eq!(found(&[debian], (1, "", "lattice: rank 0 on n exited with status 1\n")), None);
    }
}
