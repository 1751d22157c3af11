//! Requests that only the host can serve: new jobs and input. Also the answers to these requests, and to calls about names
//! ([`names`](super::names)).

use std::collections::HashSet;

use bytes::Bytes;
use pmi_core::ids::Rank;
use pmi_core::roster::Quota;
use pmi_core::services::{InputError, NameError, SpawnApp, SpawnRequest};
use pmi_core::wire::FrameBuffer;

use super::client::Address;
use super::launch::Launch;
use super::open_questions::AnswerReceiver;
use crate::namespace::JobIndex;
use crate::services::{Answer, Call};
use crate::wire::forwarding::Push;
use crate::wire::request::App;
use crate::wire::value::{Info, Value};
use crate::wire::{reply, status, types};

/// Maximum number of programs of one spawn, as in PMI-1.
const SPAWN_APPS_MAX: usize = FrameBuffer::SPAWN_BLOCKS_MAX;

/// Passes a spawn to the host. The directives of the job are copied once, and shared by its programs.
pub(super) fn spawn(launch: &mut Launch, address: Address, infos: &[Info<'_>], apps: &[App<'_>]) {
    let seat = address.identity.seat;
    let open = launch.jobs.rank(seat).quota.questions();
    let questions = Quota::questions_of(spawn_bytes(infos, apps)).saturating_add(open);
    if apps.len() > SPAWN_APPS_MAX || questions > launch.questions_max(seat) {
        return launch.answer(address, status::OUT_OF_RESOURCE);
    }
    let mut job = SpawnApp::default();
    take_directives(&mut job, infos);
    let apps = apps.iter().map(|app| spawn_app(app, &job)).collect();
    ask(launch, address, Call::Spawn(SpawnRequest { apps, ..SpawnRequest::default() }));
}

/// A client sends input for ranks of the launched job: no other job reads input.
pub(super) fn push_input(launch: &mut Launch, address: Address, push: &Push<'_>) {
    if push.bytes.is_empty() {
        // The end of one tool's input is not the end of the launch's input.
        return launch.answer(address, status::SUCCESS);
    }
    let launched = JobIndex(0);
    let size = launch.jobs[launched].namespace.job.size();
    let mut ranks = Some(Vec::new());
    for target in &push.targets {
        if launch.jobs.own(target.namespace) != Some(launched) {
            return launch.answer(address, status::NOT_SUPPORTED);
        }
        match target.rank {
            types::RANK_WILDCARD => ranks = None,
            rank if rank >= size => return launch.answer(address, status::NOT_FOUND),
            rank => ranks.iter_mut().for_each(|ranks| ranks.push(Rank(rank))),
        }
    }
    let ranks = ranks.filter(|ranks| !ranks.is_empty());
    ask(launch, address, Call::PushInput { ranks, bytes: Bytes::copy_from_slice(push.bytes) });
}

/// Sends the question of a client to the host.
pub(super) fn ask(launch: &mut Launch, address: Address, call: Call) {
    let seat = address.identity.seat;
    let questions = Quota::questions_of(call.waiting_bytes());
    if launch.charge(address, questions) {
        let (job, rank) = (launch.jobs.meant_by(seat), launch.jobs.rank(seat).rank);
        launch.call(job, rank, call, AnswerReceiver::Rank { address, questions });
    }
}

/// Passes the host's answer to the client that sent the question.
pub(super) fn answer_client(launch: &mut Launch, address: Address, answer: &Answer) {
    let encoding = address.identity.encoding;
    match answer {
        Answer::Named(Ok(())) => launch.answer(address, status::SUCCESS),
        Answer::Named(Err(error)) | Answer::Found(Err(error)) => launch.answer(address, name_status(error)),
        Answer::Found(Ok(values)) => {
            let found: Vec<_> = values
                .iter()
                .filter_map(|(name, value)| value.open().map(|(publisher, value)| (publisher, &name[..], value)))
                .collect();
            launch.reply(address, &reply::found(encoding, &found));
        }
        Answer::Spawned(Ok(job)) => {
            let spawned = launch.jobs.iter().find(|state| state.namespace.job.id == *job);
            match spawned.map(|job| reply::spawned(encoding, job.namespace.name.as_bytes())) {
                Some(reply) => launch.reply(address, &reply),
                None => launch.answer(address, status::JOB_FAILED_TO_LAUNCH),
            }
        }
        Answer::Spawned(Err(error)) => {
            let rank = launch.jobs.rank(address.identity.seat).rank;
            tracing::warn!("a spawn of rank {rank} failed: {error}");
            launch.answer(address, status::JOB_FAILED_TO_LAUNCH);
        }
        Answer::Pushed(result) => launch.answer(address, result.map_or_else(input_status, |()| status::SUCCESS)),
        // No single rank sends these requests.
        Answer::Met(_) | Answer::Seen(_) | Answer::Signalled(_) => launch.answer(address, status::COMM_FAILURE),
    }
}

