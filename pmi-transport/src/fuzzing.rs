//! Entry points of the fuzz targets in `fuzz/`, as plain functions: they take arbitrary bytes, and panic if an invariant is broken.
//!
//! [`link_frame`] decodes the input from another agent. [`link_stream`] decodes the input from another session. [`link_opening`]
//! decodes the input from an unauthenticated connection. [`fence_node`] applies a list of [`Operation`]s to the fences of a node.
//! [`pieces`] cuts and joins segments. [`certificate`] reads the caller that a certificate names.

use lattice_pki::{Caller, is_node_name};
use rustls::pki_types::CertificateDer;

pub use crate::fence::fuzzing::{Operation, encode, fence_node, link_frame, pieces};
pub use crate::session_link::fuzzing::{link_opening, link_opening_of_a_stranger, link_stream, link_stream_of};
use crate::tls::caller_in;

/// Checks that a certificate is refused, or names one caller with a URI that parses back to the same caller.
pub fn certificate(data: &[u8]) {
    let Ok(caller) = caller_in(&CertificateDer::from(data)) else { return };
    assert_eq!(caller.uri().parse(), Ok(caller.clone()), "{caller}");
    if let Caller::Agent(node) = &caller {
        assert!(is_node_name(node), "{node:?}");
    }
}
