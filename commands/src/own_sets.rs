//! A command as a set of its own: on this machine, and on the cluster as soon as the command queries the cluster.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lattice_cluster_client::args::ServerArgs;
use lattice_cluster_client::{ApiServer, Cluster, ClusterError};
use lattice_console::runtime;
use lattice_local_launches::own_set;
use lattice_overlay::address::{SetId, Uid};
use lattice_overlay::directory::SetRecord;
use lattice_overlay::error::CallError;
use lattice_overlay::method::Method;
use lattice_session::set::{CommandSet, OwnSet, Passes};
use lattice_session::wire::pass::{self, SetPass};
use nix::unistd::{geteuid, gethostname};
use pmi_transport::proto::v1 as proto;
use tokio::sync::OnceCell;

use super::error::CommandError;
use super::launches;
use super::questions::{environment, node_names};

/// Owners of the listed sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The user.
    Own,
    /// All users on the cluster, for administrators.
    All,
}

/// Runs a command as a set while `work` runs.
pub(super) fn as_set<T>(
    command: &str,
    server: &ServerArgs,
    work: impl AsyncFnOnce(&OwnSets) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    runtime::block_on(async {
        let here = OwnSet::new(own_set::place(&environment()), own_set::facts_of_tool(command));
        let sets = OwnSets { command: command.to_owned(), here, server: server.clone(), cluster: OnceCell::new() };
        let outcome = work(&sets).await;
        sets.here.leave().await;
        outcome
    })?
}

/// The sets that represent a command: one on this machine, and one on the cluster if it is used.
pub(super) struct OwnSets {
    command: String,
    here: OwnSet,
    server: ServerArgs,
    /// The inner `None` means that there is no cluster.
    cluster: OnceCell<Option<OnCluster>>,
}

/// Connection of a command to a cluster.
struct OnCluster {
    cluster: Cluster,
    /// Set of the command there, or the reason why it has none.
    own: Result<(SetId, CommandSet), String>,
}

/// A known set, on this machine or on the cluster.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) id: SetId,
    pub(super) uid: u32,
    pub(super) ranks: u32,
    /// Hosts of its members.
    pub(super) hosts: Vec<String>,
    /// State on the cluster; `None` for a set on this machine.
    pub(super) state: Option<&'static str>,
    pub(super) age: Duration,
    /// Id of the launch; `None` for a command.
    pub(super) launch: Option<String>,
    pub(super) command: String,
    /// Pid of the root, if known.
    pub(super) pid: Option<u32>,
}

