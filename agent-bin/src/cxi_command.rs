//! `lattice-agent cxi`: lists, examines and cleans the CXI services of this node. An operator runs it on the node. It needs neither the API
//! server nor the agent: the environments of all processes show which process uses a service.

use std::fmt::Write as _;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use cxi_fabric::clock::SystemClock;
use cxi_fabric::node::{
    self, CxiBackend, CxiError, FoundService, NicService, NodeBackend, NodeConfigError, Usage, Use,
};
use lattice_session::cxi::{CxiSurvey, Finding, SurveyedNic, SurveyedService, survey};
use pmi_transport::address::Address;
use serde::Serialize;

use crate::daemon::{Config, ConfigError, Overrides};
use crate::runtime_lock::{self, LockError};
use crate::{Answer, Exit};

/// Mount point of the process file system.
const PROC: &str = "/proc";
/// Time limit for ending services that are busy.
const CLEAN_WITHIN: Duration = Duration::from_secs(10);

/// Commands about this node.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum CxiCommand {
    /// Show the NICs of this node, their services, and the process that uses each service.
    List(Shape),
    /// Check the library or program, privileges, NICs, links and services, and report problems; changes nothing.
    #[command(after_help = "The exit code is 0 if nothing is wrong, and 1 if something is.")]
    Doctor(Shape),
    /// End services that no process uses, such as the services of an agent that was killed; no agent may run here.
    Clean(Clean),
}

/// Format of the answer.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Shape {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Selection of the services to end.
#[derive(Clone, Debug, Args)]
#[group(id = "which", required = true, multiple = false)]
pub(crate) struct Clean {
    /// Services that name one of these VNIs.
    #[arg(long, value_name = "VNI,...", value_delimiter = ',', group = "which")]
    vni: Vec<u16>,
    /// All services that were made for a user; not on nodes where another launcher makes services too.
    #[arg(long, group = "which")]
    all: bool,
    /// Print the services that would be ended, and end none.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    shape: Shape,
}

