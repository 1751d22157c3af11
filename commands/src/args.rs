//! Flags of the commands.

mod batch;
mod batch_line;
mod batch_tasks;
mod cluster;
mod overlay;
pub(crate) mod pki;
mod scontrol;

pub use self::batch::{
    AFTER_HELP as BATCH_AFTER_HELP, BatchArgs, BatchOptions, BatchScriptArgs, CANCEL_AFTER_HELP, CancelArgs,
    QUEUE_AFTER_HELP, QueueArgs, RUN_SCRIPT, SCRIPT,
};
pub use self::batch_line::instead as instead_of_sbatch_flag;
pub use self::batch_tasks::TaskArgs;
pub use self::cluster::{
    AllocCommand, AttachArgs, CreateArgs, CxiCommand, DOCTOR_AFTER_HELP, DebugArgs, EXPLAIN_AFTER_HELP, ExplainArgs,
    LaunchTableArgs, LaunchesArgs, Nodes, NodesArgs, NodesCommand, Requeue, ShellArgs, SignalArgs, StacksArgs,
    TableArgs, TopArgs, TopOrder, TopologyFormat,
};
pub use self::overlay::{CallArgs, PingArgs, SET_AFTER_HELP, SetCommand};
pub use self::pki::PkiCommand;
pub use self::scontrol::{ScontrolArgs, ScontrolCommand, Shown, own_words};
