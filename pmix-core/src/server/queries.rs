//! Answers to queries: each key with its value, as far as this server has it.
//!
//! A key without a value here is omitted, and the status of the answer reports that.

use std::collections::BTreeSet;
use std::ops::Range;

use pmi_core::connections::ANSWER_MAX;
use pmi_core::ids::NodeIndex;

use super::client::Address;
use super::groups::NamedGroups;
use super::jobs::Jobs;
use super::launch::Launch;
use super::node_processes::{NodeProcesses, Seen};
use crate::namespace::{JobIndex, Namespace, Seat};
use crate::wire::reader::Proc;
use crate::wire::request::Query;
use crate::wire::value::{Info, Value};
use crate::wire::writer::Writer;
use crate::wire::{reply, status, types};

/// Version of the PMIx standard that defines these keys.
const STANDARD: &[u8] = b"5.0";
/// Names of the sets that each MPI program has with any launcher; they are not listed.
const WORLD: &[u8] = b"mpi://WORLD";
const SELF: &[u8] = b"mpi://SELF";

/// Subject of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Keys,
    Qualifiers,
    Version,
    Namespaces,
    NamespaceInfo,
    JobSize,
    Processes(Extent),
    SetCount,
    SetNames,
    SetMembers,
    GroupCount,
    GroupNames,
    GroupMembers,
    MemoryUsage,
    NodeMemory,
    TimeLeft,
    SpawnDirectives,
}

/// Nodes of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    AllNodes,
    ThisNode,
}

/// The keys of the standard, and their subjects.
const KEYS: [(&str, Subject); 19] = [
    ("pmix.qry.keys", Subject::Keys),
    ("pmix.qry.quals", Subject::Qualifiers),
    ("pmix.qry.stabiver", Subject::Version),
    ("pmix.qry.prabiver", Subject::Version),
    ("pmix.qry.ns", Subject::Namespaces),
    ("pmix.qry.nsinfo", Subject::NamespaceInfo),
    ("pmix.job.size", Subject::JobSize),
    ("pmix.qry.ptable", Subject::Processes(Extent::AllNodes)),
    ("pmix.qry.lptable", Subject::Processes(Extent::ThisNode)),
    ("pmix.qry.psetnum", Subject::SetCount),
    ("pmix.qry.psets", Subject::SetNames),
    ("pmix.qry.pmems", Subject::SetMembers),
    ("pmix.qry.pgrpnum", Subject::GroupCount),
    ("pmix.qry.pgrp", Subject::GroupNames),
    ("pmix.qry.pgrpmems", Subject::GroupMembers),
    ("pmix.qry.mem", Subject::MemoryUsage),
    ("pmix.pmem", Subject::NodeMemory),
    ("pmix.time.remaining", Subject::TimeLeft),
    ("pmix.qry.spawn", Subject::SpawnDirectives),
];

const QUALIFIERS: &str = "pmix.nspace,pmix.procid,pmix.pset.nm,pmix.grp.id,pmix.qry.local,pmix.qry.rfsh";
/// Directives of a spawn that take effect: see `session::spawn`.
const SPAWN_DIRECTIVES: &str = "pmix.wdir,pmix.host,pmix.addhost,pmix.hostfile,pmix.addhostfile,pmix.mapby,pmix.ppr,pmix.bindto,\
    pmix.envar.set,pmix.pset.nm,path,wdir,host,hosts,add-host,hostfile,add-hostfile,soft,npernode,map_by,bind_to,env";

fn subject(key: &[u8]) -> Option<Subject> {
    KEYS.iter().find(|(known, _)| known.as_bytes() == key).map(|&(_, subject)| subject)
}

/// Meaning of a query's qualifiers.
#[derive(Clone, Copy, Debug)]
struct About<'a> {
    /// The job of the query, else the caller's job, or for a tool the launched job; `None` if no job has that name.
    job: Option<JobIndex>,
    /// True if the query contains a job.
    is_named: bool,
    set: Option<&'a [u8]>,
    group: Option<&'a [u8]>,
    extent: Extent,
}

