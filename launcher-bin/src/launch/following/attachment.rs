//! One connection to a launch.

use pmi_transport::proto::v1 as proto;
use proto::attach_request::What as Wish;
use proto::attach_response::What as Told;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Response, Streaming};

use crate::cluster::{Cluster, ClusterError};

/// Why somebody follows a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::launch) enum Role {
    /// It is theirs: its output waits for them, and it ends when they end it, and when they vanish.
    Owner,
    /// They look on; it goes on as if they did not.
    Viewer,
}

/// An open connection to a launch.
pub(in crate::launch) struct Attachment {
    questions: Option<mpsc::UnboundedSender<proto::AttachRequest>>,
    pub(super) answers: Streaming<proto::AttachResponse>,
    /// How much input may be sent before more is granted.
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
        let (questions, outgoing) = mpsc::unbounded_channel();
        let attach = proto::AttachTo { launch_id: launch_id.to_owned(), after, tied: role == Role::Owner };
        // The other end is in this function.
        let _ = questions.send(question(Wish::Attach(attach)));
        let mut service = cluster.launches();
        let mut answers = cluster.ask(service.attach_launch(UnboundedReceiverStream::new(outgoing))).await?;
        let first = cluster.ask(async { answers.message().await.map(Response::new) }).await?;
        match first.and_then(|first| first.what) {
            Some(Told::Spec(spec)) => {
                let window = u64::from(spec.stdin_window);
                Ok((Self { questions: Some(questions), answers, window }, spec))
            }
            _ => Err(cluster.nonsense("the first answer to an attach is not the launch's spec")),
        }
    }

    /// Says something; who does not listen any more is noticed by his answers.
    pub(super) fn send(&self, wish: Wish) {
        if let Some(questions) = &self.questions {
            let _ = questions.send(question(wish));
        }
    }

    /// Nothing more will be said: the launch does not end because of us any more.
    pub(super) fn hang_up(&mut self) {
        self.questions = None;
    }

    /// Whether nothing more can be said.
    pub(super) fn has_hung_up(&self) -> bool {
        self.questions.is_none()
    }
}

fn question(wish: Wish) -> proto::AttachRequest {
    proto::AttachRequest { what: Some(wish) }
}
