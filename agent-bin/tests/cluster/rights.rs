//! Rights of another agent's key: to forward requests that the API server signed, for launches that include its node.

use pmi_transport::connect;
use pmi_transport::identity::{Caller, Security};
use pmi_transport::proto::v1 as proto;
use proto::RefusalReason;

use crate::trust::{Trust, signed};
use crate::world::{Agent, Api, eventually, launch_on, with_tag};

const MAY: &str = "allow_root = true";

#[tokio::test(flavor = "current_thread")]
async fn a_signed_launch_is_passed_on_and_nothing_else_is_taken_from_an_agent() {
    let trust = Trust::new();
    let server = trust.identity(&Caller::Api, "api");
    let mut api = Api::start_as(&server).await;
    let agents = [trust.agent(&mut api, "node0", MAY).await, trust.agent(&mut api, "node1", MAY).await];
    let spec = launch_on(&[&agents[0], &agents[1]], 1, "exec true");
    let request = signed(&server, &spec);

    let refused = async |caller: Security, request: proto::LaunchProcessesRequest, expected: &str| {
        let answer = agents[0].client_as(&caller).launch_processes(request).await.unwrap().into_inner();
        assert_eq!((answer.accepted, answer.reason()), (false, RefusalReason::Signature), "{answer:?}");
        assert!(answer.message.contains(expected), "{}", answer.message);
    };
    let member = trust.identity(&Caller::Agent("node1".to_owned()), "stolen");
    let stranger = trust.identity(&Caller::Agent("node7".to_owned()), "stranger");
    let other = proto::LaunchSpec { uid: 1, ..spec.clone() };
    let tampered = proto::LaunchProcessesRequest { spec: crate::world::request(&other).spec, ..request.clone() };
    refused(member.clone(), tampered, "not what the API server signed").await;
    refused(member.clone(), signed(&member, &spec), "only the API server may").await;
    refused(member, crate::world::request(&spec), "not signed").await;
    refused(stranger, request.clone(), "takes no part in launch").await;

    let relayed = proto::LaunchProcessesRequest { relay_nodes: 1, relay_fan_out: 1, ..request };
    let answer = agents[0].client_as(&server).launch_processes(relayed).await.unwrap().into_inner();
    assert!(answer.accepted, "{answer:?}");
    for _ in &agents {
        let report = api.next_launch().await.until_report().await;
        assert_eq!(report.exits.iter().map(|exit| exit.exit_code).collect::<Vec<_>>(), [0]);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn what_was_signed_for_the_agent_before_is_not_taken_by_the_next_one() {
    let trust = Trust::new();
    let server = trust.identity(&Caller::Api, "api");
    let mut api = Api::start_as(&server).await;
    let mut agent = trust.agent(&mut api, "node0", MAY).await;
    let member = trust.identity(&Caller::Agent("node0".to_owned()), "stolen");
    let spec = launch_on(&[&agent], 1, "exec true");
    let request = signed(&server, &spec);
    let answer = agent.client_as(&member).launch_processes(request.clone()).await.unwrap().into_inner();
    assert!(answer.accepted, "{answer:?}");
    let mut launch = api.next_launch().await;
    launch.until_report().await;
    launch.end().await;
    eventually("it is known to have ended", async || {
        let again = agent.client_as(&member).launch_processes(request.clone()).await.unwrap().into_inner();
        again.message.contains("has ended")
    })
    .await;

    // The next agent has no record of the launch, except that it was signed before.
    agent.terminate();
    agent.exit().await;
    api.has_signed(request.serial);
    let next = Agent::start_from(&mut api, &trust.config_of("node0"), &[]).await;
    let replay = next.client_as(&member).launch_processes(request.clone()).await.unwrap().into_inner();
    assert_eq!((replay.accepted, replay.reason()), (false, RefusalReason::Restarting));
    assert!(replay.message.contains("signed before this agent started"), "{}", replay.message);
    // Another number does not match the signature.
    let renumbered = proto::LaunchProcessesRequest { serial: request.serial + 1, ..request };
    let refused = next.client_as(&member).launch_processes(renumbered).await.unwrap().into_inner();
    assert!(refused.message.contains("not what the API server signed"), "{}", refused.message);
}

#[tokio::test(flavor = "current_thread")]
async fn a_refusal_behind_relays_is_named_and_rolled_back() {
    let trust = Trust::new();
    let server = trust.identity(&Caller::Api, "api");
    let mut api = Api::start_as(&server).await;
    // The last agent admits no user here, root or not.
    let closed = "min_uid = 4294967295";
    let agents = [
        trust.agent(&mut api, "node0", MAY).await,
        trust.agent(&mut api, "node1", MAY).await,
        trust.agent(&mut api, "node2", closed).await,
    ];
    let spec = launch_on(&[&agents[0], &agents[1], &agents[2]], 1, "exec sleep 1000");
    let id = spec.launch_id.clone();
    let request = proto::LaunchProcessesRequest { relay_nodes: 2, relay_fan_out: 1, ..signed(&server, &spec) };
    let answer = agents[0].client_as(&server).launch_processes(request).await.unwrap().into_inner();
    assert_eq!((answer.accepted, answer.reason(), answer.node_id.as_str()), (false, RefusalReason::User, "node2"));
    eventually("what was started is ended", async || with_tag(&id).is_empty()).await;
}

#[tokio::test(flavor = "current_thread")]
async fn an_agent_ends_only_launches_that_it_is_in() {
    let trust = Trust::new();
    let server = trust.identity(&Caller::Api, "api");
    let mut api = Api::start_as(&server).await;
    let agent = trust.agent(&mut api, "node0", MAY).await;
    let spec = launch_on(&[&agent], 1, "exec sleep 1000");
    let answer = agent.client_as(&server).launch_processes(signed(&server, &spec)).await.unwrap().into_inner();
    assert!(answer.accepted, "{answer:?}");
    let mut launch = api.next_launch().await;
    launch.until(|launch| !launch.pids.is_empty()).await;
    let abort = proto::AbortProcessesRequest { launch_id: spec.launch_id, reason: "a test".to_owned(), signal: 9 };
    let stranger = trust.identity(&Caller::Agent("node7".to_owned()), "stranger");
    let refused = agent.client_as(&stranger).abort_processes(abort.clone()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    assert!(crate::world::runs(launch.pids[0]));
    agent.client_as(&server).abort_processes(abort).await.unwrap();
    launch.until_report().await;
}

/// A user's certificate opens no connection to an agent of root; even the health check is not for users.
#[tokio::test(flavor = "current_thread")]
async fn a_users_certificate_gets_no_call_in() {
    let trust = Trust::new();
    let mut api = Api::start_as(&trust.identity(&Caller::Api, "api")).await;
    let agent = trust.agent(&mut api, "node0", MAY).await;
    let user = trust.identity(&Caller::User(1000), "user");
    let abort = proto::AbortProcessesRequest::default();
    let refused = agent.client_as(&user).abort_processes(abort.clone()).await.unwrap_err();
    assert_eq!(connect::reason(&refused), "it serves the API server, agents and administrators only");
    let admin = trust.identity(&Caller::Admin(None), "admin");
    let refused = agent.client_as(&admin).abort_processes(abort).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied, "who may connect may not make every call");
}
