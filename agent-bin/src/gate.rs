//! The gate of an agent's fork server: decides which sessions start, and as which users.
//!
//! ```text
//! API server ──signed launch──> daemon ──StartOrder──> gate: signature, node, user, number ──> session process
//!            ──signed number──>        ──SignedSerial─>      which numbers are new
//! ```
//! If the daemon has given up root, the gate trusts only the API server, by the certificate of the CA, which it has read before. An attacker
//! that has taken the daemon over could send any order. Otherwise the daemon could do itself all that it orders, and the gate trusts its orders.

mod numbers;
mod root_path;
mod signed;

use std::path::Path;

use lattice_session::session_process::Admitted;
use lattice_session::wire::order::StartOrder;
use rank_spawner::Gate;

pub(crate) use self::signed::GateError;
use self::signed::Signed;
use crate::daemon::Config;

/// The gate for the settings in `file`. Must be created while this process is root, and before it has a key: the fork server inherits all of its
/// state.
///
/// # Errors
/// Fails if the daemon gives up root and the CA's certificate cannot be read, or another user could change the certificate or the settings.
pub(crate) fn of(config: &Config, file: Option<&Path>) -> Result<Box<dyn Gate>, GateError> {
    if config.user.is_none() {
        return Ok(Box::new(Open));
    }
    file.map_or(Ok(()), root_path::check)?;
    Ok(Box::new(Signed::new(config)?))
}

/// Gate of a daemon that runs as the fork server's user.
pub(crate) struct Open;

impl Gate for Open {
    fn admit(&mut self, order: Vec<u8>) -> Result<Vec<u8>, String> {
        let read = StartOrder::decode(order).and_then(|order| Ok((order.head()?, order.node)));
        let (head, node) = read.map_err(|error| error.to_string())?;
        let host = head.nodes.get(node.index()).cloned();
        let host = host.ok_or_else(|| "the order for a session names none of its nodes".to_owned())?;
        Ok(Admitted { uid: head.uid, host }.encode())
    }

    /// Always empty: there is nothing to prove.
    fn hear(&mut self, _: Vec<u8>) -> Vec<u8> {
        Vec::new()
    }
}
