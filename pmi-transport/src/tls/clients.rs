//! Clients that a listener serves. All other clients are refused during the handshake, before they can send a request.

use std::sync::Arc;

use lattice_pki::{Caller, Role};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::caller_in;

/// Clients that a listener serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Clients {
    /// All clients with a certificate of the CA.
    #[default]
    All,
    /// The API server, agents and administrators, but no users.
    Daemons,
}

/// Verifier of client certificates that accepts only daemons and administrators.
#[derive(Debug)]
pub(super) struct DaemonsOnly {
    /// Verifier for all other checks.
    pub(super) certificates: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for DaemonsOnly {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.certificates.verify_client_cert(end_entity, intermediates, now)?;
        match caller_in(end_entity).as_ref().map(Caller::role) {
            Ok(Role::Api | Role::Agent | Role::Admin) => Ok(verified),
            // The peer receives the alert `access_denied`.
            Ok(Role::User) | Err(_) => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn offer_client_auth(&self) -> bool {
        self.certificates.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.certificates.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.certificates.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.certificates.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.certificates.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.certificates.supported_verify_schemes()
    }
}
