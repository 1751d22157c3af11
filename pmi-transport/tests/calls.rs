//! Calls without certificates: over loopback, where claims are accepted, and over Unix sockets, where the kernel
//! identifies callers.

mod world;

use pmi_transport::address::Address;
use pmi_transport::connect::{Channel, channel};
use pmi_transport::identity::{Caller, Security};
use pmi_transport::listen::Listener;
use pmi_transport::proto::v1;
use pmi_transport::proto::v1::node_service_client::NodeServiceClient;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1alpha;
use world::{Running, who_am_i};

fn named(name: Caller) -> Security {
    Security::Insecure { name }
}

fn to(server: &Running, name: Caller) -> Channel {
    channel(&server.address, &Caller::Api, &named(name)).unwrap()
}

#[tokio::test]
async fn claims_are_believed_on_loopback() {
    let server = Running::start("127.0.0.1:0", &named(Caller::Api)).await;
    for caller in [Caller::Agent("node3".to_owned()), Caller::Api, Caller::User(1000), Caller::Admin(None)] {
        assert_eq!(who_am_i(&to(&server, caller.clone())).await.unwrap(), caller.to_string());
    }
    server.stop().await;
}

/// As with several agents on one machine, where a firewall admits a range of ports.
#[tokio::test]
async fn the_first_free_port_of_a_range_is_taken() {
    let security = named(Caller::Api);
    let any = "127.0.0.1:0".parse().unwrap();
    let port_of = |listener: &Listener| match listener.local_address() {
        Address::Tcp { port, .. } => port,
        Address::Unix(path) => panic!("{}", path.display()),
    };
    let taken = Listener::bind(&any, &security).await.unwrap();
    let port = port_of(&taken);
    let within = async |last: u16| {
        let range = format!("{port}-{last}").parse().ok();
        Listener::bind_within(&any, range, &security).await.map_err(|error| error.to_string())
    };
    let refusal = within(port).await.err().unwrap();
    assert_eq!(
        refusal,
        format!("no port of {port}-{port} is free at 127.0.0.1; widen the range (port_range, --port-range)")
    );
    let next = within(u16::MAX).await.unwrap();
    assert!(port_of(&next) > port);
    let fixed = Listener::bind_within(&taken.local_address(), "1-2".parse().ok(), &security).await;
    assert!(fixed.err().unwrap().to_string().contains("cannot listen at"), "a port that is named is meant");
}

#[tokio::test]
async fn the_table_is_held_against_every_call() {
    let server = Running::start("127.0.0.1:0", &named(Caller::Api)).await;
    let user = to(&server, Caller::User(1000));
    let refused = NodeServiceClient::new(user.clone()).heartbeat(v1::HeartbeatRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(refused.message(), "user 1000 may not call /lattice.v1.NodeService/Heartbeat; agents may");
    let agent = to(&server, Caller::Agent("node3".to_owned()));
    NodeServiceClient::new(agent).heartbeat(v1::HeartbeatRequest::default()).await.unwrap();
    let health = HealthClient::new(user).check(HealthCheckRequest { service: String::new() }).await.unwrap();
    assert_eq!(health.into_inner().status, 1);
    server.stop().await;
}

#[tokio::test]
async fn a_server_describes_its_services() {
    let server = Running::start("127.0.0.1:0", &named(Caller::Api)).await;
    let question = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol("lattice.v1.LaunchService".to_owned())),
    };
    let mut client = ServerReflectionClient::new(to(&server, Caller::User(1000)));
    let mut answers = client.server_reflection_info(tokio_stream::once(question)).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::FileDescriptorResponse(files) = answer else { panic!("{answer:?}") };
    assert!(!files.file_descriptor_proto.is_empty());

    let message_request = Some(v1alpha::server_reflection_request::MessageRequest::ListServices(String::new()));
    let question = v1alpha::ServerReflectionRequest { host: String::new(), message_request };
    let mut by_old_name =
        v1alpha::server_reflection_client::ServerReflectionClient::new(to(&server, Caller::User(1000)));
    let mut answers = by_old_name.server_reflection_info(tokio_stream::once(question)).await.unwrap().into_inner();
    let answer = format!("{:?}", answers.message().await.unwrap().unwrap());
    assert!(answer.contains("lattice.v1.LaunchService"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn the_kernel_names_callers_on_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("api.sock");
    let server = Running::start(&format!("unix:{}", path.display()), &named(Caller::Api)).await;
    let me = nix::unistd::getuid().as_raw();
    // The claimed name is not even sent.
    let answer = who_am_i(&to(&server, Caller::Agent("node3".to_owned()))).await.unwrap();
    assert_eq!(answer, format!("administrator {me}"));
    server.stop().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn a_channel_finds_a_server_that_was_restarted() {
    let directory = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", directory.path().join("api.sock").display());
    let server = Running::start(&address, &named(Caller::Api)).await;
    let channel = to(&server, Caller::Api);
    who_am_i(&channel).await.unwrap();
    server.stop().await;
    assert_eq!(who_am_i(&channel).await.unwrap_err().code(), Code::Unavailable);
    let server = Running::start(&address, &named(Caller::Api)).await;
    who_am_i(&channel).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_call_that_never_ends_does_not_keep_a_server() {
    let server = Running::start("127.0.0.1:0", &named(Caller::Api)).await;
    let mut client = NodeServiceClient::new(to(&server, Caller::Agent("node3".to_owned())));
    let (_keep, reports) = tokio::sync::mpsc::channel(1);
    let reports = tokio_stream::wrappers::ReceiverStream::new(reports);
    let mut commands = client.report_launch(reports).await.unwrap().into_inner();
    server.stop().await;
    let end = tokio::time::timeout(world::DEADLINE, commands.message()).await.unwrap();
    assert!(end.is_err(), "{end:?}");
}

#[tokio::test]
async fn nothing_insecure_leaves_this_machine() {
    let everywhere: Address = "0.0.0.0:0".parse().unwrap();
    let error = Listener::bind(&everywhere, &named(Caller::Api)).await.unwrap_err().to_string();
    assert!(error.starts_with("0.0.0.0:0 can be reached from other machines"), "{error}");
    let elsewhere: Address = "192.0.2.1:50051".parse().unwrap();
    let error = channel(&elsewhere, &Caller::Api, &named(Caller::Api)).unwrap_err().to_string();
    assert!(error.starts_with("192.0.2.1:50051 is not this machine"), "{error}");
}
