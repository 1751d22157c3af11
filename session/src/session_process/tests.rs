use std::os::fd::AsFd;

use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::from_session::What;
use rank_spawner::Label;

use super::*;
use crate::wire::event::{NodeHappening, decode};

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
        log: || Box::new(()),
    };
    let errand: Errand = Box::new(|uid, _, _| panic!("an errand for {uid}"));
    let me = Admitted { uid: me, host: "node0".to_owned() }.encode();
    let ordered = |bytes: &[u8]| {
        let (far, door) = DescriptorSocket::pair().unwrap();
        far.send(bytes, Label::new(b"no launch").unwrap().as_fd()).unwrap();
        (far, door)
    };
    // A process with several threads, like this one, cannot change its user, and reports that.
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
