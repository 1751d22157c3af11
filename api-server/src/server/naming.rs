//! Names that ranks publish, and their copy on disk: who comes after this server knows them, for the ranks that listen go on.

use bytes::Bytes;
use pmi_core::services::{NameError, NameRequest};

use super::Server;
use crate::store::Change;

impl Server {
    /// Does what a rank of a launch asks for, and answers when it is durable. What cannot be written down holds while this server lives.
    pub(crate) async fn call_name(&self, uid: u32, launch: &str, request: NameRequest) -> Result<Bytes, NameError> {
        let (answer, changed) = self.names.call(uid, launch, request).await;
        if !changed.is_empty() {
            // What is written last is the latest.
            let lock = self.names_written.of(uid);
            let _in_order = lock.lock().await;
            let change = |(launch, service): (String, Bytes)| {
                let names = self.names.published(uid, &launch, &service);
                Change::Name { launch, service, names }
            };
            // Written down to the log already.
            let _ = self.write(changed.into_iter().map(change).collect()).await;
        }
        answer
    }
}
