//! The thread that looks at the files of an identity again and again: their file system may hang, which then holds up nobody else, nor
//! the end of the process.

use std::io;
use std::thread;

use tokio::sync::{mpsc, oneshot};

use super::{IdentityError, TlsIdentity};

/// The thread, which ends with this.
pub(crate) struct Looking {
    orders: mpsc::UnboundedSender<Order>,
}

/// What to do, and whom to tell what came of it.
struct Order {
    what: What,
    done: oneshot::Sender<Result<(), IdentityError>>,
}

/// What to do with the files.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// Read them if they have changed.
    Look,
    /// Read them.
    Renew,
}

impl Looking {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails if the system has no thread left.
    pub(crate) fn start(identity: TlsIdentity) -> io::Result<Self> {
        let (orders, mut received) = mpsc::unbounded_channel::<Order>();
        thread::Builder::new().name("certificates".to_owned()).spawn(move || {
            while let Some(Order { what, done }) = received.blocking_recv() {
                let result = match what {
                    What::Look => {
                        identity.look();
                        Ok(())
                    }
                    What::Renew => identity.renew(),
                };
                // Whoever asked may have gone.
                let _ = done.send(result);
            }
        })?;
        Ok(Self { orders })
    }

    /// Has the files looked at, or read, and waits until that is done.
    ///
    /// # Errors
    /// Fails if files that were to be read cannot be used.
    pub(crate) async fn order(&self, what: What) -> Result<(), IdentityError> {
        let (done, result) = oneshot::channel();
        // The thread is there as long as this is.
        let _ = self.orders.send(Order { what, done });
        result.await.unwrap_or(Ok(()))
    }
}
