//! Requests that Lattice's servers alone serve, and name: others end the job for a request that they do not know.

use crate::error::ClientError;

/// Key under which a server names them.
pub(crate) const EXTENSIONS_KEY: &str = "lattice.ext";

/// Refuses a call that the server does not name.
pub(crate) fn need(served: Option<&[u8]>, extension: &str, call: &'static str) -> Result<(), ClientError> {
    match is_named(served, extension) {
        true => Ok(()),
        false => Err(ClientError::Unsupported { call, place: "under this launcher" }),
    }
}

/// Returns true if the server is Lattice's, and has this extension.
pub(crate) fn is_named(served: Option<&[u8]>, extension: &str) -> bool {
    served.unwrap_or_default().split(|&byte| byte == b',').any(|served| served == extension.as_bytes())
}
