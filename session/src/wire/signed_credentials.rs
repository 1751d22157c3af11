//! Fabric credentials in their signed encoding.

use bytes::Bytes;
use pmi_transport::proto::v1 as proto;

use super::{WireError, fabric};
use crate::fabric::Claims;

/// Fabric credentials of a launch in their received encoding, with the API server's signature.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedCredentials {
    pub(super) message: proto::CxiCredentials,
    pub(super) signature: Bytes,
}

impl SignedCredentials {
    /// Credentials from a request.
    pub fn new(message: proto::CxiCredentials, signature: Bytes) -> Self {
        Self { message, signature }
    }

    /// The signature.
    pub fn signature(&self) -> &[u8] {
        &self.signature
    }

    /// Signed text for a launch with this id.
    pub fn signed_text(&self, launch_id: &str) -> cxi_fabric::Secret {
        fabric::signed_text(launch_id, &self.message)
    }

    /// Decodes the credentials.
    ///
    /// # Errors
    /// Fails like [`fabric::decode`].
    pub fn claims(&self) -> Result<Claims, WireError> {
        fabric::decode(&self.message)
    }
}
