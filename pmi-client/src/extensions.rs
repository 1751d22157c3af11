//! Requests that only Lattice's servers serve. They list them under a key. Other servers end the job when they
//! receive an unknown request.

use crate::error::ClientError;

/// Key of the list.
pub(crate) const EXTENSIONS_KEY: &str = "lattice.ext";

/// Returns an error for a request that the server does not list.
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
