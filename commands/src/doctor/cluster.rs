//! The API server, the certificates for it, its clock, and the agents that it knows.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::tz::TimeZone;
use lattice_cluster_client::{ApiServer, ClusterError, KnownAgent, Presence, Source};
use lattice_console::formatting::{self, count};
use lattice_console::runtime;
use pmi_transport::error_chain::chain;
use pmi_transport::identity::{TlsFiles, Validity};

use super::check::{Check, Subject};
use super::settings::setting;

/// Time limit for the answer of the API server.
const ANSWER: Duration = Duration::from_secs(5);
/// Remaining validity below which a certificate is reported.
const EXPIRY: Duration = Duration::from_secs(7 * 86_400);
/// Difference of clocks that is reported, in seconds.
const SKEW: u64 = 5;
/// Difference of clocks with which new certificates are refused, in seconds.
const SKEW_MAX: u64 = 300;

/// Names of the checks.
const SERVER: &str = "API server";
const CERTIFICATES: &str = "certificates";
const CLOCK: &str = "clock";
const AGENTS: &str = "agents";

pub(super) fn checks(subject: &Subject) -> Vec<Check> {
    let server = match ApiServer::find(subject.api.as_deref(), subject.environment()) {
        Ok(server) => server,
        Err(error) => return vec![Check::failed(SERVER, &error.to_string(), "correct the setting that is named")],
    };
    let answer = runtime::block_on(async { server.connect()?.presence(ANSWER).await });
    let answer = match answer {
        Ok(Err(error)) if *server.source() == Source::Default && error.is_absence() => return none_configured(&server),
        Ok(answer) => answer,
        Err(error) => {
            return vec![Check::error(SERVER, error.to_string(), "look for a limit of descriptors or threads")];
        }
    };
    let mut checks = vec![setting("api", &server.url(), server.source())];
    checks.extend(reached(&server, &answer));
    checks.extend(match server.certificates() {
        Some(files) => certificates(files, SystemTime::now()),
        None => vec![Check::ok(CERTIFICATES, format!("{} needs none", server.url()))],
    });
    if let Ok(presence) = &answer {
        checks.extend([clock(presence), agents(presence)]);
    }
    checks
}

fn none_configured(server: &ApiServer) -> Vec<Check> {
    let setting = setting("api", &server.url(), server.source());
    let none = [SERVER, CERTIFICATES, CLOCK, AGENTS].map(|name| Check::ok(name, "no API server is configured"));
    std::iter::once(setting).chain(none).collect()
}

fn reached(server: &ApiServer, answer: &Result<Presence, ClusterError>) -> Option<Check> {
    let ours = env!("CARGO_PKG_VERSION");
    Some(match answer {
        Ok(Presence { version, .. }) if version == ours => {
            Check::ok(SERVER, format!("{} answers; version {version}", server.url()))
        }
        Ok(Presence { version, .. }) => Check::warning(
            SERVER,
            format!("{} answers; version {version}, and this is {ours}", server.url()),
            "use the same version on all machines",
        ),
        Err(error) => {
            let otherwise = "look at the log of `lattice api` on its machine: systemctl status lattice-api";
            Check::failed(SERVER, &error.to_string(), otherwise)
        }
    })
}

/// Certificates of a user, and of the CAs that the user trusts.
fn certificates(files: &TlsFiles, now: SystemTime) -> Vec<Check> {
    let mut checks = Vec::new();
    for (name, path) in [("certificate", &files.cert), ("CA certificate", &files.ca)] {
        match Validity::in_file(path) {
            // The first certificate is that of the user.
            Ok(validities) => checks.extend(
                validities
                    .iter()
                    .take(if name == "certificate" { 1 } else { usize::MAX })
                    .map(|&validity| certificate(name, &path.display().to_string(), validity, now)),
            ),
            Err(error) => checks.push(Check::error(name, chain(&error), "ask the administrator for a certificate")),
        }
    }
    checks
}

fn certificate(name: &str, path: &str, Validity { from, until }: Validity, now: SystemTime) -> Check {
    let date = |time: SystemTime| {
        let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        formatting::date(seconds, &TimeZone::system())
    };
    let renewal = "renew it: lattice pki issue, by the administrator";
    match until.duration_since(now) {
        Err(_) => Check::error(name, format!("{path} expired at {}", date(until)), renewal),
        Ok(_) if now < from => Check::error(
            name,
            format!("{path} is valid only from {}", date(from)),
            "compare `date` on this machine and on that of the API server",
        ),
        Ok(left) if left < EXPIRY => Check::warning(name, format!("{path} expires at {}", date(until)), renewal),
        Ok(_) => Check::ok(name, format!("{path} is valid until {}", date(until))),
    }
}

