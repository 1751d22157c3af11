//! One connection to a launch.

use lattice_session::placed::PlacedLaunch;
use pmi_transport::proto::v1 as proto;
use proto::attach_response::What as Response;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;

use super::cluster::Cluster;
use super::error::ClusterError;
use super::messages::{Answer, Role, ToLaunch};
use super::wire;

/// An open connection to a launch.
pub struct Attachment {
    cluster: Cluster,
    /// `None` after this side is closed.
    requests: Option<mpsc::UnboundedSender<proto::AttachRequest>>,
    answers: Streaming<proto::AttachResponse>,
    /// Bytes of input that may be sent before the launch grants more.
    pub window: u64,
}

impl Attachment {
    /// Attaches to a launch, and receives events after number `after`. Also returns the launch as it is placed.
    ///
    /// # Errors
    /// Fails if the launch does not exist or belongs to another user, or the API server cannot be reached.
    pub async fn open(
        cluster: &Cluster,
        launch_id: &str,
        after: u64,
        role: Role,
    ) -> Result<(Self, PlacedLaunch), ClusterError> {
        let (requests, outgoing) = mpsc::unbounded_channel();
        // This cannot fail: the receiver is in this function.
        let _ = requests.send(wire::encode_attach(launch_id, after, role));
        let mut service = cluster.launches();
        let mut answers = cluster.ask(service.attach_launch(UnboundedReceiverStream::new(outgoing))).await?;
        let first = cluster.ask(async { answers.message().await.map(tonic::Response::new) }).await?;
        let Some(Response::Spec(spec)) = first.and_then(|first| first.what) else {
            return Err(cluster.invalid_answer("the first answer to an attach is not the launch's spec"));
        };
        let window = u64::from(spec.stdin_window);
        let placed = lattice_session::wire::placed::decode(spec).map_err(|error| cluster.invalid_answer(error))?;
        Ok((Self { cluster: cluster.clone(), requests: Some(requests), answers, window }, placed))
    }

    /// Sends a message. If the other end is gone, [`Attachment::answer`] fails.
    pub fn send(&self, message: ToLaunch) {
        if let Some(requests) = &self.requests {
            let _ = requests.send(wire::encode(message));
        }
    }

    /// Waits for the next answer. Cancel-safe.
    ///
    /// # Errors
    /// Fails when either side ends the connection, and for an answer that this version cannot read.
    pub async fn answer(&mut self) -> Result<Answer, ClusterError> {
        let answer = self.answers.message().await.map_err(|status| self.cluster.refused(&status))?;
        let answer = answer.ok_or_else(|| self.cluster.broken("it ended the conversation"))?;
        wire::decode(answer).map_err(|error| self.cluster.invalid_answer(error))
    }

    /// Waits until the API server has closed its side. Discards further answers.
    pub async fn drain(&mut self) {
        while let Ok(Some(_)) = self.answers.message().await {}
    }

    /// Closes the sending side. After this, the end of this client does not end the launch.
    pub fn hang_up(&mut self) {
        self.requests = None;
    }

    /// True after [`Attachment::hang_up`].
    pub fn has_hung_up(&self) -> bool {
        self.requests.is_none()
    }
}
