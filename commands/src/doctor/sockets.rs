//! Sockets of launches on this machine: their directory, and ports of the loopback interface.

use std::net::{Ipv4Addr, TcpListener};

use super::check::{Check, Subject};

pub(super) fn checks(subject: &Subject) -> Vec<Check> {
    vec![directory(subject), loopback()]
}

/// Creates a socket as a launch does, and removes it.
fn directory(subject: &Subject) -> Check {
    const NAME: &str = "socket directory";
    match lattice_local_launches::try_directory(subject.environment()) {
        Ok(path) => Check::ok(NAME, format!("{} is writable", path.display())),
        // Without it, lattice status and lattice attach do not find launches of this machine.
        Err(error) => Check::failed(NAME, &error.to_string(), "set XDG_RUNTIME_DIR to a directory of yours"),
    }
}

/// Ranks with PMIx connect to a port of the loopback interface.
fn loopback() -> Check {
    const NAME: &str = "loopback port";
    match TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr()) {
        Ok(address) => Check::ok(NAME, format!("{} can be bound", address.ip())),
        Err(error) => Check::error(
            NAME,
            format!("no port of {} can be bound: {error}", Ipv4Addr::LOCALHOST),
            "ip link set lo up, by the administrator; ranks with PMIx need it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::check::State;
    use super::super::check::subject;
    use super::*;

    #[test]
    fn a_directory_in_which_no_socket_can_be_made_is_an_error() {
        let runtime = tempfile::tempdir().unwrap();
        let subject = |path: &std::path::Path| subject(vec![("XDG_RUNTIME_DIR".into(), path.as_os_str().to_owned())]);
        let well = directory(&subject(runtime.path()));
        let path = runtime.path().join("lattice/launches");
        assert_eq!(well, Check::ok("socket directory", format!("{} is writable", path.display())));
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "the socket is removed");
        let file = tempfile::NamedTempFile::new().unwrap();
        let check = directory(&subject(file.path()));
        assert_eq!(check.state, State::Error, "{check:?}");
    }

    #[test]
    fn a_port_of_this_machine_can_be_bound() {
        assert_eq!(loopback().state, State::Ok);
    }
}
