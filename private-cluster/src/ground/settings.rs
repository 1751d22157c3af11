//! API server settings that all private clusters share: locations of its files, and permitted users.

use std::path::PathBuf;

use pmi_transport::identity::{Caller, TlsFiles};
use serde::Serialize;

use super::Directory;

/// Settings for `lattice api --config`, in the form of its file.
#[derive(Debug, Serialize)]
pub(crate) struct ApiSettings {
    listen: [String; 1],
    socket: PathBuf,
    state: PathBuf,
    min_uid: u32,
    tls: TlsFiles,
}

impl ApiSettings {
    /// Settings of a server with its files in `directory`. Users with ids from `min_uid` on may use it.
    pub(crate) fn new(directory: &Directory, listen: String, min_uid: u32) -> Self {
        Self {
            listen: [listen],
            socket: directory.api_socket(),
            state: directory.api_state(),
            min_uid,
            tls: directory.certificates(&Caller::Api),
        }
    }
}
