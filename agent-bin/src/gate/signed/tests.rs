use std::fs;
use std::path::Path;

use bytes::Bytes;
use lattice_pki::{Authority, Caller, Validity, directory_name};
use lattice_session::wire::order::encode_last_serial;
use lattice_session::wire::signed_credentials::SignedCredentials;
use pmi_core::ids::NodeIndex;
use pmi_transport::identity::{Security, TlsFiles};
use pmi_transport::proto::v1 as proto;
use pmi_transport::signature::{self, Serial, Signature};
use prost::Message;

use super::*;
use crate::daemon::Overrides;

/// A node's gate, the API server, and another agent with a certificate of the same CA.
struct World {
    directory: tempfile::TempDir,
    api: Security,
    agent: Security,
    gate: Signed,
    now: Instant,
}

fn identity(authority: &Authority, root: &Path, caller: &Caller) -> Security {
    let directory = root.join(directory_name(caller));
    authority.write(&directory, &authority.issue(caller, &[], Validity::days(1).unwrap()).unwrap()).unwrap();
    Security::from_files(&TlsFiles::in_directory(&directory)).unwrap()
}

fn spec(change: impl FnOnce(&mut proto::LaunchSpec)) -> Bytes {
    let nodes = "node[0-2]".to_owned();
    let mut spec = proto::LaunchSpec { launch_id: "abc".to_owned(), uid: 1000, nodes, ..Default::default() };
    change(&mut spec);
    spec.encode_to_vec().into()
}

impl World {
    /// `None` if this process is not root; the tests are then skipped.
    fn new() -> Option<Self> {
        if !nix::unistd::Uid::effective().is_root() {
            println!("not tried: only root has a gate that believes signatures alone");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path()).unwrap();
        let [api, agent] =
            [Caller::Api, Caller::Agent("node2".to_owned())].map(|who| identity(&authority, directory.path(), &who));
        let own = directory.path().join(directory_name(&Caller::Agent("node2".to_owned())));
        let files = TlsFiles::in_directory(&own);
        let text = format!(
            "api = 'a:1'\nnode_id = 'node1'\nuser = 'nobody'\n[tls]\nca = '{}'\ncert = '{}'\nkey = '{}'",
            files.ca.display(),
            files.cert.display(),
            files.key.display()
        );
        fs::write(directory.path().join("agent.toml"), text).unwrap();
        let config = Config::load(Some(&directory.path().join("agent.toml")), Overrides::default()).unwrap();
        let gate = Signed::new(&config).unwrap();
        Some(Self { directory, api, agent, gate, now: Instant::now() })
    }

    /// Sends the gate the API server's answer that `last` is the last number.
    fn vouch(&mut self, last: u64) -> Result<(), Unanswered> {
        let challenge = self.gate.new_challenge(self.now).unwrap();
        let word = self.answer(&challenge, "node1", last);
        self.gate.hear_at(word, self.now)
    }

    fn answer(&self, challenge: &Challenge, node: &str, last: u64) -> Vec<u8> {
        let signed = signature::sign_last_serial(&self.api, node, challenge, Serial(last)).unwrap();
        let Signature { signature, signer } = signed;
        encode_last_serial(Serial(last), proto::SerialSignature { signature, signer })
    }

    fn order(&self, by: &Security, serial: u64, spec: &Bytes) -> StartOrder {
        let signature = signature::sign(by, Serial(serial), spec).unwrap();
        StartOrder { serial: Serial(serial), spec: spec.clone(), node: NodeIndex(1), signature, nics: None }
    }

    fn admit(&mut self, order: &StartOrder) -> Result<Admitted, String> {
        self.gate.admit_at(order.encode().to_vec(), self.now).map_err(|refusal| refusal.to_string())
    }
}

