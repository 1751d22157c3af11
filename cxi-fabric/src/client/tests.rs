//! The retry loop in virtual time: no network, no waiting, the same random numbers in every run.

use std::collections::VecDeque;

use super::*;
use crate::authorise::{Authoriser, OAuth};
use crate::clock::VirtualClock;

/// Answers from a list, and counts the requests. A `Slow` entry takes the whole timeout.
struct Script {
    clock: Arc<VirtualClock>,
    answers: Mutex<VecDeque<Result<Response, Failure>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Wire for Script {
    fn send(&self, request: &Request<'_>, timeout: Duration) -> Result<Response, Failure> {
        let authorization = request.authorization.as_ref().map_or("-", |text| text.as_str());
        self.asked.lock().push(format!("{} {} {authorization}", request.method.name(), request.url));
        let answer = self.answers.lock().pop_front().unwrap_or(Err(Failure::Unreachable("the script is over".into())));
        if matches!(answer, Err(Failure::Slow)) {
            self.clock.sleep(timeout);
        }
        answer
    }
}

fn status(status: u16, body: &str) -> Result<Response, Failure> {
    Ok(Response { status, retry_after: None, body: body.as_bytes().to_vec().into() })
}

fn after(seconds: u64) -> Result<Response, Failure> {
    Ok(Response { status: 429, retry_after: Some(Duration::from_secs(seconds)), body: Zeroizing::default() })
}

struct Scene {
    clock: Arc<VirtualClock>,
    client: Client,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Scene {
    fn new(answers: impl IntoIterator<Item = Result<Response, Failure>>) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let asked = Arc::new(Mutex::default());
        let client = client(&clock, &asked, answers);
        Self { clock, client, asked }
    }

    fn call(&self, method: Method, seconds: u64) -> Result<Outcome, FabricError> {
        let deadline = self.clock.now() + Duration::from_secs(seconds);
        self.client.call(method, "/things", None, None, deadline)
    }

    fn error(&self, method: Method, seconds: u64) -> FabricError {
        self.call(method, seconds).map(|_| ()).expect_err("a failure")
    }