/// Error of a command about this node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CxiCommandError {
    /// The agent's settings are not usable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The fabric settings are not usable, so no service can be ended.
    #[error(transparent)]
    Backend(#[from] NodeConfigError),
    /// The settings name no backend that makes services.
    #[error("no CXI services are made here; set `backend` in the section fabric of the agent's configuration")]
    NoBackend,
    /// The NICs cannot be read.
    #[error(transparent)]
    Nics(#[from] CxiError),
    /// An agent runs. It may have made services for a launch that has not started its processes yet.
    #[error("an agent listens at {address}, and ends services itself when their launch or VNI ends; stop it first")]
    AgentRuns {
        /// Address of the agent.
        address: Address,
    },
    /// An agent runs, at any address, or the directory with its lock is not usable.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A system call failed.
    #[error("cannot look at this node: {0}")]
    System(#[from] io::Error),
}

/// Runs the command with the settings in `config`; `over` overrides them.
///
/// # Errors
/// Fails if the settings or the node cannot be read, or if the command is not safe now.
pub(crate) fn run(command: &CxiCommand, config: Option<&Path>, over: Overrides) -> Result<Answer, CxiCommandError> {
    let (settings, listen) = Config::of_node(config, over.listen.clone())?;
    match command {
        CxiCommand::List(shape) => {
            let seen = look(settings.backend, settings.backend()?)?;
            let text = if shape.json { json(&devices(&seen.nics))? } else { table(&seen.nics) };
            Ok(answer(text, seen.trouble.into_iter().collect()))
        }
        CxiCommand::Doctor(shape) => {
            let seen = match settings.backend() {
                Ok(backend) => look(settings.backend, backend)?,
                Err(error) => CxiSurvey::without_services(settings.backend, Some(error.to_string())),
            };
            examined(&seen, *shape)
        }
        CxiCommand::Clean(clean) => {
            let backend = settings.backend()?.ok_or(CxiCommandError::NoBackend)?;
            let _no_agent_starts =
                (hold(&listen)?, runtime_lock::without_agents(&Config::runtime_dir_of_node(config, over)?)?);
            cleaned(clean, &*backend)
        }
    }
}

fn look(kind: NodeBackend, backend: Option<Arc<dyn CxiBackend>>) -> Result<CxiSurvey, CxiCommandError> {
    let Some(backend) = backend else { return Ok(CxiSurvey::without_services(kind, None)) };
    let usage = Usage::look(Path::new(PROC))?;
    let owner = |service: &NicService, found: &FoundService| match usage.of(&service.nic, found) {
        Use::Process(pid) => Some(format!("process {pid}")),
        Use::Anybody => Some("anybody".to_owned()),
        Use::Unknown => Some("unknown".to_owned()),
        Use::Nobody => None,
    };
    Ok(survey(kind, &*backend, owner))
}

/// Ensures that no agent listens at this address, and that none can until the returned listener is dropped. Before a launch starts its ranks, no
/// process uses its services. Only the lock detects an agent that chooses its own port.
fn hold(address: &Address) -> Result<Option<TcpListener>, CxiCommandError> {
    let runs = || CxiCommandError::AgentRuns { address: address.clone() };
    match address {
        Address::Tcp { host, port } => match TcpListener::bind((host.as_str(), *port)) {
            Ok(listener) => Ok(Some(listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(runs()),
            Err(error) => Err(error.into()),
        },
        Address::Unix(path) => match UnixStream::connect(path) {
            Ok(_) => Err(runs()),
            Err(_) => Ok(None),
        },
    }
}

/// Result of `clean`, for programs.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Cleaned {
    dry_run: bool,
    done: Vec<String>,
    failed: Vec<String>,
}

fn cleaned(clean: &Clean, backend: &dyn CxiBackend) -> Result<Answer, CxiCommandError> {
    let usage = Usage::look(Path::new(PROC))?;
    let (mut strays, mut failed) = (Vec::new(), Vec::new());
    for (service, found) in meant(clean, backend)? {
        match usage.of(&service.nic, &found) {
            Use::Nobody => strays.push((service, found)),
            Use::Unknown => failed.push(format!(
                "service {} of {} may be used by a process that cannot be looked at; run this as root",
                service.svc_id, service.nic
            )),
            Use::Process(_) | Use::Anybody => {}
        }
    }
    let services: Vec<NicService> = strays.iter().map(|(service, _)| service.clone()).collect();
    let stuck = if clean.dry_run {
        Vec::new()
    } else {
        node::release(backend, &SystemClock, &services, Instant::now() + CLEAN_WITHIN)
    };
    failed.extend(stuck.iter().map(ToString::to_string));
    let verb = if clean.dry_run { "would be ended" } else { "is ended" };
    let ended = strays.iter().filter(|(service, _)| stuck.iter().all(|stuck| stuck.service != *service));
    let done = ended.map(|(NicService { nic, svc_id }, found)| {
        format!("service {svc_id} of {nic} (VNI {}) {verb}", listed(found.vnis.iter().map(|vni| vni.get().into())))
    });
    let cleaned = Cleaned { dry_run: clean.dry_run, done: done.collect(), failed };
    let text = match (clean.shape.json, cleaned.done.is_empty() && cleaned.failed.is_empty()) {
        (true, _) => json(&cleaned)?,
        (false, true) => "there is nothing to clean\n".to_owned(),
        (false, false) => cleaned.done.iter().map(|line| format!("{line}\n")).collect(),
    };
    Ok(answer(text, cleaned.failed))
}

/// The services that the command selects, used or unused.
fn meant(clean: &Clean, backend: &dyn CxiBackend) -> Result<Vec<(NicService, FoundService)>, CxiError> {
    let is_meant = |found: &FoundService| clean.all || found.vnis.iter().any(|vni| clean.vni.contains(&vni.get()));
    let mut services = Vec::new();
    for nic in backend.nics()? {
        let found = backend.list(&nic.name)?.into_iter().filter(is_meant);
        services.extend(found.map(|found| (NicService { nic: nic.name.clone(), svc_id: found.svc_id }, found)));
    }
    Ok(services)
}

/// Result of `doctor`, for programs.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Examination<'a> {
    backend: &'a str,
    may_make_services: bool,
    devices: Vec<Device<'a>>,
    findings: Vec<Problem<'a>>,
}

/// A problem with the next step.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Problem<'a> {
    detail: &'a str,
    action: &'a str,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Device<'a> {
    device: &'a str,
    is_up: bool,
    services: Vec<Service<'a>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Service<'a> {
    svc_id: u32,
    vnis: &'a [u32],
    uids: &'a [u32],
    /// `null` if no process uses the service.
    used_by: Option<&'a str>,
}

fn examined(seen: &CxiSurvey, shape: Shape) -> Result<Answer, CxiCommandError> {
    let mut findings = seen.findings();
    let services = seen.nics.iter().flat_map(|nic| nic.services.iter().map(move |service| (nic, service)));
    let strays = services.filter(|(_, service)| service.owner.is_none());
    findings.extend(strays.map(|(nic, service)| {
        let vnis = listed(service.vnis.iter().copied());
        let what = format!("no process uses service {} of {} (VNI {vnis})", service.svc_id, nic.name);
        Finding::new(what, "the agent ends it with its VNI; if that is gone: lattice-agent cxi clean --vni VNI")
    }));
    let text = if shape.json {
        let (backend, devices) = (seen.backend.as_str(), devices(&seen.nics));
        let problems = findings.iter().map(|Finding { detail, action }| Problem { detail, action }).collect();
        json(&Examination { backend, may_make_services: node::may_make_services(), devices, findings: problems })?
    } else {
        let services: usize = seen.nics.iter().map(|nic| nic.services.len()).sum();
        let mut text = format!("back end {}: {} NICs, {services} services\n", seen.backend, seen.nics.len());
        if findings.is_empty() {
            text += "nothing is wrong\n";
        }
        for Finding { detail, action } in &findings {
            text += &format!("{detail}\n  try: {action}\n");
        }
        text
    };
    let exit = if findings.is_empty() { Exit::Success } else { Exit::Findings };
    Ok(Answer { text, problems: Vec::new(), exit })
}

fn devices(nics: &[SurveyedNic]) -> Vec<Device<'_>> {
    fn service(service: &SurveyedService) -> Service<'_> {
        let SurveyedService { svc_id, vnis, uids, owner } = service;
        Service { svc_id: *svc_id, vnis, uids, used_by: owner.as_deref() }
    }
    fn device(nic: &SurveyedNic) -> Device<'_> {
        Device { device: &nic.name, is_up: nic.is_up, services: nic.services.iter().map(service).collect() }
    }
    nics.iter().map(device).collect()
}

