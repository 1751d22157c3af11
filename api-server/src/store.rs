//! State that outlives the API server: allocations, launches and their ends, drained nodes, and inventories of nodes. A change is durable
//! before any action that depends on it, so that after a crash every running process is on record.

mod fabric_journal;
mod redb_store;
mod sealing;
mod soundness;
mod state_file;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use lattice_session::wire::WireError;
use pmi_transport::proto::v1::{
    Block, Cause, Death, LaunchCompleteNotification, LaunchSpec, LaunchSummary, NodeUsage, RankExitStatus, Usage,
};
use pmi_transport::signature::Serial;

pub(crate) use self::fabric_journal::FabricJournal;
pub(crate) use self::redb_store::RedbStore;
pub(crate) use self::soundness::quietly;
use crate::allocations::Allocation;
use crate::inventories::{InventoryChanges, KeptInventories};
use crate::launch::summary::Course;
use crate::launch_id::LaunchId;
use crate::nodes::Drain;

/// Number of ended launches that are kept, and of released allocations.
pub(crate) const ENDED_MAX: u64 = 1000;

/// A launch as its task holds it; stored until the launch is over.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LaunchRecord {
    #[prost(message, optional, tag = "1")]
    pub summary: Option<LaunchSummary>,
    /// The spec that all nodes received; without the environment and the secret when the launch is over.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<LaunchSpec>,
    #[prost(bool, tag = "3")]
    pub detached: bool,
    /// End of the launch; `None` while it runs. After the end an [`EndedLaunch`] is stored instead.
    #[prost(message, optional, tag = "4")]
    pub complete: Option<LaunchCompleteNotification>,
    /// Progress while it runs; `None` when it is over.
    #[prost(message, optional, tag = "5")]
    pub checkpoint: Option<Checkpoint>,
    /// Number of the event that reported the end to clients; 0 while the launch runs.
    #[prost(uint64, tag = "6")]
    pub last_event: u64,
    /// Certificate of the caller that started the launch, in DER; empty if none was required.
    #[prost(bytes = "bytes", tag = "7")]
    pub certificate: Bytes,
    /// Course of the launch, once it is over.
    #[prost(enumeration = "Course", tag = "8")]
    pub course: i32,
}

/// A launch that is over, as it is stored: at most about 100 KiB for any launch.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EndedLaunch {
    #[prost(message, optional, tag = "1")]
    pub summary: Option<LaunchSummary>,
    /// Placement of its ranks; `None` if the placement is too large.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<LaunchSpec>,
    /// Its end, without the ends of its ranks.
    #[prost(message, optional, tag = "3")]
    pub complete: Option<LaunchCompleteNotification>,
    /// Ends of its ranks, in rank order.
    #[prost(message, repeated, tag = "4")]
    pub exits: Vec<ExitRun>,
    /// Number of the event that reported the end to clients.
    #[prost(uint64, tag = "5")]
    pub last_event: u64,
    #[prost(enumeration = "Course", tag = "6")]
    pub course: i32,
}

/// Consecutive ranks that ended alike.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ExitRun {
    #[prost(message, optional, tag = "1")]
    pub first: Option<RankExitStatus>,
    /// Number of these ranks.
    #[prost(uint32, tag = "2")]
    pub count: u32,
}

/// Facts that no node would report again to a server that takes over the launch: reports of nodes after the end of their part, and
/// decisions of this server.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Checkpoint {
    /// The nodes that have finished their part.
    #[prost(uint32, repeated, tag = "1")]
    pub over: Vec<u32>,
    /// The nodes that were lost.
    #[prost(uint32, repeated, tag = "2")]
    pub lost: Vec<u32>,
    /// Ends of ranks.
    #[prost(message, repeated, tag = "3")]
    pub exits: Vec<RankExitStatus>,
    /// Cause for which the launch is ending.
    #[prost(message, optional, tag = "4")]
    pub cause: Option<Cause>,
    /// The jobs that were spawned, in order.
    #[prost(message, repeated, tag = "5")]
    pub spawned: Vec<SpawnedJob>,
    /// Resources that ranks used on nodes that have finished their part.
    #[prost(message, optional, tag = "6")]
    pub usage: Option<Usage>,
    /// Ranks that have died while the other ranks continue.
    #[prost(message, repeated, tag = "7")]
    pub deaths: Vec<Death>,
    /// The number of the last event.
    #[prost(uint64, tag = "8")]
    pub last_event: u64,
    /// Usage of the node with the least processor time, among the nodes that have finished their part.
    #[prost(message, optional, tag = "9")]
    pub least_used: Option<NodeUsage>,
    /// The same for the most processor time.
    #[prost(message, optional, tag = "10")]
    pub most_used: Option<NodeUsage>,
    /// True if one of the lost nodes was lost itself, and not only its part of the launch.
    #[prost(bool, tag = "11")]
    pub has_lost_a_node: bool,
    /// Ends of ranks of jobs that are forgotten.
    #[prost(message, repeated, tag = "12")]
    pub forgotten: Vec<ExitRun>,
    /// Number of all jobs that were spawned.
    #[prost(uint32, tag = "13")]
    pub jobs_spawned: u32,
    /// Number of all ranks that have existed.
    #[prost(uint32, tag = "14")]
    pub ranks_shown: u32,
}

