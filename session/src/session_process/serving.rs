//! A session that is ready to run, with all its connections, until its end.
//!
//! ```text
//!             reader ─> Incoming ──control, input, answers──> session ──events, alarm──> Outgoing ─> writer
//! agent's socket          ^ next agents                         │ ^                        ^
//! door ─────> Visitors ───┴──links, roots of sets──> OtherNodes ┴─┘ ───────urgent──────────┘
//! ```

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use pmi_core::driver::TraceSink;
use pmi_core::ids::JobId;
use pmi_core::quiet::{self, ReadHalf, WriteHalf};
use pmi_transport::task;
use rank_spawner::{Account, DescriptorPlan, DescriptorSocket, LaunchTag, OwnCgroup};
use tokio::sync::{mpsc, oneshot};

use super::agent_calls::AgentCalls;
use super::confirmations::Confirmations;
use super::credit::OutputCredit;
use super::door::{Awaited, Visitors};
use super::incoming::{Incoming, NextAgents};
use super::other_nodes::{Here, OtherNodes};
use super::outgoing::Outgoing;
use super::stdin::{self, Readers};
use super::{EVENTS, Terms};
use crate::session_io::{HostProcess, SessionIo};
use crate::set::CommunicatorSource;
use crate::spec::SessionSpec;
use crate::transcript;
use crate::wire::start::SessionStart;

/// Capacity of the queue of traced PMI messages. Further messages are left out.
const TRACES: usize = 4096;

/// A session that is ready to run.
pub(super) struct Start(SessionStart);

/// Both ends of the agent's socket, each with its task's state.
struct Conversation {
    reader: ReadHalf,
    incoming: Incoming,
    writer: WriteHalf,
    outgoing: Outgoing,
}

impl Start {
    /// Adds the variables of the PAM session and of the user's account that the launch does not set.
    pub(super) fn new(mut start: SessionStart, of_pam: Vec<(OsString, OsString)>, account: &Account) -> Self {
        let environment = &mut start.spec.settings.environment;
        let of_account = account.variables().map(|(name, value)| (name.into(), value));
        for (name, value) in of_pam.into_iter().chain(of_account) {
            if !environment.iter().any(|(present, _)| *present == name) {
                environment.push((name, value));
            }
        }
        Self(start)
    }

    /// Id of the launch.
    pub(super) fn launch_id(&self) -> &str {
        &self.0.spec.launch_id
    }

    /// Numbers of descriptors for the ranks and for links to other nodes.
    pub(super) fn descriptors(&self) -> DescriptorPlan {
        let spec = &self.0.spec;
        DescriptorPlan { ranks: spec.job.placement.ranks_on(spec.node).len(), others: spec.hosts.len() }
    }

    /// Runs the session, connected to the agent's socket and the door.
    pub(super) async fn serve(
        self,
        socket: UnixStream,
        door: DescriptorSocket,
        cgroup: Option<OwnCgroup>,
        terms: &Terms,
    ) -> io::Result<()> {
        let times = terms.link_times();
        let (reader, writer) = quiet::split(socket)?;
        let (urgent, outgoing_urgent) = mpsc::channel(EVENTS);
        let (events, happened) = mpsc::channel(EVENTS);
        let (traces, traced) = mpsc::channel(TRACES);
        let (alarm, alarmed) = oneshot::channel();
        let (control, controlled) = mpsc::channel(EVENTS);
        let readers = Readers::of(&self.0.spec);
        let SessionStart { spec, output_window, stdin_window, fabric, links, set, .. } = self.0;
        let credit = Arc::new(OutputCredit::new(output_window));
        let calls = AgentCalls::new(&spec, urgent.clone());
        let (input, stdin) = stdin::connect(readers, stdin_window, urgent.clone());
        let input = Arc::new(Mutex::new(input));
        let (has_links, is_alone) = (links.is_some(), spec.hosts.len() == 1);
        let awaited = Awaited { agents: has_links || is_alone, links: has_links, sets: set.is_some() };
        let visitors = Visitors::of(door, awaited);
        let here = Here { spec: &spec, control: control.downgrade(), input: &input, calls: &calls, urgent: &urgent };
        let (others, ends) = OtherNodes::serve(&here, links, times, visitors.links);
        let communicators = CommunicatorSource::default();
        let set = set.and_then(|terms| others.enter_set(&here, terms, communicators.clone(), visitors.sets));
        let io = SessionIo {
            nodes: others.nodes(&calls),
            services: Arc::new(calls.clone()),
            events,
            alarm: Some(alarm),
            control: controlled,
            stdin,
            trace: spec.settings.pmi_trace.then(|| trace_sink(traces)),
            tag: LaunchTag::new(JobId::new(&spec.launch_id).map_err(io::Error::other)?),
            fabric: Some(fabric),
            topology_in_environment: terms.topology_in_environment,
            // The fork server is the keeper.
            keeper: None,
            process: HostProcess::Dedicated,
            set,
            communicators,
            cgroup,
            spawner: None,
        };
        let confirmations = Arc::<Confirmations>::default();
        let incoming = Incoming {
            nodes: spec.hosts.len(),
            control,
            gathering: ends.gathering,
            calls,
            credit: Arc::clone(&credit),
            input,
            passing: ends.passing,
            urgent,
            confirmations: Arc::clone(&confirmations),
            agents: NextAgents { connections: visitors.agents, lease: times.agent_lease },
        };
        let outgoing = Outgoing {
            urgent: outgoing_urgent,
            events: happened,
            traces: traced,
            alarm: Some(alarmed),
            chosen: ends.chosen,
            told: ends.told,
            credit,
            confirmations,
        };
        Conversation { reader, incoming, writer, outgoing }.last(spec, io, others).await
    }
}

