//! `lattice cxi` with an API server that has a fabric: tables, JSON, and exit codes for scripts.

use std::process::Output;

use pmi_transport::address::Address;
use pmi_transport::identity::{Caller, Security};
use pmi_transport::listen::{Listener, serve};
use pmi_transport::proto::v1::fabric_service_server::{FabricService, FabricServiceServer};
use pmi_transport::proto::v1::*;
use tempfile::TempDir;
use tokio::process::Command;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// A fabric with one service; `healthy` is false if it has a fault.
struct Fabric {
    healthy: bool,
}

impl Fabric {
    fn grants(&self) -> Vec<FabricGrant> {
        let state = if self.healthy { FabricGrantState::GrantHeld } else { FabricGrantState::GrantQuarantined };
        let unconfirmed = if self.healthy { "" } else { "node[0-1]" };
        vec![FabricGrant {
            name: "daint.7f3k.0".to_owned(),
            allocation_id: "7f3k".to_owned(),
            vni: 1024,
            state: state.into(),
            unconfirmed: unconfirmed.to_owned(),
        }]
    }
}

#[tonic::async_trait]
impl FabricService for Fabric {
    async fn list_fabric(&self, _: Request<ListFabricRequest>) -> Result<Response<ListFabricResponse>, Status> {
        Ok(Response::new(ListFabricResponse { grants: self.grants() }))
    }

    async fn examine_fabric(
        &self,
        _: Request<ExamineFabricRequest>,
    ) -> Result<Response<ExamineFabricResponse>, Status> {
        Ok(Response::new(ExamineFabricResponse {
            cluster: "daint".to_owned(),
            manager: "https://fabric".to_owned(),
            grants: self.grants(),
            ..Default::default()
        }))
    }

    async fn clean_fabric(
        &self,
        request: Request<CleanFabricRequest>,
    ) -> Result<Response<CleanFabricResponse>, Status> {
        let CleanFabricRequest { dry_run, gone } = request.into_inner();
        let verb = if dry_run { "would end" } else { "ended" };
        let done = if self.healthy { Vec::new() } else { vec![format!("{verb} the quarantine of {gone}")] };
        let failed = if gone == "node7" { vec!["node7 is up".to_owned()] } else { Vec::new() };
        Ok(Response::new(CleanFabricResponse { done, failed }))
    }
}

/// Runs `lattice cxi` with these words. Returns exit code, standard output and standard error.
async fn cxi(healthy: bool, line: &str) -> (Option<i32>, String, String) {
    let directory: TempDir = tempfile::tempdir().unwrap();
    let path = directory.path().join("api.sock");
    let security = Security::Insecure { name: Caller::Api };
    let listener = Listener::bind(&Address::Unix(path.clone()), &security).await.unwrap();
    let mut routes = Routes::builder();
    routes.add_service(FabricServiceServer::new(Fabric { healthy }));
    tokio::spawn(async move { serve(vec![listener], routes.routes(), std::future::pending()).await.unwrap() });
    let mut command = Command::new(env!("CARGO_BIN_EXE_lattice"));
    command.arg("cxi").args(line.split(' ')).env("LATTICE_API_URL", format!("unix:{}", path.display()));
    let Output { status, stdout, stderr } = command.output().await.unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[tokio::test]
async fn a_healthy_fabric_is_no_trouble() {
    let (code, stdout, stderr) = cxi(true, "doctor").await;
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert_eq!(stdout, "daint at https://fabric: 1 service, 0 nodes\nnothing is wrong\n");
    let (code, stdout, _) = cxi(true, "clean").await;
    assert_eq!((code, stdout.as_str()), (Some(0), "there is nothing to clean\n"));
}

#[tokio::test]
async fn trouble_has_an_exit_code_and_a_remedy() {
    let (code, stdout, stderr) = cxi(false, "doctor").await;
    assert_eq!((code, stderr.as_str()), (Some(1), ""));
    assert!(stdout.contains("VNI 1024 of daint.7f3k.0 waits for node[0-1]\n  try: "), "{stdout}");
    let (code, stdout, _) = cxi(false, "doctor --json").await;
    let examination: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, examination["findings"].as_array().map(Vec::len)), (Some(1), Some(1)));
}

#[tokio::test]
async fn what_is_cleaned_is_listed_and_what_fails_is_told_apart() {
    let (code, stdout, stderr) = cxi(false, "clean --dry-run --gone node1").await;
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(0), "would end the quarantine of node1\n", ""));
    let (code, stdout, stderr) = cxi(false, "clean --gone node7").await;
    assert_eq!((code, stdout.as_str()), (Some(1), "ended the quarantine of node7\n"));
    assert_eq!(stderr, "lattice: node7 is up\n");
    let (code, stdout, _) = cxi(false, "clean --gone node1 --json").await;
    let cleaned: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &cleaned["dry_run"], &cleaned["failed"]), (Some(0), &false.into(), &serde_json::json!([])));
}

#[tokio::test]
async fn services_are_listed_for_people_and_programs() {
    let (code, stdout, _) = cxi(false, "list").await;
    assert_eq!(code, Some(0));
    assert_eq!(
        stdout,
        "SERVICE       ALLOCATION   VNI  STATE        WAITS FOR\n\
         daint.7f3k.0  7f3k        1024  quarantined  node[0-1]\n"
    );
    let (_, stdout, _) = cxi(true, "list --json").await;
    let services: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(services[0]["state"], "held");
    assert_eq!(services[0]["unconfirmed_nodes"], serde_json::json!([]));
}
