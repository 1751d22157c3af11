//! Nodes and slots of a job, as each resource manager provides them: in variables, in files or by a command.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::Command;

use hostlist::HostLine;
use lattice_console::bounded_file;
use lattice_console::environment::Environment;
use lattice_dialects::hostfile::{self, Hosts, HostsError};

use super::{Nodes, NodesError, PODS, checked, each_once, expanded, gathered, variable};

/// Maximum size of a manager's file in bytes.
const BYTES_MAX: u64 = 16 << 20;
/// Step numbers from this one on are reserved by Slurm: for the batch script, and for the shell of an interactive job.
const FIRST_STEP_OF_SLURMS: u64 = 0xffff_ff00;

fn number(name: &str, environment: &Environment) -> Option<u64> {
    variable(name, environment)?.parse().ok()
}

/// True in a task that the user started by `srun`.
fn is_in_step(environment: &Environment) -> bool {
    number("SLURM_STEP_ID", environment).is_some_and(|step| step < FIRST_STEP_OF_SLURMS)
}

/// True in one of several tasks of a Slurm step. A launch there is for that task only.
pub(super) fn is_task_of_many(environment: &Environment) -> bool {
    is_in_step(environment) && number("SLURM_STEP_NUM_TASKS", environment) != Some(1)
}

pub(super) fn slurm(list: &str, environment: &Environment) -> Result<Nodes, NodesError> {
    let place = "SLURM_JOB_NODELIST";
    let names = expanded(place, list)?;
    // In a step, Slurm sets the first variable to the tasks of the step. The list of nodes remains that of the job.
    let of_job = if is_in_step(environment) { 1.. } else { 0.. };
    let said = ["SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"][of_job].iter().copied();
    let said = said.filter_map(|name| Some((name, variable(name, environment)?))).next();
    let slots = said.map(|(name, value)| {
        let slots = slurm_counts(value).filter(|slots| slots.len() == names.len());
        slots.ok_or_else(|| NodesError::Slots { variable: name, value: value.to_owned(), nodes: names.len() })
    });
    let nodes = match slots.transpose()? {
        Some(slots) => Nodes { names, slots: slots.into_iter().map(Some).collect(), are_filled: true },
        None => Nodes::without_counts(names, false),
    };
    checked(place, nodes)
}

/// Numbers in the short form of Slurm: `4(x2),3`. Limited to the longest list of nodes.
pub(super) fn slurm_counts(text: &str) -> Option<Vec<NonZeroU32>> {
    let mut counts = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1_usize),
        };
        if times > hostlist::NAMES_MAX - counts.len() {
            return None;
        }
        counts.extend(std::iter::repeat_n(count.parse::<NonZeroU32>().ok()?, times));
    }
    Some(counts)
}

pub(super) fn one_line_a_slot(variable: &'static str, path: &str) -> Result<Nodes, NodesError> {
    let text = read(variable, path)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let slot = |node: &str| HostLine { name: node.to_owned(), slots: Some(NonZeroU32::MIN) };
    gathered(variable, Hosts(lines.map(slot).collect()))
}

/// `a 4 b 4`: each host is followed by its slots.
pub(super) fn lsf(hosts: &str) -> Result<Nodes, NodesError> {
    let words: Vec<&str> = hosts.split_whitespace().collect();
    let pairs = words.chunks(2).map(|pair| match pair {
        [node, slots] => Some(HostLine { name: (*node).to_owned(), slots: Some(slots.parse().ok()?) }),
        _ => None,
    });
    let variable = "LSB_MCPU_HOSTS";
    let nodes = words.len().div_ceil(2);
    let hosts = pairs.collect::<Option<Vec<_>>>();
    let hosts = hosts.ok_or_else(|| NodesError::Slots { variable, value: words.join(" "), nodes })?;
    gathered(variable, Hosts(hosts))
}

/// Lines `host slots queue range`.
pub(super) fn sge(path: &str) -> Result<Nodes, NodesError> {
    let variable = "PE_HOSTFILE";
    let text = read(variable, path)?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let host = |line: &&str| {
        let mut words = line.split_whitespace();
        let (node, slots) = (words.next()?, words.next()?.parse().ok()?);
        Some(HostLine { name: node.to_owned(), slots: Some(slots) })
    };
    let wrong = |line: &str| NodesError::Slots { variable, value: line.to_owned(), nodes: 1 };
    let hosts = lines.iter().map(|line| host(line).ok_or_else(|| wrong(line))).collect::<Result<Vec<_>, _>>()?;
    gathered(variable, Hosts(hosts))
}

/// Pods by their names in the headless service. Without slots, each has one slot per processor.
pub(super) fn pods(text: &str) -> Result<Nodes, NodesError> {
    if !text.contains(':') {
        let names = each_once(expanded(PODS, text)?);
        return checked(PODS, Nodes::without_counts(names, true));
    }
    match hostfile::parse_hosts(text) {
        Ok(hosts) => gathered(PODS, hosts),
        Err(HostsError::List(source)) => Err(NodesError::List { place: PODS.to_owned(), source }),
        Err(HostsError::Form { text }) => Err(NodesError::Slots { variable: PODS, value: text, nodes: 1 }),
    }
}

/// Hosts of the Flux instance. Each has the same number of cores.
pub(super) fn flux() -> Result<Nodes, NodesError> {
    let place = "flux hostlist";
    let names = expanded(place, asked("flux hostlist instance")?.trim())?;
    let mut seen = HashSet::new();
    if let Some(host) = names.iter().find(|name| !seen.insert(*name)) {
        return Err(NodesError::SeveralBrokers { host: host.clone() });
    }
    let command = "flux resource list -s all -no {ncores}";
    let cores = asked(command)?;
    let share = cores.trim().parse::<usize>().ok().map(|cores| cores / names.len().max(1));
    let slots = share.and_then(|share| NonZeroU32::new(u32::try_from(share).ok()?));
    let slots = slots.ok_or_else(|| NodesError::Command { command, said: cores.trim().to_owned() })?;
    checked(place, Nodes { slots: vec![Some(slots); names.len()], names, are_filled: true })
}

/// Output of a command of the manager.
fn asked(command: &'static str) -> Result<String, NodesError> {
    let failed = |said: String| NodesError::Command { command, said };
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap_or_default()).args(words).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

fn read(variable: &'static str, path: &str) -> Result<String, NodesError> {
    let path = Path::new(path);
    bounded_file::text(path, BYTES_MAX).map_err(|error| NodesError::File { path: path.to_owned(), variable, error })
}
