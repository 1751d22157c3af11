//! Certificates of an authority of our own, and agents and requests that prove by them who they are.

use std::path::PathBuf;

use lattice_pki::{Authority, Validity};
use pmi_transport::identity::{Caller, Security, TlsFiles};
use pmi_transport::proto::v1 as proto;
use pmi_transport::signature::{self, Serial};

use crate::world::{Agent, Api, request};

/// An authority, and what it issued.
pub(crate) struct Trust {
    directory: tempfile::TempDir,
    authority: Authority,
}

impl Trust {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(&directory.path().join("ca")).unwrap();
        Self { directory, authority }
    }

    /// A certificate for `subject`.
    fn issue(&self, subject: &Caller, directory: &str) -> TlsFiles {
        let issued = self.authority.issue(subject, &["127.0.0.1".to_owned()], Validity::days(1).unwrap()).unwrap();
        let directory = self.directory.path().join(directory);
        self.authority.write(&directory, &issued).unwrap();
        TlsFiles::in_directory(&directory)
    }

    pub(crate) fn identity(&self, subject: &Caller, directory: &str) -> Security {
        Security::from_files(&self.issue(subject, directory)).unwrap()
    }

    /// The configuration of a node's agent.
    pub(crate) fn config_of(&self, node: &str) -> PathBuf {
        self.directory.path().join(format!("{node}.toml"))
    }

    /// An agent that learns its name from its certificate.
    pub(crate) async fn agent(&self, api: &mut Api, node: &str, settings: &str) -> Agent {
        let TlsFiles { ca, cert, key } = self.issue(&Caller::Agent(node.to_owned()), node);
        let (ca, cert, key) = (ca.display(), cert.display(), key.display());
        let config = self.config_of(node);
        let address = &api.address;
        let text = format!(
            "listen = '127.0.0.1:0'\napi = '{address}'\n{settings}\n[tls]\nca = '{ca}'\ncert = '{cert}'\nkey = '{key}'\n"
        );
        std::fs::write(&config, text).unwrap();
        let agent = Agent::start_from(api, &config, &[]).await;
        assert_eq!(agent.registration.node_id, node);
        agent
    }
}

/// A request that the API server signed.
pub(crate) fn signed(api: &Security, spec: &proto::LaunchSpec) -> proto::LaunchProcessesRequest {
    let plain = request(spec);
    let signed = signature::sign(api, Serial(plain.serial), &plain.spec).unwrap();
    proto::LaunchProcessesRequest { signature: signed.signature, signer: signed.signer, ..plain }
}
