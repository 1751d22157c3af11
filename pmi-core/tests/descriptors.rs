//! A server in a process without free descriptors for a while.

use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pmi_core::driver::Driver;
use pmi_core::fence::LocalFence;
use pmi_core::ids::{JobId, LocalRank, NodeIndex};
use pmi_core::job::Job;
use pmi_core::server::{Server, Settings};
use pmi_core::services::NoServices;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// More bytes than a socket holds.
const ANSWERS: usize = 16;
const VALUE: usize = 64 * 1024;

/// The limit applies to a whole process, so the test runs in its own process.
#[test]
fn answers_wait_for_descriptors_and_are_not_lost() {
    let limited = format!("ulimit -n 64; exec {:?} --ignored", std::env::current_exe().unwrap());
    let output = Command::new("sh").arg("-c").arg(limited).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[tokio::test]
#[ignore = "needs a low limit of descriptors, which the other test sets"]
async fn with_few_descriptors() {
    let job = Job::on_one_node(JobId::new("j").unwrap(), 1);
    let server = Server::new(job, NodeIndex(0), Settings::default());
    let (driver, _ended) = Driver::new(server, Arc::new(LocalFence), Arc::new(NoServices), None);
    let (ours, theirs) = StdUnixStream::pair().unwrap();
    driver.connect(LocalRank(0), ours).unwrap();
    let mut asks =
        format!("cmd=init pmi_version=1 pmi_subversion=1\ncmd=put kvsname=j key=k value={}\n", "v".repeat(VALUE));
    asks.push_str(&"cmd=get kvsname=j key=k\n".repeat(ANSWERS));
    let all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).take(1000).collect();
    assert!(all.len() < 64, "descriptors have no limit");

    (&theirs).write_all(asks.as_bytes()).unwrap();
    // The server answers until the socket is full.
    while !is_waiting(&driver) {
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    drop(all);
    theirs.set_nonblocking(true).unwrap();
    let mut theirs = UnixStream::from_std(theirs).unwrap();
    let mut buffer = vec![0; ANSWERS * VALUE];
    timeout(Duration::from_secs(20), theirs.read_exact(&mut buffer)).await.expect("an answer was lost").unwrap();
}

/// Returns true after the rank has sent requests, before it reads the answers.
fn is_waiting(driver: &Driver) -> bool {
    driver.progress(LocalRank(0)).is_some_and(|progress| progress.last_command.as_deref() == Some("get"))
}