#[test]
fn an_order_of_the_api_server_for_this_node_is_carried_out_once() {
    let Some(mut world) = World::new() else { return };
    let order = world.order(&world.api, 7, &spec(|_| {}));
    let unknown = world.admit(&order).unwrap_err();
    assert_eq!(
        unknown,
        "no replay floor from the API server yet: this node's fork server cannot check that the launch is new"
    );
    world.vouch(5).unwrap();
    assert_eq!(world.admit(&order), Ok(Admitted { uid: 1000, host: "node1".to_owned() }));
    assert_eq!(world.admit(&order).unwrap_err(), "the launch was started here before");
}

#[test]
fn what_is_forged_changed_old_or_for_others_is_refused() {
    let Some(mut world) = World::new() else { return };
    world.vouch(5).unwrap();
    let launch = spec(|_| {});
    let good = world.order(&world.api, 7, &launch);
    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = identity(&Authority::create(elsewhere.path()).unwrap(), elsewhere.path(), &Caller::Api);
    let as_root = spec(|launch| launch.uid = 0);
    let (system, others) = (spec(|launch| launch.uid = 999), spec(|launch| launch.nodes = "other[0-2]".to_owned()));
    let cases = [
        (world.order(&world.agent, 7, &launch), "the launch is signed by the agent of node2; only the API server may"),
        (world.order(&stranger, 7, &launch), "the signer's certificate is not from the CA that this node trusts in"),
        (StartOrder { spec: as_root.clone(), ..good.clone() }, "the launch is not what the API server signed"),
        (StartOrder { serial: Serial(8), ..good.clone() }, "the launch is not what the API server signed"),
        (StartOrder { signature: Signature::default(), ..good.clone() }, "the launch is not signed"),
        (StartOrder { node: NodeIndex(2), ..good.clone() }, "the launch is not for node1, but for node2 as its node 2"),
        (
            StartOrder { node: NodeIndex(9), ..good.clone() },
            "the launch is not for node1, but for nobody as its node 9",
        ),
        (world.order(&world.api, 7, &others), "the launch is not for node1, but for other1 as its node 1"),
        (world.order(&world.api, 5, &launch), "the launch was signed before this agent registered, or long ago"),
        (world.order(&world.api, 7, &as_root), "this node starts no processes of root"),
        (world.order(&world.api, 7, &system), "this node starts processes of users from 1000 on (min_uid)"),
        (world.order(&world.api, 7, &Bytes::from_static(b"\xff")), "the order for a session cannot be understood"),
    ];
    for (order, expected) in cases {
        let refusal = world.admit(&order).unwrap_err();
        assert!(refusal.starts_with(expected), "{refusal}");
    }
    assert!(world.gate.admit_at(vec![0xff; 40], world.now).is_err());
    // No refused order has used the number.
    assert!(world.admit(&good).is_ok());
}

#[test]
fn services_are_made_once_for_credentials_that_were_signed_for_the_launch() {
    let Some(mut world) = World::new() else { return };
    world.vouch(5).unwrap();
    let launch = spec(|_| {});
    let message = proto::CxiCredentials { vni: 1024, ..Default::default() };
    let signed_for = |launch_id: &str| {
        let text = lattice_session::wire::fabric::signed_text(launch_id, &message);
        signature::sign(&world.api, Serial(7), text.expose()).unwrap().signature
    };
    let [good, anothers] = ["abc", "other"].map(signed_for);
    let session = world.order(&world.api, 7, &launch);
    let claim = |signature: &Bytes| {
        let credentials = SignedCredentials::new(message.clone(), signature.clone());
        StartOrder { nics: Some(NicsTask::Claim { credentials, ranks: 1, spared: None }), ..session.clone() }
    };
    assert_eq!(world.admit(&claim(&Bytes::new())).unwrap_err(), "the launch is not signed");
    assert_eq!(world.admit(&claim(&anothers)).unwrap_err(), "the launch is not what the API server signed");
    let unsigned = StartOrder { signature: Signature::default(), ..claim(&good) };
    assert_eq!(world.admit(&unsigned).unwrap_err(), "the launch is not signed");
    assert_eq!(world.admit(&claim(&good)), Ok(Admitted { uid: 1000, host: String::new() }));
    assert_eq!(world.admit(&claim(&good)).unwrap_err(), "the launch was started here before");
    assert!(world.admit(&session).is_ok(), "its session has not");
    // The process that ends a service checks it.
    assert_eq!(world.admit(&StartOrder::of_task(NicsTask::Survey)).map(|admitted| admitted.host), Ok(String::new()));
}

