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
        if let Some(launch) = changed {
            // What is written last is the latest.
            let _in_order = self.names_written.lock().await;
            let names = self.names.of(uid, &launch);
            // Written down to the log already.
            let _ = self.write(vec![Change::Names { launch, names }]).await;
        }
        answer
    }
}
