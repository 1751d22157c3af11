//! An agent as a real process, and requests to it.

use std::io::PipeWriter;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use nix::sys::signal::Signal;
use pmi_transport::connect::{self, Channel};
use pmi_transport::identity::{Caller, Security};
use pmi_transport::proto::v1 as proto;
use proto::node_agent_service_client::NodeAgentServiceClient;
use tokio::process::Command;
use tokio::time::timeout;
use tonic::Status;

use super::{Api, Launch, PATIENCE, request, signal};

/// An agent; killed at the latest when the test is over.
pub(crate) struct Agent {
    process: tokio::process::Child,
    pub(crate) registration: proto::RegisterNodeRequest,
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_lattice-agent"))
}

impl Agent {
    pub(crate) async fn start(api: &mut Api, node: &str) -> Self {
        Self::start_with(api, node, &[]).await
    }

    pub(crate) async fn start_with(api: &mut Api, node: &str, flags: &[&str]) -> Self {
        let address = api.address.clone();
        let common = ["--insecure", "--allow-root", "--node-id", node, "--listen", "127.0.0.1:0", "--api", &address];
        // Sessions that remain after a test end soon.
        let config = api.settings("agent_lease = 5");
        Self::start_from(api, &config, &[&common, flags].concat()).await
    }

    /// An agent with these settings in addition to the usual ones.
    pub(crate) async fn start_set(api: &mut Api, node: &str, settings: &str) -> Self {
        let config = api.settings(&Self::with_usual(api, node, settings));
        Self::start_from(api, &config, &[]).await
    }

    /// Like `start_set`, but logs to `log`, with an environment that names a topology file that does not exist.
    pub(crate) async fn start_logging(api: &mut Api, node: &str, settings: &str, log: PipeWriter) -> Self {
        let config = api.settings(&Self::with_usual(api, node, settings));
        let mut program = program();
        program.stderr(log).env("PMIX_TOPOLOGY_CACHE", "/nonexistent/topology.xml").env_remove("LATTICE_LOG");
        Self::start_program(program, api, &config, &[]).await
    }

    fn with_usual(api: &Api, node: &str, settings: &str) -> String {
        let usual = "insecure = true\nallow_root = true\nlisten = '127.0.0.1:0'\n";
        format!("{usual}node_id = '{node}'\napi = '{}'\n{settings}", api.address)
    }

    /// An agent with this configuration, and flags.
    pub(crate) async fn start_from(api: &mut Api, config: &Path, flags: &[&str]) -> Self {
        Self::start_program(program(), api, config, flags).await
    }

    async fn start_program(mut program: Command, api: &mut Api, config: &Path, flags: &[&str]) -> Self {
        let process = program
            .arg("--config")
            .arg(config)
            .args(flags)
            .arg("--runtime-dir")
            .arg(api.runtime())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let registration = api.next_registration().await;
        Self { process, registration }
    }

    pub(crate) fn client(&self, caller: &str) -> NodeAgentServiceClient<Channel> {
        self.client_as(&Security::Insecure { name: caller.parse().unwrap() })
    }

    pub(crate) fn client_as(&self, security: &Security) -> NodeAgentServiceClient<Channel> {
        let address = self.registration.grpc_address.parse().unwrap();
        let peer = Caller::Agent(self.registration.node_id.clone());
        NodeAgentServiceClient::new(connect::channel(&address, &peer, security).unwrap())
    }

    /// Requests a launch, and takes its stream of reports.
    pub(crate) async fn launch(&self, api: &mut Api, spec: proto::LaunchSpec) -> Launch {
        let answer = self.ask(&spec, 0).await;
        assert!(answer.accepted, "{answer:?}");
        let launch = api.next_launch().await;
        assert_eq!((&launch.of.launch_id, &launch.of.node_id), (&spec.launch_id, &self.registration.node_id));
        launch
    }

    pub(crate) async fn send(&self, request: proto::LaunchProcessesRequest) -> proto::LaunchProcessesResponse {
        self.client("lattice:///api").launch_processes(request).await.unwrap().into_inner()
    }

    pub(crate) async fn ask(&self, spec: &proto::LaunchSpec, node_index: u32) -> proto::LaunchProcessesResponse {
        let request = proto::LaunchProcessesRequest { node_index, ..request(spec) };
        self.send(request).await
    }

    pub(crate) async fn ask_as(&self, caller: &str, spec: &proto::LaunchSpec) -> Result<bool, Status> {
        let answer = self.client(caller).launch_processes(request(spec)).await;
        answer.map(|answer| answer.into_inner().accepted)
    }

    /// Requests a launch on this node and on the nodes after it.
    pub(crate) async fn ask_through(
        &self,
        spec: &proto::LaunchSpec,
        relay_nodes: u32,
        relay_fan_out: u32,
    ) -> proto::LaunchProcessesResponse {
        let request = proto::LaunchProcessesRequest { relay_nodes, relay_fan_out, ..request(spec) };
        self.send(request).await
    }

    pub(crate) async fn abort(&self, launch_id: &str, signal: i32) {
        let request =
            proto::AbortProcessesRequest { launch_id: launch_id.to_owned(), reason: "a test".to_owned(), signal };
        self.client("lattice:///api").abort_processes(request).await.unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id().unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.process.start_kill().unwrap();
    }

    pub(crate) fn terminate(&self) {
        signal(self.process.id().unwrap() as i32, Signal::SIGTERM);
    }

    /// Stops the agent. The kernel still accepts connections for it, and none is answered.
    pub(crate) fn stop(&self) {
        signal(self.process.id().unwrap() as i32, Signal::SIGSTOP);
    }

    pub(crate) async fn exit(&mut self) -> ExitStatus {
        timeout(PATIENCE, self.process.wait()).await.unwrap().unwrap()
    }
}
