//! Fabric credentials in requests to start a launch: the signatures that count, and the services after the caller is gone.

use bytes::Bytes;
use lattice_session::wire::fabric::signed_text;
use pmi_transport::identity::{Caller, Security};
use pmi_transport::proto::v1 as proto;
use pmi_transport::signature::{self, Serial};
use proto::RefusalReason;

use crate::trust::{Trust, signed};
use crate::world::{Agent, Api, eventually, launch_on};

/// NICs of a node that are directories.
struct Nics(tempfile::TempDir);

impl Nics {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for nic in ["cxi0", "cxi1"] {
            std::fs::create_dir(directory.path().join(nic)).unwrap();
        }
        Self(directory)
    }

    /// The settings of an agent with these NICs.
    fn settings(&self) -> String {
        format!("allow_root = true\n[fabric]\nbackend = 'paper'\npath = '{}'", self.0.path().display())
    }

    /// Number of services on a NIC.
    fn services(&self, nic: &str) -> usize {
        let names = std::fs::read_dir(self.0.path().join(nic)).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().parse::<u32>().is_ok()).count()
    }

    fn are_empty(&self) -> bool {
        self.services("cxi0") + self.services("cxi1") == 0
    }
}

fn credentials() -> proto::CxiCredentials {
    proto::CxiCredentials { vni: 1024, auth_key: Bytes::from_static(b"key"), ..Default::default() }
}

/// The API server's request with these credentials, signed by `signer`.
fn equipped(
    api: &Security,
    spec: &proto::LaunchSpec,
    credentials: proto::CxiCredentials,
    signer: &Security,
) -> proto::LaunchProcessesRequest {
    let plain = signed(api, spec);
    let text = signed_text(&spec.launch_id, &credentials);
    let cxi_signature = signature::sign(signer, Serial(plain.serial), text.expose()).unwrap().signature;
    proto::LaunchProcessesRequest { cxi_credentials: Some(credentials), cxi_signature, ..plain }
}

/// A relay forwards credentials unchanged.
#[tokio::test(flavor = "current_thread")]
async fn credentials_from_an_agent_are_those_that_the_api_server_signed_for_this_launch() {
    let (trust, nics) = (Trust::new(), Nics::new());
    let server = trust.identity(&Caller::Api, "api");
    let relay = trust.identity(&Caller::Agent("node1".to_owned()), "relay");
    let mut api = Api::start_as(&server).await;
    let agents = [
        trust.agent(&mut api, "node0", &nics.settings()).await,
        trust.agent(&mut api, "node1", "allow_root = true").await,
    ];
    let on_both = |script: &str| launch_on(&[&agents[0], &agents[1]], 1, script);
    let ask = async |caller: &Security, request: proto::LaunchProcessesRequest| {
        agents[0].client_as(caller).launch_processes(request).await.unwrap().into_inner()
    };

    let (spec, other) = (on_both("echo $SLINGSHOT_VNIS $SLINGSHOT_SVC_IDS"), on_both("exec true"));
    let request = equipped(&server, &spec, credentials(), &server);
    let replayed = equipped(&server, &other, credentials(), &server);
    let with = |change: fn(&mut proto::CxiCredentials)| {
        let mut request = request.clone();
        change(request.cxi_credentials.as_mut().unwrap());
        request
    };
    let service = |credentials: &mut proto::CxiCredentials| {
        credentials.nics.push(proto::CxiNic { device: "cxi0".to_owned(), svc_id: 1 });
    };
    for (request, expected) in [
        (with(|credentials| credentials.vni = 1025), "not what the API server signed"),
        (with(|credentials| credentials.auth_key = Bytes::from_static(b"other")), "not what the API server signed"),
        (with(|credentials| credentials.job_vni = 1), "not what the API server signed"),
        (with(service), "not what the API server signed"),
        (proto::LaunchProcessesRequest { cxi_signature: Bytes::new(), ..request.clone() }, "not signed"),
        (equipped(&server, &spec, credentials(), &relay), "not what the API server signed"),
        (
            proto::LaunchProcessesRequest { cxi_signature: replayed.cxi_signature, ..request.clone() },
            "not what the API server signed",
        ),
        (
            proto::LaunchProcessesRequest { cxi_signature: request.signature.clone(), ..request.clone() },
            "not what the API server signed",
        ),
    ] {
        let answer = ask(&relay, request).await;
        assert_eq!((answer.accepted, answer.reason()), (false, RefusalReason::Signature), "{answer:?}");
        let words = answer.message;
        assert!(words.contains("its fabric credentials: ") && words.contains(expected), "{words}");
    }
    assert!(nics.are_empty(), "nothing was made for what was refused");

    assert!(ask(&relay, request).await.accepted);
    let mut launch = api.next_launch().await;
    launch.until_report().await;
    assert_eq!(launch.stdout, "1024 11,21\n");
    launch.end().await;
    eventually("services are given back", async || nics.are_empty()).await;
}

/// Making services takes time, and an API server can be killed meanwhile. The agent reports to the next one.
#[tokio::test(flavor = "current_thread")]
async fn a_launch_whose_caller_is_gone_before_its_services_are_made_is_reported_all_the_same() {
    let nics = Nics::new();
    let config = nics.0.path().join("agent.toml");
    std::fs::write(&config, nics.settings()).unwrap();
    std::fs::write(nics.0.path().join("cxi1/slow"), "").unwrap();
    let mut api = Api::start().await;
    let address = api.address.clone();
    let flags = ["--insecure", "--node-id", "node0", "--listen", "127.0.0.1:0", "--api", &address];
    let mut agent = Agent::start_from(&mut api, &config, &flags).await;
    let spec = launch_on(&[&agent], 1, "exec true");
    let request =
        proto::LaunchProcessesRequest { cxi_credentials: Some(credentials()), ..crate::world::request(&spec) };

    let mut client = agent.client_as(&Security::Insecure { name: Caller::Api });
    let call = tokio::spawn(async move { client.launch_processes(request).await });
    eventually("the first service is made", async || nics.services("cxi0") == 1).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    std::fs::remove_file(nics.0.path().join("cxi1/slow")).unwrap();

    let mut launch = api.next_launch().await;
    assert_eq!(launch.until_report().await.exits.len(), 1);
    launch.end().await;
    eventually("services are given back", async || nics.are_empty()).await;
    // The agent has nothing left to wait for.
    agent.terminate();
    assert!(agent.exit().await.success());
}
