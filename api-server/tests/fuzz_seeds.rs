//! The fuzz target as an ordinary test: requests as `lattice launch` and as clients of the plain fields make them, and damaged copies.
//!
//! `cargo test -p lattice-api-server --test fuzz_seeds -- --ignored` writes the requests as seeds to `fuzz/corpus/`.

use bytes::Bytes;
use lattice_api_server::fuzzing::launch_request;
use lattice_fuzz_seeds::Target;
use pmi_transport::proto::v1::{App, AppSpec, Job, LaunchSpec, LaunchTasksRequest, Pair, PlacementRequest, Variable};
use prost::Message;

/// A request with one program, in the plain fields only.
fn plain() -> LaunchTasksRequest {
    LaunchTasksRequest {
        num_tasks: 6,
        entrypoint: "./app".to_owned(),
        args: vec!["-x".to_owned()],
        pmi_mode: "pmix".to_owned(),
        ..LaunchTasksRequest::default()
    }
}

/// A request of two programs, as the command line makes it.
fn with_spec() -> LaunchTasksRequest {
    let app = |program: &'static str| AppSpec {
        program: program.into(),
        args: vec!["-x".into(), Bytes::new()],
        directory: "/work".into(),
        set: vec![Variable { name: "A".into(), value: "1".into() }],
        remove: vec!["B*".to_owned()],
    };
    let job = Job {
        apps: vec![App { ranks: 6, appnum: 0 }, App { ranks: 2, appnum: 1 }],
        universe_size: Some(12),
        preput: vec![Pair { key: "key".into(), value: "value".into() }],
        ..Job::default()
    };
    LaunchTasksRequest {
        allocation_id: "alloc".to_owned(),
        spec: Some(LaunchSpec {
            job: Some(job),
            apps: vec![app("./a"), app("b")],
            environment: vec![Variable { name: "PATH".into(), value: "/bin".into() }],
            cpu_bind: "none".to_owned(),
            ..LaunchSpec::default()
        }),
        placement: Some(PlacementRequest { tasks_per_node: 3, ..PlacementRequest::default() }),
        detached: true,
        ..LaunchTasksRequest::default()
    }
}

fn seeds() -> [Vec<u8>; 2] {
    [plain(), with_spec()].map(|request| request.encode_to_vec())
}

fn target() -> Target {
    Target { name: "launch_request", run: launch_request, seeds: seeds() }
}

#[test]
fn requests_of_users_and_damaged_copies_of_them_keep_all_promises() {
    target().run_damaged();
}

#[test]
#[ignore = "writes files: the seeds for cargo fuzz"]
fn write_the_corpus() {
    target().write_seeds(env!("CARGO_MANIFEST_DIR"));
}