impl<'a> About<'a> {
    fn new(jobs: &Jobs, seat: Seat, qualifiers: &[Info<'a>]) -> Self {
        let mut about =
            Self { job: Some(jobs.meant_by(seat)), is_named: false, set: None, group: None, extent: Extent::AllNodes };
        for qualifier in qualifiers {
            match (qualifier.key, &qualifier.value) {
                (b"pmix.nspace", Value::Text(namespace)) if !namespace.is_empty() => {
                    (about.job, about.is_named) = (jobs.own(namespace), true);
                }
                (b"pmix.procid", Value::Proc(proc)) if !proc.namespace.is_empty() => {
                    (about.job, about.is_named) = (jobs.own(proc.namespace), true);
                }
                (b"pmix.pset.nm", Value::Text(name)) => about.set = Some(name),
                (b"pmix.grp.id", Value::Text(name)) => about.group = Some(name),
                (b"pmix.qry.local", on) if on.is_true() => about.extent = Extent::ThisNode,
                _ => {}
            }
        }
        about
    }
}

/// Returns the jobs and nodes with processes that these queries need.
pub(super) fn processes_wanted(jobs: &Jobs, seat: Seat, queries: &[Query<'_>]) -> BTreeSet<(JobIndex, NodeIndex)> {
    let mut wanted = BTreeSet::new();
    for query in queries {
        let about = About::new(jobs, seat, &query.qualifiers);
        let Some(job) = about.job else { continue };
        let namespace = &jobs[job].namespace;
        for subject in query.keys.iter().filter_map(|key| subject(key)) {
            let extent = match subject {
                Subject::Processes(extent) => extent,
                Subject::MemoryUsage => about.extent,
                Subject::NodeMemory | Subject::TimeLeft => Extent::ThisNode,
                _ => continue,
            };
            match extent {
                Extent::ThisNode => drop(wanted.insert((job, namespace.node))),
                Extent::AllNodes => {
                    wanted.extend(namespace.job.placement.nodes_with_ranks().into_iter().map(|node| (job, node)));
                }
            }
        }
    }
    wanted
}

/// Answers queries from the data of this server, and from the processes that were requested for them.
pub(super) fn answer_query(
    launch: &mut Launch,
    groups: &NamedGroups,
    address: Address,
    queries: &[Query<'_>],
    seen: &Seen,
) {
    let (seat, encoding) = (address.identity.seat, address.identity.encoding);
    let sources = Sources { jobs: &launch.jobs, groups, seen, seat };
    let asked: usize = queries.iter().map(|query| query.keys.len()).sum();
    let (mut infos, mut found, mut known) = (Writer::new(encoding), 0, false);
    for query in queries {
        let about = About::new(&launch.jobs, seat, &query.qualifiers);
        for key in &query.keys {
            let Some(subject) = subject(key) else { continue };
            known = true;
            let mut value = Writer::new(encoding);
            if sources.push_value(&mut value, subject, about).is_some() {
                infos.text(Some(key));
                infos.u32(0);
                infos.raw(value.as_bytes());
                found += 1;
            }
            if infos.as_bytes().len() > ANSWER_MAX {
                return launch.answer(address, status::OUT_OF_RESOURCE);
            }
        }
    }
    let status = match found {
        0 if known => status::NOT_FOUND,
        0 => status::NOT_SUPPORTED,
        _ if found < asked => status::PARTIAL_SUCCESS,
        _ => status::SUCCESS,
    };
    let reply =
        if found == 0 { reply::status(encoding, status) } else { reply::infos(encoding, status, found, &infos) };
    launch.reply(address, &reply);
}

/// The data for answers to a client.
#[derive(Clone, Copy)]
struct Sources<'a> {
    jobs: &'a Jobs,
    groups: &'a NamedGroups,
    seen: &'a Seen,
    /// The client.
    seat: Seat,
}

impl<'a> Sources<'a> {
    /// Writes the value of a subject; `None` if there is none.
    fn push_value(&self, out: &mut Writer, subject: Subject, about: About<'_>) -> Option<()> {
        match subject {
            Subject::Keys => out.value(&Value::Text(KEYS.map(|(key, _)| key).join(",").as_bytes())),
            Subject::Qualifiers => out.value(&Value::Text(QUALIFIERS.as_bytes())),
            Subject::Version => out.value(&Value::Text(STANDARD)),
            Subject::SpawnDirectives => out.value(&Value::Text(SPAWN_DIRECTIVES.as_bytes())),
            Subject::Namespaces => {
                let own = self.jobs.iter().filter(|job| job.is_own());
                let names: Vec<&str> = own.map(|job| job.namespace.name.as_str()).collect();
                out.value(&Value::Text(names.join(",").as_bytes()));
            }
            Subject::NamespaceInfo => self.push_namespaces(out, about)?,
            Subject::JobSize => out.value(&Value::U32(self.jobs[about.job?].namespace.job.size())),
            Subject::SetCount => out.value(&Value::Size(self.set_names().len() as u64)),
            Subject::SetNames => {
                let names: Vec<&str> = self.set_names().into_iter().collect();
                out.value(&Value::Text(names.join(",").as_bytes()));
            }
            Subject::SetMembers => out.value(&Value::Procs(self.set_members(about.set?)?)),
            Subject::GroupCount => out.value(&Value::Size(self.groups.names().len() as u64)),
            Subject::GroupNames => {
                out.u16(types::DATA_ARRAY);
                out.u16(types::STRING);
                out.size(self.groups.names().len() as u64);
                self.groups.names().for_each(|name| out.text(Some(name)));
            }
            Subject::GroupMembers => {
                out.value(&Value::Procs(self.groups.get(about.group?)?.procs(self.jobs)));
            }
            Subject::NodeMemory => {
                out.value(&Value::U64(Some(self.seen_here(about)?.node_memory).filter(|&bytes| bytes > 0)?));
            }
            Subject::TimeLeft => out.value(&Value::U32(self.seen_here(about)?.seconds_left?)),
            Subject::Processes(extent) => self.push_processes(out, about.job?, extent)?,
            Subject::MemoryUsage => self.push_memory(out, about.job?, about.extent)?,
        }
        Some(())
    }

    /// Jobs of this launch, or the job of the query: name, command line and size of each.
    fn push_namespaces(&self, out: &mut Writer, about: About<'_>) -> Option<()> {
        let jobs = self.jobs.indexed().filter(|(_, job)| job.is_own());
        let meant: Vec<_> = jobs.filter(|(index, _)| !about.is_named || about.job == Some(*index)).collect();
        if meant.is_empty() {
            return None;
        }
        let infos = meant.into_iter().map(|(_, job)| {
            let Namespace { name, command, job, .. } = &job.namespace;
            let facts = vec![
                Info::new("pmix.nspace", Value::Text(name.as_bytes())),
                Info::new("pmix.cmd.line", Value::Text(command)),
                Info::new("pmix.job.size", Value::U32(job.size())),
            ];
            Info::new("pmix.qry.nsinfo", Value::Infos(facts))
        });
        out.value(&Value::Infos(infos.collect()));
        Some(())
    }

    /// Names of the sets of all jobs of this launch.
    fn set_names(&self) -> BTreeSet<&'a str> {
        self.jobs.iter().flat_map(|job| &job.namespace.sets).map(|set| set.name.as_str()).collect()
    }

    fn set_members(&self, name: &[u8]) -> Option<Vec<Proc<'a>>> {
        let Self { jobs, seat, .. } = *self;
        let own = &jobs[jobs.meant_by(seat)].namespace;
        let found = match name {
            WORLD => procs(own, 0..own.job.size()).collect(),
            SELF if jobs.is_tool(seat) => Vec::new(),
            SELF => procs(own, jobs.rank(seat).rank.0..jobs.rank(seat).rank.0 + 1).collect(),
            _ => {
                let sets = jobs.iter().map(|job| &job.namespace);
                let sets = sets.flat_map(|job| job.sets.iter().map(move |set| (job, set)));
                let meant = sets.filter(|(_, set)| set.name.as_bytes() == name);
                let ranks = meant.flat_map(|(job, set)| set.ranks.iter().map(move |ranks| (job, ranks.clone())));
                ranks.flat_map(|(job, ranks)| procs(job, ranks)).collect::<Vec<_>>()
            }
        };
        if found.is_empty() { None } else { Some(found) }
    }