impl Call {
    /// Returns the number of bytes that are stored until it is answered.
    fn waiting_bytes(&self) -> usize {
        let texts = |texts: &[Bytes]| texts.iter().map(|text| text.len() + Quota::PAIR_COST).sum::<usize>();
        match self {
            Self::Publish { values, .. } => {
                values.iter().map(|(name, value)| name.len() + value.len() + Quota::PAIR_COST).sum()
            }
            Self::Lookup { names, .. } | Self::Unpublish { names } => texts(names),
            Self::PushInput { ranks, bytes } => bytes.len() + ranks.iter().flatten().count() * size_of::<Rank>(),
            Self::Spawn(request) => Quota::bytes_of_spawn(request),
            _ => 0,
        }
    }
}

/// Bytes that a spawn stores until it is answered, counted before any copy: each program has the directives of the job.
fn spawn_bytes(infos: &[Info<'_>], apps: &[App<'_>]) -> usize {
    let of_infos = |infos: &[Info<'_>]| infos.iter().map(info_bytes).sum::<usize>();
    let of_texts = |texts: &[&[u8]]| texts.iter().map(|text| text.len() + Quota::PAIR_COST).sum::<usize>();
    let of_job = of_infos(infos);
    let of_app = |app: &App<'_>| {
        let own = app.program.len() + of_texts(&app.arguments) + of_texts(&app.variables) + of_infos(&app.infos);
        own.saturating_add(of_job)
    };
    apps.iter().map(of_app).fold(0, usize::saturating_add)
}

fn info_bytes(info: &Info<'_>) -> usize {
    let value = match &info.value {
        Value::Text(text) => text.len(),
        Value::Variable(name, value) => name.len() + value.len(),
        _ => 0,
    };
    info.key.len() + value + Quota::PAIR_COST
}

/// A program for the host. Directives of the job, from `job`, apply to each program, unless the program overrides them.
fn spawn_app(app: &App<'_>, job: &SpawnApp) -> SpawnApp {
    let mut spawned = SpawnApp {
        program: own(app.program),
        args: app.arguments.iter().skip(1).map(|word| own(word)).collect(),
        ranks: app.ranks,
        directory: job.directory.clone().or_else(|| app.directory.map(own)),
        ..SpawnApp::default()
    };
    for variable in &app.variables {
        if let Some(end) = variable.iter().position(|&byte| byte == b'=') {
            spawned.variables.push((own(&variable[..end]), own(&variable[end + 1..])));
        }
    }
    spawned.variables.extend_from_slice(&job.variables);
    take_directives(&mut spawned, &app.infos);
    // Hosts use only the first hint of a name, but all hints that list hosts.
    let has: HashSet<&[u8]> = app.infos.iter().map(|info| info.key).collect();
    spawned.info.extend(job.info.iter().filter(|(key, _)| !has.contains(&**key)).cloned());
    spawned
}

/// Copies directives to the fields that they set.
fn take_directives(to: &mut SpawnApp, infos: &[Info<'_>]) {
    for info in infos {
        match (info.key, &info.value) {
            (b"pmix.wdir", Value::Text(directory)) => to.directory = Some(own(directory)),
            (b"pmix.envar.set", Value::Variable(name, value)) => to.variables.push((own(name), own(value))),
            (key, Value::Text(text)) => to.info.push((own(key), own(text))),
            _ => {}
        }
    }
}

fn own(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn input_status(error: InputError) -> i32 {
    match error {
        InputError::NotPassedOn | InputError::OtherReaders => status::NOT_SUPPORTED,
        InputError::Ended => status::IOF_COMPLETE,
        InputError::Full => status::OUT_OF_RESOURCE,
    }
}

/// Status for the refusal of a call about names.
fn name_status(error: &NameError) -> i32 {
    match error {
        NameError::AlreadyPublished { .. } => status::DUPLICATE_KEY,
        NameError::NotFound | NameError::Ambiguous { .. } => status::NOT_FOUND,
        NameError::NotPublisher { .. } => status::NO_PERMISSIONS,
        NameError::Full { .. } | NameError::TooLong { .. } => status::OUT_OF_RESOURCE,
        NameError::TimedOut => status::TIMEOUT,
        _ => status::COMM_FAILURE,
    }
}