/// An attacker that has taken the daemon over can delay answers, and has all earlier answers.
#[test]
fn an_answer_counts_once_for_its_challenge_and_not_for_ever() {
    let Some(mut world) = World::new() else { return };
    let (now, minute) = (world.now, Duration::from_secs(60));
    let challenge = world.gate.new_challenge(now).unwrap();
    let answer = world.answer(&challenge, "node1", 5);
    world.gate.hear_at(answer.clone(), now).unwrap();
    assert!(matches!(world.gate.hear_at(answer.clone(), now), Err(Unanswered::NotAsked)));
    world.gate.new_challenge(now).unwrap();
    assert!(matches!(world.gate.hear_at(answer, now), Err(Unanswered::Signature(VerifyError::Forged))));
    let challenge = world.gate.new_challenge(now).unwrap();
    let others = world.answer(&challenge, "node2", 1);
    assert!(matches!(world.gate.hear_at(others, now), Err(Unanswered::Signature(VerifyError::Forged))));
    let challenge = world.gate.new_challenge(now).unwrap();
    let late = world.answer(&challenge, "node1", 6);
    assert!(matches!(world.gate.hear_at(late, now + 2 * minute), Err(Unanswered::NotAsked)));
    let order = world.order(&world.api, 7, &spec(|_| {}));
    world.now = now + 6 * minute;
    assert!(
        world
            .admit(&order)
            .unwrap_err()
            .contains("this node's fork server has had no replay floor from the API server for 5 minutes")
    );
    // Further answers make the order old.
    world.vouch(8).unwrap();
    world.now += minute;
    world.vouch(9).unwrap();
    assert!(world.admit(&order).unwrap_err().ends_with("or long ago"));
}

/// A renewed CA takes effect without a restart; a CA file that another user has put there does not.
#[test]
fn the_authorities_are_read_again_as_long_as_they_are_roots() {
    let Some(mut world) = World::new() else { return };
    world.vouch(5).unwrap();
    let (elsewhere, ca) = (tempfile::tempdir().unwrap(), world.gate.ca.clone());
    let next = identity(&Authority::create(elsewhere.path()).unwrap(), elsewhere.path(), &Caller::Api);
    fs::copy(elsewhere.path().join("ca.pem"), &ca).unwrap();
    std::os::unix::fs::chown(&ca, Some(65534), None).unwrap();
    let order = world.order(&next, 7, &spec(|_| {}));
    assert_eq!(
        world.admit(&order).unwrap_err(),
        "the signer's certificate is not from the CA that this node trusts in"
    );
    std::os::unix::fs::chown(&ca, Some(0), None).unwrap();
    assert!(world.admit(&order).is_ok());
    let own = fs::metadata(&ca).unwrap();
    assert!(own.is_file() && ca.starts_with(world.directory.path()));
}

#[test]
fn there_is_no_gate_where_others_could_put_another_authority() {
    let Some(world) = World::new() else { return };
    let refusal = || Signed::new(&world.gate.config).err().map(|error| error.to_string()).unwrap_or_default();
    assert_eq!(refusal(), "");
    let directory = world.gate.ca.parent().unwrap();
    std::os::unix::fs::chown(directory, Some(65534), None).unwrap();
    assert!(refusal().contains("belongs to user 65534 and has mode"), "{}", refusal());
}