fn table(nics: &[SurveyedNic]) -> String {
    let mut text = String::new();
    let mut row = |nic: &str, link: &str, service: &str, users: &str, vnis: &str, used_by: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{}",
            format!("{nic:<6}{link:<6}{service:>7}  {users:<10}  {vnis:<11}  {used_by}").trim_end()
        );
    };
    row("NIC", "LINK", "SERVICE", "USERS", "VNIS", "USED BY");
    for nic in nics {
        let link = if nic.is_up { "up" } else { "down" };
        if nic.services.is_empty() {
            row(&nic.name, link, "-", "", "", "");
        }
        for SurveyedService { svc_id, vnis, uids, owner } in &nic.services {
            let used_by = owner.as_deref().unwrap_or("nobody");
            let (users, vnis) = (listed(uids.iter().copied()), listed(vnis.iter().copied()));
            row(&nic.name, link, &svc_id.to_string(), &users, &vnis, used_by);
        }
    }
    text
}

/// Numbers such as `1024,1025`; `all` where nothing is restricted.
fn listed(numbers: impl Iterator<Item = u32>) -> String {
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    if numbers.is_empty() { "all".to_owned() } else { numbers.join(",") }
}

fn json(value: &impl Serialize) -> Result<String, CxiCommandError> {
    Ok(serde_json::to_string_pretty(value).map_err(io::Error::from)? + "\n")
}

