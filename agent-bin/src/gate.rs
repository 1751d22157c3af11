//! The gate of an agent's fork server: what starts sessions, and as whom.
//!
//! ```text
//! API server ──signed launch──> daemon ──StartOrder──> gate: signature, node, user, number ──> session process
//!            ──signed number──>        ──SignedSerial─>      which numbers are new
//! ```
//! Where the daemon has given up root, the gate believes the API server alone, by the certificate of the CA, which it has read before; what
//! the daemon says, somebody may say who has taken it over. Elsewhere the daemon could do all by itself what it asks for, and its word is
//! enough.

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

/// The gate that the settings in `file` ask for. To be made while this process is root, and before it has a key: the fork server has all
/// that it has.
///
/// # Errors
/// Fails where the daemon gives up root and the CA's certificate cannot be read, or others could change that or the settings.
pub(crate) fn of(config: &Config, file: Option<&Path>) -> Result<Box<dyn Gate>, GateError> {
    if config.user.is_none() {
        return Ok(Box::new(Open));
    }
    file.map_or(Ok(()), root_path::check)?;
    Ok(Box::new(Signed::new(config)?))
}

/// Gate of a daemon that is the fork server's user.
pub(crate) struct Open;

impl Gate for Open {
    fn admit(&mut self, order: Vec<u8>) -> Result<Vec<u8>, String> {
        let read = StartOrder::decode(order).and_then(|order| Ok((order.head()?, order.node)));
        let (head, node) = read.map_err(|error| error.to_string())?;
        let host = head.nodes.get(node.index()).cloned();
        let host = host.ok_or_else(|| "the order for a session names none of its nodes".to_owned())?;
        Ok(Admitted { uid: head.uid, host }.encode())
    }

    /// There is nothing to be proven.
    fn hear(&mut self, _: Vec<u8>) -> Vec<u8> {
        Vec::new()
    }
}
