//! Certificates as verifiers see them: their purposes, names and validity, and access to their keys.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lattice_pki::{Authority, CLOCK_SKEW, Caller, Issued, PkiError, Role, Validity, directory_name, refuse_existing};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use tempfile::TempDir;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A CA in a directory of its own, with verifiers that trust it.
struct Site {
    directory: TempDir,
    authority: Authority,
}

impl Site {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path()).unwrap();
        Self { directory, authority }
    }

    fn issue(&self, subject: &Caller, hosts: &[&str]) -> Issued {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        self.authority.issue(subject, &hosts, Validity::days(90).unwrap()).unwrap()
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.directory.path().join("ca.pem")).unwrap()).unwrap();
        Arc::new(roots)
    }

    /// True if a server that trusts the CA admits a client with this certificate.
    fn trusts_client(&self, issued: &Issued, when: SystemTime) -> bool {
        let provider = Arc::new(default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots(), provider).build().unwrap();
        verifier.verify_client_cert(&der(issued), &[], unix_time(when)).is_ok()
    }

    /// True if a client that trusts the CA accepts a server with this certificate for `name`.
    fn trusts_server(&self, issued: &Issued, name: &str) -> bool {
        let provider = Arc::new(default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(self.roots(), provider).build().unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        verifier.verify_server_cert(&der(issued), &[], &name, &[], UnixTime::now()).is_ok()
    }
}

fn der(issued: &Issued) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()
}

fn unix_time(time: SystemTime) -> UnixTime {
    UnixTime::since_unix_epoch(time.duration_since(SystemTime::UNIX_EPOCH).unwrap())
}

fn agent() -> Caller {
    Caller::Agent("node3".to_owned())
}

fn everybody() -> [Caller; 4] {
    [agent(), Caller::Api, Caller::User(1000), Caller::Admin(None)]
}

/// Subject alternative names, as text.
fn names(issued: &Issued) -> Vec<String> {
    let (_, pem) = parse_x509_pem(issued.certificate.as_bytes()).unwrap();
    let certificate = pem.parse_x509().unwrap();
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => format!("uri {uri}"),
        GeneralName::DNSName(name) => format!("dns {name}"),
        GeneralName::IPAddress(bytes) => format!("ip {bytes:?}"),
        other => panic!("{other:?}"),
    };
    names.value.general_names.iter().map(text).collect()
}

#[test]
fn everybody_is_let_in_by_those_who_trust_the_ca_and_by_nobody_else() {
    let (site, other) = (Site::new(), Site::new());
    for subject in everybody() {
        let issued = site.issue(&subject, &[]);
        assert!(site.trusts_client(&issued, SystemTime::now()), "{subject}");
        assert!(!other.trusts_client(&issued, SystemTime::now()), "{subject}");
    }
}

#[test]
fn only_daemons_can_serve() {
    let site = Site::new();
    for subject in everybody() {
        let serves = matches!(subject.role(), Role::Agent | Role::Api);
        assert_eq!(site.trusts_server(&site.issue(&subject, &["head"]), "head"), serves, "{subject}");
    }
}

#[test]
fn a_server_is_believed_under_its_own_names_alone() {
    let site = Site::new();
    let issued = site.issue(&Caller::Api, &["head", "10.0.0.1", "::1"]);
    for (name, expected) in
        [("head", true), ("10.0.0.1", true), ("::1", true), ("node3", false), ("10.0.0.2", false), ("head.x", false)]
    {
        assert_eq!(site.trusts_server(&issued, name), expected, "{name}");
    }
    assert!(site.trusts_server(&site.issue(&agent(), &[]), "node3"), "an agent always bears its node's name");
}

#[test]
fn a_certificate_names_its_caller_first_and_then_its_hosts() {
    let site = Site::new();
    let check = |subject: Caller, hosts: &[&str], expected: &[&str]| {
        assert_eq!(names(&site.issue(&subject, hosts)), expected, "{subject}");
    };
    check(agent(), &[], &["uri lattice:///agent/node3", "dns node3"]);
    check(agent(), &["10.0.0.3"], &["uri lattice:///agent/node3", "dns node3", "ip [10, 0, 0, 3]"]);
    check(Caller::Api, &["head"], &["uri lattice:///api", "dns head"]);
    check(Caller::User(7), &[], &["uri lattice:///user/7"]);
    check(Caller::Admin(None), &[], &["uri lattice:///admin"]);
    check(Caller::Admin(Some(3)), &[], &["uri lattice:///admin"]);
}

