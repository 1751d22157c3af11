use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;

use pmi_core::ids::NodeIndex;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::from_session::What;
use rank_spawner::Label;

use super::*;
use crate::fabric::NodeFabric;
use crate::sample::spec_on;
use crate::settings::{LaunchSettings, TerminalSize};
use crate::spec::SessionSpec;
use crate::wire::event::{NodeHappening, decode};

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

/// Last value of a variable, which is the one that counts.
fn variable(start: &Start, name: &str) -> Option<OsString> {
    let variables = start.0.spec.settings.environment.iter();
    variables.rev().find(|(present, _)| present == name).map(|(_, value)| value.clone())
}

#[test]
fn the_launch_wins_over_pam_and_pam_over_the_account() {
    let environment = vec![("HOME".into(), "/scratch".into())];
    let of_pam = [("HOME", "/pam"), ("SHELL", "/bin/rsh"), ("KRB5CCNAME", "cache")];
    let of_pam = of_pam.map(|(name, value)| (name.into(), value.into())).to_vec();
    let started = Start::new(start(LaunchSettings { environment, ..LaunchSettings::default() }), of_pam, &account());
    for (name, value) in [("HOME", "/scratch"), ("USER", "ada"), ("SHELL", "/bin/rsh"), ("KRB5CCNAME", "cache")] {
        assert_eq!(variable(&started, name), Some(value.into()), "{name}");
    }
}

#[test]
fn a_node_reads_the_input_that_its_ranks_read() {
    let check = |node: u32, stdin: StdinTarget, expected: Readers| {
        let mut asked = start(LaunchSettings { stdin: stdin.clone(), ..LaunchSettings::default() });
        asked.spec.node = NodeIndex(node);
        assert_eq!(Start(asked).readers(), expected, "node {node}, {stdin:?}");
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
fn a_session_that_cannot_begin_reports_its_reason_and_its_end() {
    let (mut socket, mut agent) = UnixStream::pair().unwrap();
    let refusal = Refusal::Account(AccountError::Unknown { uid: 4711 });
    tell_refusal(&mut socket, "node3", &refusal).unwrap();
    drop(socket);
    let mut happenings = Vec::new();
    while let Some(frame) = read_frame(&mut agent).unwrap() {
        let Some(What::Event(event)) = proto::FromSession::decode(&*frame).unwrap().what else { panic!("no event") };
        happenings.push(decode(event).unwrap());
    }
    let [NodeHappening::Event(Event::Ending(cause)), NodeHappening::Report { exits, .. }] = &happenings[..] else {
        panic!("{happenings:?}");
    };
    let kind = CauseKind::NotStarted { reason: refusal.to_string(), class: StartClass::System };
    assert_eq!((cause, exits.len()), (&Cause { host: "node3".to_owned(), kind }, 0));
    assert!(cause.to_string().contains("4711"), "{cause}");
}

#[test]
fn a_process_without_an_order_or_an_agent_ends() {
    let me = Uid::effective().as_raw();
    let terms = Terms {
        setuid_programs: true,
        limits: Vec::new(),
        agent_lease: Duration::ZERO,
        pam: None,
        topology_in_environment: false,
    };
    let errand: Errand = Box::new(|uid, _, _| panic!("an errand for {uid}"));
    let me = Admitted { uid: me, host: "node0".to_owned() }.encode();
    let ordered = |bytes: &[u8]| {
        let (far, door) = DescriptorSocket::pair().unwrap();
        far.send(bytes, Label::new(b"no launch").unwrap().as_fd()).unwrap();
        (far, door)
    };
    // A process of several threads, as this one, becomes nobody, and says so.
    let (far, door) = ordered(&me);
    let mut agent = door::connect(&far).unwrap();
    assert!(live(&terms, &errand, door, None).is_ok());
    assert!(read_frame(&mut agent).unwrap().is_some());
    let (far, door) = ordered(&[7; 3]);
    assert_eq!(live(&terms, &errand, door, None).unwrap_err().kind(), io::ErrorKind::InvalidData);
    drop(far);
    let (far, door) = ordered(&me);
    drop(far);
    assert!(live(&terms, &errand, door, None).is_ok(), "an agent that never came");
    let (far, door) = DescriptorSocket::pair().unwrap();
    drop(far);
    assert!(live(&terms, &errand, door, None).is_ok(), "a spare process that was never needed");
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
