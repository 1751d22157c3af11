//! A launch and its client: events go to it as fast as it takes them, acknowledgements, input and signals come back. A client
//! may vanish and another may come; what was not acknowledged is told again.

use std::time::Duration;

use pmi_transport::proto::v1::{
    AttachResponse, LaunchSpec, StartProgress, attach_request, attach_response, node_command,
};
use tokio::sync::mpsc::error::SendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::Status;

use super::journal::Journal;
use super::task::{Launch, Phase};

/// How long a launch that is tied to its client does without one: before the first, and when one has vanished.
const FIRST_CLIENT: Duration = Duration::from_secs(30);
const NEXT_CLIENT: Duration = Duration::from_secs(5);
/// How often the client hears how far the start is.
const START_NEWS: Duration = Duration::from_millis(100);
/// The highest signal number.
const SIGNAL_MAX: i32 = 64;

/// Where a client's messages go.
pub(crate) type ClientSender = mpsc::Sender<Result<AttachResponse, Status>>;

/// The client that follows a launch.
#[derive(Debug)]
pub(super) struct Client {
    number: u64,
    sender: ClientSender,
    /// The last event that was sent to it.
    cursor: u64,
    said_goodbye: bool,
    tied: bool,
    /// What is of this connection only, and goes ahead of events.
    spec: Option<LaunchSpec>,
    input_credit: u64,
    starting: Option<StartProgress>,
    dropped: u64,
}

/// Who should follow the launch, and whether somebody does.
#[derive(Debug)]
pub(super) struct Audience {
    detached: bool,
    /// The launch ends when nobody follows it.
    tied: bool,
    alone_since: Option<Instant>,
    clients: u64,
    /// Ranks have started since the client was told last.
    pub start_has_news: bool,
    told_start: Instant,
}

impl Audience {
    pub(super) fn new(detached: bool, now: Instant) -> Self {
        let tied = !detached;
        Self { detached, tied, alone_since: Some(now), clients: 0, start_has_news: false, told_start: now }
    }
}

impl Client {
    /// Resolves when there is something to send to the client, and it has room for it.
    pub(super) async fn room(
        client: Option<&Self>,
        journal: &Journal,
    ) -> Result<mpsc::OwnedPermit<Result<AttachResponse, Status>>, SendError<()>> {
        match client {
            Some(client) if client.has_news(journal) => client.sender.clone().reserve_owned().await,
            _ => std::future::pending().await,
        }
    }

    /// Resolves when the client does not listen any more.
    pub(super) async fn gone(client: Option<&Self>) {
        match client {
            Some(client) => client.sender.closed().await,
            None => std::future::pending().await,
        }
    }

    fn has_news(&self, journal: &Journal) -> bool {
        let aside = self.spec.is_some() || self.input_credit > 0 || self.starting.is_some() || self.dropped > 0;
        aside || journal.after(self.cursor).is_some()
    }

    /// The next message, taken as sent.
    fn next(&mut self, journal: &Journal) -> Option<AttachResponse> {
        let aside = |what| Some(AttachResponse { sequence: 0, node: 0, what: Some(what) });
        if let Some(spec) = self.spec.take() {
            return aside(attach_response::What::Spec(spec));
        }
        if self.dropped > 0 {
            return aside(attach_response::What::DroppedOutput(std::mem::take(&mut self.dropped)));
        }
        if self.input_credit > 0 {
            return aside(attach_response::What::StdinCredit(std::mem::take(&mut self.input_credit)));
        }
        if let Some(starting) = self.starting.take() {
            return aside(attach_response::What::Starting(starting));
        }
        let event = journal.after(self.cursor)?;
        self.cursor = event.sequence;
        Some(event.clone())
    }

    /// The client may send so much more input.
    pub(super) fn grant_input(&mut self, bytes: u64) {
        self.input_credit += bytes;
    }

    /// Ends the client's stream with a status, if there is room for that.
    fn dismiss(self, status: Status) {
        // A client that does not listen is not told.
        let _ = self.sender.try_send(Err(status));
    }
}

impl Launch {
    pub(super) fn on_attach(&mut self, after: u64, tied: bool, sender: ClientSender, reply: oneshot::Sender<u64>) {
        if let Some(before) = self.client.take() {
            before.dismiss(Status::aborted("another client follows the launch now"));
        }
        self.audience.clients += 1;
        let number = self.audience.clients;
        if reply.send(number).is_err() {
            return self.on_client_left(tied);
        }
        let after = after.min(self.journal.latest());
        let mut grants = self.journal.follow(true);
        grants.extend(self.journal.acknowledge(after));
        self.grant(grants);
        self.input.attach();
        self.client = Some(Client {
            number,
            sender,
            cursor: after,
            said_goodbye: false,
            tied,
            spec: Some(super::over::told_to_users(&self.spec)),
            input_credit: 0,
            starting: None,
            dropped: self.journal.take_dropped(),
        });
        self.audience.alone_since = None;
        self.audience.start_has_news = true;
    }

