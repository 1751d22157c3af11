//! Slurm variables that follow from the line of a launch and from its user, as srun of Slurm 22.05 sets them. The nodes set the variables about
//! nodes and ranks.

use std::ffi::OsString;
use std::path::Path;

use lattice_console::formatting;
use lattice_console::machine::Machine;
use lattice_session::request::Distribution as AmongNodes;
use nix::unistd::{getegid, geteuid};

use crate::args::{Distribution, LaunchArgs, Order};

/// Names and values of the variables.
pub(super) fn of_launch(args: &LaunchArgs, machine: &Machine) -> Vec<(&'static str, OsString)> {
    let program = args.first.command.first().map(Path::new).and_then(Path::file_name);
    let name = args.streams.job_name.as_deref().or(program).unwrap_or_default();
    let user = geteuid().as_raw();
    let mut variables: Vec<(&str, OsString)> = vec![
        ("SLURM_JOB_NAME", name.to_owned()),
        ("SLURM_JOB_USER", formatting::user(user).into()),
        ("SLURM_JOB_UID", user.to_string().into()),
        ("SLURM_JOB_GID", getegid().to_string().into()),
        ("SLURM_SUBMIT_HOST", machine.host.clone().into()),
    ];
    let placement = &args.placement;
    variables.extend(machine.umask.map(|mask| ("SLURM_UMASK", format!("{mask:04o}").into())));
    variables.extend(placement.cpus_per_task.map(|cpus| ("SLURM_CPUS_PER_TASK", cpus.to_string().into())));
    variables.extend(placement.tasks_per_node.map(|tasks| ("SLURM_NTASKS_PER_NODE", tasks.to_string().into())));
    variables.extend(placement.distribution.into_iter().flat_map(distribution));
    variables
}

/// Variables for the order of ranks; none if no order among nodes was requested.
fn distribution(distribution: Distribution) -> Vec<(&'static str, OsString)> {
    let (nodes, plane) = match distribution.nodes {
        None => return Vec::new(),
        Some(AmongNodes::Block) => ("block", None),
        Some(AmongNodes::Cyclic) => ("cyclic", None),
        Some(AmongNodes::Plane(size)) => ("plane", Some(size)),
    };
    let within = match distribution.sockets {
        None => "",
        Some(Order::Block) => ":block",
        Some(Order::Cyclic) => ":cyclic",
        Some(Order::FullyCyclic) => ":fcyclic",
    };
    // The value of Slurm for planes has no second part.
    let within = if plane.is_none() { within } else { "" };
    let mut variables = vec![("SLURM_DISTRIBUTION", format!("{nodes}{within}").into())];
    variables.extend(plane.map(|size| ("SLURM_DIST_PLANESIZE", size.to_string().into())));
    variables
}
