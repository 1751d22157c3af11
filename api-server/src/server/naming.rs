//! Names that ranks publish, and their copy on disk: who comes after this server knows them, for the ranks that listen go on.

use bytes::Bytes;
use lattice_session::wire::call::NameCall;
use pmi_core::services::NameError;

use super::Server;
use crate::store::Change;

impl Server {
    /// Does what a rank of a launch asks for, and answers when it is durable. What cannot be written down holds while this server lives.
    pub(crate) async fn call_name(&self, uid: u32, launch: &str, call: NameCall) -> Result<Bytes, NameError> {
        let (answer, changed) = self.names.call(uid, launch, call).await;
        if let Some((launch, service)) = changed {
            // What is written last is the latest.
            let lock = self.names_written.of(uid);
            let _in_order = lock.lock().await;
            let name = self.names.published(uid, &launch, &service);
            // Written down to the log already.
            let _ = self.write(vec![Change::Name { launch, service, name }]).await;
        }
        answer
    }
}
