//! Requests that only the host can serve: published names, new jobs.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::fence::FenceId;
use pmi_core::ids::Rank;
use pmi_core::roster::Quota;
use pmi_core::services::{InputError, JobProcesses, Lifetime, NameError, SignalError, SpawnApp, SpawnRequest};
use pmi_core::wire::FrameBuffer;

use super::{Action, Address, Server, Ticket};
use crate::namespace::JobIndex;
use crate::services::{Answer, Call, Published};
use crate::wire::forwarding::Push;
use crate::wire::reader::Proc;
use crate::wire::reply::Encoded;
use crate::wire::request::App;
use crate::wire::value::{Info, Value};
use crate::wire::writer::Writer;
use crate::wire::{reply, status, types};

/// Receiver of the host's answer.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    /// A rank, whose question counts as so many, and has so many bytes kept.
    Rank { address: Address, questions: usize, kept: usize },
    /// The ranks of a collective with other launches.
    Meeting(FenceId),
    /// A query of a rank, about processes of a job here.
    Look { inquiry: Ticket, job: JobIndex },
    /// A rank that signals others.
    Signal { inquiry: Ticket },
    /// A server of another node that asks for the processes of a job here.
    PeerLook { ticket: Ticket, job: JobIndex },
    /// A server of another node that wants ranks here signalled.
    PeerSignal { ticket: Ticket },
}

/// A look-up that waits without a limit of its own; the launch's end ends it.
const WITHOUT_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Most programs of one spawn, as PMI-1 has it.
const SPAWN_APPS_MAX: usize = FrameBuffer::SPAWN_BLOCKS_MAX;

impl Server {
    /// Everything but directives is published.
    pub(super) fn publish(&mut self, address: Address, infos: &[Info<'_>]) {
        let seat = address.identity.seat;
        let encoding = address.identity.encoding;
        let namespace = self.jobs[seat.job.0].namespace.name.clone();
        let publisher = Proc { namespace: namespace.as_bytes(), rank: self.rank(seat).rank.0 };
        let (directives, values): (Vec<&Info<'_>>, Vec<_>) =
            infos.iter().partition(|info| info.key.starts_with(b"pmix."));
        let once = |info: &&Info<'_>| {
            info.key == b"pmix.persist" && info.value == Value::Persistence(types::PERSIST_FIRST_READ)
        };
        let lifetime = if directives.iter().any(once) { Lifetime::FirstRead } else { Lifetime::Withdrawn };
        let pack = |info: &Info<'_>| {
            let mut value = Writer::new(encoding);
            value.value(&info.value);
            let value = value.into_bytes();
            (Bytes::copy_from_slice(info.key), Published::new(publisher, Encoded { encoding, bytes: &value }))
        };
        let values = values.into_iter().map(pack).collect();
        self.ask(address, Call::Publish { values, lifetime });
    }