    /// Sends the client what there is now, if it has room now.
    pub(super) fn tell_client(&mut self) {
        if let Some(client) = &self.client
            && let Ok(permit) = client.sender.clone().try_reserve_owned()
        {
            self.on_room(Ok(permit));
        }
    }

    /// Sends the client what there is, as far as it has room.
    pub(super) fn on_room(&mut self, permit: Result<mpsc::OwnedPermit<Result<AttachResponse, Status>>, SendError<()>>) {
        let (Some(client), Ok(mut permit)) = (&mut self.client, permit) else { return };
        while let Some(message) = client.next(&self.journal) {
            permit = match permit.send(Ok(message)).try_reserve_owned() {
                Ok(permit) => permit,
                Err(_) => return,
            };
        }
    }

    pub(super) fn on_said(&mut self, number: u64, what: attach_request::What) {
        use attach_request::What;
        let Some(client) = self.client.as_ref().filter(|client| client.number == number) else { return };
        match what {
            What::Acknowledge(sequence) => {
                // It cannot have dealt with what it was not sent.
                let grants = self.journal.acknowledge(sequence.min(client.cursor));
                self.grant(grants);
            }
            What::Stdin(piece) => match self.input.push(piece) {
                Ok(flow) => self.pass_on(flow),
                Err(error) => self.dismiss(Status::resource_exhausted(error.to_string())),
            },
            What::StdinEnd(_) => {
                let flow = self.input.end();
                self.pass_on(flow);
            }
            What::Signal(signal) | What::End(signal) | What::Kill(signal) if !(1..=SIGNAL_MAX).contains(&signal) => {
                self.dismiss(Status::invalid_argument(format!("{signal} is no signal; there are 1 to {SIGNAL_MAX}")));
            }
            What::Signal(signal) => self.tell_all(&node_command::What::Signal(signal)),
            What::End(signal) => self.end_by(signal, "the client asks for it"),
            What::Kill(signal) => {
                self.interrupted(signal);
                self.tell_all(&node_command::What::Kill(signal));
            }
            What::Attach(_) => self.dismiss(Status::invalid_argument("the stream follows a launch already")),
        }
    }

    fn dismiss(&mut self, status: Status) {
        if let Some(client) = self.client.take() {
            tracing::info!(reason = status.message(), "the client is dismissed");
            let tied = client.tied;
            client.dismiss(status);
            self.on_client_left(tied);
        }
    }

    pub(super) fn on_goodbye(&mut self, number: u64) {
        if let Some(client) = self.client.as_mut().filter(|client| client.number == number) {
            client.said_goodbye = true;
        }
    }

    pub(super) fn on_client_gone(&mut self) {
        if let Some(client) = self.client.take() {
            self.on_client_left(client.tied && !client.said_goodbye);
        }
    }

    fn on_client_left(&mut self, tied: bool) {
        self.audience.tied = tied;
        self.audience.alone_since = Some(Instant::now());
        if self.audience.detached {
            self.go_on_alone();
        }
    }

    /// Output waits for nobody from now on.
    fn go_on_alone(&mut self) {
        let grants = self.journal.follow(false);
        self.grant(grants);
    }

    /// Ends a launch that is tied to a client and has none; tells a client how far the start is.
    pub(super) fn check_audience(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Over { .. }) {
            return;
        }
        let audience = &mut self.audience;
        let patience = if audience.clients == 0 { FIRST_CLIENT } else { NEXT_CLIENT };
        if audience.tied && audience.alone_since.is_some_and(|since| now >= since + patience) {
            audience.tied = false;
            audience.detached = true;
            self.end_by(nix::libc::SIGHUP, "its client went away without a word");
            self.go_on_alone();
            return;
        }
        if let Some(client) = &mut self.client
            && audience.start_has_news
            && now >= audience.told_start + START_NEWS
        {
            audience.start_has_news = false;
            audience.told_start = now;
            let (nodes_started, ranks_started) = self.judge.starts();
            client.starting = Some(StartProgress {
                nodes: self.nodes.len() as u32,
                nodes_started,
                ranks: self.placement.size(),
                ranks_started,
                ranks_initialized: self.judge.initialized(),
            });
        }
    }
}