impl Conversation {
    /// Runs the session until it has ended and its agent, or a later agent, has received all messages.
    async fn last(self, spec: SessionSpec, io: SessionIo, others: OtherNodes) -> io::Result<()> {
        let reading = task::spawn(self.incoming.run(self.reader));
        let (report, finish) = oneshot::channel();
        let writing = task::spawn(self.outgoing.run(self.writer, finish));
        let ended = crate::run(spec, io).await;
        others.leave(ended.cause.as_ref()).await;
        // Fails if the agent is gone.
        let _ = report.send(ended);
        let written = writing.await;
        reading.abort();
        written?
    }
}

/// Each message begins with its rank, because messages of several nodes are mixed on their way to the user.
fn trace_sink(traces: mpsc::Sender<Bytes>) -> TraceSink {
    let mut left_out = 0_u64;
    Box::new(move |message| {
        let mut text = transcript::lines(message, &mut None);
        if left_out > 0 {
            text.splice(0..0, format!("# {left_out} messages left out\n").bytes());
        }
        match traces.try_send(text.into()) {
            Ok(()) => left_out = 0,
            Err(_) => left_out += 1,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use pmi_core::ids::{NodeIndex, Rank};

    use super::*;
    use crate::fabric::NodeFabric;
    use crate::sample::spec_on;
    use crate::settings::{LaunchSettings, StdinTarget, TerminalSize};

    fn start(settings: LaunchSettings) -> SessionStart {
        SessionStart {
            links: None,
            set: None,
            spec: SessionSpec { settings, ..(*spec_on(&[2, 1])).clone() },
            output_window: 1,
            stdin_window: 1,
            fabric: NodeFabric::default(),
        }
    }

    fn account() -> Account {
        let path = |path: &str| PathBuf::from(path);
        Account { uid: 1000, gid: 100, name: "ada".to_owned(), home: path("/home/ada"), shell: path("/bin/sh") }
    }

    /// Last value of a variable. It overrides earlier values.
    fn variable(start: &Start, name: &str) -> Option<OsString> {
        let variables = start.0.spec.settings.environment.iter();
        variables.rev().find(|(present, _)| present == name).map(|(_, value)| value.clone())
    }

    #[test]
    fn the_launch_wins_over_pam_and_pam_over_the_account() {
        let environment = vec![("HOME".into(), "/scratch".into())];
        let of_pam = [("HOME", "/pam"), ("SHELL", "/bin/rsh"), ("KRB5CCNAME", "cache")];
        let of_pam = of_pam.map(|(name, value)| (name.into(), value.into())).to_vec();
        let started =
            Start::new(start(LaunchSettings { environment, ..LaunchSettings::default() }), of_pam, &account());
        for (name, value) in [("HOME", "/scratch"), ("USER", "ada"), ("SHELL", "/bin/rsh"), ("KRB5CCNAME", "cache")] {
            assert_eq!(variable(&started, name), Some(value.into()), "{name}");
        }
    }

    #[test]
    fn a_node_reads_the_input_that_its_ranks_read() {
        let check = |node: u32, stdin: StdinTarget, expected: Readers| {
            let mut asked = start(LaunchSettings { stdin: stdin.clone(), ..LaunchSettings::default() });
            asked.spec.node = NodeIndex(node);
            assert_eq!(Readers::of(&asked.spec), expected, "node {node}, {stdin:?}");
        };
        check(0, StdinTarget::All, Readers::Here);
        check(1, StdinTarget::All, Readers::Here);
        check(0, StdinTarget::Rank(Rank(1)), Readers::Here);
        check(1, StdinTarget::Rank(Rank(1)), Readers::Elsewhere);
        check(1, StdinTarget::Rank(Rank(2)), Readers::Here);
        check(0, StdinTarget::Rank(Rank(9)), Readers::Elsewhere);
        check(0, StdinTarget::None, Readers::Elsewhere);
        check(0, StdinTarget::Terminal(TerminalSize::default()), Readers::Here);
        check(1, StdinTarget::Terminal(TerminalSize::default()), Readers::Elsewhere);
    }

    #[test]
    fn a_trace_says_how_much_of_it_was_left_out() {
        use pmi_core::server::{Sender, Trace};
        let (traces, mut traced) = mpsc::channel(2);
        let mut sink = trace_sink(traces);
        let message = Trace { rank: Some(Rank(3)), sender: Sender::Client, bytes: "cmd=init\n".into() };
        (0..5).for_each(|_| sink(&message));
        let whole = "@rank 3\nC> cmd=init\\n\n";
        assert_eq!([traced.try_recv().unwrap(), traced.try_recv().unwrap()], [whole, whole]);
        sink(&message);
        assert_eq!(traced.try_recv().unwrap(), format!("# 3 messages left out\n{whole}"));
        sink(&message);
        assert_eq!(traced.try_recv().unwrap(), whole);
    }
}
