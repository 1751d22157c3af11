//! `lattice signal` and `lattice abort`: what a launch is told by somebody who does not follow it.

use lattice_agent::wire;
use pmi_transport::proto::v1 as proto;

use super::{CommandError, ask};
use crate::args::{AbortArgs, SignalArgs};
use crate::launch;

/// Sends a signal to ranks of a launch; returns the exit code.
pub(crate) fn signal(args: &SignalArgs) -> Result<u8, CommandError> {
    let ranks = args.ranks.as_ref().map(wire::command::encode_ranges).unwrap_or_default();
    let request = proto::SignalLaunchRequest { id: args.launch.clone(), signal: args.signal as i32, ranks };
    ask(&args.api, async |cluster| Ok(cluster.ask(cluster.launches().signal_launch(request)).await?))?;
    Ok(0)
}

/// Ends a launch; one that has ended is fine. Returns the exit code.
pub(crate) fn abort(args: &AbortArgs) -> Result<u8, CommandError> {
    ask(&args.api, async |cluster| Ok(launch::abort(&cluster, &args.launch, &args.reason).await?))?;
    Ok(0)
}
