//! API server of a `--via` cluster: a child of this process. Its port is chosen by the kernel, or is the first free port of a range. Its
//! certificate has all addresses of this machine. Also the authority that certifies the nodes.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use lattice_daemon::membership::{Credentials, Membership};
use lattice_daemon::network_addresses;
use lattice_pki::{Authority, CA_CERTIFICATE_FILE, PkiError, Validity, directory_name};
use pmi_transport::address::PortRange;
use pmi_transport::identity::Caller;
use serde::Serialize;
use tokio::net::UnixDatagram;
use tokio::sync::watch;
use tokio::time::Instant;

use super::ViaError;
use super::means::Means;
use crate::ground::{API, ApiSettings, Daemons, Directory, Ground, PrivateClusterError, Role};

/// Validity of certificates in days, which is longer than any allocation.
const DAYS: u32 = 365;
/// Seconds without an answer of this API server after which an agent ends.
const LEASE: u32 = 15;
/// Time limit for the API server to listen.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Maximum size of a notification of the API server in bytes.
const NOTICE_MAX: usize = 4096;
/// Prefix of the notification line with its address.
const LISTENS: &str = "X_LATTICE_LISTEN=";

/// The API server does not serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeadError {
    /// It does not report in time that it listens.
    #[error("the API server has not begun to listen within {} s", READY_WITHIN.as_secs())]
    Late,
    /// The notification socket cannot be used.
    #[error("cannot receive from the API server: {0}")]
    Socket(#[from] io::Error),
}

/// File for `lattice api --config`.
#[derive(Serialize)]
struct ApiFile {
    #[serde(flatten)]
    settings: ApiSettings,
    lease: u32,
    port_range: Option<PortRange>,
}

/// A started API server that soon reports its address. Agents can be started meanwhile: they receive the address when it is known.
pub(super) struct Head {
    hosts: Vec<IpAddr>,
    port_range: Option<PortRange>,
    authority: Authority,
    ca: String,
    /// Socket for its notifications.
    notices: UnixDatagram,
    port: watch::Sender<Option<u16>>,
    deadline: Instant,
}

impl Head {
    /// Starts the API server. All ports on which the cluster listens are within `port_range`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Fails if it cannot be started, or its files cannot be written.
    pub(super) fn start(
        ground: &Ground,
        port_range: Option<PortRange>,
        daemons: &mut Daemons<'_>,
    ) -> Result<Self, ViaError> {
        let (directory, files) = (&ground.directory, ground.files());
        let authority = Authority::create(&directory.pki())?;
        let hosts = hosts();
        certify(&authority, directory, &hosts)?;
        let text = toml::to_string(&api_file(directory, &hosts, port_range)).map_err(io::Error::other);
        text.and_then(|text| Directory::write_private(&directory.config(API), &text)).map_err(&files)?;
        let ca = std::fs::read_to_string(directory.pki().join(CA_CERTIFICATE_FILE)).map_err(&files)?;
        let notices = UnixDatagram::bind(directory.ready()).map_err(HeadError::from)?;
        let mut server = Command::new(std::env::current_exe().map_err(PrivateClusterError::from)?);
        server.arg("api").arg("--config").arg(directory.config(API)).env("NOTIFY_SOCKET", directory.ready());
        daemons.start((API, Role::Head), server, directory, Command::spawn).map_err(PrivateClusterError::from)?;
        let (port, deadline) = (watch::Sender::default(), Instant::now() + READY_WITHIN);
        Ok(Self { hosts, port_range, authority, ca, notices, port, deadline })
    }