/// The answer of a command, with the operations that failed.
fn answer(text: String, problems: Vec<String>) -> Answer {
    let exit = if problems.is_empty() { Exit::Success } else { Exit::Findings };
    Answer { text, problems, exit }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use schemars::JsonSchema;
    use schemars::generate::SchemaSettings;

    use super::*;

    /// Compares the schema of a document with its file in the documentation.
    fn check_schema<T: JsonSchema>(action: &str) {
        let mut schema = SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>();
        schema.insert("title".to_owned(), format!("Document of `lattice-agent cxi {action} --json`").into());
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/schemas");
        let path = directory.join(format!("agent-cxi-{action}.schema.json"));
        if std::env::var_os("LATTICE_WRITE_DOCS").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let written = fs::read_to_string(&path).unwrap_or_default();
        assert!(written == text, "{} is old: LATTICE_WRITE_DOCS=1 cargo test -p lattice-agent schemas", path.display());
    }

    #[test]
    fn the_schemas_in_the_book_are_those_of_the_types() {
        check_schema::<Vec<Device<'_>>>("list");
        check_schema::<Examination<'_>>("doctor");
        check_schema::<Cleaned>("clean");
    }

    fn ask(command: &CxiCommand, settings: &str) -> Result<Answer, CxiCommandError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), settings).unwrap();
        run(command, Some(file.path()), Overrides::default())
    }

    #[test]
    fn a_node_without_a_back_end_has_nothing_to_show_and_nothing_to_clean() {
        let listed = ask(&CxiCommand::List(Shape { json: false }), "").unwrap();
        assert_eq!((listed.exit, listed.problems.len()), (Exit::Success, 0));
        assert!(listed.text.starts_with("NIC "), "{}", listed.text);
        let json = ask(&CxiCommand::List(Shape { json: true }), "").unwrap();
        assert_eq!(json.text, "[]\n");
        let clean = Clean { vni: Vec::new(), all: true, dry_run: true, shape: Shape { json: false } };
        let refused = ask(&CxiCommand::Clean(clean), "").unwrap_err().to_string();
        assert!(refused.starts_with("no CXI services are made here; set `backend`"), "{refused}");
    }

    #[test]
    fn services_are_not_cleaned_beside_an_agent_that_runs() {
        let agent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp { host: "127.0.0.1".into(), port: agent.local_addr().unwrap().port() };
        let refused = hold(&address).unwrap_err().to_string();
        assert!(refused.contains("stop it first"), "{refused}");
        drop(agent);
        assert!(hold(&address).unwrap().is_some());
    }

    /// The address does not show that the agent runs: any process can listen at port 0.
    #[test]
    fn services_are_not_cleaned_beside_an_agent_that_chooses_its_port() {
        let directory = tempfile::tempdir().unwrap();
        let nics = directory.path().join("nics");
        fs::create_dir(&nics).unwrap();
        let settings = format!(
            "node_id = 'n'\nlisten = '127.0.0.1:0'\nruntime_dir = '{}'\n[fabric]\nbackend = 'paper'\npath = '{}'",
            directory.path().display(),
            nics.display()
        );
        let clean = Clean { vni: Vec::new(), all: true, dry_run: true, shape: Shape { json: false } };
        let cleaned = || ask(&CxiCommand::Clean(clean.clone()), &settings);
        let agent = runtime_lock::of_agent(&directory.path().join("n")).unwrap();
        let refused = cleaned().unwrap_err();
        assert!(matches!(refused, CxiCommandError::Lock(LockError::AgentRuns { .. })), "{refused}");
        drop(agent);
        assert_eq!(cleaned().unwrap().text, "there is nothing to clean\n");
    }

    #[test]
    fn a_problem_that_is_left_is_a_finding() {
        assert_eq!(answer(String::new(), Vec::new()).exit, Exit::Success);
        assert_eq!(answer(String::new(), vec!["x".into()]).exit, Exit::Findings);
    }

    #[test]
    fn numbers_without_a_restriction_are_all() {
        assert_eq!(listed([].into_iter()), "all");
        assert_eq!(listed([1024, 1025].into_iter()), "1024,1025");
    }
}
