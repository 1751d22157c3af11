//! Fabric credentials in messages to the nodes of a launch.

use cxi_fabric::Credentials;
use cxi_fabric::node::TrafficClasses;
use lattice_session::wire::fabric;
use pmi_transport::identity::Security;
use pmi_transport::signature::{self, Serial, SignError};

use crate::launch::fan_out::SignedCredentials;

/// Credentials for one launch, with the API server's signature.
///
/// # Errors
/// Fails if they cannot be signed.
pub(crate) fn sign(
    credentials: &Credentials,
    classes: TrafficClasses,
    launch_id: &str,
    serial: Serial,
    security: &Security,
) -> Result<SignedCredentials, SignError> {
    let credentials = fabric::encode(credentials, classes);
    let text = fabric::signed_text(launch_id, &credentials);
    let signed = signature::sign(security, serial, text.expose())?;
    Ok(SignedCredentials { credentials, signature: signed.signature })
}
