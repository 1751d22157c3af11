//! Canary secrets must not appear in any error, in a log at its most verbose level, or in `Debug` output.

mod scene;

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use cxi_fabric::clock::SystemClock;
use cxi_fabric::config::{Authentication, Backend, FabricConfig};
use cxi_fabric::environment::{Provider, RankFabric};
use cxi_fabric::fake::{Access, CallKind, Fault, Options, Rule};
use cxi_fabric::grants::Journal;
use cxi_fabric::ledger::{Entry, Need};
use cxi_fabric::node::TrafficClasses;
use cxi_fabric::{Grants, Secret};
use parking_lot::Mutex;
use scene::{config, fake_with, oauth, private_file, request, shortly, soon};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// A key of less than 128 bits, so that only the scrubber's list can hide it.
const KEY: &str = "ca4a71e5ca4a71e5";
const PASSWORD: &str = "canary-password";
const CLIENT_SECRET: &str = "canary-client-secret";

/// All log output of this crate and its dependencies.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Default)]
struct Paper(Arc<Mutex<String>>);

impl Journal for Paper {
    fn write(&mut self, entries: &[Entry]) -> io::Result<()> {
        for entry in entries {
            self.0.lock().push_str(&serde_json::to_string(entry)?);
        }
        Ok(())
    }

    fn replace(&mut self, entries: &[Entry]) -> io::Result<()> {
        self.write(entries)
    }
}

/// Checks for a canary in all encodings.
fn check(what: &str, text: &str) {
    let hex = |text: &str| Secret::new(text).expose_hex().to_string();
    let encoded = ["bWU6Y2FuYXJ5LXBhc3N3b3Jk".to_owned(), "token-number-".to_owned()];
    let plain = [KEY, PASSWORD, CLIENT_SECRET].map(str::to_owned);
    let in_hex = [PASSWORD, CLIENT_SECRET].map(hex);
    for canary in plain.iter().chain(&in_hex).chain(&encoded) {
        let found = text.to_lowercase().find(&canary.to_lowercase());
        if let Some(at) = found {
            let from = at.saturating_sub(200);
            panic!("{canary} is in {what}: ...{}", text.chars().skip(from).take(400).collect::<String>());
        }
    }
    // Bytes in lists, as in a derived `Debug`.
    let bytes = Secret::from_hex(KEY).map(|key| format!("{:?}", key.expose())).unwrap_or_default();
    assert!(!text.contains(bytes.trim_matches(['[', ']'])), "the key's bytes are in {what}");
}

/// Faults with texts that repeat the key and another secret.
fn echoing(secret: &str) -> Vec<Fault> {
    let detail = format!("bad key {KEY}, or {}, or {secret}", KEY.to_uppercase());
    let status = |status| Fault::Status { status, retry_after: None, detail: Some(detail.clone()) };
    vec![
        status(422),
        status(403),
        status(503),
        status(409),
        Fault::Garbage,
        Fault::WrongTypes,
        Fault::LoseAnswer,
        Fault::Down,
    ]
}

/// Makes, reads and ends services with every fault at every call; returns all errors in both formats.
fn exercise(config: &FabricConfig, access: &Access, secret: &str) -> String {
    let mut seen = format!("{config:?}\n");
    for fault in echoing(secret) {
        for on in [CallKind::Create, CallKind::Auth, CallKind::Delete, CallKind::List, CallKind::Token] {
            let fake = fake_with(Options { access: access.clone(), auth_key: Some(KEY.into()), ..Options::default() });
            let mut config = config.clone();
            config.url = Some(fake.url());
            if let Authentication::OAuth { token_url, .. } = &mut config.auth {
                *token_url = format!("{}/token", fake.url());
            }
            let manager = config.manager().expect("a manager");
            let mut note = |result: Result<(), &dyn std::fmt::Debug>, shown: String| {
                if let Err(error) = result {
                    let _ = writeln!(seen, "{error:?}\n{shown}");
                }
            };
            // As in a launch, the key is known before the first fault.
            let service = manager.create(&request(0), soon()).expect("made");
            let credentials = manager.credentials(&service, soon()).expect("answered");
            note(Err(&credentials), String::new());
            fake.script([Rule::times(99, on, fault.clone())]);
            let created = manager.create(&request(1), shortly()).map(|_| ());
            let fetched = manager.credentials(&service, shortly()).map(|_| ());
            let listed = manager.list(shortly()).map(|_| ());
            let deleted = manager.delete(&service.id, shortly());
            for result in [created, fetched, listed, deleted] {
                if let Err(error) = result {
                    note(Err(&error), error.to_string());
                }
            }
        }
    }
    seen
}

#[test]
fn no_canary_is_seen_anywhere() {
    let log = Log::default();
    let writer = {
        let log = log.clone();
        move || log.clone()
    };
    // `try_init` also receives the records of the `log` crate, which ureq and rustls use.
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(false);
    tracing_subscriber::registry()
        .with(tracing_subscriber::filter::LevelFilter::TRACE)
        .with(layer)
        .try_init()
        .expect("first");

    let directory = tempfile::tempdir().expect("a directory");
    let password_file = private_file(&directory, "password", PASSWORD);
    let auth = Authentication::Basic { user: "me".into(), password_file };
    let basic = FabricConfig { auth, ..config(Backend::Rest, "http://127.0.0.1:1") };
    let access = Access::Header("Basic bWU6Y2FuYXJ5LXBhc3N3b3Jk".into());
    let errors = exercise(&basic, &access, PASSWORD);
    check("errors of a manager with a password", &errors);
    assert!(errors.contains("[secret]") && errors.contains("422"), "nothing was echoed: {errors}");

    let oauth = oauth("http://127.0.0.1:1", CLIENT_SECRET, &directory);
    let errors = exercise(
        &oauth,
        &Access::Token { client_secret: CLIENT_SECRET.into() },
        &format!("{CLIENT_SECRET}, or token-number-0"),
    );
    check("errors of a manager with tokens", &errors);

    let (fake, paper) = (fake_with(Options { auth_key: Some(KEY.into()), ..Options::default() }), Paper::default());
    let manager = scene::rest(&fake);
    let range = "1024-1030".parse().expect("a range");
    let grants = Grants::recover(
        &"c".parse().expect("a name"),
        manager,
        range,
        Arc::new(SystemClock),
        [],
        Box::new(paper.clone()),
    )
    .expect("new");
    let need = Need { allocation: "a".into(), nodes: vec!["n".into()], uid: 0 };
    let credentials = grants.acquire(&need, soon()).expect("credentials");
    let fabric = RankFabric {
        provider: Provider::Cxi,
        credentials: Some(&credentials),
        services: &[],
        traffic_classes: TrafficClasses::default(),
    };
    let variables = fabric.variables(|_| false);
    assert!(variables.expose().any(|(name, value)| name == "FI_CXI_AUTH_KEY" && value == KEY), "the rank does get it");
    check("credentials, variables, views", &format!("{credentials:#?} {variables:?} {:?}", grants.views()));
    check("the journal", &paper.0.lock());

    let text = String::from_utf8_lossy(&log.0.lock()).into_owned();
    assert!(text.contains("asked again") && text.contains("ureq"), "the log did not listen");
    check("the log", &text);
}
