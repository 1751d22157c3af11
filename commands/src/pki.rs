//! `lattice pki`: a certificate authority for a cluster that has none, in two commands.
//!
//! This module interprets the command line. [`lattice_pki`] creates the certificates.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use lattice_console::formatting::count;
use lattice_console::json;
use lattice_pki::{Authority, CERTIFICATE_FILE, PkiError, REVOKED_FILE, Validity, directory_name, refuse_existing};
use pmi_transport::identity::Caller;
use serde::Serialize;

use crate::args::PkiCommand;
use crate::args::pki::{Action, IssueArgs, Names};

/// Names of the API server on its own machine.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Seconds of a day.
const DAY_S: u64 = 86_400;

/// Result of the command, as JSON and as text.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub(crate) enum Made {
    Authority {
        /// File of the CA certificate.
        ca: String,
    },
    Certificates {
        directory: String,
        /// Directories of the certificates, below `directory`.
        issued: Vec<String>,
        validity_s: u64,
    },
    Revoked {
        /// File of the revocation list.
        crl: String,
        /// Number of certificates in the list.
        revoked: usize,
    },
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Authority { ca } => f.write_str(ca),
            Self::Revoked { crl, revoked } => {
                let count = count(u32::try_from(*revoked).unwrap_or(u32::MAX), "revoked certificate");
                write!(f, "{crl}: {count}; copy it beside the ca.pem of the API server")
            }
            Self::Certificates { directory, issued, validity_s } => {
                let days = validity_s / DAY_S;
                write!(f, "{directory}: {}, valid for {}", hostlist::fold(issued), count(days, "day"))
            }
        }
    }
}

/// Executes a command. Returns the result, as text for the user, or as JSON for programs.
///
/// # Errors
/// Fails if a file already exists or cannot be written. If one of several certificates already exists, none is issued.
pub fn run(command: PkiCommand) -> Result<String, PkiError> {
    let made = match command.action {
        Action::Init { directory } => {
            Authority::create(&directory)?;
            Made::Authority { ca: directory.join("ca.pem").display().to_string() }
        }
        Action::Issue(args) => issue(args)?,
        Action::Revoke { directory, certificates } => revoke(&directory, &certificates)?,
    };
    let text = if command.json { json(&made) } else { format!("{made}\n") };
    Ok(text)
}

fn issue(args: IssueArgs) -> Result<Made, PkiError> {
    let validity = Validity::days(args.days)?;
    let authority = Authority::open(&args.directory)?;
    let subjects = subjects(&args);
    for subject in &subjects {
        refuse_existing(&args.directory.join(directory_name(subject)))?;
    }
    let hosts = args.api.map_or_else(Vec::new, |Names(hosts)| hosts);
    let api_hosts: Vec<String> = hosts.into_iter().chain(LOOPBACK.map(str::to_owned)).collect();
    for subject in &subjects {
        let hosts = if *subject == Caller::Api { &api_hosts[..] } else { &[] };
        let issued = authority.issue(subject, hosts, validity)?;
        authority.write(&args.directory.join(directory_name(subject)), &issued)?;
    }
    let issued = subjects.iter().map(directory_name).collect();
    Ok(Made::Certificates {
        directory: args.directory.display().to_string(),
        issued,
        validity_s: u64::from(args.days) * DAY_S,
    })
}

fn revoke(directory: &Path, certificates: &[PathBuf]) -> Result<Made, PkiError> {
    let file_of = |name: &PathBuf| {
        let below = directory.join(name);
        if below.is_dir() { below.join(CERTIFICATE_FILE) } else { name.clone() }
    };
    let files: Vec<PathBuf> = certificates.iter().map(file_of).collect();
    let revoked = Authority::open(directory)?.revoke(directory, &files)?;
    Ok(Made::Revoked { crl: directory.join(REVOKED_FILE).display().to_string(), revoked })
}

