//! Questions of commands to the API server, or to a launch on this machine.

use std::ffi::OsString;

use lattice_cluster_client::args::ServerArgs;
use lattice_cluster_client::{ApiServer, Cluster, ClusterError};
use lattice_console::runtime;
use lattice_local_launches::LocalLaunch;

use super::error::CommandError;

/// Connects to the cluster that `args` names, and runs `question` there.
pub(super) fn ask<T>(
    args: &ServerArgs,
    question: impl AsyncFnOnce(Cluster) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let server = ApiServer::find(args.api.as_deref(), &environment())?;
    runtime::block_on(async { question(server.connect()?).await })?
}

/// Like `ask`, for a question about one launch that does not run on this machine.
pub(super) fn ask_about<T>(
    id: &str,
    args: &ServerArgs,
    question: impl AsyncFnOnce(Cluster) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    ask(args, question).map_err(|error| match error {
        CommandError::Cluster(error) if error.is_absence() => not_here(id, &error),
        other => other,
    })
}

/// Returns the error for an id that matches no launch on this machine, when no API server can be queried.
pub fn not_here(id: &str, error: &ClusterError) -> CommandError {
    let text = error.to_string();
    // The first line is the reason. `NotHere` has its own advice about the API server.
    let error = text.lines().next().unwrap_or_default().to_owned();
    CommandError::NotHere { id: id.to_owned(), error }
}

/// Returns the launch with this id on this machine; `None` if `args` names an API server.
pub(super) fn here(id: &str, args: &ServerArgs) -> Option<LocalLaunch> {
    if args.api.is_some() { None } else { lattice_local_launches::find(id, &environment()) }
}

pub(super) fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

/// Expands a hostlist of the API server. A list that cannot be parsed is returned unchanged.
pub(super) fn node_names(list: &str) -> Vec<String> {
    hostlist::expand(list).unwrap_or_else(|_| vec![list.to_owned()])
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_list_that_cannot_be_read_is_shown_as_it_came() {
        assert_eq!(node_names("node[0-2]"), ["node0", "node1", "node2"]);
        assert_eq!(node_names("node["), ["node["]);
        assert_eq!(node_names(""), [""; 0]);
    }

    #[test]
    fn a_refusal_says_what_to_type() {
        assert!(CommandError::NoAllocation.to_string().ends_with("lattice alloc list shows them"));
        assert_eq!(CommandError::from(io::Error::from(io::ErrorKind::BrokenPipe)).to_string(), "broken pipe");
        let nobody = ClusterError::Unreachable {
            url: "unix:/run/lattice/api.sock".to_owned(),
            reason: "gone".to_owned(),
            is_unheard: true,
        };
        let expected = "no launch of yours on this machine has the id zz, and there is no API server that could know it: \
            cannot reach the API server at unix:/run/lattice/api.sock: gone\ntry: lattice launches, ";
        assert!(not_here("zz", &nobody).to_string().starts_with(expected));
    }
}