    /// Reads a pending notification; returns the port after the API server listens.
    ///
    /// # Errors
    /// Fails after the time limit, and if the socket fails.
    pub(super) fn port(&self) -> Result<Option<u16>, HeadError> {
        if let Some(port) = *self.port.borrow() {
            return Ok(Some(port));
        }
        let mut notice = [0; NOTICE_MAX];
        match self.notices.try_recv(&mut notice) {
            Ok(length) => self.port.send_replace(port_in(&notice[..length])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => return Err(error.into()),
        };
        let port = *self.port.borrow();
        if port.is_none() && Instant::now() > self.deadline { Err(HeadError::Late) } else { Ok(port) }
    }

    /// Invitation for these nodes.
    ///
    /// # Errors
    /// Fails if a node cannot be certified.
    pub(super) fn invitation(&self, nodes: &[String], means: &Means) -> Result<Invitation, PkiError> {
        let mut certified = BTreeMap::new();
        for node in nodes {
            let issued = self.authority.issue(&Caller::Agent(node.clone()), &[], Validity::days(DAYS)?)?;
            certified.insert(node.clone(), Credentials { certificate: issued.certificate, key: issued.key });
        }
        let membership = Membership {
            api: Vec::new(),
            ca: self.ca.clone(),
            nodes: certified,
            name_variables: means.name_variables.iter().map(|&name| name.to_owned()).collect(),
            port_range: self.port_range,
        };
        Ok(Invitation { hosts: self.hosts.clone(), membership })
    }

    /// The line of the invitation, once the API server listens. Empty if it never listens: the cluster ends then.
    pub(super) fn when_it_listens(&self, invitation: Invitation) -> impl Future<Output = String> + Send + use<> {
        let mut port = self.port.subscribe();
        async move {
            let port = port.wait_for(Option::is_some).await.ok().and_then(|port| *port);
            port.map_or_else(String::new, |port| invitation.at(port))
        }
    }
}

/// All data that nodes need to join, without the port of the API server.
pub(super) struct Invitation {
    hosts: Vec<IpAddr>,
    membership: Membership,
}

impl Invitation {
    /// The membership as a line, for an API server at this port.
    pub(super) fn at(self, port: u16) -> String {
        let api = self.hosts.into_iter().map(|host| SocketAddr::new(host, port)).collect();
        Membership { api, ..self.membership }.to_line()
    }
}

/// Addresses at which nodes may reach this machine.
fn hosts() -> Vec<IpAddr> {
    match network_addresses() {
        none if none.is_empty() => vec![Ipv4Addr::LOCALHOST.into()],
        addresses => addresses,
    }
}

fn certify(authority: &Authority, directory: &Directory, hosts: &[IpAddr]) -> Result<(), PkiError> {
    let names: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    let issued = authority.issue(&Caller::Api, &names, Validity::days(DAYS)?)?;
    authority.write(&directory.pki().join(directory_name(&Caller::Api)), &issued)
}

fn api_file(directory: &Directory, hosts: &[IpAddr], port_range: Option<PortRange>) -> ApiFile {
    // An IPv6 socket also accepts IPv4, unless that is disabled. An IPv4 socket is always available.
    let any = if hosts.iter().any(IpAddr::is_ipv4) { "0.0.0.0:0" } else { "[::]:0" };
    ApiFile {
        // No other user can reach its socket, or has a certificate.
        settings: ApiSettings::new(directory, any.to_owned(), 1),
        lease: LEASE,
        port_range,
    }
}

fn port_in(notice: &[u8]) -> Option<u16> {
    let text = str::from_utf8(notice).ok()?;
    let address = text.lines().find_map(|line| line.strip_prefix(LISTENS))?;
    address.parse::<SocketAddr>().ok().map(|address| address.port())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::ground::Access;

    /// A line of `lattice api`.
    #[derive(Debug, Parser)]
    struct Api {
        #[command(flatten)]
        args: lattice_api_server::args::ApiArgs,
    }

    #[test]
    fn the_port_is_found_in_what_the_api_server_says() {
        assert_eq!(port_in(b"X_LATTICE_LISTEN=0.0.0.0:4711\nREADY=1"), Some(4711));
        assert_eq!(port_in(b"READY=1\nX_LATTICE_LISTEN=[::]:4711"), Some(4711));
        for other in [&b"READY=1"[..], b"", b"\xff", b"X_LATTICE_LISTEN=", b"X_LATTICE_LISTEN=x:1"] {
            assert_eq!(port_in(other), None);
        }
    }

    /// If the server rejected the file, the only symptom would be an API server that does not start.
    #[test]
    fn the_api_server_takes_the_settings_that_are_written_for_it() {
        let directory = Directory::create(Access::Owner).unwrap();
        let hosts = hosts();
        certify(&Authority::create(&directory.pki()).unwrap(), &directory, &hosts).unwrap();
        let text = toml::to_string(&api_file(&directory, &hosts, "60000-60100".parse().ok())).unwrap();
        Directory::write_private(&directory.config(API), &text).unwrap();
        let line = ["api", "--check-config", "--config"].map(Into::into).into_iter().chain([directory.config(API)]);
        let Api { args } = Api::parse_from(line);
        let outcome = lattice_api_server::run(&args).map_err(|error| error.to_string());
        assert!(matches!(outcome, Ok(lattice_api_server::Outcome::Checked)), "{:?}", outcome.err());
        directory.remove().unwrap();
    }
}
