//! Names of the processes of a cluster, and a certificate authority that certifies them.
//!
//! [`Caller`] is the name; [`Authority`] issues the certificates that contain it. The server of a call checks certificates, and decides which
//! caller may make which call.
#![forbid(unsafe_code)]

mod authority;
mod caller;
mod renewal;
mod renewed;
mod revocation;

pub use self::authority::{
    Authority, CA_CERTIFICATE_FILE, CA_KEY_FILE, CERTIFICATE_FILE, CLOCK_SKEW, Issued, KEY_FILE, PkiError, Validity,
    directory_name, refuse_existing,
};
pub use self::caller::{Caller, CallerError, Role, SCHEME, is_node_name};
pub use self::renewal::CertificateRequest;
pub use self::revocation::REVOKED_FILE;
