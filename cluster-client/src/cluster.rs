//! The cluster as a command uses it: choice of the API server, the channel to it, and error messages.
//!
//! ```text
//! allocation   --alloc   else LATTICE_ALLOC_ID   else none: this machine
//!              an empty name is an error
//! API server   --api     else LATTICE_API_URL    else `api` in the config file   else the socket of an API server on this machine
//! ```

use std::path::PathBuf;
use std::time::Duration;

use lattice_console::environment::{self, ALLOCATION, Environment, NO_ALLOCATION};
use lattice_console::report;
use lattice_session::timeouts::{AWAY, COME_BACK_PAUSE};
use nix::unistd::geteuid;
use pmi_transport::connect::{self, Channel};
use pmi_transport::identity::{Caller, Security, TlsFiles};
use pmi_transport::proto::v1::allocation_service_client::AllocationServiceClient;
use pmi_transport::proto::v1::fabric_service_client::FabricServiceClient;
use pmi_transport::proto::v1::inventory_service_client::InventoryServiceClient;
use pmi_transport::proto::v1::launch_service_client::LaunchServiceClient;
use pmi_transport::proto::v1::node_service_client::NodeServiceClient;
use tokio::time::{Instant, sleep};
use tonic::{Response, Status};

use super::config::Config;
use super::error::ClusterError;
use super::source::Source;
use super::url::{ApiUrl, ApiUrlError, DEFAULT_URL};

/// Time limit for an answer of the API server.
const ANSWER: Duration = Duration::from_secs(30);
/// Variable that names the API server if no flag does.
pub const API_URL: &str = "LATTICE_API_URL";

/// Allocation of a command: its flag, else the environment. `local` means no allocation.
///
/// # Errors
/// Fails for an empty name. `export LATTICE_ALLOC_ID=$(lattice alloc create)` sets one if the command fails. A launch for many nodes must
/// not start on this machine then.
pub fn allocation(flag: Option<&str>, environment: &Environment) -> Result<Option<String>, ClusterError> {
    let (place, named) = match flag {
        Some(flag) => ("the id on the command line", Some(flag.to_owned())),
        None => (ALLOCATION, set(ALLOCATION, environment)),
    };
    match named {
        Some(id) if id.is_empty() => Err(ClusterError::EmptyAllocation { place }),
        named => Ok(named.filter(|id| id != NO_ALLOCATION)),
    }
}

/// Value of a variable that is set to UTF-8 text, possibly empty.
fn set(name: &str, environment: &Environment) -> Option<String> {
    Some(environment::value(environment, name)?.to_str()?.to_owned())
}

/// Value of a variable that is set to UTF-8 text and not empty.
fn variable(name: &str, environment: &Environment) -> Option<String> {
    set(name, environment).filter(|value| !value.is_empty())
}

/// Config file that is in force; `None` if there is none.
///
/// # Errors
/// Fails for a file that exists and cannot be used.
pub fn config_file(environment: &Environment) -> Result<Option<PathBuf>, ClusterError> {
    Ok(Config::find(environment)?.path)
}

/// An API server, and the identity of this user towards it.
#[derive(Clone, Debug)]
pub struct ApiServer {
    url: ApiUrl,
    source: Source,
    security: Security,
    /// Files of the certificates; `None` for a URL without certificates.
    files: Option<TlsFiles>,
    /// Time for which it may be away: jobs of an allocation continue without it.
    patience: Duration,
}

