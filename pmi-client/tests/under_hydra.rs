//! The client as ranks of real jobs, launched by MPICH's Hydra. Each rank is this test program again, and runs one of
//! the ignored tests below.

use std::env;
use std::process::{Command, ExitStatus};

use pmi_client::{Client, ClientError, Protocol};

const RANKS: u32 = 4;

/// Runs the test `program` as all ranks of a job, and checks that it passed in every rank.
fn launch(program: &str, hydra_options: &[&str]) {
    let output = Command::new("mpiexec.hydra")
        .args(hydra_options)
        .args(["-n", &RANKS.to_string()])
        .arg(env::current_exe().unwrap())
        .args(["--exact", program, "--ignored", "--nocapture"])
        .env("MPIEXEC_TIMEOUT", "120")
        .output()
        .unwrap_or_else(|error| panic!("cannot start mpiexec.hydra ({error}): install mpich"));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let passed = stdout.matches("1 passed; 0 failed").count();
    assert!(output.status.success() && passed == RANKS as usize, "{}\n{stdout}\n{stderr}", output.status);
}

#[test]
fn pmi1_through_the_inherited_socket() {
    launch("rank_in_pmi1", &[]);
}

#[test]
fn pmi2_through_the_inherited_socket() {
    launch("rank_in_pmi2", &[]);
}

#[test]
fn pmi1_over_tcp() {
    launch("rank_in_pmi1", &["-pmi-port"]);
}

#[test]
fn abort_ends_the_job_with_the_code() {
    // Hydra itself sometimes ends by a signal if a rank aborts while other ranks start.
    let ended = (0..5).map(|_| abort()).find(|status| status.code().is_some());
    assert_eq!(ended.expect("Hydra ends by itself once in five launches").code(), Some(42));
}

/// Launches two ranks; one of them aborts.
fn abort() -> ExitStatus {
    Command::new("mpiexec.hydra")
        .args(["-n", "2"])
        .arg(env::current_exe().unwrap())
        .args(["--exact", "rank_that_aborts", "--ignored"])
        .env("MPIEXEC_TIMEOUT", "120")
        .output()
        .unwrap_or_else(|error| panic!("cannot start mpiexec.hydra ({error}): install mpich"))
        .status
}

#[test]
#[ignore = "a rank of a job; the tests above launch it"]
fn rank_in_pmi1() {
    let mut client = Client::from_env(Protocol::Pmi1).unwrap();
    exchange(&mut client);
    // Hydra stores job facts in the key-value space
    assert!(client.job_attribute("PMI_process_mapping").unwrap().is_some());
    assert!(matches!(client.ring("x"), Err(ClientError::Unsupported { .. })));
    // Hydra would end the job for the request.
    assert!(matches!(client.register_resource("shm:1"), Err(ClientError::Unsupported { .. })));
    names(&mut client);
    client.finalize().unwrap();
}

#[test]
#[ignore = "a rank of a job; the tests above launch it"]
fn rank_in_pmi2() {
    let mut client = Client::from_env(Protocol::Pmi2).unwrap();
    exchange(&mut client);
    assert!(client.job_attribute("PMI_process_mapping").unwrap().is_some());
    assert_eq!(client.job_attribute("nonesuch").unwrap(), None);
    if client.rank() == 0 {
        client.put_node_attribute("leader", "rank 0").unwrap();
    }
    assert_eq!(client.await_node_attribute("leader").unwrap(), b"rank 0");
    // Hydra would end the job for the request.
    assert!(matches!(client.register_resource("shm:1"), Err(ClientError::Unsupported { .. })));
    names(&mut client);
    client.finalize().unwrap();
}

#[test]
#[ignore = "a rank of a job; the test above launches it"]
fn rank_that_aborts() {
    let mut client = Client::from_env(Protocol::Auto).unwrap();
    if client.rank() == 1 {
        client.abort(42, "on purpose").unwrap();
        return;
    }
    // the other rank never enters the fence, so that only the end of the job ends this one
    let _ = client.fence();
}

fn exchange(client: &mut Client) {
    assert_eq!((client.size(), client.is_singleton()), (RANKS, false));
    assert_eq!(client.appnum(), Some(0));
    assert_eq!(client.universe_size().unwrap(), None);
    assert!(matches!(Client::from_env(Protocol::Auto), Err(ClientError::ConnectionTaken)));
    for round in 0..20 {
        let value = |rank: u32| format!("rank={rank},round={round}");
        client.put(&format!("card-{round}-{}", client.rank()), value(client.rank())).unwrap();
        client.fence().unwrap();
        for rank in 0..RANKS {
            let card = client.get(&format!("card-{round}-{rank}")).unwrap();
            assert_eq!(card, Some(value(rank).into_bytes()), "rank {rank} in round {round}");
        }
    }
    assert_eq!(client.get("nobody-put-this").unwrap(), None);
}

fn names(client: &mut Client) {
    if client.rank() == 0 {
        client.publish("service", "port").unwrap();
    }
    client.fence().unwrap();
    assert_eq!(client.lookup("service").unwrap(), Some(b"port".to_vec()));
    assert_eq!(client.lookup("nosuch").unwrap(), None);
    client.fence().unwrap();
    if client.rank() == 0 {
        client.unpublish("service").unwrap();
    }
}
