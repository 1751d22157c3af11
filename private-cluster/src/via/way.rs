//! Selects the way to the nodes: by a flag, by a variable, or by the allocation in which this process runs.

use std::env;

use lattice_console::environment::{self, Environment};

use super::ViaError;
use super::args::{HostArgs, JoinArgs, StartArgs, Via, ViaParseError, WayArgs};
use super::nodes::Nodes;

/// A way to nodes, and the hosts that are named for it.
#[derive(Clone, Debug)]
pub struct Way {
    via: Via,
    hosts: HostArgs,
    chosen: Chosen,
    /// Time limit for each node to join, and ports to listen on, if set.
    pub(super) join: JoinArgs,
}

/// Source of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chosen {
    ByUser,
    ByAllocation,
}

/// Flags of a launch that determine its way to nodes.
#[derive(Clone, Debug)]
pub struct LaunchFlags<'a> {
    /// True if a flag names an API server or an allocation.
    pub names_cluster: bool,
    /// True if the launch continues without its launcher.
    pub detach: bool,
    /// The way.
    pub way: &'a WayArgs,
    /// How nodes join.
    pub join: JoinArgs,
    /// Hosts of the launch.
    pub hosts: HostArgs,
}

impl Way {
    /// Way for a launch; `None` for a launch that has a cluster, or runs on this machine.
    ///
    /// # Errors
    /// Fails for a launch that would outlive its cluster, and if the value of `LATTICE_VIA` is not a way.
    pub fn of_launch(flags: &LaunchFlags<'_>) -> Result<Option<Self>, ViaError> {
        let environment: Vec<_> = env::vars_os().collect();
        match Self::chosen(flags, &environment)?.filter(|way| way.via != Via::None) {
            Some(way) if flags.detach => Err(ViaError::Detached { via: way.via.as_typed() }),
            way => Ok(way),
        }
    }

    fn chosen(flags: &LaunchFlags<'_>, environment: &Environment) -> Result<Option<Self>, ViaParseError> {
        // The value in a rank of a launch without an allocation is `local`.
        let allocation = environment::value(environment, environment::ALLOCATION);
        let is_local = allocation.is_some_and(|id| id == environment::NO_ALLOCATION);
        if flags.names_cluster || allocation.is_some() && !is_local {
            return Ok(None);
        }
        let chosen = match by_user(flags.way, environment)? {
            Some(via) => Some((via, Chosen::ByUser)),
            None if is_local => None,
            None => Nodes::allocated(environment).map(|via| (via, Chosen::ByAllocation)),
        };
        Ok(chosen.map(|(via, chosen)| Self { via, hosts: flags.hosts.clone(), chosen, join: flags.join }))
    }

    /// Way for `lattice start`.
    ///
    /// # Errors
    /// Fails if there is none, and if hosts are named for nodes that a manager gives.
    pub(super) fn of_start(args: &StartArgs) -> Result<Self, ViaError> {
        let environment: Vec<_> = env::vars_os().collect();
        Self::for_start(args, &environment)
    }

    fn for_start(args: &StartArgs, environment: &Environment) -> Result<Self, ViaError> {
        let (via, chosen) = match by_user(&args.way, environment)? {
            Some(Via::None) => return Err(ViaError::NoWay),
            Some(via) => (via, Chosen::ByUser),
            None => (Nodes::allocated(environment).ok_or(ViaError::NoWay)?, Chosen::ByAllocation),
        };
        if are_named(&args.hosts) && !takes_hosts(&via) {
            return Err(ViaError::HostsOfManager { via: via.as_typed() });
        }
        Ok(Self { via, hosts: args.hosts.clone(), chosen, join: args.join })
    }

    pub(super) fn via(&self) -> &Via {
        &self.via
    }

    /// Nodes that the way reaches.
    ///
    /// # Errors
    /// Fails if no nodes are named, or their names are invalid.
    pub(super) fn nodes(&self) -> Result<Nodes, ViaError> {
        let environment: Vec<_> = env::vars_os().collect();
        if takes_hosts(&self.via) && (are_named(&self.hosts) || self.via != Via::Kubernetes) {
            Nodes::named(&self.hosts, &self.via)
        } else {
            Ok(Nodes::of_manager(&self.via, &environment)?)
        }
    }

    /// Description of the way, for -v.
    pub(super) fn in_words(&self, nodes: &Nodes) -> String {
        let list = hostlist::fold(&nodes.names);
        match self.chosen {
            Chosen::ByUser => format!("the nodes are {list}, reached by {}", self.via),
            Chosen::ByAllocation => {
                let place = if self.via == Via::Kubernetes { "a pod of" } else { "an allocation of" };
                format!("this is {place} {}: {list}; --via none launches on this machine", self.via)
            }
        }
    }
}