impl ApiServer {
    /// Selects the API server: by `flag`, the environment, the config file, or the default.
    ///
    /// # Errors
    /// Fails for an invalid URL or config file, and for certificates that cannot be used.
    pub fn find(flag: Option<&str>, environment: &Environment) -> Result<Self, ClusterError> {
        let flag = flag.map(|url| (url.to_owned(), Source::Flag("--api")));
        let named = flag.or_else(|| Some((variable(API_URL, environment)?, Source::Variable(API_URL))));
        let named = named.map(|(url, source)| Ok::<_, ApiUrlError>((url.parse::<ApiUrl>()?, source))).transpose()?;
        // A config file that is not needed must not cause a failure.
        let config = match &named {
            Some((url, _)) if !url.is_secured() => Config::default(),
            _ => Config::find(environment)?,
        };
        let (url, source) = match named.or_else(|| config.named_server()) {
            Some(named) => named,
            None => (DEFAULT_URL.parse()?, Source::Default),
        };
        let (security, files) = if url.is_secured() {
            (config.certificates()?, config.tls.clone())
        } else {
            (Security::Insecure { name: Caller::User(geteuid().as_raw()) }, None)
        };
        let is_allocated = variable(ALLOCATION, environment).is_some_and(|id| id != NO_ALLOCATION);
        Ok(Self { url, source, security, files, patience: if is_allocated { AWAY } else { Duration::ZERO } })
    }

    /// URL of the server.
    pub fn url(&self) -> String {
        self.url.to_string()
    }

    /// Setting that names the server.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Files of the certificates for connections to it; `None` for a URL without certificates.
    pub fn certificates(&self) -> Option<&TlsFiles> {
        self.files.as_ref()
    }

    /// Creates a channel to it, which connects at first use. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Fails for an address to which connections without certificates are not allowed.
    pub fn connect(&self) -> Result<Cluster, ClusterError> {
        let channel = connect::channel(self.url.address(), &Caller::Api, &self.security)?;
        Ok(Cluster { url: self.url.clone(), channel, patience: self.patience })
    }
}

/// A cluster, represented by its API server.
#[derive(Clone, Debug)]
pub struct Cluster {
    url: ApiUrl,
    channel: Channel,
    patience: Duration,
}

impl Cluster {
    /// Client of the allocation service.
    pub fn allocations(&self) -> AllocationServiceClient<Channel> {
        AllocationServiceClient::new(self.channel.clone()).max_decoding_message_size(pmi_transport::limits::LISTING_MAX)
    }

    /// Client of the launch service.
    pub fn launches(&self) -> LaunchServiceClient<Channel> {
        LaunchServiceClient::new(self.channel.clone()).max_decoding_message_size(pmi_transport::limits::LISTING_MAX)
    }

