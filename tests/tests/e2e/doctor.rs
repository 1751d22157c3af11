//! `lattice doctor` on one machine: each part has a state, each fault has the next step, and nothing hangs.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, SystemTime};

use lattice_pki::{Authority, Caller, Validity};
use lattice_tests::{Command, Outcome, lattice};
use serde_json::Value;

/// `lattice doctor` of a user with an empty home directory.
fn doctor(home: &Path, flags: &str) -> Command {
    let mut command = lattice("doctor").words(flags).env("HOME", home);
    for variable in ["XDG_CONFIG_HOME", "LATTICE_API_URL"] {
        command = command.env(variable, "");
    }
    command
}

/// Checks in the JSON of an outcome.
#[track_caller]
fn checks(outcome: &Outcome) -> Vec<Value> {
    let report: Value =
        serde_json::from_slice(outcome.stdout()).unwrap_or_else(|error| panic!("{error}: {}", outcome.text()));
    report["checks"].as_array().unwrap().clone()
}

#[track_caller]
fn check<'a>(checks: &'a [Value], name: &str) -> &'a Value {
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name} in {checks:?}"))
}

#[test]
fn a_machine_without_a_cluster_is_well() {
    let home = tempfile::tempdir().unwrap();
    let outcome = doctor(home.path(), "--json").run();
    outcome.exits(0).says_nothing();
    let checks = checks(&outcome);
    for name in ["API server", "certificates", "clock", "agents"] {
        let check = check(&checks, name);
        assert_eq!(
            (&check["state"], &check["detail"]),
            (&"ok".into(), &"no API server is configured".into()),
            "{name}"
        );
    }
    for name in ["version", "config file", "setting api", "mpiexec", "gdb", "limit nofile", "control groups"] {
        check(&checks, name);
    }
    let libraries = checks.iter().filter(|check| check["name"] == "MPI library");
    let details: Vec<&str> = libraries.filter_map(|library| library["detail"].as_str()).collect();
    for (library, protocol) in [("MPICH: ", "PMI-1"), ("Open MPI: ", "PMIx")] {
        let is_shown = |detail: &&str| detail.starts_with(library) && detail.contains(protocol);
        assert!(details.iter().any(is_shown), "{library}: {details:?}");
    }
    let sockets = check(&checks, "socket directory")["detail"].as_str().unwrap();
    assert!(sockets.ends_with("/lattice/launches is writable"), "{sockets}");
    for check in &checks {
        assert_eq!(check["action"].is_null(), check["state"] == "ok", "{check}");
    }
    doctor(home.path(), "").run().exits(0).prints("\nok       API server ");
}

#[test]
fn a_server_that_does_not_run_is_an_error_with_the_next_step() {
    let home = tempfile::tempdir().unwrap();
    let url = format!("unix:{}", home.path().join("none.sock").display());
    let outcome = doctor(home.path(), "--json").env("LATTICE_API_URL", &url).run();
    let checks = checks(outcome.exits(1));
    assert_eq!(check(&checks, "setting api")["detail"], format!("{url} (variable LATTICE_API_URL)"));
    let server = check(&checks, "API server");
    assert_eq!(server["state"], "error");
    assert!(server["detail"].as_str().unwrap().contains("No such file"), "{server}");
    let short = doctor(home.path(), "-q --api").arg(&url).run();
    short.exits(1).prints("error    API server ").prints("try: --api, LATTICE_API_URL or `api` in ");
    short.check(!short.text().contains("version"), || "-q prints what is well".to_owned());
}

#[test]
fn a_server_that_hangs_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("api.sock");
    // Connections wait for an accept that never comes.
    let _listener = UnixListener::bind(&socket).unwrap();
    let outcome = doctor(home.path(), "--json --api").arg(format!("unix:{}", socket.display())).run();
    let checks = checks(outcome.exits(1));
    let server = check(&checks, "API server");
    assert_eq!((&server["state"], server["action"].is_string()), (&"error".into(), true), "{server}");
    assert!(server["detail"].as_str().unwrap().contains("no answer within"), "{server}");
}

#[test]
fn a_certificate_that_has_expired_is_an_error_with_its_date() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join(".config/lattice");
    fs::create_dir(home.path().join(".config")).unwrap();
    let authority = Authority::create(&home.path().join("pki")).unwrap();
    let day = Duration::from_secs(86_400);
    let now = SystemTime::now();
    let expired = Validity { from: now - day * 10, until: now - day };
    authority.write(&config, &authority.issue(&Caller::User(1000), &[], expired).unwrap()).unwrap();
    let text = "api = 'https://127.0.0.1:1'\n[tls]\nca = 'ca.pem'\ncert = 'cert.pem'\nkey = 'key.pem'\n";
    fs::write(config.join("config.toml"), text).unwrap();
    let outcome = doctor(home.path(), "--json").run();
    let checks = checks(outcome.exits(1));
    let file = config.join("config.toml");
    let setting = format!("https://127.0.0.1:1 (file {})", file.display());
    assert_eq!(check(&checks, "setting api")["detail"], setting);
    let certificate = check(&checks, "certificate");
    assert_eq!(certificate["state"], "error");
    let detail = certificate["detail"].as_str().unwrap();
    assert!(detail.starts_with(&format!("{} expired at 2", config.join("cert.pem").display())), "{detail}");
    assert_eq!(certificate["action"], "renew it: lattice pki issue, by the administrator");
    assert_eq!(check(&checks, "CA certificate")["state"], "ok");
}

#[test]
fn the_build_is_shown_with_the_version() {
    let outcome = lattice("--version -v").run();
    let lines: Vec<&str> = outcome.exits(0).text().lines().collect();
    let names: Vec<&str> = lines[1..].iter().filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    assert_eq!(names, ["commit", "features", "PMI", "compiler"]);
    lattice("--version").run().exits(0).prints_lines([lines[0]]);
}