    pub(super) fn look_up(&mut self, address: Address, keys: &[&[u8]], infos: &[Info<'_>]) {
        let number = |key: &[u8]| infos.iter().find(|info| info.key == key).map(|info| info.value.number());
        // A tool may be gone long before.
        let longest = if self.is_tool(address.identity.seat) { self.settings.rank_timeout } else { WITHOUT_LIMIT };
        let limit = match number(b"pmix.timeout") {
            Some(Some(seconds @ 1..)) => Duration::from_secs(seconds).min(longest),
            _ => longest,
        };
        // Its number says for how many to wait, 0 for all; whoever waits for one of several gets all of them, later.
        let timeout = number(b"pmix.wait").map(|_| limit);
        self.ask(address, Call::Lookup { names: owned(keys), timeout });
    }

    pub(super) fn unpublish(&mut self, address: Address, keys: &[&[u8]]) {
        self.ask(address, Call::Unpublish { names: owned(keys) });
    }

    /// Hands a spawn to the host. The directives of the job are copied once, and shared by its programs.
    pub(super) fn spawn(&mut self, address: Address, infos: &[Info<'_>], apps: &[App<'_>]) {
        let seat = address.identity.seat;
        let open = self.rank(seat).quota.questions();
        let questions = Quota::questions_of(spawn_bytes(infos, apps)).saturating_add(open);
        if apps.len() > SPAWN_APPS_MAX || questions > self.questions_max(seat) {
            return self.answer(address, status::OUT_OF_RESOURCE);
        }
        let mut job = SpawnApp::default();
        take_directives(&mut job, infos);
        let apps = apps.iter().map(|app| spawn_app(app, &job)).collect();
        self.ask(address, Call::Spawn(SpawnRequest { apps, ..SpawnRequest::default() }));
    }

    /// A client has input for ranks of the launched job: no other job reads any.
    pub(super) fn push_input(&mut self, address: Address, push: &Push<'_>) {
        if push.bytes.is_empty() {
            // The end of what one tool has is not the end of the launch's input.
            return self.answer(address, status::SUCCESS);
        }
        let launched = JobIndex(0);
        let size = self.jobs[launched.0].namespace.job.size();
        let mut ranks = Some(Vec::new());
        for target in &push.targets {
            if self.own_job(target.namespace) != Some(launched) {
                return self.answer(address, status::NOT_SUPPORTED);
            }
            match target.rank {
                types::RANK_WILDCARD => ranks = None,
                rank if rank >= size => return self.answer(address, status::NOT_FOUND),
                rank => ranks.iter_mut().for_each(|ranks| ranks.push(Rank(rank))),
            }
        }
        let ranks = ranks.filter(|ranks| !ranks.is_empty());
        self.ask(address, Call::PushInput { ranks, bytes: Bytes::copy_from_slice(push.bytes) });
    }

    fn ask(&mut self, address: Address, call: Call) {
        let seat = address.identity.seat;
        let (bytes, most) = (self.settings.bytes_per_rank, self.questions_max(seat));
        let questions = Quota::questions_of(call.waiting_bytes());
        let Some(state) = self.rank_mut(seat) else { return };
        let rank = state.rank;
        if !state.quota.ask_many(questions, most) {
            return self.answer(address, status::OUT_OF_RESOURCE);
        }
        // A name's value is held by the host: it counts as if it had been committed.
        let kept = call.kept_bytes();
        if !state.quota.take_bytes(kept, bytes) {
            state.quota.answered_many(questions);
            return self.answer(address, status::OUT_OF_RESOURCE);
        }
        let ticket = self.new_ticket();
        self.asked.insert(ticket, Asked::Rank { address, questions, kept });
        self.actions.push_back(Action::Call { ticket, job: self.job_meant(seat), rank, call });
    }

    /// The host answered an [`Action::Call`].
    pub fn handle_answer(&mut self, ticket: Ticket, answer: &Answer) {
        let nothing = JobProcesses::default();
        let seen = || if let Answer::Seen(seen) = answer { seen } else { &nothing };
        let signalled =
            || if let Answer::Signalled(result) = answer { signal_status(result) } else { status::COMM_FAILURE };
        match self.asked.remove(&ticket) {
            Some(Asked::Rank { address, questions, kept }) => {
                if let Some(state) = self.rank_mut(address.identity.seat) {
                    state.quota.answered_many(questions);
                    if matches!(answer, Answer::Named(Err(_))) {
                        state.quota.give_back_bytes(kept);
                    }
                }
                self.answer_rank(address, answer);
            }
            Some(Asked::Meeting(id)) => self.end_meeting(&id, answer),
            Some(Asked::Look { inquiry, job }) => self.on_look(inquiry, job, seen()),
            Some(Asked::Signal { inquiry }) => self.on_signalled(inquiry, signalled()),
            Some(Asked::PeerLook { ticket, job }) => {
                let processes = self.node_processes(job, seen());
                self.reply_to_peer(ticket, processes.encode());
            }
            Some(Asked::PeerSignal { ticket }) => self.reply_to_peer(ticket, signalled().to_be_bytes().to_vec()),
            None => {}
        }
    }

    fn answer_rank(&mut self, address: Address, answer: &Answer) {
        let encoding = address.identity.encoding;
        match answer {
            Answer::Named(Ok(())) => self.answer(address, status::SUCCESS),
            Answer::Named(Err(error)) | Answer::Found(Err(error)) => self.answer(address, name_status(error)),
            Answer::Found(Ok(values)) => {
                let found: Vec<_> = values
                    .iter()
                    .filter_map(|(name, value)| value.open().map(|(publisher, value)| (publisher, &name[..], value)))
                    .collect();
                self.reply(address, &reply::found(encoding, &found));
            }
            Answer::Spawned(Ok(job)) => match self.jobs.iter().find(|state| state.namespace.job.id == *job) {
                Some(job) => {
                    let reply = reply::spawned(encoding, job.namespace.name.as_bytes());
                    self.reply(address, &reply);
                }
                None => self.answer(address, status::JOB_FAILED_TO_LAUNCH),
            },
            Answer::Spawned(Err(error)) => {
                let rank = self.rank(address.identity.seat).rank;
                tracing::warn!("a spawn of rank {rank} failed: {error}");
                self.answer(address, status::JOB_FAILED_TO_LAUNCH);
            }
            Answer::Pushed(result) => self.answer(address, result.map_or_else(input_status, |()| status::SUCCESS)),
            // No rank asks for these by itself.
            Answer::Met(_) | Answer::Seen(_) | Answer::Signalled(_) => self.answer(address, status::COMM_FAILURE),
        }
    }
}

impl Call {
    /// Returns the number of bytes that the host has to keep of it after the answer.
    fn kept_bytes(&self) -> usize {
        match self {
            Self::Publish { values, .. } => {
                values.iter().map(|(name, value)| name.len() + value.len() + Quota::PAIR_COST).sum()
            }
            _ => 0,
        }
    }