    /// Client of the node service.
    pub fn nodes(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.channel.clone()).max_decoding_message_size(pmi_transport::limits::LISTING_MAX)
    }

    /// Client of the inventory service.
    pub fn inventories(&self) -> InventoryServiceClient<Channel> {
        InventoryServiceClient::new(self.channel.clone()).max_decoding_message_size(pmi_transport::limits::LISTING_MAX)
    }

    /// Client of the fabric service.
    pub fn fabric(&self) -> FabricServiceClient<Channel> {
        FabricServiceClient::new(self.channel.clone())
    }

    /// Waits for an answer of the API server, with a time limit.
    ///
    /// # Errors
    /// Fails if the API server refuses the call, is unreachable, or does not answer within 30 s.
    pub async fn ask<T>(&self, question: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, ClusterError> {
        self.ask_within(ANSWER, question).await
    }

    /// As [`Cluster::ask`], with another time limit.
    pub async fn ask_within<T>(
        &self,
        limit: Duration,
        question: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, ClusterError> {
        self.response_within(limit, question).await.map(Response::into_inner)
    }

    /// As [`Cluster::ask_within`]. Returns the answer with its metadata.
    pub(super) async fn response_within<T>(
        &self,
        limit: Duration,
        question: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<Response<T>, ClusterError> {
        match tokio::time::timeout(limit, question).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(status)) => Err(self.refused(&status)),
            Err(_) => Err(ClusterError::NoAnswer { url: self.url.to_string(), timeout: limit }),
        }
    }

    /// The same cluster, which waits for an API server that is away even outside of allocations.
    pub fn waiting(self) -> Self {
        Self { patience: AWAY, ..self }
    }

    /// As [`Cluster::ask`], for an idempotent question. In an allocation, repeats it for as long as the API server may be away.
    ///
    /// # Errors
    /// As [`Cluster::ask`].
    pub async fn ask_patiently<T, F: Future<Output = Result<Response<T>, Status>>>(
        &self,
        question: impl Fn() -> F,
    ) -> Result<T, ClusterError> {
        self.patiently(ClusterError::is_passing, async || self.ask(question()).await).await
    }

    /// Repeats a call in an allocation if its failure may pass. Reports the delay once.
    ///
    /// # Errors
    /// Returns the error of the call after the time limit.
    pub async fn patiently<T>(
        &self,
        may_pass: fn(&ClusterError) -> bool,
        call: impl AsyncFn() -> Result<T, ClusterError>,
    ) -> Result<T, ClusterError> {
        let (deadline, mut is_told) = (Instant::now() + self.patience, false);
        loop {
            match call().await {
                Err(error) if may_pass(&error) && Instant::now() < deadline => {
                    if !std::mem::replace(&mut is_told, true) {
                        let (reason, seconds) = (error.to_string(), self.patience.as_secs());
                        let reason = reason.lines().next().unwrap_or_default();
                        report(&format!("note: {reason}; that may pass, and is waited for, up to {seconds} s"));
                    }
                    sleep(COME_BACK_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Error for an invalid answer of the API server.
    pub fn invalid_answer(&self, reason: impl ToString) -> ClusterError {
        ClusterError::Nonsense { url: self.url.to_string(), reason: reason.to_string() }
    }

    /// Error for a stream that the API server ended without a status.
    pub fn broken(&self, reason: &str) -> ClusterError {
        ClusterError::Unreachable { url: self.url.to_string(), reason: reason.to_owned(), is_unheard: false }
    }

    /// The error that a status of the API server stands for.
    pub fn refused(&self, status: &Status) -> ClusterError {
        ClusterError::of_status(status, &self.url)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        variables.iter().map(|&(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn the_flag_comes_before_the_environment() {
        let check = |flag, variable: &str, expected: Option<&str>| {
            let found = allocation(flag, &environment(&[(ALLOCATION, variable)])).unwrap();
            assert_eq!(found.as_deref(), expected);
        };
        check(Some("a"), "b", Some("a"));
        check(None, "b", Some("b"));
        check(None, "local", None);
        check(Some("local"), "b", None);
        check(Some("a"), "", Some("a"));
        assert_eq!(allocation(None, &[]).unwrap(), None);
    }

    #[test]
    fn an_empty_name_is_no_allocation_and_not_none_either() {
        let check = |flag, variable: &str, expected: &str| {
            let error = allocation(flag, &environment(&[(ALLOCATION, variable)])).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        };
        check(None, "", "LATTICE_ALLOC_ID is empty: it names no allocation");
        check(Some(""), "b", "the id on the command line is empty");
    }

    #[test]
    fn the_api_server_is_found_by_flag_variable_file_and_custom() {
        let home = tempfile::tempdir().unwrap();
        let variables = [("LATTICE_API_URL", "unix:/variable"), ("XDG_CONFIG_HOME", home.path().to_str().unwrap())];
        let found = |flag, variables: &[_]| match ApiServer::find(flag, &environment(variables)) {
            Ok(server) => server.url.to_string(),
            Err(error) => error.to_string(),
        };
        assert_eq!(found(None, &variables[1..]), DEFAULT_URL);
        std::fs::create_dir(home.path().join("lattice")).unwrap();
        std::fs::write(home.path().join("lattice/config.toml"), "api = 'unix:/file'").unwrap();
        assert_eq!(found(Some("unix:/flag"), &variables), "unix:/flag");
        assert_eq!(found(None, &variables), "unix:/variable");
        assert_eq!(found(None, &variables[1..]), "unix:/file");
        std::fs::write(home.path().join("lattice/config.toml"), "nonsense").unwrap();
        assert_eq!(found(None, &variables), "unix:/variable", "a file that is not needed is not read");
        assert!(found(None, &variables[1..]).contains("lattice/config.toml: "));
    }
}
