//! A client that uses only the messages of the design document: a launch is a call of `LaunchTasks` with their fields.

use std::fs;
use std::time::Duration;

use lattice_tests::cluster;
use lattice_tests::mpi::Flavour;
use pmi_transport::connect::channel;
use pmi_transport::identity::{Caller, Security};
use pmi_transport::proto::v1::allocation_service_client::AllocationServiceClient;
use pmi_transport::proto::v1::launch_service_client::LaunchServiceClient;
use pmi_transport::proto::v1::{GetLaunchRequest, LaunchState, LaunchTasksRequest};

#[test]
fn a_plain_request_runs_without_anybody_who_follows_it() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let place = directory.path().join("place");
    let script = r#"echo "$LATTICE_DEV_CLUSTER $LATTICE_ALLOC_ID" >"$1"; echo ready; read -r"#;
    let mut running = cluster(2).bash(script).arg(&place).typed_to().start();
    running.wait_for_stdout("ready");
    let text = fs::read_to_string(&place).expect("the script has written it");
    let (cluster, allocation) = text.trim().split_once(' ').expect("two words");

    let hello = Flavour::WheelMpich.program("hello");
    let request = LaunchTasksRequest {
        allocation_id: allocation.to_owned(),
        num_tasks: 4,
        tasks_per_node: 2,
        entrypoint: "/bin/sh".to_owned(),
        args: vec!["-c".to_owned(), r#""$0" >"$OUT/$LATTICE_RANK""#.to_owned(), hello.display().to_string()],
        env: [("OUT".to_owned(), directory.path().display().to_string())].into(),
        pmi_mode: "pmi2".to_owned(),
        ..Default::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let summary = runtime.block_on(async {
        let address = format!("unix:{cluster}/api.sock").parse().expect("an address");
        // The kernel provides the identity of this client.
        let nobody = Security::Insecure { name: Caller::User(u32::MAX) };
        let channel = channel(&address, &Caller::Api, &nobody).expect("a channel");
        let launched = AllocationServiceClient::new(channel.clone()).launch_tasks(request).await;
        let id = launched.expect("the launch is accepted").into_inner().task_launch_id;
        let mut launches = LaunchServiceClient::new(channel);
        loop {
            let status =
                launches.get_launch(GetLaunchRequest { id: id.clone(), stacks: false }).await.expect("it is known");
            let summary = status.into_inner().summary.expect("a launch has a summary");
            match summary.state() {
                LaunchState::Succeeded | LaunchState::LaunchFailed => break summary,
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    });
    running.type_in("\n");
    running.finish().exits(0);
    assert_eq!((summary.state(), summary.cause.as_str()), (LaunchState::Succeeded, ""));
    for rank in 0..4 {
        let output = fs::read_to_string(directory.path().join(rank.to_string())).expect("every rank has written");
        assert!(output.contains(&format!("rank {rank} of 4")), "{output}");
    }
}
