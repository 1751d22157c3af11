//! The cluster's membership, this node's name in it, and the notice that the node is no longer wanted.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::Args;
use lattice_daemon::membership::{Credentials, Membership, MembershipError};
use nix::unistd::gethostname;
use pmi_transport::address::PortRange;
use tokio::sync::oneshot;

/// Time limit for the membership to arrive.
const TOLD_WITHIN: Duration = Duration::from_secs(60);
/// Path of standard input.
const STDIN: &str = "/dev/stdin";

/// Arguments of `lattice-agent join`.
#[derive(Clone, Debug, Args)]
pub(crate) struct JoinArgs {
    /// This node's name in the cluster [default: from a variable that the membership names, else the host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Read the membership from FILE in place of standard input; the end of standard input then has no effect
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
}

/// This node as a member of the cluster.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) api: Vec<SocketAddr>,
    pub(super) ca: String,
    pub(super) credentials: Credentials,
    pub(super) port_range: Option<PortRange>,
    /// Receives the reason when the node is no longer wanted; only if standard input is a stream.
    pub(super) left: oneshot::Receiver<&'static str>,
}

/// Reason why this node cannot be a member.
#[derive(Debug, thiserror::Error)]
pub(super) enum JoinError {
    #[error(transparent)]
    Membership(#[from] MembershipError),
    #[error("cannot open {}: {error}", path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error(
        "no membership came within {TOLD_WITHIN:?} over standard input; `lattice start --via` and `lattice launch --via` send one"
    )]
    Late,
    #[error("this node goes by {}; the cluster has {}", names.join(", "), nodes.join(", "))]
    Stranger { names: Vec<String>, nodes: Vec<String> },
}

/// Reads the membership, and finds this node in it.
///
/// # Errors
/// Fails if no membership arrives in time, or if this node is not in it.
pub(super) fn read(args: &JoinArgs) -> Result<Member, JoinError> {
    let (membership, left) = match &args.from {
        Some(path) => (read_file(path)?, oneshot::channel().1),
        None => read_stdin()?,
    };
    let name = name_in(&membership, args.node.as_deref())?;
    let Membership { api, ca, mut nodes, port_range, .. } = membership;
    let credentials = nodes.remove(&name).expect("the name was found among them");
    Ok(Member { name, api, ca, credentials, port_range, left })
}

fn open(path: &Path) -> Result<File, JoinError> {
    File::open(path).map_err(|error| JoinError::Open { path: path.to_owned(), error })
}

fn read_file(path: &Path) -> Result<Membership, JoinError> {
    Ok(Membership::read(&mut BufReader::new(open(path)?))?)
}

/// Reads standard input on a separate thread, which then waits for its end.
fn read_stdin() -> Result<(Membership, oneshot::Receiver<&'static str>), JoinError> {
    let mut input = BufReader::new(open(Path::new(STDIN))?);
    let is_stream = fs::metadata(STDIN).is_ok_and(|input| input.file_type().is_fifo() || input.file_type().is_socket());
    let (told, hears) = mpsc::channel();
    let (leave, left) = oneshot::channel();
    thread::spawn(move || {
        let membership = Membership::read(&mut input);
        // After the time limit there is no receiver.
        let _ = told.send(membership);
        if is_stream {
            until_end(&mut input);
            let _ = leave.send("its standard input ended");
        }
    });
    let membership = hears.recv_timeout(TOLD_WITHIN).map_err(|_| JoinError::Late)??;
    Ok((membership, left))
}

/// Reads and discards input until its end, or until an error.
fn until_end(input: &mut impl BufRead) {
    while let Ok(bytes @ 1..) = input.fill_buf().map(<[u8]>::len) {
        input.consume(bytes);
    }
}

/// The name of this node in the membership: the given name, else one of the node's own names, with or without its domain.
fn name_in(membership: &Membership, given: Option<&str>) -> Result<String, JoinError> {
    let names = match given {
        Some(name) => vec![name.to_owned()],
        None => {
            let variables = membership.name_variables.iter().filter_map(|name| std::env::var(name).ok());
            variables.chain(gethostname().ok().and_then(|name| name.into_string().ok())).collect()
        }
    };
    let label = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let nodes = || membership.nodes.keys();
    let exact = names.iter().find(|name| nodes().any(|node| node == *name)).cloned();
    let by_label = || names.iter().find_map(|name| nodes().find(|node| label(node) == label(name)).cloned());
    exact.or_else(by_label).ok_or_else(|| JoinError::Stranger { names, nodes: nodes().cloned().collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(nodes: &[&str]) -> Membership {
        let credentials = || Credentials { certificate: String::new(), key: String::new() };
        let nodes = nodes.iter().map(|&node| (node.to_owned(), credentials())).collect();
        let name_variables = vec!["PATH".to_owned()];
        Membership { api: Vec::new(), ca: String::new(), nodes, name_variables, port_range: None }
    }

    #[test]
    fn a_node_finds_itself_by_the_name_it_was_given_with_or_without_its_domain() {
        let check = |nodes: &[&str], given: &str, expected: &str| {
            assert_eq!(name_in(&of(nodes), Some(given)).unwrap(), expected);
        };
        check(&["a", "b"], "b", "b");
        check(&["a.site", "b.site"], "b", "b.site");
        check(&["a", "b"], "b.site", "b");
        check(&["b.one", "b.two"], "b.two", "b.two");
    }

    #[test]
    fn a_node_finds_itself_by_a_variable_else_by_its_host_name() {
        let path = std::env::var("PATH").unwrap();
        assert_eq!(name_in(&of(&[&path, "b"]), None).unwrap(), path);
        let host = gethostname().unwrap().into_string().unwrap();
        assert_eq!(name_in(&of(&[&host, "b"]), None).unwrap(), host);
    }

    #[test]
    fn a_stranger_is_told_both_sides() {
        let error = name_in(&of(&["a", "b"]), Some("c")).unwrap_err().to_string();
        assert_eq!(error, "this node goes by c; the cluster has a, b");
    }
}
