//! The fuzz targets as ordinary tests: requests of `lattice launch` and of clients that use the plain fields, reports and inventories of
//! nodes, and damaged copies of all of them.
//!
//! `cargo test -p lattice-api-server --test fuzz_seeds -- --ignored` writes them as seeds to `fuzz/corpus/`.

use bytes::Bytes;
use lattice_api_server::fuzzing::{launch_request, node_inventory, node_reports};
use lattice_fuzz_seeds::{Target, mutations};
use pmi_transport::proto::v1 as proto;
use proptest::prelude::*;
use prost::Message;
use proto::node_event::What;
use proto::{App, AppSpec, Job, LaunchSpec, LaunchTasksRequest, Pair, PlacementRequest, Variable};

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

/// A request of two programs, as the command line creates it.
fn with_spec() -> LaunchTasksRequest {
    let app = |program: &'static str| AppSpec {
        program: program.into(),
        args: vec!["-x".into(), Bytes::new()],
        directory: "/work".into(),
        set: vec![Variable { name: "A".into(), value: "1".into() }],
        remove: vec!["B*".to_owned()],
        process_set: "app://ocean".to_owned(),
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

fn requests() -> Target {
    let seeds = vec![plain().encode_to_vec(), with_spec().encode_to_vec()];
    Target { name: "launch_request", run: launch_request, seeds }
}

/// Reports of the nodes of one launch, in the pieces that `node_reports` expects.
fn reports_of(events: &[(u8, What)]) -> Vec<u8> {
    let mut seed = Vec::new();
    let mut sequences = [0; 3];
    for (node, what) in events {
        let sequence = &mut sequences[usize::from(*node)];
        *sequence += 1;
        let message =
            proto::NodeEvent { what: Some(what.clone()), sequence: *sequence, commands_taken: 0 }.encode_to_vec();
        seed.extend((message.len() as u16).to_le_bytes());
        seed.push(*node);
        seed.extend(message);
    }
    seed
}

/// A launch that fails on its last node, and a launch with a first rank that waits for a missing rank.
fn reports() -> Target {
    let exit =
        |rank, phase: proto::RankPhase| proto::RankExitStatus { rank, phase: phase.into(), ..Default::default() };
    let silent = exit(2, proto::RankPhase::Silent);
    let failed = proto::Cause { host: "node2".to_owned(), kind: Some(proto::cause::Kind::Failed(silent)) };
    let notice = proto::SilentRanks { ranks: vec![0], size: 6, ..Default::default() };
    let notice = proto::Notice { what: Some(proto::notice::What::Silent(notice)) };
    let progress = proto::RankProgress { rank: 4, pid: 9, waiting: true, program: "/app".into(), ..Default::default() };
    let started = |rank| What::Started(proto::RankStarted { rank, pid: 7 + rank, program: "/app".into(), at_us: 1 });
    let output = proto::RankOutput { rank: 0, on_stderr: false, data: "hello\n".into() };
    let waiting = |ranks| What::Waiting(proto::Waiting { ranks });
    let report = || What::Report(proto::SessionReport::default());
    let failure = [
        (0, started(0)),
        (0, What::Output(output)),
        (0, What::Notice(notice)),
        (0, waiting(vec![0, 1])),
        (1, What::Exited(silent)),
        (2, What::Ending(failed)),
        (2, report()),
    ];
    let desertion = [
        (1, started(3)),
        (1, What::Trace("C: cmd=init\n".into())),
        (0, waiting(vec![0])),
        (1, What::Exited(exit(3, proto::RankPhase::Finalized))),
        (2, What::Progress(proto::Progress { question: 1, ranks: vec![progress], stacks: None })),
        (0, What::StdinTaken(5)),
        (1, report()),
        (0, report()),
        (2, report()),
    ];
    let seeds = vec![reports_of(&failure), reports_of(&desertion)];
    Target { name: "node_reports", run: node_reports, seeds }
}

/// The inventory of a node with four CPUs and a network interface, and its first report.
fn inventories() -> Target {
    let template = r#"{"arch":"x86_64","model":"A","cpus":"0-3","offline":"","packages":[{"cpus":"0-3","id":0}],"dies":[],"clusters":[],
        "cores":[{"cpus":"0-1"},{"cpus":"2-3"}],"caches":[{"level":3,"kind":"unified","size":1024,"line":64,"ways":4,"instances":[{"cpus":"0-3"}]}],
        "numa":[{"id":0,"cpus":"0-3","memory_gib":4,"distances":[10]}],"core_kinds":[],
        "pci":[{"address":"0000:21:00.0","kind":"nic","class":512,"id":[1,2],"board":[3,4],"revision":0,"numa":0,"cpus":"0-3","link_mb":1,
        "model":"","names":[{"kind":"net","name":"hsn0"}]}]}"#;
    let first = proto::TellInventoryRequest {
        node_id: "node0".to_owned(),
        signature: vec![7; 16].into(),
        devices: r#"{"hsn0":[{"kind":"mac","value":"02:00:00:00:00:01"}]}"#.into(),
        trouble: vec!["pci: permission denied".to_owned()],
        usable_cpus: "0-1,3".to_owned(),
        ..Default::default()
    };
    let whole = proto::TellInventoryRequest { template: template.into(), ..first.clone() };
    Target { name: "node_inventory", run: node_inventory, seeds: vec![first.encode_to_vec(), whole.encode_to_vec()] }
}

#[test]
fn inventories_of_nodes_and_damaged_copies_of_them_keep_all_promises() {
    inventories().run_damaged();
}

#[test]
fn requests_of_users_and_damaged_copies_of_them_keep_all_promises() {
    requests().run_damaged();
}

#[test]
fn reports_of_nodes_and_damaged_copies_of_them_keep_all_promises() {
    reports().run_damaged();
}

proptest! {
    #[test]
    fn no_report_breaks_a_promise(data in mutations(reports().seeds)) {
        node_reports(&data);
    }

    #[test]
    fn no_inventory_breaks_a_promise(data in mutations(inventories().seeds)) {
        node_inventory(&data);
    }
}

#[test]
#[ignore = "writes files: the seeds for cargo fuzz"]
fn write_the_corpus() {
    requests().write_seeds();
    reports().write_seeds();
    inventories().write_seeds();
}
