//! The build of this program.

use lattice_daemon::build::Build;

/// Facts that `--version -v` prints.
pub(crate) const BUILD: Build =
    Build { program: "lattice", version: env!("CARGO_PKG_VERSION"), pmi: lattice_session::PMI_VERSIONS };