/// Way that a flag or the variable names.
fn by_user(flags: &WayArgs, environment: &Environment) -> Result<Option<Via>, ViaParseError> {
    flags.chosen(environment::value(environment, WayArgs::VARIABLE))
}

/// True for a way to hosts that the user names. Kubernetes has pods of the job as well.
fn takes_hosts(via: &Via) -> bool {
    matches!(via, Via::Ssh | Via::Command(_) | Via::Kubernetes)
}

/// True if hosts are named, in any form.
fn are_named(HostArgs { nodelist, hostfile, host }: &HostArgs) -> bool {
    nodelist.is_some() || hostfile.is_some() || host.is_some()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Flags of a launch.
    #[derive(Debug, Parser)]
    struct Launch {
        #[command(flatten)]
        way: WayArgs,
        #[command(flatten)]
        join: JoinArgs,
        #[command(flatten)]
        hosts: HostArgs,
        #[arg(long)]
        alloc: Option<String>,
        #[arg(long)]
        api: Option<String>,
        #[arg(trailing_var_arg = true)]
        command: Vec<String>,
    }

    /// A line of `lattice start`.
    #[derive(Debug, Parser)]
    struct Start {
        #[command(flatten)]
        args: StartArgs,
    }

    const SLURM: [(&str, &str); 3] =
        [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURM_TASKS_PER_NODE", "2(x2)")];

    fn chosen(line: &str, more: &[(&str, &str)]) -> Option<(String, Chosen)> {
        let Launch { way, join, hosts, alloc, api, .. } =
            Launch::try_parse_from(["launch"].into_iter().chain(line.split(' '))).unwrap();
        let names_cluster = alloc.is_some() || api.is_some();
        let flags = LaunchFlags { names_cluster, detach: false, way: &way, join, hosts };
        let variables = more.iter().map(|&(name, value)| (name.into(), value.into()));
        let environment: Vec<_> = variables.collect();
        Way::chosen(&flags, &environment).unwrap().map(|way| (way.via.to_string(), way.chosen))
    }

    #[test]
    fn an_allocation_of_a_manager_is_used_unless_something_else_is_said() {
        let found = |line: &str| chosen(line, &SLURM);
        assert_eq!(found("true"), Some(("slurm".to_owned(), Chosen::ByAllocation)));
        assert_eq!(found("--via none true"), Some(("none".to_owned(), Chosen::ByUser)));
        assert_eq!(found("--via ssh -w a true"), Some(("ssh".to_owned(), Chosen::ByUser)));
        assert_eq!(found("--alloc a1 true"), None);
        assert_eq!(found("--api unix:/x true"), None);
        assert_eq!(chosen("true", &[]), None);
    }

    #[test]
    fn hosts_are_refused_where_a_manager_gives_the_nodes() {
        let environment: Vec<_> = SLURM.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        let started = |line: &str| {
            let Start { args } = Start::try_parse_from(["start"].into_iter().chain(line.split(' '))).unwrap();
            Way::for_start(&args, &environment).map(|way| way.via.to_string()).map_err(|error| error.to_string())
        };
        for hosts in ["-w n1", "--host n1:2", "--hostfile hosts"] {
            let refused = started(&format!("{hosts} true")).unwrap_err();
            assert!(refused.starts_with("--host, --hostfile and --nodelist have no effect with slurm"), "{refused}");
            assert_eq!(started(&format!("--via ssh {hosts} true")).as_deref(), Ok("ssh"));
        }
        assert_eq!(started("true").as_deref(), Ok("slurm"));
    }

    #[test]
    fn the_variable_counts_where_no_flag_does() {
        let found = |line: &str| chosen(line, &[&SLURM[..], &[("LATTICE_VIA", "pbs")]].concat()).map(|(via, _)| via);
        assert_eq!(found("true").as_deref(), Some("pbs"));
        assert_eq!(found("--via ssh -w a true").as_deref(), Some("ssh"));
        assert_eq!(found("--start-with rsh -w a true").as_deref(), Some("rsh {host} {command}"));
        assert_eq!(found("--alloc a1 true"), None);
        let wrong = by_user(&WayArgs::default(), &[("LATTICE_VIA".into(), "slrum".into())]).map_err(ViaError::from);
        assert!(wrong.unwrap_err().to_string().starts_with("LATTICE_VIA: \"slrum\" is none of"));
    }

    #[test]
    fn a_launch_in_an_allocation_of_ours_needs_no_way() {
        for line in ["true", "--via slurm true", "--via ssh -w a true"] {
            assert_eq!(chosen(line, &[&SLURM[..], &[("LATTICE_ALLOC_ID", "k3jq")]].concat()), None, "{line}");
        }
        let local = [&SLURM[..], &[("LATTICE_ALLOC_ID", "local")]].concat();
        assert_eq!(chosen("true", &local), None, "a rank of a launch on this machine launches there");
        assert!(chosen("--via slurm true", &local).is_some());
    }
}
