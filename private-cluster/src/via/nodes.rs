//! Nodes of an allocation of another resource manager, and the number of ranks for each. The sources are variables and files that the
//! manager gives to the job, or hosts that the user names.

mod managers;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{ToSocketAddrs, UdpSocket};
use std::num::NonZeroU32;
use std::path::PathBuf;

use hostlist::{HostLine, HostlistError};
use lattice_console::environment::{self, Environment};
use lattice_dialects::hostfile::{self, Hosts};
use lattice_dialects::mpirun_setup::Slots;
use nix::unistd::gethostname;
use pmi_transport::identity::is_node_name;

use self::managers::{flux, is_task_of_many, lsf, one_line_a_slot, pods, sge, slurm};
use super::ViaError;
use super::args::{HostArgs, Via};

/// Variable with the pods of a launch, in the form of `--host`.
const PODS: &str = "LATTICE_K8S_PODS";

/// The nodes cannot be determined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodesError {
    /// The user names no hosts.
    #[error("--via {via} needs hosts\ntry: --host node1:4,node2:4, --hostfile FILE or --nodelist node[1-2]")]
    NoHosts {
        /// Value of `--via`.
        via: String,
    },
    /// This process is not in a job of the manager.
    #[error(
        "this is no job of {via}: {variable} is not set\ntry: the same line in a job of {via}; --via none, for this machine alone"
    )]
    NoJob {
        /// The manager.
        via: String,
        /// Variable that every job has.
        variable: &'static str,
    },
    /// A list of nodes cannot be read.
    #[error("{place}: {source}")]
    List {
        /// Variable or flag.
        place: String,
        /// Fault of the list.
        source: HostlistError,
    },
    /// Numbers of slots cannot be read, or their count differs from the number of nodes.
    #[error(
        "{variable} is {value:?}, which has no number of slots for each of its nodes ({nodes})\ntry: --host node1:4,node2:4, or --via none for this machine alone"
    )]
    Slots {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// Number of nodes.
        nodes: usize,
    },
    /// A file of the manager cannot be read.
    #[error("cannot read {}, which {variable} names: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Variable that names it.
        variable: &'static str,
        /// System error.
        error: io::Error,
    },
    /// The manager's command does not list the nodes.
    #[error(
        "FLUX_URI and FLUX_ENCLOSING_ID name an instance of flux, and `{command}` names no nodes of it: {said}\ntry: unset FLUX_URI if its job is over; --via none for this machine alone"
    )]
    Command {
        /// The command.
        command: &'static str,
        /// Error output of the command, or the system error.
        said: String,
    },
    /// A Flux instance with several brokers on one machine, as for tests of Flux. Each broker would start an agent of the same name.
    #[error(
        "several brokers of this instance of flux run on {host}, which can be one node of a cluster only\ntry: --via none, which launches on this machine"
    )]
    SeveralBrokers {
        /// The host.
        host: String,
    },
    /// A name is not valid for a node.
    #[error(
        "{name:?}, of {place}, is no name of a host, which has letters, digits, `-`, `_` and `.`, and no IPv4 address"
    )]
    Name {
        /// The name.
        name: String,
        /// Variable or flag.
        place: String,
    },
    /// There are no nodes.
    #[error("{place} names no node")]
    Empty {
        /// Variable or flag.
        place: String,
    },
}

/// Distinct nodes, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Nodes {
    pub(super) names: Vec<String>,
    /// Number of ranks that each node takes. `None` stands for its number of processors, which is known after it has joined.
    slots: Vec<Option<NonZeroU32>>,
    /// True if launches without placement fill the slots.
    are_filled: bool,
}

impl Nodes {
    /// The manager of the job in which this process runs; of several, the innermost. `None` outside of jobs, and in one of several tasks.
    pub(super) fn allocated(environment: &Environment) -> Option<Via> {
        let is_set = |names: &[&str]| names.iter().all(|name| variable(name, environment).is_some());
        let managers = [
            (Via::Flux, &["FLUX_URI", "FLUX_ENCLOSING_ID"][..]),
            (Via::Slurm, &["SLURM_JOB_ID", "SLURM_JOB_NODELIST"]),
            (Via::Pbs, &["PBS_JOBID", "PBS_NODEFILE"]),
            (Via::Lsf, &["LSB_JOBID", "LSB_MCPU_HOSTS"]),
            // LSF does not list the hosts of a large job in variables.
            (Via::Lsf, &["LSB_JOBID", "LSB_DJOB_HOSTFILE"]),
            (Via::Sge, &["JOB_ID", "PE_HOSTFILE"]),
            (Via::Kubernetes, &[PODS]),
        ];
        let (via, _) = managers.into_iter().find(|(_, names)| is_set(names))?;
        (via != Via::Slurm || !is_task_of_many(environment)).then_some(via)
    }