/// Subjects of the certificates, each once.
fn subjects(args: &IssueArgs) -> Vec<Caller> {
    let api = args.api.iter().map(|_| Caller::Api);
    let agents = args.agents.iter().flat_map(|Names(nodes)| nodes).cloned().map(Caller::Agent);
    let users = args.users.iter().copied().map(Caller::User);
    let admin = args.admin.then_some(Caller::Admin(None));
    let mut seen = HashSet::new();
    api.chain(agents).chain(users).chain(admin).filter(|subject| seen.insert(subject.clone())).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;
    use pmi_transport::identity::{Security, TlsFiles};
    use serde_json::{Value, json};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        command: PkiCommand,
    }

    fn parse(words: &[&str]) -> Result<PkiCommand, String> {
        let line = Line::try_parse_from(["pki"].iter().chain(words));
        line.map(|line| line.command).map_err(|error| error.to_string())
    }

    fn pki(words: &[&str]) -> Result<String, String> {
        run(parse(words)?).map_err(|error| error.to_string())
    }

    fn caller(directory: &Path) -> Caller {
        let security = Security::from_files(&TlsFiles::in_directory(directory)).unwrap();
        security.caller().clone()
    }

    #[test]
    fn a_cluster_has_its_certificates_after_two_commands() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("pki");
        let at = root.to_str().unwrap();
        assert_eq!(pki(&["init", at]).unwrap(), format!("{at}/ca.pem\n"));
        let made = pki(&["issue", at, "--api", "head,10.0.0.1", "--agents", "node[0-1],node1"]).unwrap();
        assert_eq!(made, format!("{at}: api,agent-node[0-1], valid for 90 days\n"));
        assert_eq!(caller(&root.join("api")), Caller::Api);
        assert_eq!(caller(&root.join("agent-node1")), Caller::Agent("node1".to_owned()));
        let made = pki(&["issue", at, "--user", "1000", "--admin", "--days", "1"]).unwrap();
        assert_eq!(made, format!("{at}: user-1000,admin, valid for 1 day\n"));
        let made: Value = serde_json::from_str(&pki(&["issue", at, "--json", "--user", "7"]).unwrap()).unwrap();
        assert_eq!(made, json!({ "directory": at, "issued": ["user-7"], "validity_s": 7_776_000 }));
        assert_eq!(caller(&root.join("user-1000")), Caller::User(1000));
        assert_eq!(caller(&root.join("admin")), Caller::Admin(None));
    }

    #[test]
    fn all_is_issued_or_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_str().unwrap();
        pki(&["init", at]).unwrap();
        pki(&["issue", at, "--agents", "node1"]).unwrap();
        let error = pki(&["issue", at, "--agents", "node[0-1]"]).unwrap_err();
        assert_eq!(error, format!("{at}/agent-node1 exists, and is not overwritten; remove it to have it made anew"));
        assert!(!directory.path().join("agent-node0").exists());
        assert!(pki(&["init", at]).unwrap_err().contains("is not overwritten"));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let check = |words: &[&str], expected: &str| {
            let error = parse(words).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check(&["issue", "pki"], "the following required arguments were not provided");
        check(&["issue", "pki", "--agents", ""], "it names no identity");
        check(&["issue", "pki", "--agents", "a/b"], "\"a/b\" is no name of a node; nodes are named as hosts are");
        check(&["issue", "pki", "--agents", "n[1"], "has a bracket without its partner");
        check(&["issue", "pki", "--user", "root"], "invalid digit");
        check(&["issue", "pki", "--admin", "--days", "0"], "a whole number from 1 to 4294967295 is possible");
        let nowhere = tempfile::tempdir().unwrap();
        let error = pki(&["issue", nowhere.path().to_str().unwrap(), "--admin"]).unwrap_err();
        assert!(error.starts_with("cannot read") && error.ends_with("ca.key.pem"), "{error}");
    }
}