/// A spawned job.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SpawnedJob {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, repeated, tag = "2")]
    pub blocks: Vec<Block>,
    /// All nodes of the job have reported that it runs.
    #[prost(bool, tag = "3")]
    pub runs: bool,
    /// The node of the session that requested the job, and the number of the session's call.
    #[prost(uint32, tag = "4")]
    pub node: u32,
    #[prost(uint64, tag = "5")]
    pub call: u64,
    /// Number under which its first rank is shown.
    #[prost(uint32, tag = "6")]
    pub first: u32,
}

/// Names that the ranks of a launch have published, each encoded as on the wire.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct KeptNames {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub names: Vec<Bytes>,
}

/// One change of the state.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// An allocation is new or changed. On its release the launch request of its batch job is removed.
    Allocation(Allocation),
    /// The launch request of the batch job of an allocation, encoded.
    Script { allocation: String, request: Vec<u8> },
    /// A launch is new, or has progressed.
    Launch(Box<LaunchRecord>),
    /// A launch is over.
    Ended(Box<EndedLaunch>),
    /// Names that a launch which is not over has published under one service name; empty after their withdrawal.
    Name { launch: LaunchId, service: Bytes, names: KeptNames },
    /// A launch that no node was asked to start is removed.
    Forgotten(LaunchId),
    /// A node is drained.
    Drain(Drain),
    /// A node is no longer drained.
    Resume(String),
    /// A launch was signed under this number; the greatest number is kept.
    Serial(Serial),
    /// These nodes have registered.
    Registered(Vec<String>),
    /// These nodes have not registered with this server.
    Missing(Vec<String>),
    /// Nodes have reported their inventories.
    Inventories(InventoryChanges),
}

/// The state that a starting server reads.
#[derive(Debug, Default)]
pub(crate) struct StoredState {
    /// Allocations, including released ones.
    pub allocations: Vec<Allocation>,
    /// Launches that are not over.
    pub launches: Vec<LaunchRecord>,
    pub drains: Vec<Drain>,
    /// The names of the nodes that had registered.
    pub nodes: Vec<String>,
    /// Names by the launch that published them.
    pub names: HashMap<LaunchId, KeptNames>,
    /// The greatest number under which a launch was signed.
    pub serial: Serial,
    pub inventories: KeptInventories,
}

/// State that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(
        "the state file is damaged ({what}); put back a copy of it, or move it away, which ends the launches that run and forgets the queue"
    )]
    Damaged { what: String },
    #[error("another `lattice api` has it open{}; stop that one, or name another file", of_process(*holder))]
    InUse { holder: Option<u32> },
    #[error("the state file cannot be opened, read or written")]
    Database(#[source] Box<redb::Error>),
    #[error("the state file holds a record that this version cannot read")]
    Record(#[from] prost::DecodeError),
    #[error("the state file holds a record that this version cannot read")]
    Meaning(#[from] WireError),
    #[error("the state file's journal of fabric credentials holds an entry that this version cannot read")]
    Entry(#[from] serde_json::Error),
    #[error(
        "the state file holds a record that cannot be decrypted ({0}); put back the state file and its `.keys` from one copy, or move both away, which ends the launches that run and forgets the queue"
    )]
    Sealed(#[from] sealing::Unsealed),
    #[error(
        "the file of keys beside the state file, with `.keys` added to its name, cannot be opened, read or written"
    )]
    Keys(#[source] std::io::Error),
    #[error("the state file's directory cannot be made")]
    Directory(#[source] std::io::Error),
    #[error("the state file cannot be opened for this user alone")]
    File(#[source] std::io::Error),
}

fn of_process(holder: Option<u32>) -> String {
    holder.map_or_else(String::new, |pid| format!(", process {pid}"))
}

impl From<redb::Error> for StoreError {
    fn from(error: redb::Error) -> Self {
        Self::Database(Box::new(error))
    }
}

/// Storage of the state. Calls block.
pub(crate) trait Store: Send + Sync {
    /// Makes changes durable: all of them, or none.
    fn write(&self, changes: &[Change]) -> Result<(), StoreError>;

    /// Returns the whole state, except launches that are over.
    fn read(&self) -> Result<StoredState, StoreError>;

    /// All allocations, including released ones.
    fn allocations(&self) -> Result<Vec<Allocation>, StoreError>;

    /// One allocation, released or not.
    fn allocation(&self, id: &str) -> Result<Option<Allocation>, StoreError>;

    /// The launch request of the batch job of an allocation, encoded.
    fn script(&self, allocation: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Summaries of the launches that are over.
    fn ended(&self) -> Result<Vec<LaunchSummary>, StoreError>;

    /// One launch that is over.
    fn ended_launch(&self, id: &str) -> Result<Option<EndedLaunch>, StoreError>;
}

/// Makes changes durable without blocking the other tasks of this thread.
pub(crate) async fn write(store: &Arc<dyn Store>, changes: Vec<Change>) -> Result<(), StoreError> {
    blocking(store, move |store| store.write(&changes)).await
}

/// Queries a store without blocking the other tasks of this thread.
pub(crate) async fn blocking<T: Send + 'static>(
    store: &Arc<dyn Store>,
    ask: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let store = Arc::clone(store);
    match tokio::task::spawn_blocking(move || ask(&*store)).await {
        Ok(result) => result,
        // The task is never cancelled; a panic of the database continues here.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
