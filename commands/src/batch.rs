//! `lattice batch`: queues a script. It runs as the user, on the first of its nodes, when nodes are free.
//!
//! ```text
//! script, environment ──> request of a launch of one process ──> queue of the API server
//!                                                                   │ nodes are free
//!                  `lattice batch-script` on the first node  <──────┘
//!                        └─ the script, with files for its output
//! ```

mod on_node;
mod script;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lattice_cluster_client::Cluster;
use lattice_console::machine::Machine;
use lattice_console::{Verbosity, exit, print_json, print_lines, report};
use lattice_session::count::counted;
use lattice_session::request::LaunchRequest;
use lattice_session::template::Template;
use lattice_session::wire;
use pmi_transport::proto::v1 as proto;
use serde::Serialize;
use tokio::time::sleep;

pub use self::on_node::run_script;
use self::script::Script;
pub use self::script::ScriptError;
use super::error::CommandError;
use super::questions::{ask, environment};
use crate::args::{BatchArgs, BatchOptions, RUN_SCRIPT, SCRIPT};

/// Pause between queries for the end of a job.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Default output file of a job.
const USUAL_OUTPUT: &str = "lattice-%j.out";

/// A submitted batch job in the JSON output.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Submitted<'a> {
    /// Also the id of the job.
    allocation_id: &'a str,
    name: &'a str,
    state: &'static str,
}

/// Converts words of `lattice launch` for one program to the request of the launch.
pub type ToRequest = fn(Vec<OsString>, &Machine) -> Result<LaunchRequest, Box<dyn std::error::Error + Send + Sync>>;

/// Queues a batch job. Returns the exit code: that of the script if the command waits for the job.
pub fn batch(args: &BatchArgs, verbosity: Verbosity, to_request: ToRequest) -> Result<u8, CommandError> {
    let Script { bytes, options } = Script::of(args)?;
    let options = args.options.clone().over(options);
    options.check().map_err(|reason| ScriptError::Options { reason })?;
    if verbosity > Verbosity::Quiet && script::is_of_pbs(&bytes) {
        report("note: lines of #PBS are not read\ntry: #LATTICE lines, such as #LATTICE --nodes=2 --time=1:00:00");
    }
    options.notes(verbosity).iter().for_each(|note| report(note));
    let name = options.job_name.clone().unwrap_or_else(|| usual_name(args));
    let launch = launch(args, &options, &name, &bytes, to_request)?;
    let mut request = proto::CreateAllocationRequest {
        nodes: options.list.clone().unwrap_or_default(),
        requeue: options.requeue.map(proto::RequeuePolicy::from).unwrap_or_default().into(),
        time_limit_s: options.time.map(|limit| limit.as_secs()).unwrap_or_default(),
        batch: Some(proto::BatchRequest { name: name.clone(), launch: Some(launch) }),
        ..proto::CreateAllocationRequest::default()
    };
    ask(&args.table.api, async |cluster| {
        match options.list {
            Some(_) => request.nodes = cluster.registered_names(&request.nodes).await?,
            None => request.num_nodes = number_of_nodes(&cluster, &options).await?,
        }
        let made = cluster.ask(cluster.allocations().create_allocation(request)).await?;
        if verbosity == Verbosity::Verbose {
            report(&format!("job {} ({name}) is {}", made.id, told(&made)));
        }
        if verbosity > Verbosity::Quiet
            && let Some(note) = waits_for_us(&cluster, &made).await
        {
            report(&note);
        }
        let code = match args.table.json {
            true => print_json(&Submitted {
                allocation_id: &made.id,
                name: &name,
                state: lattice_cluster_client::state_word(made.state()),
            })?,
            false => print_lines(std::slice::from_ref(&made.id))?,
        };
        if args.wait { wait(&cluster, &made.id, verbosity).await } else { Ok(code) }
    })
}

/// Note on a job that waits for nodes of the allocation in which this command runs. A cluster of `lattice start` has no other nodes.
async fn waits_for_us(cluster: &Cluster, made: &proto::Allocation) -> Option<String> {
    let own = lattice_cluster_client::allocation(None, &environment()).ok()??;
    let own = cluster.allocated_nodes(&own).await.ok().filter(|own| own.over.is_none())?;
    let all = cluster.node_facts().await.ok()?.len();
    let named = hostlist::expand(&made.wanted_nodes).unwrap_or_default();
    let waits = named.iter().any(|node| own.names.contains(node)) || own.names.len() + made.num_nodes as usize > all;
    (waits && made.state() == proto::AllocationState::Pending).then(|| {
        format!(
            "note: job {} waits for nodes of allocation {own}, in which you are; it has {} of {}\n\
             try: lattice launch, which starts programs there now; or lattice alloc release {own}, if nothing of it is needed any more",
            made.id,
            own.names.len(),
            counted(all, "node"),
            own = own.id
        )
    })
}

