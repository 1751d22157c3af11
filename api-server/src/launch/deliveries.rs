//! The tasks that read a launch's event log: one for each client, and one that writes the spool. The machine decides the rights of each
//! client ([`attachments`](super::attachments)).

use pmi_transport::task;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::attachments::Dismissal;
use super::client_message::ClientSender;
use super::delivery;
use super::entry::Entry;
use super::event_log::{EventLog, Start};
use super::spool::{Spool, SpoolError};
use crate::wire::spec::ShownSpec;

/// Time to wait for disk space that is in use by readers, and the pause between two attempts to allocate it.
const ROOM_WITHIN: Duration = Duration::from_secs(10);
const ROOM_AGAIN: Duration = Duration::from_millis(100);

/// Timeout for sending a client the reason why it is dismissed.
const GOODBYE: Duration = Duration::from_secs(1);

/// All of these tasks. They are aborted when it is dropped.
#[derive(Debug)]
pub(super) struct Deliveries {
    log: Arc<EventLog>,
    clients: BTreeMap<u64, Client>,
    /// One task for each client. It ends with the number of its client when the client has disconnected.
    tasks: JoinSet<u64>,
    spooling: Option<Spooling>,
}

/// A client that receives events.
#[derive(Debug)]
struct Client {
    sender: ClientSender,
    task: AbortHandle,
}

/// The task that writes a launch's spool, and its progress.
#[derive(Debug)]
struct Spooling {
    task: JoinSet<()>,
    written: watch::Receiver<u64>,
}

