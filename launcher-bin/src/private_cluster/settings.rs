//! The part of the API server's configuration that all private clusters have: places of its files, and who may use it.

use std::path::PathBuf;

use pmi_transport::identity::{Caller, TlsFiles};
use serde::Serialize;

use super::Directory;

/// Settings for `lattice api --config`, as its file has them.
#[derive(Debug, Serialize)]
pub(crate) struct ApiSettings {
    listen: [String; 1],
    socket: PathBuf,
    state: PathBuf,
    min_uid: u32,
    tls: TlsFiles,
}

impl ApiSettings {
    /// Those of a server with its files in `directory`, which users from `min_uid` on may use.
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