/// Number of nodes of a job that lists none: its option, else the number that its tasks need on the smallest nodes, else 1.
async fn number_of_nodes(cluster: &Cluster, options: &BatchOptions) -> Result<u32, CommandError> {
    let cores = match options.count.is_none() && options.tasks.needs_cores() {
        true => cluster.node_facts().await?.iter().map(|node| node.cores).filter(|&cores| cores > 0).min(),
        false => None,
    };
    Ok(options.count.or(options.tasks.nodes(cores)).unwrap_or(1))
}

/// Default name of a job: the file name of its script, `wrap` or `stdin`.
fn usual_name(args: &BatchArgs) -> String {
    match (&args.script, &args.wrap) {
        (Some(script), _) => script.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        (None, Some(_)) => "wrap".to_owned(),
        (None, None) => "stdin".to_owned(),
    }
}

/// State of an allocation in words, with the reason.
fn told(allocation: &proto::Allocation) -> String {
    let state = lattice_cluster_client::state_word(allocation.state());
    if allocation.reason.is_empty() { state.to_owned() } else { format!("{state}: {}", allocation.reason) }
}

/// Request of the launch that runs the script on the first node: one process, without PMI. Its own output reports only its failures.
fn launch(
    args: &BatchArgs,
    options: &BatchOptions,
    name: &str,
    script: &[u8],
    to_request: ToRequest,
) -> Result<proto::LaunchTasksRequest, CommandError> {
    let machine = Machine::this()?;
    let flag = |name: &str, value: &dyn std::fmt::Display| OsString::from(format!("--{name}={value}"));
    let mut words = vec![
        flag("nodes", &1),
        flag("ntasks", &1),
        flag("pmi", &"none"),
        flag("stdin", &"none"),
        "--detach".into(),
        flag("env", &format_args!("{SCRIPT}={}", STANDARD.encode(script))),
    ];
    if script::is_of_slurm(script) {
        words.push(flag("env", &format_args!("SLURM_SUBMIT_DIR={}", machine.directory.display())));
    }
    words.extend(options.tasks.variables().map(|(name, number)| flag("env", &format_args!("{name}={number}"))));
    words.extend(
        args.table.api.api.iter().map(|url| flag("env", &format_args!("{}={url}", lattice_cluster_client::API_URL))),
    );
    let directory = options.chdir.as_deref().unwrap_or(Path::new("."));
    words.extend(["--chdir".into(), machine.directory.join(directory).into_os_string(), "--".into()]);
    words.push(std::env::current_exe()?.into_os_string());
    words.extend([RUN_SCRIPT.into(), flag("job-name", &name)]);
    let output = options.output.as_ref().map_or_else(|| USUAL_OUTPUT.into(), Template::to_text);
    for (flag, file) in [("--output", Some(output)), ("--error", options.error.as_ref().map(Template::to_text))] {
        words.extend(file.into_iter().flat_map(|file| [flag.into(), file]));
    }
    words.push("--".into());
    words.extend(args.args.iter().cloned());
    let request = to_request(words, &machine).map_err(CommandError::Request)?;
    Ok(wire::request::encode(&request, String::new()))
}

/// Waits for the end of the job and reports the cause of a failure; returns the exit code of its script.
async fn wait(cluster: &Cluster, id: &str, verbosity: Verbosity) -> Result<u8, CommandError> {
    loop {
        let request = proto::GetAllocationRequest { id: id.to_owned() };
        let end = match cluster.ask(cluster.allocations().get_allocation(request)).await {
            Ok(allocation) => match allocation.state() {
                proto::AllocationState::Released => Some(allocation.batch.and_then(|job| job.end).unwrap_or_default()),
                _ => None,
            },
            // The job continues while the API server is away.
            Err(error) if error.is_passing() => None,
            Err(error) => return Err(error.into()),
        };
        match end {
            Some(proto::BatchEnd { exit_code: Some(code), cause }) => {
                if verbosity > Verbosity::Quiet && !cause.is_empty() {
                    report(&format!("job {id}: {cause}"));
                }
                return Ok(u8::try_from(code).unwrap_or(exit::OURS));
            }
            Some(proto::BatchEnd { exit_code: None, cause }) => {
                return Err(CommandError::BatchWithoutEnd { id: id.to_owned(), cause });
            }
            None => sleep(ASK_AGAIN).await,
        }
    }
}