    /// The processes of this node, as requested for a job.
    fn seen_here(&self, about: About<'_>) -> Option<&'a NodeProcesses> {
        let job = about.job?;
        self.seen.get(&(job, self.jobs[job].namespace.node))
    }

    /// The nodes of a job with requested processes: all nodes, or this one.
    fn seen_of(&self, job: JobIndex, extent: Extent) -> impl Iterator<Item = (&'a str, &'a NodeProcesses)> + use<'a> {
        let Self { jobs, seen, .. } = *self;
        let namespace = &jobs[job].namespace;
        let meant = move |node: NodeIndex| extent == Extent::AllNodes || node == namespace.node;
        let of_job = seen.iter().filter(move |((of, node), _)| *of == job && meant(*node));
        of_job.map(|((_, node), processes)| {
            let host = namespace.hosts.get(node.index()).map_or("localhost", String::as_str);
            (host, processes)
        })
    }

    fn push_processes(&self, out: &mut Writer, job: JobIndex, extent: Extent) -> Option<()> {
        let namespace = self.jobs[job].namespace.name.as_bytes();
        let nodes: Vec<_> = self.seen_of(job, extent).collect();
        let ranks = || nodes.iter().flat_map(|(host, node)| node.ranks.iter().map(move |process| (*host, process)));
        let mut ranks: Vec<_> = ranks().collect();
        if ranks.is_empty() {
            return None;
        }
        ranks.sort_unstable_by_key(|(_, process)| process.rank);
        out.u16(types::DATA_ARRAY);
        out.u16(types::PROC_INFO);
        out.size(ranks.len() as u64);
        for (host, process) in ranks {
            out.proc(Proc { namespace, rank: process.rank.0 });
            out.text(Some(host.as_bytes()));
            out.text(Some(&process.program));
            out.pid(process.pid);
            out.byte(process.state);
        }
        Some(())
    }

