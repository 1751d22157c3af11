//! Faults of other launchers and MPI libraries that tests of their programs meet now and then, whatever starts them.
//!
//! [`FAULTS`] is the one place that has them: the peer with its version, the signature by which a fault is known, and its source.
//! [`Command::run`](crate::Command::run) looks for them. Where one appears, it runs the peer's own launcher as control, reports both on
//! standard output, and runs the command again; no command is repeated for another reason.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{self, Output, Stdio};

use crate::command::Command;
use crate::mpi::Flavour::{self, DebianOpenMpi, WheelMpich, WheelMpich3, WheelOpenMpi, WheelOpenMpi4};
use crate::outcome::Outcome;

/// A fault of a peer.
#[derive(Debug)]
pub struct PeerFault {
    /// Libraries whose programs or launchers have the fault. Their names contain the version.
    pub peers: &'static [Flavour],
    /// Texts of the command line without which it does not appear; the first of them is a program of `programs/` or the launcher.
    pub at: &'static str,
    /// Signature in the outcome of the command.
    pub signature: Signature,
    /// What is wrong, and where it was seen.
    pub source: &'static str,
    /// Program and arguments of the control; none for `hostname`.
    pub control: Option<(&'static str, &'static [&'static str])>,
}

/// Signature of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// A line of the output has all of these texts.
    Line(&'static [&'static str]),
    /// `timeout` ended the peer's launcher before any rank had written a line.
    HangsAtStart,
    /// A rank was killed by SIGSEGV, and so was reported.
    Crash,
}

/// Exit code of `timeout`, by which scripts of the tests end a launcher that hangs.
const TIMED_OUT: i32 = 124;

/// Most repetitions of one command.
const REPETITIONS_MAX: usize = 2;

/// Most runs of a control; the first one that shows the fault ends them.
const CONTROLS_MAX: usize = 10;

/// Begins a line that reports a fault.
const REPORT: &str = "fault of a peer: ";

/// The known faults.
pub const FAULTS: [PeerFault; 5] = [
    PeerFault {
        peers: &[WheelOpenMpi],
        at: "bin/mpirun",
        signature: Signature::HangsAtStart,
        source: "prterun of Open MPI 5.0.11 hangs at its start now and then, on a loaded machine above all, whatever starts its daemons",
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

/// Runs the command to its end, and again where the outcome shows a fault of a peer.
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

/// Writes a line that libtest does not keep back.
fn report(text: &str) {
    // As `println!`, which libtest captures.
    let _ = writeln!(io::stdout(), "\n{REPORT}{text}");
}

/// The fault of a peer that the outcome of a command shows.
fn shown(command: &Command, outcome: &Outcome) -> Option<(&'static PeerFault, Flavour)> {
    let words: Vec<String> = command.arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    FAULTS.iter().find_map(|fault| Some((fault, fault.peer_in(&words)?)).filter(|_| fault.signature.is_in(outcome)))
}

impl PeerFault {
    /// The peer that these words of a command line start, if it can have the fault.
    fn peer_in(&self, words: &[String]) -> Option<Flavour> {
        // A test of a crash wants one.
        let is_of = |peer: &&Flavour| {
            let marks = marks(**peer);
            let is_meant = |word: &String| marks.iter().any(|mark| word.contains(mark)) && word.contains(self.at);
            words.iter().any(|word| is_meant(word) && !word.ends_with("/crash"))
        };
        self.peers.iter().find(is_of).copied()
    }

    /// Runs the control until it shows the fault; returns what came of it.
    fn tried(&self, peer: Flavour) -> String {
        for number in 1..=CONTROLS_MAX {
            if self.signature.is_in_output(&self.own_launcher(peer)) {
                return format!("control: run {number} of its own launcher has it as well");
            }
        }
        format!("control: none of {CONTROLS_MAX} runs of its own launcher has it")
    }

    /// One run of the control.
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

/// Texts in the paths of a peer's launcher and programs.
fn marks(peer: Flavour) -> Vec<String> {
    let launcher = peer.mpirun().display().to_string();
    vec![launcher, format!("e2e-programs/{peer:?}/")]
}

impl Signature {
    fn is_in(self, outcome: &Outcome) -> bool {
        let [stdout, stderr] = [&outcome.stdout, &outcome.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        self.matches(outcome.status.code(), &stdout, &stderr)
    }

    fn is_in_output(self, output: &Output) -> bool {
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        self.matches(output.status.code(), &stdout, &stderr)
    }

    fn matches(self, code: Option<i32>, stdout: &str, stderr: &str) -> bool {
        let has = |texts: &[&str]| {
            stdout.lines().chain(stderr.lines()).any(|line| texts.iter().all(|text| line.contains(text)))
        };
        match self {
            Self::Line(texts) => has(texts),
            Self::HangsAtStart => {
                let timed_out = format!("code {TIMED_OUT}");
                let said = |line: &str| !line.is_empty() && line != timed_out;
                (code == Some(TIMED_OUT) || stdout.lines().any(|line| line == timed_out)) && !stdout.lines().any(said)
            }
            // As `lattice` reports it, Hydra, and Open MPI's own handler.
            Self::Crash => {
                [&["killed by signal 11"][..], &["EXIT CODE: 139"], &["Signal: Segmentation fault"], &["signal 11"]]
                    .iter()
                    .any(|texts| has(texts))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The source of the fault that an outcome shows, cut to its beginning.
    fn found(words: &[&str], (code, stdout, stderr): (i32, &str, &str)) -> Option<&'static str> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let shows =
            |fault: &&PeerFault| fault.peer_in(&words).is_some() && fault.signature.matches(Some(code), stdout, stderr);
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
        assert_eq!(found(&[&prterun], (124, "node0\n", "")), None, "it has started ranks");
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
