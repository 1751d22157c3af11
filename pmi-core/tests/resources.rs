//! Requests about resources in both protocols: the server's answers, its questions to the host, and its reports of overdue releases.

use std::time::Duration;

use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::job::Job;
use pmi_core::resources::{Resource, ResourceChange, ResourceError, ResourceStep};
use pmi_core::server::{Action, ConnectionId, ReleaseTimer, Server, Settings};
use pmi_core::services::{Answer, Call};

/// A server with one rank, and a host that records everything except files.
struct World {
    server: Server,
    rank: ConnectionId,
    noted: Vec<(ResourceStep, String)>,
    timers: Vec<(ReleaseTimer, Duration)>,
    overdue: Vec<(Rank, String, Duration)>,
}

impl World {
    fn new(resources: bool) -> Self {
        let job = Job::on_one_node(JobId::new("j").unwrap(), 1);
        let mut server = Server::new(job, NodeIndex(0), Settings { resources, ..Settings::default() });
        let rank = server.connect(LocalRank(0)).unwrap();
        Self { server, rank, noted: Vec::new(), timers: Vec::new(), overdue: Vec::new() }
    }

    fn ask(&mut self, line: &str) -> String {
        let mut told = String::new();
        self.server.handle_bytes(self.rank, line.as_bytes());
        self.settle(&mut told);
        told
    }

    fn settle(&mut self, told: &mut String) {
        while let Some(action) = self.server.poll_action() {
            match action {
                Action::Send { bytes, .. } => told.push_str(str::from_utf8(&bytes).unwrap()),
                Action::Call { ticket, call: Call::Resource(change), .. } => {
                    let ResourceChange { resource, step } = &change;
                    self.noted.push((*step, resource.to_string()));
                    let refused = ResourceError::Refused { reason: "no such file".into() };
                    let result = if matches!(resource, Resource::File(_)) { Err(refused) } else { Ok(()) };
                    self.server.handle_answer(ticket, &Answer::Resource(change, result));
                }
                Action::SetTimer { timer, after } => self.timers.push((timer, after)),
                Action::CancelTimer(timer) => self.timers.retain(|(pending, _)| *pending != timer),
                Action::Overdue { rank, resource, within } => self.overdue.push((rank, resource.to_string(), within)),
                other => panic!("{other:?}"),
            }
        }
    }

    fn let_time_pass(&mut self) {
        for (timer, _) in std::mem::take(&mut self.timers) {
            self.server.handle_timer(timer);
        }
        self.settle(&mut String::new());
    }
}

fn pmi2(message: &str) -> String {
    format!("{:>6}{message}", message.len())
}

#[test]
fn both_protocols_register_and_release() {
    let done = "rc=0";
    let mut world = World::new(true);
    assert!(world.ask("cmd=init pmi_version=1 pmi_subversion=1\n").contains(done));
    assert!(world.ask("cmd=get kvsname=j key=lattice.ext\n").ends_with(",resource\n"));
    for (line, answer) in [
        ("cmd=resource_register phase=intent name=shm:\n", "cmd=resource_register_result rc=0\n"),
        ("cmd=resource_register phase=done name=shm:7\n", "cmd=resource_register_result rc=0\n"),
        ("cmd=resource_register phase=done name=dir:/a b;c=d\n", "cmd=resource_register_result rc=0\n"),
        ("cmd=resource_register phase=done name=file:/x\n", "cmd=resource_register_result rc=-1 msg=no_such_file\n"),
        ("cmd=resource_release_begin timeout=10 name=shm:7\n", "cmd=resource_release_begin_result rc=0\n"),
        ("cmd=resource_release_end name=shm:7\n", "cmd=resource_release_end_result rc=0\n"),
    ] {
        assert_eq!(world.ask(line), answer, "{line}");
    }
    let answer = world.ask(&pmi2("cmd=resource-register;thrid=3;phase=intent;name=pshm:a;;b;"));
    assert_eq!(answer, pmi2("cmd=resource-register-response;thrid=3;rc=0;"));
    let answer = world.ask(&pmi2("cmd=resource-release-begin;timeout=0;name=pshm:a;;b;"));
    assert_eq!(answer, pmi2("cmd=resource-release-begin-response;rc=0;"));
    let answer = world.ask(&pmi2("cmd=resource-release-end;name=pshm:a;;b;"));
    assert_eq!(answer, pmi2("cmd=resource-release-end-response;rc=0;"));
    let noted = [
        (ResourceStep::Intend, "shm:"),
        (ResourceStep::Hold, "shm:7"),
        (ResourceStep::Hold, "dir:/a b;c=d"),
        (ResourceStep::Hold, "file:/x"),
        (ResourceStep::Release, "shm:7"),
        (ResourceStep::Intend, "pshm:a;b"),
        (ResourceStep::Release, "pshm:a;b"),
    ];
    assert_eq!(world.noted, noted.map(|(step, name)| (step, name.to_owned())));
    assert!(world.timers.is_empty(), "a release that was ended, or has no limit, has no deadline");
}

#[test]
fn what_cannot_be_is_refused_and_the_rank_goes_on() {
    let mut world = World::new(true);
    world.ask("cmd=init pmi_version=1 pmi_subversion=1\n");
    for line in [
        "cmd=resource_register phase=done name=nonsense\n",
        "cmd=resource_register phase=done name=shm:\n",
        "cmd=resource_register phase=perhaps name=shm:1\n",
        "cmd=resource_register name=shm:1\n",
        "cmd=resource_register phase=done\n",
        "cmd=resource_release_begin timeout=-1 name=shm:1\n",
        "cmd=resource_release_begin timeout=5 name=shm:1\n",
        "cmd=resource_release_end name=shm:1\n",
    ] {
        assert!(world.ask(line).contains("rc=-1 msg="), "{line}");
    }
    assert_eq!(world.noted, []);
}

#[test]
fn a_release_that_takes_too_long_is_told_once() {
    let mut world = World::new(true);
    world.ask("cmd=init pmi_version=1 pmi_subversion=1\n");
    world.ask("cmd=resource_register phase=done name=sem:5\n");
    world.ask("cmd=resource_release_begin timeout=10 name=sem:5\n");
    world.ask("cmd=resource_release_begin timeout=20 name=sem:5\n");
    assert_eq!(world.timers.iter().map(|(_, after)| *after).collect::<Vec<_>>(), [Duration::from_secs(20)]);
    world.let_time_pass();
    assert_eq!(world.overdue, [(Rank(0), "sem:5".to_owned(), Duration::from_secs(20))]);
    assert!(world.ask("cmd=resource_release_end name=sem:5\n").contains("rc=0"));
    world.let_time_pass();
    assert_eq!(world.overdue.len(), 1);
}

#[test]
fn a_host_without_the_service_does_not_announce_it() {
    let mut world = World::new(false);
    world.ask("cmd=init pmi_version=1 pmi_subversion=1\n");
    assert!(!world.ask("cmd=get kvsname=j key=lattice.ext\n").contains("resource"));
    let refused = "cmd=resource_register_result rc=-1 msg=unknown_command\n";
    assert_eq!(world.ask("cmd=resource_register phase=done name=shm:1\n"), refused);
}
