//! Renewal of this node's certificate. On the strength of the present one, the API server issues a new certificate for a key that is made here.
//! The running agent switches to both.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pmi_transport::connect::{self, ConnectError};
use pmi_transport::error_chain::chain;
use pmi_transport::identity::{Caller, IdentityError};
use pmi_transport::proto::v1 as proto;
use proto::node_service_client::NodeServiceClient;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::Status;

use super::Node;

/// Interval between checks of the certificate's validity, and between attempts. A clock may be set, so it is much shorter than an hour.
const LOOK: Duration = Duration::from_secs(60);
/// Time limit for the API server's answer.
const ANSWER: Duration = Duration::from_secs(30);

/// Validity of the certificates that the API server issues; `None` while it renews none.
pub(super) type Granted = Option<Duration>;

/// Reason why a certificate is not renewed now.
#[derive(Debug, thiserror::Error)]
enum RenewalError {
    #[error("the API server: {}", connect::reason(.0))]
    Refused(Status),
    #[error("the API server has not answered within {ANSWER:?}")]
    Late,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Renews the certificate whenever it is due. Ends when no validity can be granted any more.
pub(super) async fn keep_valid(node: Arc<Node>, mut granted: watch::Receiver<Granted>) {
    loop {
        let length = *granted.borrow_and_update();
        let due = length.map_or(Ok(None), |length| until_renewal(&node, length));
        let wait = match due {
            Ok(Some(Duration::ZERO)) => {
                if let Err(error) = renew(&node).await {
                    let error = chain(&error as &dyn Error);
                    tracing::warn!(error, "the certificate is not renewed; it is tried again");
                }
                LOOK
            }
            Ok(wait) => wait.unwrap_or(LOOK).min(LOOK),
            Err(error) => {
                tracing::warn!(error = chain(&error), "when the certificate ends is not known");
                LOOK
            }
        };
        tokio::select! {
            () = sleep(wait) => {}
            changed = granted.changed() => if changed.is_err() { return },
        }
    }
}

/// Time until a certificate that is valid for `length` should replace the present one; `None` for an agent without one.
fn until_renewal(node: &Node, length: Duration) -> Result<Option<Duration>, IdentityError> {
    let validity = node.security.validity()?;
    Ok(validity.map(|validity| validity.until_renewal(length, SystemTime::now())))
}

async fn renew(node: &Node) -> Result<(), RenewalError> {
    let Some(renewal) = node.security.begin_renewal()? else { return Ok(()) };
    let request = proto::RenewCertificateRequest {
        node_id: node.config.node_id.clone(),
        request: renewal.request().to_vec().into(),
    };
    // A new connection uses the present certificate; an open connection may use an earlier one.
    let channel = connect::channel(&node.config.api, &Caller::Api, &node.security)?;
    let mut client = NodeServiceClient::new(channel);
    let answer = timeout(ANSWER, client.renew_certificate(request)).await.map_err(|_| RenewalError::Late)?;
    let certificate = answer.map_err(RenewalError::Refused)?.into_inner().certificate;
    renewal.take_up(&certificate)?;
    tracing::info!("the certificate was renewed");
    Ok(())
}