    /// Memory of the server and the ranks of a node, in MB: for this node the facts themselves, for all nodes one array each.
    fn push_memory(&self, out: &mut Writer, job: JobIndex, extent: Extent) -> Option<()> {
        let nodes: Vec<_> = self.seen_of(job, extent).collect();
        if nodes.is_empty() {
            return None;
        }
        out.u16(types::DATA_ARRAY);
        out.u16(types::INFO);
        if extent == Extent::ThisNode {
            nodes.iter().for_each(|(host, node)| push_memory_facts(out, host, node));
            return Some(());
        }
        out.size(nodes.len() as u64);
        for (host, node) in nodes {
            out.text(Some(b"pmix.node.arr"));
            out.u32(0);
            out.u16(types::DATA_ARRAY);
            out.u16(types::INFO);
            push_memory_facts(out, host, node);
        }
        Some(())
    }
}

fn procs(job: &Namespace, ranks: Range<u32>) -> impl Iterator<Item = Proc<'_>> {
    ranks.map(|rank| Proc { namespace: job.name.as_bytes(), rank })
}

/// An array's number of elements, and its elements.
fn push_memory_facts(out: &mut Writer, host: &str, node: &NodeProcesses) {
    out.size(3);
    out.info(&Info::new("pmix.hname", Value::Text(host.as_bytes())));
    for (key, bytes) in [("pmix.dmn.mem", node.server_memory), ("pmix.cl.mem.avg", node.mean_memory())] {
        out.text(Some(key.as_bytes()));
        out.u32(0);
        out.u16(types::FLOAT);
        out.text(Some(format!("{:.3}", bytes as f64 / 1e6).as_bytes()));
    }
}
