//! Shared parts of the tests in this directory: a fake manager, a client of it, requests.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use cxi_fabric::FabricManager;
use cxi_fabric::config::{Authentication, Backend, FabricConfig, TlsFiles};
use cxi_fabric::fabric::{ServiceName, ServiceRequest};
use cxi_fabric::fake::{FakeFabric, Options};
use cxi_fabric::vni::Vni;

pub(crate) fn fake() -> FakeFabric {
    fake_with(Options::default())
}

pub(crate) fn fake_with(options: Options) -> FakeFabric {
    FakeFabric::start(options).expect("a loopback port")
}

pub(crate) fn config(backend: Backend, url: &str) -> FabricConfig {
    FabricConfig {
        backend,
        url: Some(url.to_owned()),
        partition: "WLM".into(),
        vnis: "1024-4095".parse().expect("a range"),
        foreign_vnis: Vec::new(),
        job_vni: false,
        traffic_classes: Default::default(),
        tls: None,
        auth: Authentication::None,
    }
}

pub(crate) fn rest(fake: &FakeFabric) -> Box<dyn FabricManager> {
    config(Backend::Rest, &fake.url()).manager().expect("a manager")
}

pub(crate) fn vnid(fake: &FakeFabric) -> Box<dyn FabricManager> {
    config(Backend::Vnid, &fake.url()).manager().expect("a manager")
}

/// A client with its secret in a file, which fetches tokens from the fake.
pub(crate) fn oauth(url: &str, secret: &str, directory: &tempfile::TempDir) -> FabricConfig {
    let file = private_file(directory, "secret", secret);
    let auth = Authentication::OAuth {
        token_url: format!("{url}/token"),
        client_id: "lattice".into(),
        client_secret_file: file,
        scope: Some("openid".into()),
    };
    FabricConfig { auth, ..config(Backend::Rest, url) }
}

pub(crate) fn private_file(directory: &tempfile::TempDir, name: &str, content: &str) -> std::path::PathBuf {
    let file = directory.path().join(name);
    std::fs::write(&file, content).expect("a file");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    file
}

pub(crate) fn tls(
    ca: std::path::PathBuf,
    cert: Option<std::path::PathBuf>,
    key: Option<std::path::PathBuf>,
) -> TlsFiles {
    TlsFiles { ca: Some(ca), cert, key }
}

/// Service number `serial` of allocation 4711, with VNI 1024 + `serial`.
pub(crate) fn request(serial: u32) -> ServiceRequest {
    ServiceRequest {
        name: ServiceName::new(&"daint".parse().expect("a name"), "4711", serial.into()).expect("a name"),
        allocation: "4711".into(),
        vni: Vni::new(1024 + serial).ok(),
        job_vni: None,
        nodes: vec!["n0".into(), "n1".into()],
        uid: 1000,
    }
}

/// A deadline against hangs, far longer than any of these tests.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A deadline that passes.
pub(crate) fn shortly() -> Instant {
    Instant::now() + Duration::from_millis(300)
}
