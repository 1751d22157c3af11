//! The tasks that carry a launch's events away: one for each client, and one that writes the spool. Which client may do what is the
//! machine's matter ([`attachments`](super::attachments)).

use std::collections::BTreeMap;
use std::sync::Arc;

use pmi_transport::proto::v1::LaunchSpec;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tonic::Status;

use super::event_log::{EventLog, Start};
use super::spool::Spool;
use super::{ClientSender, delivery};

/// All of these tasks; they end with it.
#[derive(Debug)]
pub(super) struct Deliveries {
    log: Arc<EventLog>,
    clients: BTreeMap<u64, Client>,
    /// One for each client; ends with the number of one that is gone.
    tasks: JoinSet<u64>,
    spooling: Option<Spooling>,
}

/// A client that events are sent to.
#[derive(Debug)]
struct Client {
    sender: ClientSender,
    task: AbortHandle,
}

/// The task that writes a launch's spool, and how far it has come.
#[derive(Debug)]
struct Spooling {
    task: JoinSet<()>,
    written: watch::Receiver<u64>,
}

/// An event of these tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryEvent {
    /// The client with this number is gone.
    Gone(u64),
    /// Everything up to this event is on disk.
    Spooled(u64),
    /// Nothing more is put on disk.
    SpoolFailed,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Deliveries {
    /// For the events of `log`, from number `first` on. With a spool, they are put on disk.
    pub(super) fn new(first: u64, log: Arc<EventLog>, spool: Option<Arc<Spool>>) -> Self {
        let spooling = spool.map(|spool| {
            let (progress, written) = watch::channel(first - 1);
            let mut task = JoinSet::new();
            task.spawn(write_spool(Arc::clone(&log), spool, first, progress));
            Spooling { task, written }
        });
        Self { log, clients: BTreeMap::new(), tasks: JoinSet::new(), spooling }
    }

    /// Sends events to a client from now on.
    pub(super) fn add(&mut self, number: u64, start: Start, spec: LaunchSpec, sender: ClientSender) {
        self.log.join(number, start, spec);
        let task = self.tasks.spawn(delivery::deliver(Arc::clone(&self.log), number, sender.clone()));
        self.clients.insert(number, Client { sender, task });
    }

    /// Ends a client's stream with a status, if there is room for that.
    pub(super) fn dismiss(&mut self, number: u64, status: Status) {
        tracing::info!(reason = status.message(), "a client is dismissed");
        self.log.leave(number);
        if let Some(client) = self.clients.remove(&number) {
            // A client that does not read is not told.
            let _ = client.sender.try_send(Err(status));
        }
    }

    /// Forgets a client that is gone.
    pub(super) fn forget(&mut self, number: u64) {
        self.log.leave(number);
        self.clients.remove(&number);
    }

    /// The next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> DeliveryEvent {
        loop {
            tokio::select! {
                // A client that was dismissed has no number to tell.
                Some(ended) = self.tasks.join_next() => if let Ok(number) = ended {
                    return DeliveryEvent::Gone(number);
                },
                written = written(&mut self.spooling) => match written {
                    Some(sequence) => return DeliveryEvent::Spooled(sequence),
                    None => {
                        self.spooling = None;
                        return DeliveryEvent::SpoolFailed;
                    }
                },
            }
        }
    }
}

/// Number of the last event on disk, when that changes; `None` when it will not any more.
async fn written(spooling: &mut Option<Spooling>) -> Option<u64> {
    let Some(Spooling { task, written }) = spooling else { return std::future::pending().await };
    tokio::select! {
        biased;
        Ok(()) = written.changed() => Some(*written.borrow_and_update()),
        _ = task.join_next() => None,
    }
}

/// Writes what is added to the log into the spool, and publishes the last sequence number written; ends when writing fails.
async fn write_spool(log: Arc<EventLog>, spool: Arc<Spool>, first: u64, spooled: watch::Sender<u64>) {
    let mut last = first - 1;
    loop {
        let batch = log.after(last).await;
        last = batch.last().map_or(last, |entry| entry.response.sequence);
        let spool = Arc::clone(&spool);
        match tokio::task::spawn_blocking(move || spool.append(&batch)).await {
            Ok(Ok(())) => drop(spooled.send_replace(last)),
            Ok(Err(error)) => {
                tracing::warn!(
                    error = pmi_transport::error_chain::chain(&error),
                    "output is not kept on disk any more"
                );
                return;
            }
            // The server is ending, or writing panicked, which was told.
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::super::event_log::Retention;
    use super::*;

    fn deliveries() -> Deliveries {
        Deliveries::new(1, EventLog::new(1, Retention::UntilSettled, None), None)
    }

    #[tokio::test]
    async fn a_client_that_hangs_up_is_noticed() {
        let mut deliveries = deliveries();
        let (sender, receiver) = mpsc::channel(8);
        deliveries.add(7, Start::Unsettled, LaunchSpec::default(), sender);
        drop(receiver);
        assert_eq!(deliveries.next().await, DeliveryEvent::Gone(7));
        deliveries.forget(7);
        assert!(deliveries.clients.is_empty());
    }

    #[tokio::test]
    async fn a_client_that_is_dismissed_is_told_why_and_sent_nothing_more() {
        let mut deliveries = deliveries();
        let (sender, mut receiver) = mpsc::channel(8);
        deliveries.add(1, Start::Unsettled, LaunchSpec::default(), sender);
        deliveries.dismiss(1, Status::aborted("another client follows the launch now"));
        let mut last = None;
        while let Some(message) = receiver.recv().await {
            last = Some(message);
        }
        assert_eq!(last.unwrap().unwrap_err().code(), tonic::Code::Aborted);
    }
}