fn clock(presence: &Presence) -> Check {
    let Some(ahead) = presence.clock_ahead else {
        return Check::warning(CLOCK, "the API server sent no date", "compare `date` on both machines");
    };
    let seconds = ahead.unsigned_abs();
    let detail = match ahead {
        0 => "equal to that of the API server, within 1 s".to_owned(),
        _ => {
            let word = if ahead > 0 { "ahead" } else { "behind" };
            format!("that of the API server is {} {word}", formatting::duration(Duration::from_secs(seconds)))
        }
    };
    let action = "set the clocks of both machines by NTP: timedatectl";
    match seconds {
        0..=SKEW => Check::ok(CLOCK, detail),
        _ if seconds <= SKEW_MAX => Check::warning(CLOCK, detail, action),
        _ => Check::error(CLOCK, detail, action),
    }
}

fn agents(Presence { version, agents, .. }: &Presence) -> Check {
    let total = count(agents.len() as u32, "node");
    let names = |are: &dyn Fn(&&KnownAgent) -> bool| -> Option<String> {
        let names: Vec<&str> = agents.iter().filter(are).map(|agent| agent.node.as_str()).collect();
        (!names.is_empty()).then(|| hostlist::fold(&names))
    };
    if agents.is_empty() {
        let action = "start lattice-agent on a node, and look at its log: journalctl -u lattice-agent";
        return Check::warning(AGENTS, "the API server knows no node", action);
    }
    let silent = names(&|agent| !agent.is_up);
    let mut versions: Vec<&str> = agents.iter().map(|agent| agent.version.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    let by_version = |version: &&str| Some(format!("{version} on {}", names(&|agent| agent.version == **version)?));
    let of_versions: Vec<String> = versions.iter().filter_map(by_version).collect();
    let detail = format!("{total}: version {}", of_versions.join(", version "));
    match silent {
        Some(silent) => Check::warning(
            AGENTS,
            format!("{detail}; no answer of {silent}"),
            "lattice nodes; and journalctl -u lattice-agent on these nodes",
        ),
        None if versions != [version.as_str()] => {
            Check::warning(AGENTS, detail, format!("update the agents to version {version}, that of the API server"))
        }
        None => Check::ok(AGENTS, detail),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;

    fn presence(clock_ahead: Option<i64>, agents: &[(&str, &str, bool)]) -> Presence {
        let agent = |&(node, version, is_up): &(&str, &str, bool)| KnownAgent {
            node: node.to_owned(),
            version: version.to_owned(),
            is_up,
        };
        Presence { version: "0.1.0".to_owned(), clock_ahead, agents: agents.iter().map(agent).collect() }
    }

    #[test]
    fn a_certificate_is_judged_by_its_dates() {
        let day = Duration::from_secs(86_400);
        let now = UNIX_EPOCH + day * 20_000;
        let check = |from, until, expected, text: &str| {
            let check = certificate("certificate", "c.pem", Validity { from, until }, now);
            assert_eq!(check.state, expected);
            assert!(check.detail.starts_with(&format!("c.pem {text} 20")), "{check:?}");
        };
        check(now - day, now + day * 30, State::Ok, "is valid until");
        check(now - day, now + day, State::Warning, "expires at");
        check(now - day * 2, now - day, State::Error, "expired at");
        check(now + day, now + day * 2, State::Error, "is valid only from");
    }

    #[test]
    fn a_wrong_clock_is_reported() {
        let check = |ahead, expected, text: &str| {
            let check = clock(&presence(ahead, &[]));
            assert_eq!(check.state, expected, "{check:?}");
            assert!(check.detail.contains(text), "{check:?}");
        };
        check(Some(0), State::Ok, "equal");
        check(Some(-3), State::Ok, "3 s behind");
        check(Some(60), State::Warning, "ahead");
        check(Some(-7200), State::Error, "behind");
        check(None, State::Warning, "no date");
    }

    #[test]
    fn agents_of_other_versions_and_silent_ones_are_named() {
        let check = |known: &[_], expected, detail: &str| {
            let check = agents(&presence(Some(0), known));
            assert_eq!((check.state, check.detail.as_str()), (expected, detail));
        };
        let (zero, one) = (("node0", "0.1.0", true), ("node1", "0.1.0", true));
        check(&[], State::Warning, "the API server knows no node");
        check(&[zero, one], State::Ok, "2 nodes: version 0.1.0 on node[0-1]");
        check(
            &[zero, ("node1", "0.2.0", true)],
            State::Warning,
            "2 nodes: version 0.1.0 on node0, version 0.2.0 on node1",
        );
        let silent = "2 nodes: version 0.1.0 on node[0-1]; no answer of node1";
        check(&[zero, ("node1", "0.1.0", false)], State::Warning, silent);
    }
}