    /// Nodes of the manager's job.
    ///
    /// # Errors
    /// Fails outside of a job of the manager, and if the data of the manager cannot be read.
    pub(super) fn of_manager(via: &Via, environment: &Environment) -> Result<Self, NodesError> {
        let needed = |name: &'static str| {
            variable(name, environment).ok_or_else(|| NodesError::NoJob { via: via.to_string(), variable: name })
        };
        match via {
            Via::Slurm => slurm(needed("SLURM_JOB_NODELIST")?, environment),
            Via::Pbs => one_line_a_slot("PBS_NODEFILE", needed("PBS_NODEFILE")?),
            Via::Lsf => match variable("LSB_MCPU_HOSTS", environment) {
                Some(hosts) => lsf(hosts),
                None => one_line_a_slot("LSB_DJOB_HOSTFILE", needed("LSB_DJOB_HOSTFILE")?),
            },
            Via::Sge => sge(needed("PE_HOSTFILE")?),
            Via::Flux => {
                needed("FLUX_URI")?;
                flux()
            }
            Via::Kubernetes => pods(needed(PODS)?),
            Via::None | Via::Ssh | Via::Command(_) => Err(NodesError::NoHosts { via: via.to_string() }),
        }
    }

    /// Hosts that the user names.
    ///
    /// # Errors
    /// Fails if there are none, or some cannot be read.
    pub(super) fn named(hosts: &HostArgs, via: &Via) -> Result<Self, ViaError> {
        let HostArgs { nodelist, hostfile, host } = hosts;
        Ok(match (nodelist, hostfile, host) {
            (Some(list), ..) => {
                checked("--nodelist", Self::without_counts(each_once(expanded("--nodelist", list)?), false))?
            }
            (None, Some(path), _) => gathered("--hostfile", hostfile::read(path)?)?,
            (None, None, Some(hosts)) => gathered("--host", hosts.clone())?,
            (None, None, None) => return Err(NodesError::NoHosts { via: via.to_string() }.into()),
        })
    }

    /// Nodes with one slot per processor.
    fn without_counts(names: Vec<String>, are_filled: bool) -> Self {
        Self { slots: vec![None; names.len()], names, are_filled }
    }

    /// The same nodes, with known numbers of processors.
    pub(super) fn with_cores(&self, cores: &HashMap<String, NonZeroU32>) -> Self {
        let of = |name: &String| cores.get(name).copied().unwrap_or(NonZeroU32::MIN);
        let slots = self.names.iter().zip(&self.slots).map(|(name, slots)| Some(slots.unwrap_or_else(|| of(name))));
        Self { names: self.names.clone(), slots: slots.collect(), are_filled: self.are_filled }
    }

    /// Returns true if this machine is the only node. Waits for the resolver unless the name is the machine's own.
    pub(super) fn are_this_machine(&self) -> bool {
        let own = gethostname().unwrap_or_default();
        matches!(&self.names[..], [name] if is_name_of(name, &own.to_string_lossy()) || has_address(name))
    }

    /// Nodes with their slots, at least one each.
    pub(super) fn slots(&self) -> Vec<Slots> {
        let slots = |(node, slots): (&String, &Option<NonZeroU32>)| Slots {
            node: node.clone(),
            slots: slots.map_or(1, NonZeroU32::get),
        };
        self.names.iter().zip(&self.slots).map(slots).collect()
    }

    /// Nodes with their slots in the form of `--host`; `None` if launches do not fill slots by default.
    pub(super) fn slots_in_words(&self) -> Option<String> {
        if !self.are_filled {
            return None;
        }
        let pairs: Vec<(&String, &Option<NonZeroU32>)> = self.names.iter().zip(&self.slots).collect();
        let alike = pairs.chunk_by(|one, next| one.1 == next.1);
        let parts = alike.flat_map(|nodes| {
            let names: Vec<&String> = nodes.iter().map(|(name, _)| *name).collect();
            let list = hostlist::fold(&names);
            let slots = nodes[0].1.map_or_else(String::new, |slots| format!(":{slots}"));
            hostlist::parts(&list).map(|part| format!("{part}{slots}")).collect::<Vec<_>>()
        });
        Some(parts.collect::<Vec<_>>().join(","))
    }
}