#[test]
fn a_certificate_is_valid_from_a_little_ago_to_its_last_day() {
    // Certificates of private clusters are valid for long, and reach nodes with clocks that are not set.
    for (days, before) in [(2, CLOCK_SKEW), (365, DAY)] {
        let site = Site::new();
        let validity = Validity::days(days).unwrap();
        let issued = site.authority.issue(&Caller::Api, &[], validity).unwrap();
        let now = SystemTime::now();
        let second = Duration::from_secs(1);
        for (when, expected) in [
            (now, true),
            (now - before + 60 * second, true),
            (now - before - 60 * second, false),
            (now + days * DAY - 60 * second, true),
            (now + days * DAY + 60 * second, false),
        ] {
            assert_eq!(site.trusts_client(&issued, when), expected, "{days} {when:?}");
        }
        assert_eq!(validity.until.duration_since(validity.from).unwrap().as_secs(), (days * DAY + before).as_secs());
    }
}

#[test]
fn a_validity_ends_before_dates_do() {
    assert!(Validity::days(7900 * 365).is_ok());
    for days in [7900 * 365 + 1, u32::MAX] {
        let error = Validity::days(days).unwrap_err().to_string();
        assert_eq!(error, format!("{days} days are longer than certificates can last"));
    }
}

#[test]
fn a_ca_signs_callers_and_no_other_ca() {
    let site = Site::new();
    let pem = fs::read(site.directory.path().join("ca.pem")).unwrap();
    let (_, pem) = parse_x509_pem(&pem).unwrap();
    let certificate = pem.parse_x509().unwrap();
    let constraints = certificate.basic_constraints().unwrap().unwrap().value;
    assert_eq!((constraints.ca, constraints.path_len_constraint), (true, Some(0)));
    let usage = certificate.key_usage().unwrap().unwrap().value;
    assert!(usage.key_cert_sign() && usage.crl_sign() && !usage.digital_signature());
    let (_, leaf) = parse_x509_pem(site.issue(&Caller::Api, &[]).certificate.as_bytes()).unwrap();
    let leaf = leaf.parse_x509().unwrap();
    assert!(leaf.basic_constraints().unwrap().is_none_or(|constraints| !constraints.value.ca));
    assert_eq!(leaf.issuer(), certificate.subject());
}

/// A verifier selects one of two CAs by name first.
#[test]
fn no_two_cas_share_a_name_and_no_two_callers_a_key() {
    let (site, other) = (Site::new(), Site::new());
    let name = |site: &Site| {
        let pem = fs::read(site.directory.path().join("ca.pem")).unwrap();
        parse_x509_pem(&pem).unwrap().1.parse_x509().unwrap().subject().to_string()
    };
    assert!(name(&site).starts_with("CN=lattice CA "), "{}", name(&site));
    assert_ne!(name(&site), name(&other));
    assert_ne!(site.issue(&Caller::Api, &[]).key, site.issue(&Caller::Api, &[]).key);
}

#[test]
fn a_key_can_be_read_by_its_owner_alone() {
    let site = Site::new();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    let root = site.directory.path();
    assert_eq!((mode(&root.join("ca.key.pem")), mode(&root.join("ca.pem"))), (0o600, 0o644));
    for subject in everybody() {
        let directory = root.join(directory_name(&subject));
        site.authority.write(&directory, &site.issue(&subject, &[])).unwrap();
        let modes = ["key.pem", "cert.pem", "ca.pem"].map(|name| mode(&directory.join(name)));
        assert_eq!(modes, [0o600, 0o644, 0o644], "{subject}");
        assert!(PrivateKeyDer::from_pem_file(directory.join("key.pem")).is_ok(), "{subject}");
    }
}

#[test]
fn every_caller_has_a_directory_of_its_own() {
    let names = everybody().map(|subject| directory_name(&subject));
    assert_eq!(names, ["agent-node3", "api", "user-1000", "admin"]);
}

#[test]
fn a_ca_that_was_opened_again_is_the_same() {
    let site = Site::new();
    let again = Authority::open(site.directory.path()).unwrap();
    let issued = again.issue(&Caller::User(3), &[], Validity::days(1).unwrap()).unwrap();
    assert!(site.trusts_client(&issued, SystemTime::now()));
}

#[test]
fn a_directory_without_a_usable_ca_says_how_to_make_one() {
    let directory = tempfile::tempdir().unwrap();
    let opened = || Authority::open(directory.path()).err().unwrap();
    let missing = format!("cannot read {}", directory.path().join("ca.key.pem").display());
    assert_eq!(opened().to_string(), missing);
    fs::write(directory.path().join("ca.key.pem"), "nonsense").unwrap();
    fs::write(directory.path().join("ca.pem"), "nonsense").unwrap();
    let expected =
        format!("{} holds no CA that can be used; make one with: lattice pki init DIR", directory.path().display());
    assert_eq!(opened().to_string(), expected);
}

/// A dangling link also counts as existing: a write through it would create a file elsewhere.
#[test]
fn a_dangling_link_counts_as_existing() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link");
    assert!(refuse_existing(&link).is_ok());
    std::os::unix::fs::symlink("/nonexistent/target", &link).unwrap();
    assert!(matches!(refuse_existing(&link), Err(PkiError::Exists { path }) if path == link));
}
