//! Fabric section of an agent's configuration: the way in which its services are made.
//!
//! ```toml
//! [fabric]
//! backend = "libcxi"      # or "cxi_service"; "paper" for clusters on one machine; "none" (default)
//! path = "libcxi.so.1"    # the library, the program, or the directory of paper NICs
//! provider = "cxi"        # value of FI_PROVIDER, unless the user sets it; or "verbs"
//! ```

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use thiserror::Error;

use super::{CxiBackend, CxiServiceCommand, LibCxi, LoadError, PaperNics, Sysfs};
use crate::environment::Provider;

/// HPE's program that makes services.
const PROGRAM: &str = "cxi_service";

/// Fabric section of an agent's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeFabricConfig {
    /// Back end that makes services.
    pub backend: NodeBackend,
    /// Path of the library, the program, or the directory; `paper` needs one.
    pub path: Option<PathBuf>,
    /// Provider for libfabric.
    pub provider: Provider,
}

/// Back end that makes services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeBackend {
    /// No services: ranks get VNI and key only.
    #[default]
    None,
    /// HPE's library.
    Libcxi,
    /// HPE's program.
    CxiService,
    /// Directory with paper NICs.
    Paper,
}

impl NodeBackend {
    /// True if making services needs CAP_SYS_ADMIN.
    pub fn is_privileged(self) -> bool {
        matches!(self, Self::Libcxi | Self::CxiService)
    }

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Libcxi => "libcxi",
            Self::CxiService => "cxi_service",
            Self::Paper => "paper",
        }
    }
}

/// Error of a back end that is not usable on this node.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodeConfigError {
    /// The library is not usable.
    #[error("fabric: {0}")]
    Load(#[from] LoadError),
    /// The program does not exist.
    #[error("fabric: there is no program {}; install HPE's cxi_service, or set `path` to where it is", program.display())]
    NoProgram {
        /// The program.
        program: PathBuf,
    },
    /// The setting `path` is missing.
    #[error("fabric: back end \"paper\" needs `path`, the directory of the NICs")]
    NoDirectory,
}

impl NodeFabricConfig {
    /// The back end; `None` if no services are made.
    ///
    /// # Errors
    /// Fails if a library cannot be loaded, a program does not exist, or the directory is not set.
    pub fn backend(&self) -> Result<Option<Arc<dyn CxiBackend>>, NodeConfigError> {
        let named = |default: &str| self.path.clone().unwrap_or_else(|| default.into());
        Ok(match self.backend {
            NodeBackend::None => None,
            NodeBackend::Libcxi => Some(Arc::new(LibCxi::load(named(LibCxi::LIBRARY), Sysfs::default())?)),
            NodeBackend::CxiService => {
                Some(Arc::new(CxiServiceCommand::new(program(named(PROGRAM))?, Sysfs::default())))
            }
            NodeBackend::Paper => {
                Some(Arc::new(PaperNics::new(self.path.clone().ok_or(NodeConfigError::NoDirectory)?)))
            }
        })
    }
}

/// The program at this path, or with this name in `PATH`.
fn program(program: PathBuf) -> Result<PathBuf, NodeConfigError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = match program.components().count() {
        1 => std::env::split_paths(&path).collect(),
        // The path is complete already.
        _ => vec![PathBuf::new()],
    };
    let found = places.iter().map(|place| place.join(&program)).find(|candidate| candidate.is_file());
    found.ok_or(NodeConfigError::NoProgram { program })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_operator_gets_wrong_is_told() {
        let config = |text: &str| toml::from_str::<NodeFabricConfig>(text);
        assert!(config("").expect("a default").backend().expect("none").is_none());
        assert!(config("backend = 'cxi_service'\npath = '/proc/self/exe'").expect("a program").backend().is_ok());
        assert!(config("backend = 'cxi_service'\npath = 'sh'").expect("a program").backend().is_ok());
        for (text, expected) in [
            ("backend = 'paper'", "needs `path`"),
            (
                "backend = 'cxi_service'\npath = '/nonexistent/cxi_service'",
                "there is no program /nonexistent/cxi_service",
            ),
            ("backend = 'libcxi'\npath = '/nonexistent.so'", "cannot use /nonexistent.so"),
        ] {
            let error = config(text).expect("readable").backend().map(|_| ()).expect_err("a refusal").to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(config("backend = 'ethernet'").is_err() && config("paths = '/'").is_err());
    }
}
