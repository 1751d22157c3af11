//! A scripted API server, agents as real processes, and helpers of the tests.

mod agent;
mod api;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use tokio::time::timeout;

pub(crate) use self::agent::Agent;
pub(crate) use self::api::{Api, Launch};

/// Long enough for the slowest machine; only a test that fails reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Number of a user without rights.
pub(crate) const NOBODY: u32 = 65534;

/// Returns true and prints a message if this process is not root, for tests that need root.
pub(crate) fn ignored_when_not_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("not root: nothing to see");
    }
    !root
}

pub(crate) fn request(spec: &proto::LaunchSpec) -> proto::LaunchProcessesRequest {
    proto::LaunchProcessesRequest {
        launch_id: spec.launch_id.clone(),
        spec: spec.encode_to_vec().into(),
        serial: 1,
        ..Default::default()
    }
}

/// A launch of `ranks` ranks on each node; the ranks run a shell script.
pub(crate) fn launch_on(agents: &[&Agent], ranks: u32, script: &str) -> proto::LaunchSpec {
    static LAUNCHES: AtomicU32 = AtomicU32::new(0);
    let launch_id = format!("t{}x{}", std::process::id(), LAUNCHES.fetch_add(1, Ordering::Relaxed));
    let nodes = agents.len() as u32;
    let all = |part: fn(&proto::RegisterNodeRequest) -> &String| {
        hostlist::fold(&agents.iter().map(|agent| part(&agent.registration)).collect::<Vec<_>>())
    };
    let variable = |name: &'static str, value: String| proto::Variable { name: name.into(), value: value.into() };
    let home = std::env::var("HOME").unwrap_or_else(|_| "/".to_owned());
    proto::LaunchSpec {
        uid: nix::unistd::getuid().as_raw(),
        nodes: all(|node| &node.node_id),
        addresses: all(|node| &node.grpc_address),
        job: Some(proto::Job {
            id: format!("kvs_{launch_id}_0"),
            blocks: vec![proto::Block { first_node: 0, nodes, ranks_per_node: ranks }],
            apps: vec![proto::App { ranks: ranks * nodes, appnum: 0 }],
            ..Default::default()
        }),
        apps: vec![proto::AppSpec {
            program: "sh".into(),
            args: vec!["-c".into(), Bytes::copy_from_slice(script.as_bytes())],
            directory: "/".into(),
            ..Default::default()
        }],
        environment: vec![variable("PATH", std::env::var("PATH").unwrap()), variable("TEST_HOME", home)],
        secret: vec![7; 16].into(),
        output_window: u32::MAX,
        launch_id,
        ..Default::default()
    }
}

/// A hello program, compiled by the real MPICH for this test.
pub(crate) fn mpich_hello() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("hello.c"), directory.path().join("hello"));
    let text = r#"
        #include <mpi.h>
        #include <stdio.h>
        int main(int argc, char **argv) {
            int rank, size, sum;
            MPI_Init(&argc, &argv);
            MPI_Comm_rank(MPI_COMM_WORLD, &rank);
            MPI_Comm_size(MPI_COMM_WORLD, &size);
            MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
            printf("%d of %d, sum %d\n", rank, size, sum);
            MPI_Finalize();
            return sum == size * (size - 1) / 2 ? 0 : 1;
        }"#;
    fs::write(&source, text).unwrap();
    let compiled = std::process::Command::new("mpicc.mpich").arg("-o").arg(&program).arg(&source).status();
    assert!(
        compiled.as_ref().is_ok_and(std::process::ExitStatus::success),
        "mpicc.mpich does not work here: {compiled:?}; cargo xtask setup installs it"
    );
    (directory, program)
}

/// Repeats the check until `condition` holds.
pub(crate) async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let look = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, look).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Whether the process runs; a zombie does not.
pub(crate) fn runs(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => !stat[stat.rfind(')').unwrap()..].starts_with(") Z"),
        Err(_) => false,
    }
}

/// All processes with the mark of a launch.
pub(crate) fn with_tag(launch_id: &str) -> Vec<i32> {
    let mark = format!("LATTICE_LAUNCH_ID={launch_id}");
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let carries = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
    };
    all.filter(carries).collect()
}

pub(crate) fn parent_of(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat[stat.rfind(')').unwrap() + 1..].split_whitespace().nth(1).unwrap().parse().unwrap()
}

pub(crate) fn kill(pid: i32) {
    signal(pid, Signal::SIGKILL);
}

pub(crate) fn signal(pid: i32, signal: Signal) {
    nix::sys::signal::kill(Pid::from_raw(pid), signal).unwrap();
}

/// Whether a process waits for input.
pub(crate) fn is_asleep_in_read(pid: i32) -> bool {
    // The calls of a sleeping process, by number: read, poll and recvfrom.
    let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    matches!(call.split(' ').next(), Some("0" | "7" | "45"))
}

/// The whole answer of an HTTP server.
pub(crate) async fn http_get(address: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut text = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut text)).await.unwrap().unwrap();
    text
}

/// The output of the agent's check of settings, on both streams, and its exit code.
pub(crate) fn check_config(flags: &[&str]) -> (String, Option<i32>) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_lattice-agent"))
        .args(["--check-config", "--config", "/dev/null"])
        .args(flags)
        .output()
        .unwrap();
    (String::from_utf8([output.stdout, output.stderr].concat()).unwrap(), output.status.code())
}