    fn tries(&self) -> usize {
        self.asked.lock().len()
    }
}

fn client(
    clock: &Arc<VirtualClock>,
    asked: &Arc<Mutex<Vec<String>>>,
    answers: impl IntoIterator<Item = Result<Response, Failure>>,
) -> Client {
    let wire =
        Script { clock: clock.clone(), answers: Mutex::new(answers.into_iter().collect()), asked: asked.clone() };
    Client {
        base: "http://fm".into(),
        wire: Box::new(wire),
        clock: clock.clone(),
        authoriser: Box::new(Authoriser::None),
        backoff: Backoff::default(),
        try_timeout: Duration::from_secs(5),
        random: Mutex::new(fastrand::Rng::with_seed(1)),
        scrubber: Arc::default(),
    }
}

#[test]
fn what_may_pass_is_tried_until_it_does() {
    let scene = Scene::new([
        Err(Failure::Unreachable("refused".into())),
        status(500, ""),
        status(503, ""),
        Err(Failure::Broken("reset".into())),
        Err(Failure::Slow),
        status(200, "{}"),
    ]);
    assert!(matches!(scene.call(Method::Post, 60), Ok(Outcome::Done(_))));
    assert_eq!(scene.tries(), 6);
}

#[test]
fn a_dead_service_is_given_up_at_the_deadline_and_not_later() {
    let scene = Scene::new([]);
    let error = scene.error(Method::Post, 20);
    assert!(scene.clock.passed() <= Duration::from_secs(20), "{:?}", scene.clock.passed());
    assert!(scene.clock.passed() >= Duration::from_secs(14), "given up after {:?}", scene.clock.passed());
    assert!(matches!(&error, FabricError::OutOfTime { call, .. } if call.tries as usize == scene.tries()), "{error}");
    assert!((5..30).contains(&scene.tries()), "{} tries", scene.tries());
}

#[test]
fn a_try_that_the_deadline_cuts_short_hides_no_earlier_failure() {
    let scene = Scene::new([status(503, "it starts"), Err(Failure::Slow)]);
    let error = scene.error(Method::Post, 2).to_string();
    assert_eq!(scene.tries(), 2, "{error}");
    assert!(error.contains("it answered 503"), "{error}");
    let alone = Scene::new([Err(Failure::Slow)]).error(Method::Post, 2).to_string();
    assert!(alone.contains("no answer within 2000 ms"), "{alone}");
}

#[test]
fn a_slow_service_gets_several_tries_within_the_deadline() {
    let scene = Scene::new((0..9).map(|_| Err(Failure::Slow)));
    let error = scene.error(Method::Get, 12);
    assert!(matches!(error, FabricError::OutOfTime { last: Trouble::Slow(_), .. }), "{error}");
    assert!((2..=3).contains(&scene.tries()), "{} tries", scene.tries());
    assert!(scene.clock.passed() <= Duration::from_secs(12));
}

#[test]
fn a_deadline_that_has_passed_asks_nothing() {
    let scene = Scene::new([status(200, "{}")]);
    assert!(scene.error(Method::Post, 0).nothing_was_done());
    assert_eq!(scene.tries(), 0);
}

/// A refusal shows that its own try did nothing; the effect of earlier tries is unknown.
#[test]
fn a_refusal_leaves_in_doubt_what_an_earlier_try_may_have_done() {
    let check = |first: Result<Response, Failure>, method, refusal, is_in_doubt: bool| {
        let scene = Scene::new([first, status(refusal, "no")]);
        let error = scene.error(method, 30);
        assert_eq!(!error.nothing_was_done(), is_in_doubt, "{error}");
        assert_eq!(error.to_string().contains("an earlier try may have been carried out"), is_in_doubt, "{error}");
        assert_eq!(scene.tries(), 2);
    };
    for refusal in [400, 401, 403] {
        check(Err(Failure::Slow), Method::Post, refusal, true);
        check(Err(Failure::Broken("reset".into())), Method::Post, refusal, true);
        check(status(504, ""), Method::Post, refusal, true);
        check(Err(Failure::Unreachable("refused".into())), Method::Post, refusal, false);
        check(Err(Failure::Slow), Method::Get, refusal, false);
    }
    // A try that was not sent does not change the uncertainty of the previous one.
    let unsent = Err(Failure::Unreachable("refused".into()));
    assert!(!Scene::new([Err(Failure::Slow), unsent, status(403, "")]).error(Method::Post, 30).nothing_was_done());
}

#[test]
fn retry_after_is_kept_and_not_waited_for_in_vain() {
    let scene = Scene::new([after(7), status(204, "")]);
    assert!(scene.call(Method::Delete, 30).is_ok());
    assert!(scene.clock.passed() >= Duration::from_secs(7));

    let scene = Scene::new([after(60), status(204, "")]);
    let error = scene.error(Method::Delete, 30).to_string();
    assert!(error.contains("wants to be asked again in 60 s"), "{error}");
    assert_eq!((scene.tries(), scene.clock.passed()), (1, Duration::ZERO));
}

#[test]
fn what_will_not_pass_is_not_tried_again() {
    for code in [400, 404, 405, 422, 501] {
        let scene = Scene::new([status(code, r#"{"detail": "no"}"#), status(200, "{}")]);
        let error = scene.error(Method::Post, 30);
        assert!(
            matches!(&error, FabricError::Refused { status, text, .. } if *status == code && text == "no"),
            "{error}"
        );
        assert_eq!(scene.tries(), 1);
    }
}

#[test]
fn absence_and_conflict_are_answers() {
    assert!(matches!(Scene::new([status(404, "")]).call(Method::Delete, 9), Ok(Outcome::Absent(_))));
    assert!(matches!(Scene::new([status(404, "")]).call(Method::Get, 9), Ok(Outcome::Absent(_))));
    assert!(matches!(Scene::new([status(409, "")]).call(Method::Post, 9), Ok(Outcome::Conflict(_))));
}

/// A client with a service that gives these `answers`, and an authorisation server with two tokens.
fn with_tokens(answers: impl IntoIterator<Item = Result<Response, Failure>>) -> Scene {
    let mut scene = Scene::new(answers);
    scene.client.authoriser = Box::new(Authoriser::OAuth(Box::new(two_tokens(&scene))));
    scene
}

/// Client of an authorisation server that issues no token.
pub(crate) fn without_a_token(client_secret: Secret) -> OAuth {
    OAuth { client_secret, ..two_tokens(&Scene::new([])) }
}

fn two_tokens(scene: &Scene) -> OAuth {
    let token = |name: &str| status(200, &format!(r#"{{"access_token": "{name}", "expires_in": 300}}"#));
    OAuth {
        client: client(&scene.clock, &scene.asked, [token("first-token"), token("second-token")]),
        path: "/token".into(),
        client_id: "lattice".into(),
        client_secret: Secret::new("client-secret"),
        scope: Some("openid".into()),
        token: Mutex::new(None),
    }
}

#[test]
fn a_token_is_used_until_it_ends() {
    let scene = with_tokens((0..3).map(|_| status(200, "{}")));
    let calls = |scene: &Scene| scene.call(Method::Get, 60).map(|_| ()).expect("answered");
    calls(&scene);
    calls(&scene);
    assert_eq!(scene.asked.lock().iter().filter(|line| line.contains("/token")).count(), 1);
    scene.clock.sleep(Duration::from_secs(280));
    calls(&scene);
    assert_eq!(scene.asked.lock().iter().filter(|line| line.contains("/token")).count(), 2);
    assert_eq!(scene.asked.lock().last().map(String::as_str), Some("GET http://fm/things Bearer second-token"));
}

#[test]
fn a_refused_token_is_replaced_once() {
    let scene = with_tokens([status(401, ""), status(200, "{}")]);
    assert!(scene.call(Method::Post, 60).is_ok());
    let asked = scene.asked.lock().clone();
    assert_eq!(asked[1], "POST http://fm/things Bearer first-token");
    assert_eq!(asked[3], "POST http://fm/things Bearer second-token");

    let scene = with_tokens([status(401, ""), status(403, "role missing: second-token"), status(200, "{}")]);
    let error = scene.error(Method::Post, 60);
    assert!(matches!(&error, FabricError::Unauthorised { status: 403, .. }), "{error}");
    assert!(error.to_string().contains("role missing: [secret]"), "{error}");
}

/// Two calls with the same token are rejected. The first has fetched a new token before the second checks.
#[test]
fn a_token_that_another_call_has_got_stays() {
    let scene = Scene::new([]);
    let authoriser = Authoriser::OAuth(Box::new(two_tokens(&scene)));
    let (now, deadline) = (scene.clock.now(), scene.clock.now() + Duration::from_secs(60));
    let header = || authoriser.header(now, deadline, &Scrubber::default()).expect("a token").expect("a header");
    let first = header();
    for _ in 0..2 {
        assert!(authoriser.refresh(Some(&first), now, deadline));
        assert_eq!(header().as_str(), "Bearer second-token");
    }
    assert_eq!(scene.tries(), 2, "one for each token");
}

/// Another call is fetching a token, with its own deadline.
#[test]
fn a_call_that_is_refused_waits_for_no_other_beyond_its_deadline() {
    let scene = Scene::new([]);
    let (oauth, now) = (two_tokens(&scene), scene.clock.now());
    let oauth = Arc::new(Authoriser::OAuth(Box::new(oauth)));
    let Authoriser::OAuth(inner) = &*oauth else { unreachable!("it is one") };
    let fetching = inner.token.lock();
    let (tell, told) = std::sync::mpsc::channel();
    let refused = Arc::clone(&oauth);
    std::thread::spawn(move || tell.send(refused.refresh(Some("Bearer first-token"), now, now)));
    assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(true));
    drop(fetching);
}

#[test]
fn without_a_token_401_is_the_end() {
    let scene = Scene::new([status(401, ""), status(200, "{}")]);
    assert!(matches!(scene.error(Method::Get, 60), FabricError::Unauthorised { status: 401, .. }));
    assert_eq!(scene.tries(), 1);
}
