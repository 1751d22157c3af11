//! Work on CXI services in a process of the fork server. As root, it carries out orders that the API server has signed for a launch, and ends
//! only services of users.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use cxi_fabric::node::{CxiBackend, CxiError, FoundService, Nic, ServiceSpec};
use lattice_session::nics::NicsAnswer;
use lattice_session::session_process::Errand;
use lattice_session::wire::order::{StartOrder, decode_nics_answer, encode_nics_answer};
use rank_spawner::{Capabilities, raise_capabilities};

use super::carry_out;
use crate::daemon::Config;

/// Maximum length of an answer, in bytes.
const ANSWER_MAX: u64 = 4 << 20;

/// The errand of a node with these settings.
pub(crate) fn of(config: &Config) -> Errand {
    let config = config.clone();
    Box::new(move |uid, order, mut agent| {
        let answer = done(&config, uid, order);
        // The agent may be gone.
        let _ = agent.write_all(&encode_nics_answer(answer));
    })
}

fn done(config: &Config, uid: u32, order: StartOrder) -> NicsAnswer {
    let trouble = |text: String| NicsAnswer { trouble: Some(text), ..NicsAnswer::default() };
    let Some(task) = order.nics else { return trouble("there is nothing to be done".to_owned()) };
    if let Err(errno) = raise_capabilities(Capabilities::SYS_ADMIN) {
        return trouble(format!("CXI services take CAP_SYS_ADMIN, which cannot be raised: {}", errno.desc()));
    }
    match config.fabric.backend() {
        Ok(Some(backend)) => carry_out(config.fabric.backend, &Guarded { backend, config }, uid, task),
        Ok(None) => trouble("no CXI services are made here".to_owned()),
        Err(error) => trouble(error.to_string()),
    }
}

/// Reads the answer of a process with an errand to its end. Blocks.
///
/// # Errors
/// Fails if the process ended without an answer.
pub(crate) fn read_answer(from: UnixStream) -> io::Result<NicsAnswer> {
    let mut bytes = Vec::new();
    from.take(ANSWER_MAX).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    decode_nics_answer(bytes).map_err(io::Error::other)
}

/// Backend that ends only services of users that may start processes here: an attacker may have taken the caller over.
struct Guarded<'a> {
    backend: Arc<dyn CxiBackend>,
    config: &'a Config,
}

impl CxiBackend for Guarded<'_> {
    fn nics(&self) -> Result<Vec<Nic>, CxiError> {
        self.backend.nics()
    }

    fn create(&self, nic: &str, spec: &ServiceSpec) -> Result<u32, CxiError> {
        self.backend.create(nic, spec)
    }

    fn destroy(&self, nic: &str, svc_id: u32) -> Result<(), CxiError> {
        let found = self.backend.list(nic)?.into_iter().find(|found| found.svc_id == svc_id);
        let Some(FoundService { uids, .. }) = found else {
            return Err(CxiError::Unknown { nic: nic.to_owned(), svc_id });
        };
        if uids.is_empty() || uids.iter().any(|&uid| self.config.refuse_user(uid).is_some()) {
            let source = io::Error::new(ErrorKind::PermissionDenied, "it is no user's");
            return Err(CxiError::System { nic: nic.to_owned(), action: "ending a service", source });
        }
        self.backend.destroy(nic, svc_id)
    }

    fn list(&self, nic: &str) -> Result<Vec<FoundService>, CxiError> {
        self.backend.list(nic)
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::daemon::Overrides;

    /// A NIC with services of all users, of root, of the system, and of one user.
    #[derive(Default)]
    struct Services(Mutex<Vec<u32>>);

    impl CxiBackend for Services {
        fn nics(&self) -> Result<Vec<Nic>, CxiError> {
            Ok(vec![Nic { name: "cxi0".to_owned(), is_up: true }])
        }

        fn create(&self, _: &str, _: &ServiceSpec) -> Result<u32, CxiError> {
            Ok(9)
        }

        fn destroy(&self, _: &str, svc_id: u32) -> Result<(), CxiError> {
            self.0.lock().push(svc_id);
            Ok(())
        }

        fn list(&self, _: &str) -> Result<Vec<FoundService>, CxiError> {
            let service = |svc_id, uids: &[u32]| FoundService { svc_id, uids: uids.to_vec(), vnis: Vec::new() };
            Ok(vec![service(1, &[]), service(2, &[0]), service(3, &[999, 1000]), service(4, &[1000])])
        }
    }

    #[test]
    fn services_of_users_are_ended_and_no_others() {
        let tls = "[tls]\nca='/a'\ncert='/b'\nkey='/c'";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("api = 'a:1'\nnode_id = 'n'\n{tls}")).unwrap();
        let config = Config::load(Some(file.path()), Overrides::default()).unwrap();
        let config = Config { starter: nix::unistd::Uid::from_raw(0), ..config };
        let services = Arc::new(Services::default());
        let guarded = Guarded { backend: Arc::clone(&services) as _, config: &config };
        let ended: Vec<bool> = (1..=5).map(|svc_id| guarded.destroy("cxi0", svc_id).is_ok()).collect();
        assert_eq!(ended, [false, false, false, true, false]);
        assert_eq!(*services.0.lock(), [4]);
    }

    #[test]
    fn an_answer_comes_over_or_is_missed() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let answer = NicsAnswer { trouble: Some("no link".to_owned()), ..NicsAnswer::default() };
        theirs.write_all(&encode_nics_answer(answer.clone())).unwrap();
        drop(theirs);
        assert_eq!(read_answer(ours).unwrap(), answer);
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert_eq!(read_answer(ours).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
