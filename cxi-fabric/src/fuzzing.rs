//! Entry points of the fuzz targets in `fuzz/`, as plain functions. They accept any bytes, and panic if a guarantee is broken.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::authorise::Authoriser;
use crate::client::Client;
use crate::clock::{Clock, VirtualClock};
use crate::fabric::{FabricManager, ServiceId, ServiceName, ServiceRequest};
use crate::node::{read_created, read_list};
use crate::rest::RestFabric;
use crate::retry::Backoff;
use crate::retry_after::retry_after;
use crate::scrubber::Scrubber;
use crate::secret::Secret;
use crate::vni::Vni;
use crate::vnid::{VniCount, VnidFabric};
use crate::wire::{Failure, Request, Response, Wire};

/// Limit on the length of an error's text, in characters: text of other programs is shortened before.
const ERROR_MAX: usize = 4 * Scrubber::LONGEST;

/// Secret of every manager in this module, which the answers repeat.
const SECRET: &str = "hunter22";

/// Gives every request the same answer.
struct Echo {
    clock: Arc<VirtualClock>,
    status: u16,
    body: Vec<u8>,
}

impl Wire for Echo {
    fn send(&self, _: &Request<'_>, _: Duration) -> Result<Response, Failure> {
        // Each answer takes some time, so that each call ends.
        self.clock.sleep(Duration::from_millis(100));
        Ok(Response { status: self.status, retry_after: None, body: self.body.clone().into() })
    }
}

fn manager(kind: u8, clock: &Arc<VirtualClock>, status: u16, body: &[u8]) -> Box<dyn FabricManager> {
    let scrubber = Arc::new(Scrubber::default());
    scrubber.learn(&Secret::new(SECRET));
    let client = Client {
        base: "http://fm".into(),
        wire: Box::new(Echo { clock: clock.clone(), status, body: body.to_vec() }),
        clock: clock.clone(),
        authoriser: Box::new(Authoriser::None),
        backoff: Backoff::default(),
        try_timeout: Duration::from_secs(5),
        random: Mutex::new(fastrand::Rng::with_seed(kind.into())),
        scrubber,
    };
    match kind % 3 {
        0 => Box::new(RestFabric::new(client)),
        1 => Box::new(VnidFabric::new(client, "p", VniCount::One)),
        _ => Box::new(VnidFabric::new(client, "p", VniCount::Two)),
    }
}

/// A manager's answer is accepted or refused by the deadline. An error shows no secret, no control character, and at most a paragraph
/// of the answer.
///
/// The first byte selects the back end and the call, the next two are the status; the rest is the body.
pub fn manager_answer(data: &[u8]) {
    let [kind, high, low, body @ ..] = data else { return };
    let clock = Arc::new(VirtualClock::default());
    let manager = manager(*kind, &clock, u16::from_be_bytes([*high, *low]), body);
    let deadline = clock.now() + Duration::from_secs(10);
    let error = match kind / 3 % 5 {
        0 => manager.create(&request(), deadline).err(),
        1 => manager.find(&request(), deadline).err(),
        2 => manager.delete(&ServiceId("s".into()), deadline).err(),
        3 => manager.list(deadline).err(),
        _ => read_credentials(&*manager, deadline),
    };
    assert!(clock.passed() <= Duration::from_secs(11), "{:?}", clock.passed());
    if let Some(text) = error.map(|error| error.to_string()) {
        assert!(text.chars().count() <= ERROR_MAX, "{} characters", text.chars().count());
        assert!(!text.contains(SECRET) && !text.chars().any(char::is_control), "{text:?}");
    }
}

fn read_credentials(manager: &dyn FabricManager, deadline: Instant) -> Option<crate::FabricError> {
    let service = manager.create(&request(), deadline).ok()?;
    match manager.credentials(&service, deadline) {
        Ok(Some(credentials)) => {
            assert_eq!(credentials.vni, service.vni, "credentials of another service");
            None
        }
        Ok(None) => None,
        Err(error) => Some(error),
    }
}

fn request() -> ServiceRequest {
    let vni = Vni::new(1024).ok();
    let name = ServiceName::new(&"daint".parse().expect("letters"), "4711", 0).expect("letters and digits");
    ServiceRequest { name, allocation: "4711".into(), vni, job_vni: None, nodes: vec!["n0".into()], uid: 1000 }
}

/// The parser reads from the output of `cxi_service` only values that the output has.
pub fn cxi_service(data: &[u8]) {
    let output = String::from_utf8_lossy(data);
    let services = read_list(&output);
    assert!(services.len() <= output.lines().count());
    let numbers: usize = services.iter().map(|service| service.vnis.len() + service.uids.len()).sum();
    assert!(numbers <= output.split_whitespace().count());
    if let Some(svc_id) = read_created(&output) {
        assert!(output.contains("Successfully created service:"), "{svc_id}");
    }
}

/// A scrubbed text of another program has no known secret in any encoding, no key and no control character, and is short.
///
/// The first byte is the length of the secret; the secret and the text follow.
pub fn error_text(data: &[u8]) {
    let Some((&length, rest)) = data.split_first() else { return };
    let (secret, text) = rest.split_at(rest.len().min(length.into()));
    let text = String::from_utf8_lossy(text);
    let scrubber = Scrubber::default();
    let secret = Secret::new(secret);
    scrubber.learn(&secret);
    let scrubbed = scrubber.scrub(&text);
    assert!(scrubbed.chars().count() <= Scrubber::LONGEST + 1);
    assert!(!scrubbed.chars().any(char::is_control), "{scrubbed:?}");
    let digits = |text: &str| text.split(|c: char| !c.is_ascii_hexdigit()).map(str::len).max().unwrap_or(0);
    assert!(digits(&scrubbed) < 32, "a key is left in {scrubbed:?}");
    let _ = retry_after(&text, Some(&text));
}
