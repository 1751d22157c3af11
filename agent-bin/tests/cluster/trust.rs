//! Certificates of a test CA, and agents and requests that use them.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use lattice_pki::{Authority, Validity};
use pmi_transport::identity::{Caller, Security, TlsFiles};
use pmi_transport::proto::v1 as proto;
use pmi_transport::signature::{self, Serial};

use crate::world::{Agent, Api, request};

/// Number of the user and the group `daemon`, which exist on every Debian.
pub(crate) const DAEMON: u32 = 1;

/// A CA, and the certificates that it issued.
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

    /// An agent that takes its name from its certificate.
    pub(crate) async fn agent(&self, api: &mut Api, node: &str, settings: &str) -> Agent {
        let config = self.configure(api, node, settings);
        self.start(api, node, &config).await
    }

    /// An agent with a daemon that is not root.
    pub(crate) async fn unprivileged_agent(&self, api: &mut Api, node: &str, settings: &str) -> Agent {
        let config = self.configure(api, node, &format!("user = 'daemon'\nnode_id = '{node}'\n{settings}"));
        let own = self.directory.path().join(node);
        // As in docs/operate/set-up.md: a sticky directory of root, with two files that the daemon replaces.
        let set = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        set(self.directory.path(), 0o711);
        chown(&own, None, Some(DAEMON)).unwrap();
        set(&own, 0o1770);
        ["cert.pem", "key.pem"].iter().for_each(|name| chown(own.join(name), Some(DAEMON), Some(DAEMON)).unwrap());
        self.start(api, node, &config).await
    }

    /// Starts the same agent again.
    pub(crate) async fn start(&self, api: &mut Api, node: &str, config: &Path) -> Agent {
        let agent = Agent::start_from(api, config, &[]).await;
        assert_eq!(agent.registration.node_id, node);
        agent
    }

    fn configure(&self, api: &Api, node: &str, settings: &str) -> PathBuf {
        let TlsFiles { ca, cert, key } = self.issue(&Caller::Agent(node.to_owned()), node);
        let (ca, cert, key) = (ca.display(), cert.display(), key.display());
        let config = self.config_of(node);
        let address = &api.address;
        let text = format!(
            "listen = '127.0.0.1:0'\napi = '{address}'\n{settings}\n[tls]\nca = '{ca}'\ncert = '{cert}'\nkey = '{key}'\n"
        );
        std::fs::write(&config, text).unwrap();
        config
    }
}

/// A request that the API server signed.
pub(crate) fn signed(api: &Security, spec: &proto::LaunchSpec) -> proto::LaunchProcessesRequest {
    signed_under(api, spec, 1)
}

/// Like [`signed`], with this number.
pub(crate) fn signed_under(api: &Security, spec: &proto::LaunchSpec, serial: u64) -> proto::LaunchProcessesRequest {
    let plain = proto::LaunchProcessesRequest { serial, ..request(spec) };
    let signed = signature::sign(api, Serial(plain.serial), &plain.spec).unwrap();
    proto::LaunchProcessesRequest { signature: signed.signature, signer: signed.signer, ..plain }
}
