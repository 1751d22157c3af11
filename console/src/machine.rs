//! This machine, for checks of a launch request.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, IsTerminal};
use std::net::{IpAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use crate::environment;
use crate::terminal;
use lattice_session::settings::TerminalSize;
use lattice_session::shell_limits::SoftLimit;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::unistd::gethostname;
use rank_spawner::{LimitedResource, Priority};

use crate::limits::Limits;

/// Facts about this machine and this process.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Name of this node.
    pub host: String,
    /// Working directory; absolute.
    pub directory: PathBuf,
    /// Environment of this process.
    pub environment: Vec<(OsString, OsString)>,
    /// Limits on the number of ranks.
    pub limits: Limits,
    /// Soft limits of this process, which are the limits of the user's shell.
    pub soft_limits: Vec<SoftLimit>,
    /// File mode creation mask of this process; `None` if the kernel does not report it.
    pub umask: Option<u32>,
    /// Priority of this process, which is the priority of the user's shell.
    pub priority: Priority,
    /// True if standard output is a terminal.
    pub watched: bool,
    /// Size of the terminal of this process, if it has one.
    pub terminal: Option<TerminalSize>,
}

/// Failure to read the facts about this machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The name of this node cannot be read.
    #[error("cannot find the name of this node: {0}")]
    HostName(#[source] nix::Error),
    /// The working directory is removed or not accessible.
    #[error("cannot find the working directory: {0}\ntry: cd to a directory that exists")]
    WorkingDirectory(#[source] io::Error),
}

/// The working directory. If it was removed, its former path from the shell's `PWD`, so that only operations that need the directory fail.
fn directory(current: io::Result<PathBuf>, told: Option<OsString>) -> Result<PathBuf, MachineError> {
    current.or_else(|error| match told.map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(path) => Ok(path),
        None => Err(MachineError::WorkingDirectory(error)),
    })
}

/// Address of an interface.
fn address(interface: &InterfaceAddress) -> Option<IpAddr> {
    let address = interface.address.as_ref()?;
    let of_four = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
    of_four.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
}

/// Soft limits of this process, except for resources that the system does not have.
fn soft_limits() -> Vec<SoftLimit> {
    let limits = LimitedResource::ALL.iter().filter_map(|resource| resource.limit().ok());
    limits.map(|limit| SoftLimit { resource: limit.resource, value: limit.soft }).collect()
}

/// File mode creation mask of this process. The system call would have to change it, so the mask is read from `/proc`.
fn umask() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(mask.trim(), 8).ok()
}

impl Machine {
    /// Reads the facts about this machine.
    ///
    /// # Errors
    /// Fails if the host name or the working directory cannot be read.
    pub fn this() -> Result<Self, MachineError> {
        let host = gethostname().map_err(MachineError::HostName)?;
        Ok(Self {
            host: host.to_string_lossy().into_owned(),
            directory: directory(std::env::current_dir(), std::env::var_os("PWD"))?,
            environment: std::env::vars_os().collect(),
            limits: Limits::of_this_process(),
            soft_limits: soft_limits(),
            umask: umask(),
            priority: Priority::own(),
            watched: io::stdout().is_terminal(),
            terminal: terminal::size(),
        })
    }

    /// True if `name` is a name of this machine: its host name with or without domain, a local host name, one of its addresses, or a name that
    /// resolves to one.
    pub fn is_called(&self, name: &str) -> bool {
        let own: Vec<IpAddr> = getifaddrs().into_iter().flatten().filter_map(|own| address(&own)).collect();
        let is_of_here = |address: IpAddr| {
            let address = address.to_canonical();
            address.is_loopback() || own.contains(&address)
        };
        let resolved = || (name, 0).to_socket_addrs().into_iter().flatten();
        name == "localhost"
            || hostlist::is_same_host(name, &self.host)
            || name.parse().map_or_else(|_| resolved().any(|found| is_of_here(found.ip())), is_of_here)
    }

    /// Value of a variable of the environment.
    pub fn variable(&self, name: &OsStr) -> Option<&OsStr> {
        environment::value(&self.environment, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_called_by_its_names_and_addresses() {
        let mut machine = Machine::this().unwrap();
        machine.host = "node3.site".to_owned();
        for name in ["node3", "node3.site", "localhost", "127.0.0.1", "::ffff:127.0.0.1"] {
            assert!(machine.is_called(name), "{name}");
        }
        // Addresses for documentation (RFC 5737), and a name that does not resolve (RFC 6761).
        for name in ["192.0.2.1", "node4", "nowhere.invalid", ""] {
            assert!(!machine.is_called(name), "{name}");
        }
    }

    #[test]
    fn a_working_directory_that_was_removed_has_the_path_that_it_had() {
        let gone = || Err(io::ErrorKind::NotFound.into());
        assert_eq!(directory(gone(), Some("/tmp/gone".into())).unwrap(), PathBuf::from("/tmp/gone"));
        assert_eq!(directory(Ok("/here".into()), Some("/told".into())).unwrap(), PathBuf::from("/here"));
        let refused = directory(gone(), Some("relative".into())).unwrap_err().to_string();
        assert!(refused.ends_with("\ntry: cd to a directory that exists"), "{refused}");
    }
}
