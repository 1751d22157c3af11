//! The thread that checks the files of an identity periodically. If their file system hangs, it delays no other task, nor the end of
//! the process.

use std::io;
use std::thread;

use tokio::sync::{mpsc, oneshot};

use super::{IdentityError, TlsIdentity};

/// Handle of the thread, which ends when this is dropped.
pub(crate) struct Looking {
    orders: mpsc::UnboundedSender<Order>,
}

/// An action, and the channel for its result.
struct Order {
    what: What,
    done: oneshot::Sender<Result<(), IdentityError>>,
}

/// Action on the files.
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
                // The receiver may be gone.
                let _ = done.send(result);
            }
        })?;
        Ok(Self { orders })
    }

    /// Has the thread check or read the files, and waits for the result.
    ///
    /// # Errors
    /// Fails if files to be read are not usable.
    pub(crate) async fn order(&self, what: What) -> Result<(), IdentityError> {
        let (done, result) = oneshot::channel();
        // The thread lives as long as this handle.
        let _ = self.orders.send(Order { what, done });
        result.await.unwrap_or(Ok(()))
    }
}