/// Returns true if a node's name is the machine's own, short or long.
fn is_name_of(name: &str, own: &str) -> bool {
    let is_short_for = |short: &str, long: &str| long.strip_prefix(short).is_some_and(|rest| rest.starts_with('.'));
    !own.is_empty() && (name == own || name == "localhost" || is_short_for(name, own) || is_short_for(own, name))
}

/// Returns true if the name has an address of this machine: one to which sockets can be bound. Loopback addresses do not count, as every
/// machine has them.
fn has_address(name: &str) -> bool {
    let addresses = (name, 0).to_socket_addrs().into_iter().flatten();
    let mut of_machines = addresses.filter(|address| !address.ip().is_loopback() && !address.ip().is_unspecified());
    of_machines.any(|address| UdpSocket::bind(address).is_ok())
}

fn expanded(place: &str, list: &str) -> Result<Vec<String>, NodesError> {
    hostlist::expand(list).map_err(|source| NodesError::List { place: place.to_owned(), source })
}

/// Distinct names, in the order of their first mention.
fn each_once(mut names: Vec<String>) -> Vec<String> {
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

fn variable<'a>(name: &str, environment: &'a Environment) -> Option<&'a str> {
    environment::non_empty(environment, name)?.to_str()
}

/// Each node once, with all its slots, in the order of first mention. Names without slots have one slot per processor.
fn gathered(place: &str, hosts: Hosts) -> Result<Nodes, NodesError> {
    if let Some(names) = hosts.bare_names() {
        return checked(place, Nodes::without_counts(names, false));
    }
    let is_list = hosts.is_list_of_slots();
    let (mut names, mut slots) = (Vec::new(), Vec::<Option<NonZeroU32>>::new());
    let mut places = HashMap::<String, usize>::new();
    for HostLine { name, slots: more } in hosts.0 {
        let more = more.or(is_list.then_some(NonZeroU32::MIN));
        match places.get(&name) {
            Some(&known) => {
                let more = more.map_or(0, NonZeroU32::get);
                slots[known] = slots[known].map(|slots| slots.saturating_add(more));
            }
            None => {
                places.insert(name.clone(), names.len());
                names.push(name);
                slots.push(more);
            }
        }
    }
    checked(place, Nodes { names, slots, are_filled: true })
}

