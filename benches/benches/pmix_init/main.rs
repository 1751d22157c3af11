//! How does the cost of a rank's `PMIx_Init` grow with its job? The bench uses the real libpmix of this machine (Debian's), and a
//! server with one node of a job. Ranks of other nodes do not exist.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use lattice_benches::machine;
use lattice_benches::sample::median;
use pmi_core::fence::LocalFence;
use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::job::{Job, Placement};
use pmi_core::services::NoServices;
use pmix_core::driver::{Driver, Sinks};
use pmix_core::env::RankEnvironment;
use pmix_core::server::{Server, Settings};
use pmix_core::services::Alone;
use pmix_core::{Namespace, NodeFacts};

/// Number of ranks on each node. On this node they call `PMIx_Init`, one after the other.
const LOCAL: u32 = 64;
const NAMESPACE: &str = "job1";
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/pmix_init/init.c");

fn namespace(ranks: u32) -> Namespace {
    let nodes = ranks.div_ceil(LOCAL);
    let placement = Placement::block(&vec![ranks.min(LOCAL); nodes as usize]);
    let job = Job { placement, ..Job::on_one_node(JobId::new(NAMESPACE).expect("letters and digits"), ranks) };
    Namespace {
        name: NAMESPACE.to_owned(),
        job,
        node: NodeIndex(0),
        hosts: (0..nodes).map(|node| format!("node{node:05}")).collect(),
        allocation: None,
        directory: None,
        parent: None,
        here: NodeFacts::default(),
        command: bytes::Bytes::new(),
        sets: Vec::new(),
    }
}

/// Compiles the program against Debian's libpmix, which is outside the compiler's search path.
fn compile(directory: &Path) -> std::path::PathBuf {
    let (program, library) = (directory.join("init"), format!("/usr/lib/{}-linux-gnu/pmix2", std::env::consts::ARCH));
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-o"]).arg(&program).arg(SOURCE).args([
        format!("-I{library}/include"),
        format!("-L{library}/lib"),
        format!("-Wl,-rpath,{library}/lib"),
    ]);
    assert!(compiler.arg("-lpmix").status().expect("there is a C compiler").success(), "{compiler:?}");
    program
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    println!("{}", machine::line());
    let directory = tempfile::tempdir().expect("a directory can be made");
    let program = compile(directory.path());
    for ranks in [64, 1024, 10_240] {
        let uid = nix::unistd::getuid().as_raw();
        let sinks = Sinks::default();
        let server = Server::new(Settings::default());
        let (driver, _end) = Driver::new(server, uid, Arc::new(Alone), sinks).expect("a port is free");
        driver.add(namespace(ranks), Arc::new(LocalFence), Arc::new(NoServices));
        let mut times: Vec<f64> = Vec::new();
        for rank in 0..LOCAL {
            let environment =
                RankEnvironment { namespace: NAMESPACE, rank: Rank(rank), server: driver.address(), host: "node00000" };
            let mut call = Command::new(&program);
            call.envs(environment.variables());
            // The server runs on this thread.
            let output = tokio::task::spawn_blocking(move || call.output()).await.expect("no panic");
            let output = output.expect("the program can be run");
            let text = String::from_utf8_lossy(&output.stdout);
            times.push(text.trim().parse::<f64>().unwrap_or_else(|_| panic!("{output:?}")));
        }
        println!("PMIx_Init of a rank of {ranks}: median {:.2} ms", median(&times) / 1000.0);
    }
}
