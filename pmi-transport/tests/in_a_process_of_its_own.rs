//! Tests that need a process with its own limits or its own user. Each runs this program again for its part.

mod world;

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pmi_transport::address::Address;
use pmi_transport::connect::channel;
use pmi_transport::identity::{Caller, Security};
use world::{Running, who_am_i};

/// Environment variable of the second process: the address to call, or to serve at.
const ADDRESS: &str = "LATTICE_TEST_ADDRESS";
/// Uid of the unprivileged default user, on all systems known to us.
const NOBODY: u32 = 65534;

fn insecure() -> Security {
    Security::Insecure { name: Caller::Api }
}

/// The program, set to run only the second part of a test.
fn part(program: PathBuf, test: &str, address: &str) -> Command {
    let mut command = Command::new(program);
    command.args([test, "--exact", "--ignored", "--nocapture"]).env(ADDRESS, address);
    command
}

/// The address from [`part`]; `None` in a manual run of all ignored tests.
fn told() -> Option<String> {
    std::env::var(ADDRESS).ok()
}

#[test]
fn accepting_goes_on_when_there_are_descriptors_again() {
    let program = std::env::current_exe().unwrap();
    let output = part(program, "out_of_descriptors", "127.0.0.1:0").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
#[ignore = "lowers the limit of its process; accepting_goes_on_when_there_are_descriptors_again runs it"]
async fn out_of_descriptors() {
    let Some(address) = told() else { return };
    let server = Running::start(&address, &insecure()).await;
    let Address::Tcp { host, port } = &server.address else { panic!("{} is no port", server.address) };
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
    let mut held = Vec::new();
    let error = loop {
        match TcpStream::connect((host.as_str(), *port)) {
            Ok(stream) => held.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(Errno::EMFILE as i32));
    // All connections wait in the kernel. Now accepting is tried, and must fail.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    drop(held);
    who_am_i(&channel(&server.address, &Caller::Api, &insecure()).unwrap()).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn another_user_is_that_user_to_us() {
    if !nix::unistd::geteuid().is_root() {
        // The test harness captures the output of the print macros in passing tests.
        let _ = writeln!(
            std::io::stdout(),
            "\nnot tried here: another_user_is_that_user_to_us: only root can be somebody else"
        );
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let server = Running::start(&format!("unix:{}/api.sock", directory.path().display()), &insecure()).await;
    // A copy, because the other user may not have access to the directory of this program.
    let program = directory.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = part(program, "as_nobody", &server.address.to_string());
    command.current_dir("/").uid(NOBODY).gid(NOBODY);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    server.stop().await;
}

#[tokio::test]
#[ignore = "is run by another_user_is_that_user_to_us"]
async fn as_nobody() {
    let Some(address) = told() else { return };
    let address: Address = address.parse().unwrap();
    // A false claim has no effect.
    let security = Security::Insecure { name: Caller::Admin(None) };
    let answer = who_am_i(&channel(&address, &Caller::Api, &security).unwrap()).await.unwrap();
    assert_eq!(answer, "user 65534");
}
