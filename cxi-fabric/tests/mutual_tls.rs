//! A manager with TLS that requires a client certificate.

mod scene;

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cxi_fabric::config::{Backend, FabricConfig, TlsFiles};
use cxi_fabric::fake::FakeFabric;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use scene::{config, fake, private_file, request, shortly, soon, tls};

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    fn issue(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        (params.signed_by(&key, &self.0).expect("a certificate"), key)
    }

    fn file(&self, directory: &tempfile::TempDir) -> PathBuf {
        private_file(directory, "ca.pem", &self.0.pem())
    }
}

/// Terminates TLS in front of a fake, and accepts clients with a certificate of `authority`. Returns its URL.
fn tls_server(fake: Arc<FakeFabric>, authority: &Authority) -> String {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.0.der().clone()).expect("an authority");
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().expect("a verifier");
    let (certificate, key) = authority.issue("localhost");
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let settings = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("an identity");
    let settings = Arc::new(settings);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = ServerConnection::new(settings.clone()).expect("a connection");
            let fake = fake.clone();
            std::thread::spawn(move || fake.serve(StreamOwned::new(connection, stream)));
        }
    });
    format!("https://localhost:{port}")
}

#[test]
fn both_sides_prove_who_they_are() {
    let directory = tempfile::tempdir().expect("a directory");
    let (authority, fake) = (Authority::new(), Arc::new(fake()));
    let url = tls_server(fake.clone(), &authority);
    let (certificate, key) = authority.issue("lattice");
    let cert = private_file(&directory, "cert.pem", &certificate.pem());
    let key = private_file(&directory, "key.pem", &key.serialize_pem());
    let files = tls(authority.file(&directory), Some(cert), Some(key));
    let manager = FabricConfig { tls: Some(files), ..config(Backend::Rest, &url) }.manager().expect("a manager");
    let service = manager.create(&request(0), soon()).expect("made");
    manager.delete(&service.id, soon()).expect("deleted");

    // Without a client certificate the manager rejects the client, ...
    let files = tls(authority.file(&directory), None, None);
    let manager = FabricConfig { tls: Some(files), ..config(Backend::Rest, &url) }.manager().expect("a manager");
    assert!(manager.create(&request(1), shortly()).is_err());
    // ... and with another authority the client rejects the manager.
    let files = tls(Authority::new().file(&directory), None, None);
    let manager = FabricConfig { tls: Some(files), ..config(Backend::Rest, &url) }.manager().expect("a manager");
    // Long enough for a handshake on a busy machine.
    let error =
        manager.create(&request(1), Instant::now() + Duration::from_secs(3)).expect_err("a stranger").to_string();
    assert!(error.contains("cannot be reached: TLS: invalid peer certificate"), "{error}");
    assert!(fake.services().is_empty());
}

/// Variable with the manager's URL, for a test that runs as its own process.
const MANAGER: &str = "LATTICE_TEST_MANAGER";
/// Variable with the time for its first call, in milliseconds: TLS errors are retried until then.
const WITHIN: &str = "LATTICE_TEST_WITHIN";

/// OpenSSL's variable replaces the authorities that the machine trusts. It belongs to a process, not a thread, so this
/// test runs itself.
#[test]
fn without_an_authority_of_its_own_the_machine_s_are_trusted() {
    if let Some(url) = std::env::var_os(MANAGER) {
        return speak_with(url.to_str().expect("a URL"));
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (authority, fake) = (Authority::new(), Arc::new(fake()));
    let url = tls_server(fake.clone(), &authority);
    let (certificate, key) = authority.issue("lattice");
    private_file(&directory, "cert.pem", &certificate.pem());
    private_file(&directory, "key.pem", &key.serialize_pem());
    let speaks = |trusted: PathBuf, within: &str| {
        let mut itself = std::process::Command::new(std::env::current_exe().expect("a program"));
        itself.args(["--exact", "without_an_authority_of_its_own_the_machine_s_are_trusted"]);
        itself.env(MANAGER, &url).env(WITHIN, within).env("SSL_CERT_FILE", trusted).env_remove("SSL_CERT_DIR");
        let output = itself.current_dir(&directory).output().expect("it runs");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (made, output) = speaks(authority.file(&directory), "60000");
    assert!(made, "{output}");
    let (made, output) = speaks(Authority::new().file(&directory), "300");
    assert!(!made && output.contains("invalid peer certificate"), "{output}");
    let (made, output) = speaks(private_file(&directory, "none.pem", ""), "300");
    assert!(!made && output.contains("this machine trusts no authority"), "{output}");
    assert!(fake.services().is_empty());
}

/// Makes a service with the identity in the working directory, and deletes it.
fn speak_with(url: &str) {
    let files = TlsFiles { ca: None, cert: Some("cert.pem".into()), key: Some("key.pem".into()) };
    let config = FabricConfig { tls: Some(files), ..config(Backend::Rest, url) };
    let within = std::env::var(WITHIN).ok().and_then(|time| time.parse().ok()).map(Duration::from_millis);
    let first = Instant::now() + within.expect("a time");
    let made = config.manager().map_err(|error| error.to_string()).and_then(|manager| {
        let service = manager.create(&request(0), first).map_err(|error| error.to_string())?;
        manager.delete(&service.id, soon()).map_err(|error| error.to_string())
    });
    assert_eq!(made, Ok(()));
}
