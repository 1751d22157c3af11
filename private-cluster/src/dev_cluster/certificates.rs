//! Certificates for the daemons of a cluster on this machine. Their authority is created for the cluster, and ends with it.

use lattice_pki::{Authority, PkiError, Validity, directory_name};
use pmi_transport::identity::Caller;

use super::plan::Plan;
use crate::ground::Directory;

/// Validity of certificates. No such cluster runs longer.
const DAYS: u32 = 365;

/// Creates the authority and the certificates of all daemons.
///
/// # Errors
/// Fails if a file cannot be written.
pub(super) fn issue(plan: &Plan, directory: &Directory) -> Result<(), PkiError> {
    let pki = directory.pki();
    let authority = Authority::create(&pki)?;
    let agents = plan.nodes.iter().map(|node| (Caller::Agent(node.name.clone()), node.agent.ip()));
    for (subject, address) in agents.chain([(Caller::Api, plan.api.ip())]) {
        let issued = authority.issue(&subject, &[address.to_string()], Validity::days(DAYS)?)?;
        authority.write(&pki.join(directory_name(&subject)), &issued)?;
    }
    Ok(())
}