/// An event of these tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryEvent {
    /// The client with this number has disconnected.
    Gone(u64),
    /// All events up to this one are on disk.
    Spooled(u64),
    /// No more events are written to disk.
    SpoolFailed,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Deliveries {
    /// Starts the tasks for the events of `log`, from number `first` on. With a spool, one of them writes the events to disk.
    pub(super) fn new(first: u64, log: Arc<EventLog>, spool: Option<Arc<Spool>>) -> Self {
        let spooling = spool.map(|spool| {
            let (progress, written) = watch::channel(first - 1);
            let mut task = JoinSet::new();
            task.spawn(task::boxed(write_spool(Arc::clone(&log), spool, first, progress)));
            Spooling { task, written }
        });
        Self { log, clients: BTreeMap::new(), tasks: JoinSet::new(), spooling }
    }

    /// Starts to send events to a client.
    pub(super) fn add(&mut self, number: u64, start: Start, spec: ShownSpec, sender: ClientSender) {
        self.log.join(number, start, spec);
        let task = self.tasks.spawn(task::boxed(delivery::deliver(Arc::clone(&self.log), number, sender.clone())));
        self.clients.insert(number, Client { sender, task });
    }

    /// Ends a client's stream, and sends it the reason if its channel has room.
    pub(super) fn dismiss(&mut self, number: u64, why: Dismissal) {
        tracing::info!(reason = %why, "a client is dismissed");
        self.log.leave(number);
        if let Some(client) = self.clients.remove(&number) {
            let sender = client.sender.clone();
            // A client that does not read does not receive the reason. For a client that reads, the channel has room once its delivery,
            // which waits for the same room, has ended.
            task::spawn(async move { drop(timeout(GOODBYE, sender.send(Err(why.into()))).await) });
        }
    }

    /// Removes a client that has disconnected.
    pub(super) fn forget(&mut self, number: u64) {
        self.log.leave(number);
        self.clients.remove(&number);
    }

    /// The next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> DeliveryEvent {
        loop {
            tokio::select! {
                // The task of a dismissed client was aborted, and returns no number.
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

/// Number of the last event on disk, when it changes; `None` when it will not change again.
async fn written(spooling: &mut Option<Spooling>) -> Option<u64> {
    let Some(Spooling { task, written }) = spooling else { return std::future::pending().await };
    tokio::select! {
        biased;
        Ok(()) = written.changed() => Some(*written.borrow_and_update()),
        _ = task.join_next() => None,
    }
}

/// Writes the events of the log to the spool, and publishes the last sequence number on disk. Ends when a write fails.
async fn write_spool(log: Arc<EventLog>, spool: Arc<Spool>, first: u64, spooled: watch::Sender<u64>) {
    let mut last = first - 1;
    loop {
        let batch = log.after(last).await;
        last = batch.last().map_or(last, |entry| entry.sequence);
        match append(&spool, batch).await {
            Ok(Ok(())) => drop(spooled.send_replace(last)),
            Ok(Err(error)) => {
                tracing::warn!(
                    error = pmi_transport::error_chain::chain(&error),
                    "output is not kept on disk any more"
                );
                return;
            }
            // The server is ending, or the write panicked, which was already reported.
            Err(_) => return,
        }
    }
}

/// Writes a batch. Retries for [`ROOM_WITHIN`] while readers use the disk space that could be freed.
async fn append(spool: &Arc<Spool>, batch: Vec<Entry>) -> Result<Result<(), SpoolError>, JoinError> {
    let batch = Arc::new(batch);
    let give_up = Instant::now() + ROOM_WITHIN;
    loop {
        let (spool, batch) = (Arc::clone(spool), Arc::clone(&batch));
        match tokio::task::spawn_blocking(move || spool.append(&batch)).await {
            Ok(Err(SpoolError::Full { .. })) if Instant::now() < give_up => sleep(ROOM_AGAIN).await,
            written => return written,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use pmi_core::ids::NodeIndex;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::super::client_message::{ClientMessage, StreamEnd};
    use super::super::event_log::AllKept;
    use super::super::event_log::Retention;
    use super::super::event_log::tests::output;
    use super::super::spool::{SpoolLimits, Spools};
    use super::*;

    /// Guards against hangs; no step here takes long.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// The receiving end of a client's stream.
    type Client = mpsc::Receiver<Result<ClientMessage, StreamEnd>>;

    /// A launch's log and its deliveries, with a spool if a directory is given.
    fn deliveries(spool: Option<(PathBuf, SpoolLimits)>) -> (Arc<EventLog>, Deliveries) {
        let spool = spool.and_then(|(directory, limits)| Spools::new(directory, limits).open(1));
        let log = EventLog::new(1, Retention::UntilSettled, spool.clone(), AllKept::default());
        (Arc::clone(&log), Deliveries::new(1, log, spool))
    }

    fn add(deliveries: &mut Deliveries, number: u64, start: Start) -> Client {
        let (sender, receiver) = mpsc::channel(8);
        deliveries.add(number, start, ShownSpec::default(), sender);
        receiver
    }

    /// Reads up to the event with this number. Returns the numbers of the events, and the bytes of output that were lost.
    async fn read_until(client: &mut Client, last: u64) -> (Vec<u64>, u64) {
        let (mut numbers, mut lost) = (Vec::new(), 0);
        while numbers.last() != Some(&last) {
            match timeout(DEADLINE, client.recv()).await.expect("it takes too long") {
                Some(Ok(ClientMessage::Event(entry))) => numbers.push(entry.sequence),
                Some(Ok(ClientMessage::DroppedOutput(bytes))) => lost += bytes.unwrap_or(0),
                Some(Ok(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        (numbers, lost)
    }

    /// Adds `events` events with `bytes` bytes of output each.
    fn push(log: &EventLog, events: usize, bytes: usize) {
        for _ in 0..events {
            log.push(NodeIndex(0), output(bytes));
        }
    }

    /// Takes events of the deliveries until `wanted` occurs.
    async fn until(deliveries: &mut Deliveries, wanted: DeliveryEvent) {
        let until = async { while deliveries.next().await != wanted {} };
        timeout(DEADLINE, until).await.expect("it takes too long");
    }

    #[tokio::test]
    async fn a_client_that_hangs_up_is_noticed() {
        let (_log, mut deliveries) = deliveries(None);
        drop(add(&mut deliveries, 7, Start::Unsettled));
        assert_eq!(deliveries.next().await, DeliveryEvent::Gone(7));
        deliveries.forget(7);
        assert!(deliveries.clients.is_empty());
    }

    #[tokio::test]
    async fn a_client_that_is_dismissed_is_told_why_and_sent_nothing_more() {
        let (_log, mut deliveries) = deliveries(None);
        let mut receiver = add(&mut deliveries, 1, Start::Unsettled);
        deliveries.dismiss(1, Dismissal::Replaced);
        let mut last = None;
        while let Some(message) = receiver.recv().await {
            last = Some(message);
        }
        assert_eq!(last.unwrap().unwrap_err().to_string(), "another client follows the launch now");
    }

    #[tokio::test]
    async fn events_that_no_owner_has_acknowledged_are_sent_again_to_the_next_one_in_order() {
        let (log, mut deliveries) = deliveries(None);
        let mut first = add(&mut deliveries, 1, Start::Unsettled);
        push(&log, 10, 100);
        assert_eq!(read_until(&mut first, 10).await, ((1..=10).collect(), 0));
        log.settle(4);
        drop(first);
        until(&mut deliveries, DeliveryEvent::Gone(1)).await;
        deliveries.forget(1);
        for number in [2, 3] {
            let mut next = add(&mut deliveries, number, Start::Unsettled);
            assert_eq!(read_until(&mut next, 10).await, ((5..=10).collect(), 0), "as long as they are not");
        }
        assert!(!log.is_delivered());
        log.settle(10);
        assert!(log.is_delivered());
    }

    #[tokio::test]
    async fn a_viewer_that_does_not_read_holds_up_no_other_client() {
        let (log, mut deliveries) = deliveries(None);
        let _viewer = add(&mut deliveries, 1, Start::After(0));
        let mut owner = add(&mut deliveries, 2, Start::Unsettled);
        for sequence in 1..=200 {
            log.push(NodeIndex(0), output(100_000));
            assert_eq!(read_until(&mut owner, sequence).await, (vec![sequence], 0));
            log.settle(sequence);
        }
    }

    #[tokio::test]
    async fn whoever_views_late_has_what_is_on_disk_and_then_what_is_not_without_a_gap() {
        let directory = tempfile::tempdir().unwrap();
        let (log, mut deliveries) = deliveries(Some((directory.path().to_owned(), SpoolLimits::default())));
        let mut early = add(&mut deliveries, 1, Start::After(0));
        push(&log, 100, 100_000);
        until(&mut deliveries, DeliveryEvent::Spooled(100)).await;
        log.settle(100);
        let mut late = add(&mut deliveries, 2, Start::After(0));
        let mut latest = add(&mut deliveries, 3, Start::After(99));
        push(&log, 10, 100_000);
        assert_eq!(read_until(&mut early, 110).await, ((1..=110).collect(), 0));
        assert_eq!(read_until(&mut late, 110).await, ((1..=110).collect(), 0));
        assert_eq!(read_until(&mut latest, 110).await, ((100..=110).collect(), 0));
    }

    #[tokio::test]
    async fn a_launch_whose_spool_is_full_goes_on_and_viewers_are_told_what_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let limits = SpoolLimits { launch: 1 << 20, total: 100_000 };
        let (log, mut deliveries) = deliveries(Some((directory.path().to_owned(), limits)));
        let mut viewer = add(&mut deliveries, 1, Start::After(0));
        log.push(NodeIndex(0), output(10));
        until(&mut deliveries, DeliveryEvent::Spooled(1)).await;
        log.settle(1);
        // The event exceeds the free disk space.
        log.push(NodeIndex(0), output(200_000));
        until(&mut deliveries, DeliveryEvent::SpoolFailed).await;
        log.stop_keeping();
        push(&log, 100, 100_000);
        let (numbers, lost) = read_until(&mut viewer, 102).await;
        assert!(numbers.len() > 30 && lost > 0, "{numbers:?}");
        let bytes = |&number: &u64| match number {
            1 => 10,
            2 => 200_000,
            _ => 100_000,
        };
        assert_eq!(lost + numbers.iter().map(bytes).sum::<u64>(), 10 + 200_000 + 10_000_000);
    }

    #[tokio::test]
    async fn a_spool_without_a_directory_fails_and_nothing_else_does() {
        let directory = PathBuf::from("/nonexistent/lattice");
        let (log, mut deliveries) = deliveries(Some((directory, SpoolLimits::default())));
        log.push(NodeIndex(0), output(10));
        until(&mut deliveries, DeliveryEvent::SpoolFailed).await;
        let mut viewer = add(&mut deliveries, 1, Start::After(0));
        assert_eq!(read_until(&mut viewer, 1).await, (vec![1], 0));
    }
}
