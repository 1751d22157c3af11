//! One connection to a launch.

use pmi_transport::proto::v1 as proto;
use proto::attach_request::What as ToLaunch;
use proto::attach_response::What as FromLaunch;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Response, Streaming};

use crate::cluster::{Cluster, ClusterError};

/// Relation of a client to a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::launch) enum Role {
    /// The launch is the client's: its output waits for the client, and it ends when the client ends it, or vanishes.
    Owner,
    /// The client looks on; the launch goes on as if it did not.
    Viewer,
}

/// An open connection to a launch.
pub(in crate::launch) struct Attachment {
    requests: Option<mpsc::UnboundedSender<proto::AttachRequest>>,
    pub(super) answers: Streaming<proto::AttachResponse>,
    /// Bytes of input that may be sent before more is granted.
    pub(super) window: u64,
}

impl Attachment {
    /// Attaches to a launch, from the event behind `after` on; returns its spec, too.
    ///
    /// # Errors
    /// Fails if there is no such launch, it is not ours, or the API server cannot be reached.
    pub(in crate::launch) async fn open(
        cluster: &Cluster,
        launch_id: &str,
        after: u64,
        role: Role,
    ) -> Result<(Self, proto::LaunchSpec), ClusterError> {
        let (requests, outgoing) = mpsc::unbounded_channel();
        let attach = proto::AttachTo { launch_id: launch_id.to_owned(), after, tied: role == Role::Owner };
        // The other end is in this function.
        let _ = requests.send(request(ToLaunch::Attach(attach)));
        let mut service = cluster.launches();
        let mut answers = cluster.ask(service.attach_launch(UnboundedReceiverStream::new(outgoing))).await?;
        let first = cluster.ask(async { answers.message().await.map(Response::new) }).await?;
        match first.and_then(|first| first.what) {
            Some(FromLaunch::Spec(spec)) => {
                let window = u64::from(spec.stdin_window);
                Ok((Self { requests: Some(requests), answers, window }, spec))
            }
            _ => Err(cluster.nonsense("the first answer to an attach is not the launch's spec")),
        }
    }

    /// Sends a message; that the other end is gone is seen by its answers.
    pub(super) fn send(&self, message: ToLaunch) {
        if let Some(requests) = &self.requests {
            let _ = requests.send(request(message));
        }
    }

    /// Closes the sending side: the launch does not end because of this client any more.
    pub(super) fn hang_up(&mut self) {
        self.requests = None;
    }

    /// True after [`Attachment::hang_up`].
    pub(super) fn has_hung_up(&self) -> bool {
        self.requests.is_none()
    }
}

fn request(message: ToLaunch) -> proto::AttachRequest {
    proto::AttachRequest { what: Some(message) }
}
