//! Fabric credentials that travel as they were signed.

use bytes::Bytes;
use pmi_transport::proto::v1 as proto;

use super::{WireError, fabric};
use crate::fabric::Claims;

/// Fabric credentials of a launch as they came, with the API server's signature.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedCredentials {
    pub(super) message: proto::CxiCredentials,
    pub(super) signature: Bytes,
}

impl SignedCredentials {
    /// Credentials as they came in a request.
    pub fn new(message: proto::CxiCredentials, signature: Bytes) -> Self {
        Self { message, signature }
    }

    /// The signature.
    pub fn signature(&self) -> &[u8] {
        &self.signature
    }

    /// Text that is signed, for a launch of this id.
    pub fn signed_text(&self, launch_id: &str) -> cxi_fabric::Secret {
        fabric::signed_text(launch_id, &self.message)
    }

    /// What they say.
    ///
    /// # Errors
    /// Those of [`fabric::decode`].
    pub fn claims(&self) -> Result<Claims, WireError> {
        fabric::decode(&self.message)
    }
}