/// Set from which a command calls a process.
pub(super) enum Way<'a> {
    Here(&'a OwnSet),
    OnCluster(&'a CommandSet),
    /// No set is available, for this reason.
    Refused(&'a str),
}

impl Way<'_> {
    /// Calls a method of a process.
    pub(super) async fn call(
        &self,
        to: Uid,
        method: Method,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        match self {
            Self::Here(set) => set.call(to, method, body, timeout).await,
            Self::OnCluster(set) => set.call(to, method, body, timeout).await,
            Self::Refused(why) => Err(CallError::Refused { why: (*why).to_owned() }),
        }
    }
}

impl OwnSets {
    /// Route to a set: on this machine, else on the cluster. Reads the directory of sets.
    pub(super) async fn way_to(&self, set: SetId) -> Result<Way<'_>, CommandError> {
        // A call to a launch on a cluster needs no directory on this machine.
        let is_here = self.records().await.is_ok_and(|sets| sets.iter().any(|known| known.id() == set));
        Ok(match self.cluster_beside(is_here).await?.map(|on| &on.own) {
            Some(Ok((_, set))) => Way::OnCluster(set),
            Some(Err(why)) => Way::Refused(why),
            None => Way::Here(&self.here),
        })
    }

    /// Calls a method of a process once.
    pub(super) async fn call(
        &self,
        to: Uid,
        method: Method,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CommandError> {
        let answer = self.way_to(to.set()).await?.call(to, method, body, timeout).await;
        answer.map_err(|error| CommandError::Call { to, error })
    }

    /// Live sets: first of the cluster, then of this machine. This command is the last one.
    pub(super) async fn known(&self, whose: Whose) -> Result<Vec<Known>, CommandError> {
        let cluster = self.cluster_beside(false).await?;
        if self.server.api.is_none() {
            self.here.activate_others().await?;
        }
        let mut known = match cluster {
            Some(on) => on.sets(whose).await?,
            None => Vec::new(),
        };
        let here = match cluster {
            Some(_) => self.records().await.unwrap_or_default(),
            None => self.records().await?,
        };
        let own = match cluster.filter(|_| here.is_empty()).and_then(|on| on.own.as_ref().ok()) {
            Some((id, _)) => Known::itself(*id, &self.command),
            None => Known::of(self.here.found().await?),
        };
        known.extend(here.into_iter().map(Known::of).filter(|set| set.id != own.id));
        known.push(own);
        Ok(known)
    }

    /// Sets of this machine; none if an API server is named.
    async fn records(&self) -> Result<Vec<SetRecord>, CommandError> {
        if self.server.api.is_some() { Ok(Vec::new()) } else { Ok(self.here.sets().await?) }
    }

    /// The cluster; `None` if there is none, or if the requested set is on this machine.
    async fn cluster_beside(&self, is_here: bool) -> Result<Option<&OnCluster>, CommandError> {
        if is_here {
            return Ok(None);
        }
        let connected = self.cluster.get_or_try_init(|| async {
            match OnCluster::connect(&self.server).await {
                Ok(on) => Ok(Some(on)),
                Err(error) if error.is_absence() && self.server.api.is_none() => Ok(None),
                Err(error) => Err(error),
            }
        });
        Ok(connected.await?.as_ref())
    }
}

impl OnCluster {
    async fn connect(server: &ServerArgs) -> Result<Self, ClusterError> {
        let cluster = ApiServer::find(server.api.as_deref(), &environment())?.connect()?;
        let own = match ask_for_pass(&cluster, 0, 0).await {
            Ok(SetPass { from: own, .. }) => {
                Ok((own, CommandSet::new(own, Arc::new(ByServer { cluster: cluster.clone(), own }))))
            }
            // Some administrators are not users of the cluster, and can list sets nevertheless.
            Err(ClusterError::Refused(why)) => Err(why),
            Err(error) => return Err(error),
        };
        Ok(Self { cluster, own })
    }

    async fn sets(&self, whose: Whose) -> Result<Vec<Known>, CommandError> {
        let request = proto::ListLaunchesRequest { all: false };
        let listed = self.cluster.ask(self.cluster.launches().list_launches(request)).await?;
        let own = geteuid().as_raw();
        let is_meant = |launch: &proto::LaunchSummary| launch.set_id != 0 && (whose == Whose::All || launch.uid == own);
        Ok(listed.launches.into_iter().filter(is_meant).map(Known::of_launch).collect())
    }
}

impl Known {
    /// This command as a set of the cluster.
    fn itself(id: SetId, command: &str) -> Self {
        let host = gethostname().map_or_else(|_| "localhost".to_owned(), |name| name.to_string_lossy().into_owned());
        Self {
            id,
            uid: geteuid().as_raw(),
            ranks: 1,
            hosts: vec![host],
            state: Some("active"),
            age: Duration::ZERO,
            launch: None,
            command: command.to_owned(),
            pid: Some(std::process::id()),
        }
    }

    fn of(record: SetRecord) -> Self {
        Self {
            id: record.id(),
            uid: record.uid,
            ranks: record.ranks,
            hosts: vec![record.mark.host],
            state: None,
            age: record.begun.elapsed(),
            launch: record.launch,
            command: record.command,
            pid: Some(record.mark.pid),
        }
    }

    fn of_launch(launch: proto::LaunchSummary) -> Self {
        Self {
            id: SetId::from_bits(launch.set_id),
            uid: launch.uid,
            ranks: launch.ranks,
            hosts: node_names(&launch.nodes),
            state: Some(launches::state(launch.state())),
            age: Duration::from_micros(launch.duration_us),
            launch: Some(launch.id),
            command: launch.command,
            pid: None,
        }
    }
}

/// Passes that the API server issues to a command.
struct ByServer {
    cluster: Cluster,
    own: SetId,
}

#[tonic::async_trait]
impl Passes for ByServer {
    async fn pass(&self, to: SetId) -> Result<SetPass, String> {
        ask_for_pass(&self.cluster, to.bits(), self.own.bits()).await.map_err(|error| error.to_string())
    }
}

async fn ask_for_pass(cluster: &Cluster, to: u32, from: u32) -> Result<SetPass, ClusterError> {
    let request = proto::PassRequest { to, from, ..proto::PassRequest::default() };
    Ok(pass::decode(&cluster.ask(cluster.nodes().pass_to_set(request)).await?))
}