fn checked(place: &str, nodes: Nodes) -> Result<Nodes, NodesError> {
    let place = || place.to_owned();
    match nodes.names.iter().find(|name| !is_node_name(name)) {
        Some(name) => Err(NodesError::Name { name: name.clone(), place: place() }),
        None if nodes.names.is_empty() => Err(NodesError::Empty { place: place() }),
        None => Ok(nodes),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        variables.iter().map(|&(name, value)| (name.into(), value.into())).collect()
    }

    /// Nodes and slots of a job with these variables. `{}` in a value stands for a file with `text`.
    fn job(via: &Via, variables: &[(&str, &str)], text: &str) -> Result<String, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().to_str().unwrap();
        let variables: Vec<_> = variables.iter().map(|&(name, value)| (name, value.replace("{}", path))).collect();
        let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let nodes =
            Nodes::of_manager(via, &environment(&variables)).map_err(|error| error.to_string().replace(path, "{}"))?;
        Ok(nodes.slots_in_words().unwrap_or_else(|| hostlist::fold(&nodes.names)))
    }

    #[test]
    fn this_machine_is_known_by_its_names_and_addresses() {
        let check = |name, own, expected| assert_eq!(is_name_of(name, own), expected, "{name} {own}");
        check("n1", "n1", true);
        check("n1", "n1.site", true);
        check("n1.site", "n1", true);
        check("localhost", "n1", true);
        check("n1.other", "n1.site", false);
        check("n1", "n10", false);
        check("n1", "", false);
        // The first address is reserved for documentation (RFC 5737). Loopback addresses identify no machine.
        assert!(["192.0.2.1", "127.0.0.1", "0.0.0.0"].into_iter().all(|address| !has_address(address)));
    }

    #[test]
    fn nodes_and_slots_are_those_of_the_managers_job() {
        let check = |via: Via, variables: &[(&str, &str)], text: &str, expected: &str| {
            assert_eq!(job(&via, variables, text).as_deref(), Ok(expected), "{via} {variables:?}");
        };
        let list = ("SLURM_JOB_NODELIST", "n[1-2,5]");
        check(Via::Slurm, &[list, ("SLURM_TASKS_PER_NODE", "4(x2),3")], "", "n[1-2]:4,n5:3");
        check(Via::Slurm, &[list, ("SLURM_JOB_CPUS_PER_NODE", "8(x3)")], "", "n[1-2,5]:8");
        check(Via::Slurm, &[list], "", "n[1-2,5]");
        // A shell that `srun --pty` started on one node of the job.
        let step = [("SLURM_STEP_ID", "0"), ("SLURM_TASKS_PER_NODE", "1"), ("SLURM_JOB_CPUS_PER_NODE", "8(x3)")];
        check(Via::Slurm, &[&[list], &step[..]].concat(), "", "n[1-2,5]:8");
        check(Via::Slurm, &[&[list], &step[..2]].concat(), "", "n[1-2,5]");
        check(Via::Pbs, &[("PBS_NODEFILE", "{}")], "a.site\na.site\nb.site\n", "a.site:2,b.site:1");
        check(Via::Lsf, &[("LSB_MCPU_HOSTS", "a 4 b 2 ")], "", "a:4,b:2");
        check(Via::Lsf, &[("LSB_MCPU_HOSTS", "10.0.0.1 4 10.0.0.2 4")], "", "10.0.0.[1-2]:4");
        check(Via::Lsf, &[("LSB_DJOB_HOSTFILE", "{}")], "a\na\nb\n", "a:2,b:1");
        check(Via::Sge, &[("PE_HOSTFILE", "{}")], "a 4 all.q@a UNDEFINED\nb 4 all.q@b UNDEFINED\n", "a:4,b:4");
        check(Via::Kubernetes, &[(PODS, "mpi-[0-1].mpi:4,mpi-2.mpi")], "", "mpi-[0-1].mpi:4,mpi-2.mpi");
        check(Via::Kubernetes, &[(PODS, "mpi-[0-1].mpi")], "", "mpi-[0-1].mpi");
        check(Via::Kubernetes, &[(PODS, "mpi-0.mpi,mpi-[0-1].mpi")], "", "mpi-[0-1].mpi");
    }

    #[test]
    fn what_a_job_does_not_say_or_says_wrongly_is_named() {
        let check = |via: Via, variables: &[(&str, &str)], text: &str, expected: &str| {
            let error = job(&via, variables, text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check(Via::Slurm, &[], "", "this is no job of slurm: SLURM_JOB_NODELIST is not set");
        check(Via::Slurm, &[("SLURM_JOB_NODELIST", "n[1-")], "", "SLURM_JOB_NODELIST: ");
        let list = ("SLURM_JOB_NODELIST", "n[1-2]");
        for wrong in ["4", "4(x3)", "4(x", "x(x2)", "0(x2)", "4(x99999999999)", ""] {
            let said = job(&Via::Slurm, &[list, ("SLURM_TASKS_PER_NODE", wrong)], "");
            assert_eq!(said.is_err(), !wrong.is_empty(), "{wrong}: {said:?}");
        }
        check(
            Via::Pbs,
            &[("PBS_NODEFILE", "/nonexistent/nodes")],
            "",
            "cannot read /nonexistent/nodes, which PBS_NODEFILE names",
        );
        check(Via::Pbs, &[("PBS_NODEFILE", "{}")], "\n", "PBS_NODEFILE names no node");
        check(Via::Pbs, &[("PBS_NODEFILE", "{}")], "-oProxyCommand=x y\n", "is no name of a host");
        check(Via::Lsf, &[("LSB_MCPU_HOSTS", "a 4 b")], "", "LSB_MCPU_HOSTS is \"a 4 b\"");
        check(Via::Sge, &[("PE_HOSTFILE", "{}")], "a x\n", "PE_HOSTFILE is \"a x\"");
    }

    #[test]
    fn a_job_is_recognized_by_what_it_sets_and_one_task_of_many_is_none() {
        let check = |variables: &[(&str, &str)], expected: Option<Via>| {
            assert_eq!(Nodes::allocated(&environment(variables)), expected, "{variables:?}");
        };
        let slurm = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n1")];
        check(&slurm, Some(Via::Slurm));
        check(&slurm[..1], None);
        let with = |more: &[(&'static str, &'static str)]| [&slurm[..], more].concat();
        check(&with(&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "4")]), None);
        check(&with(&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]), Some(Via::Slurm));
        check(&with(&[("SLURM_STEP_ID", "4294967290"), ("SLURM_STEP_NUM_TASKS", "2")]), Some(Via::Slurm));
        check(&with(&[("FLUX_URI", "local:///x"), ("FLUX_ENCLOSING_ID", "f1")]), Some(Via::Flux));
        check(&[("PBS_JOBID", "7.head"), ("PBS_NODEFILE", "/x")], Some(Via::Pbs));
        check(&[("LSB_JOBID", "7"), ("LSB_MCPU_HOSTS", "a 1")], Some(Via::Lsf));
        check(&[("LSB_JOBID", "7"), ("LSB_MCPU_HOSTS", ""), ("LSB_DJOB_HOSTFILE", "/x")], Some(Via::Lsf));
        check(&[("LSB_JOBID", "7")], None);
        check(&[("JOB_ID", "7"), ("PE_HOSTFILE", "/x")], Some(Via::Sge));
        check(&[(PODS, "mpi-[0-1].mpi")], Some(Via::Kubernetes));
        check(&with(&[(PODS, "mpi-[0-1].mpi")]), Some(Via::Slurm));
        check(&[("JOB_ID", "7")], None);
        check(&[], None);
    }

    #[test]
    fn hosts_of_the_user_are_gathered_with_their_slots() {
        let named = |hosts: HostArgs| Nodes::named(&hosts, &Via::Ssh).map_err(|error| error.to_string());
        let host = hostfile::parse_hosts("a:2,b,a:1").unwrap();
        let nodes = named(HostArgs { host: Some(host), ..HostArgs::default() }).unwrap();
        assert_eq!(nodes.slots_in_words().as_deref(), Some("a:3,b"));
        for bare in [
            HostArgs { nodelist: Some("n[1-2],n1".to_owned()), ..HostArgs::default() },
            HostArgs { host: Some(hostfile::parse_hosts("n[1-2]").unwrap()), ..HostArgs::default() },
        ] {
            let nodes = named(bare).unwrap();
            assert_eq!((nodes.slots_in_words(), nodes.names), (None, vec!["n1".to_owned(), "n2".to_owned()]));
        }
        assert!(named(HostArgs::default()).unwrap_err().starts_with("--via ssh needs hosts\ntry: --host "));
    }

    #[test]
    fn nodes_have_as_many_slots_as_processors_unless_they_are_counted() {
        let cores = HashMap::from([("n1", 4), ("n2", 2)]);
        let cores = cores.into_iter().map(|(name, cores)| (name.to_owned(), NonZeroU32::new(cores).unwrap())).collect();
        let names = || ["n1", "n2", "n3"].map(str::to_owned).into();
        let check = |nodes: Nodes, slots: &[u32], expected: Option<&str>| {
            let nodes = nodes.with_cores(&cores);
            assert_eq!(nodes.slots().iter().map(|node| node.slots).collect::<Vec<_>>(), slots);
            assert_eq!(nodes.slots_in_words().as_deref(), expected);
        };
        check(Nodes::without_counts(names(), true), &[4, 2, 1], Some("n1:4,n2:2,n3:1"));
        check(Nodes::without_counts(names(), false), &[4, 2, 1], None);
        let hosts = |text| gathered("--host", hostfile::parse_hosts(text).unwrap()).unwrap();
        check(hosts("n1:3,n2,n3"), &[3, 2, 1], Some("n1:3,n2:2,n3:1"));
        check(hosts("n1,n1,n1,n2"), &[3, 1], Some("n1:3,n2:1"));
        check(hosts("n1,n2"), &[4, 2], None);
    }

    proptest::proptest! {
        #[test]
        fn counts_of_slurm_are_read_as_it_writes_them(counts in proptest::collection::vec((1_u32..200, 1_usize..50), 1..20)) {
            let part = |&(count, times): &(u32, usize)| match times {
                1 => count.to_string(),
                _ => format!("{count}(x{times})"),
            };
            let text = counts.iter().map(part).collect::<Vec<_>>().join(",");
            let expected: Vec<u32> = counts.iter().flat_map(|&(count, times)| std::iter::repeat_n(count, times)).collect();
            let read: Vec<u32> = managers::slurm_counts(&text).unwrap().into_iter().map(NonZeroU32::get).collect();
            proptest::prop_assert_eq!(read, expected);
        }

        #[test]
        fn no_text_of_a_job_panics(text in ".{0,40}", counts in "[0-9x(),]{0,20}") {
            for (name, via) in [("SLURM_JOB_NODELIST", Via::Slurm), ("LSB_MCPU_HOSTS", Via::Lsf), ("PE_HOSTFILE", Via::Sge)] {
                let _ = Nodes::of_manager(&via, &environment(&[(name, &text), ("SLURM_TASKS_PER_NODE", &counts)]));
            }
        }
    }
}
