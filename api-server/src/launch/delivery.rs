//! The task that sends one client the events of a launch, as fast as the client reads. The launch never waits for this task.

use std::io;
use std::sync::Arc;

use super::client_message::{ClientMessage, ClientSender, StreamEnd};
use super::entry::Entry;
use super::event_log::{EventLog, Next};
use super::spool::{Bookmark, Slice};

/// Sends the events of the log to the reader with this number, until its client disconnects. Returns the number.
pub(super) async fn deliver(log: Arc<EventLog>, number: u64, client: ClientSender) -> u64 {
    let delivering = async {
        let mut bookmark = Bookmark::default();
        let mut in_hand = None;
        // A client that does not read holds one batch at most. The server may have a thousand such clients.
        while has_taken_all(&client).await {
            drop(in_hand.take());
            let Some(next) = log.next(number, &bookmark).await else { return };
            let messages = match next {
                Next::Messages(messages) => messages,
                Next::Spooled(slice) => match read(slice).await {
                    Ok((entries, next)) => {
                        bookmark = next;
                        log.deliver_from_spool(number, entries)
                    }
                    Err(error) => return give_up(&client, error).await,
                },
            };
            in_hand = Some(log.hold(&messages));
            if send(&client, messages).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = delivering => {}
        () = client.closed() => {}
    }
    number
}

/// Waits until the client has taken all its messages. Returns false if it has disconnected.
async fn has_taken_all(client: &ClientSender) -> bool {
    client.reserve_many(client.max_capacity()).await.is_ok()
}

async fn send(client: &ClientSender, messages: Vec<ClientMessage>) -> Result<(), ()> {
    for message in messages {
        client.send(Ok(message)).await.map_err(drop)?;
    }
    Ok(())
}

async fn read(slice: Slice) -> io::Result<(Vec<Entry>, Bookmark)> {
    match tokio::task::spawn_blocking(move || slice.read()).await {
        Ok(read) => read,
        Err(error) => Err(io::Error::other(error)),
    }
}

async fn give_up(client: &ClientSender, error: io::Error) {
    tracing::warn!(
        error = pmi_transport::error_chain::chain(&error),
        "what was kept of the launch's output cannot be read"
    );
    // A client that has disconnected does not receive the error.
    let _ = client.send(Err(StreamEnd::Unreadable(error))).await;
}
