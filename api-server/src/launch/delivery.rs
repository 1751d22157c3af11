//! Tells one client what happens in a launch, as fast as it listens. The launch itself never waits for that.

use std::io;
use std::sync::Arc;

use pmi_transport::proto::v1::AttachResponse;
use tonic::Status;

use super::following::ClientSender;
use super::spool::{Bookmark, Slice};
use super::tape::{Entry, Next, Tape};

/// Tells the reader with this number what is on the tape, until its client is gone. Returns the number.
pub(super) async fn tell(tape: Arc<Tape>, number: u64, client: ClientSender) -> u64 {
    let telling = async {
        let mut bookmark = Bookmark::default();
        while let Some(next) = tape.next(number, &bookmark).await {
            let messages = match next {
                Next::Messages(messages) => messages,
                Next::Spooled(slice) => match read(slice).await {
                    Ok((entries, next)) => {
                        bookmark = next;
                        tape.told_from_spool(number, entries)
                    }
                    Err(error) => return give_up(&client, &error).await,
                },
            };
            if say(&client, messages).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = telling => {}
        () = client.closed() => {}
    }
    number
}

async fn say(client: &ClientSender, messages: Vec<AttachResponse>) -> Result<(), ()> {
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

async fn give_up(client: &ClientSender, error: &io::Error) {
    tracing::warn!(
        error = pmi_transport::error_chain::chain(error),
        "what was kept of the launch's output cannot be read"
    );
    let status = Status::data_loss(format!("what was kept of the launch's output cannot be read: {error}"));
    // A client that does not listen is not told.
    let _ = client.send(Err(status)).await;
}
