//! Entry points of the fuzz targets in `fuzz/`, as plain functions: they take any bytes, and panic when a promise is broken.
//!
//! [`link_frame`] decodes what another agent sends, [`link_stream`] what another session sends, [`link_opening`] what anybody can send
//! before a link is one, [`fence_node`] plays a list of [`Operation`]s against the fences of a node,
//! [`pieces`] cuts and joins segments, [`certificate`] looks for the caller that a certificate names.

use lattice_pki::{Caller, is_node_name};
use rustls::pki_types::CertificateDer;

pub use crate::fence::fuzzing::{Operation, encode, fence_node, link_frame, pieces};
pub use crate::session_link::fuzzing::{link_opening, link_opening_of_a_stranger, link_stream, link_stream_of};
use crate::tls::caller_in;

/// A certificate names one caller, whose written form is its own, or is refused.
pub fn certificate(data: &[u8]) {
    let Ok(caller) = caller_in(&CertificateDer::from(data)) else { return };
    assert_eq!(caller.uri().parse(), Ok(caller.clone()), "{caller}");
    if let Caller::Agent(node) = &caller {
        assert!(is_node_name(node), "{node:?}");
    }
}