    /// Returns the number of bytes that are kept until it is answered.
    fn waiting_bytes(&self) -> usize {
        let texts = |texts: &[Bytes]| texts.iter().map(|text| text.len() + Quota::PAIR_COST).sum::<usize>();
        match self {
            Self::Lookup { names, .. } | Self::Unpublish { names } => texts(names),
            Self::PushInput { ranks, bytes } => bytes.len() + ranks.iter().flatten().count() * size_of::<Rank>(),
            Self::Spawn(request) => Quota::bytes_of_spawn(request),
            _ => 0,
        }
    }
}

fn owned(keys: &[&[u8]]) -> Vec<Bytes> {
    keys.iter().map(|key| own(key)).collect()
}

fn name_status(error: &NameError) -> i32 {
    match error {
        NameError::AlreadyPublished => status::DUPLICATE_KEY,
        NameError::NotFound => status::NOT_FOUND,
        NameError::Full { .. } => status::OUT_OF_RESOURCE,
        NameError::TimedOut => status::TIMEOUT,
        _ => status::COMM_FAILURE,
    }
}

/// Bytes that a spawn takes until it is answered, told before anything is copied: each program has the directives of the job.
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

/// A program as the host starts it. Directives of the job, which `job` has, hold for each program, and lose against its own.
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
    // Hosts take the first hint of a name, and all that name hosts.
    let has: HashSet<&[u8]> = app.infos.iter().map(|info| info.key).collect();
    spawned.info.extend(job.info.iter().filter(|(key, _)| !has.contains(&**key)).cloned());
    spawned
}

/// Copies directives to what they are about.
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

/// Status by which a signal's fate is told.
fn signal_status(result: &Result<(), SignalError>) -> i32 {
    match result {
        Ok(()) => status::SUCCESS,
        Err(SignalError::NoSuchSignal { .. }) => status::BAD_PARAM,
        Err(_) => status::NOT_SUPPORTED,
    }
}
