//! Names that ranks publish, and their copy on disk. The next server loads the copy, because the ranks continue to listen.

use bytes::Bytes;
use pmi_core::services::{NameError, NameRequest};

use super::Server;
use crate::launch_id::LaunchId;
use crate::store::Change;

impl Server {
    /// Executes a request of a rank, and answers when the result is durable. A result that cannot be written is valid as long as this
    /// server runs.
    pub(crate) async fn call_name(
        &self,
        uid: u32,
        launch: &LaunchId,
        request: NameRequest,
    ) -> Result<Bytes, NameError> {
        let (answer, changed) = self.names.call(uid, launch, request).await;
        if !changed.is_empty() {
            // Under the lock, the last write holds the latest state.
            let lock = self.names_written.of(uid);
            let _in_order = lock.lock().await;
            let change = |(launch, service): (LaunchId, Bytes)| {
                let names = self.names.published(uid, &launch, &service);
                Change::Name { launch, service, names }
            };
            // The error is already in the log.
            let _ = self.write(changed.into_iter().map(change).collect()).await;
        }
        answer
    }
}
