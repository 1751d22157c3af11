use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rcgen::{CertificateParams, KeyPair, SanType};

use super::*;
use lattice_pki::{Authority, Validity};

fn certificate(uris: &[&str]) -> CertificateDer<'static> {
    let mut params = CertificateParams::new(vec!["node3".to_owned()]).unwrap();
    params.subject_alt_names.extend(uris.iter().map(|&uri| SanType::URI(uri.try_into().unwrap())));
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
}

#[test]
fn a_certificate_names_exactly_one_caller() {
    let spiffe = "spiffe://example.org/node3";
    assert_eq!(caller_in(&certificate(&[spiffe, "lattice:///api"])), Ok(Caller::Api));
    let refused = |uris: &[&str]| caller_in(&certificate(uris)).unwrap_err().to_string();
    assert_eq!(refused(&[spiffe]), "the certificate has 0 names that begin with lattice:///; it must have one");
    let two = refused(&["lattice:///api", "lattice:///agent/node3"]);
    assert_eq!(two, "the certificate has 2 names that begin with lattice:///; it must have one");
    let unknown = refused(&["lattice:///root"]);
    assert!(unknown.starts_with("the certificate is of no use here: \"lattice:///root\" is no identity"), "{unknown}");
    assert_eq!(caller_in(&CertificateDer::from(vec![0x30, 0x03])), Err(CertificateNameError::Unreadable));
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let authority = Authority::create(root).unwrap();
    for name in ["a", "b"] {
        let issued = authority.issue(&Caller::Agent(name.to_owned()), &[], Validity::days(1).unwrap()).unwrap();
        authority.write(&root.join(name), &issued).unwrap();
    }
    let load = |ca: &str, cert: &str, key: &str| {
        let files = TlsFiles { ca: ca.into(), cert: cert.into(), key: key.into() };
        let identity = TlsIdentity::from_files(files.seen_from(root));
        identity.map(|identity| identity.caller().clone()).map_err(|error| error.to_string())
    };
    let check = |ca: &str, certificate: &str, key: &str, expected: &str| {
        let error = load(ca, certificate, key).unwrap_err().replace(&format!("{}/", root.display()), "");
        assert_eq!(error, expected);
    };
    assert_eq!(load("ca.pem", "a/cert.pem", "a/key.pem"), Ok(Caller::Agent("a".to_owned())));
    check("ca.pem", "a/cert.pem", "b/key.pem", "cannot use the key b/key.pem with the certificate a/cert.pem");
    check("ca.pem", "a/cert.pem", "a/cert.pem", "the key a/cert.pem can be read by other users; run chmod 600");
    check("ca.pem", "a/key.pem", "a/key.pem", "a/key.pem holds no certificate in PEM");
    check("no.pem", "a/cert.pem", "a/key.pem", "cannot read no.pem");
    check("ca.pem", "ca.pem", "ca.key.pem", "cannot use the certificate ca.pem");
    fs::set_permissions(root.join("a/cert.pem"), Permissions::from_mode(0o600)).unwrap();
    check("ca.pem", "b/cert.pem", "a/cert.pem", "a/cert.pem holds no private key in PEM");
}

/// Replaces the files in `directory` with a certificate for `caller` from a new CA.
fn put(directory: &Path, caller: &Caller) -> TlsFiles {
    let authority_directory = tempfile::tempdir().unwrap();
    let authority = Authority::create(authority_directory.path()).unwrap();
    let new = authority_directory.path().join("new");
    authority.write(&new, &authority.issue(caller, &[], Validity::days(1).unwrap()).unwrap()).unwrap();
    for file in ["ca.pem", "cert.pem", "key.pem"] {
        fs::rename(new.join(file), directory.join(file)).unwrap();
    }
    TlsFiles::in_directory(directory)
}

#[test]
fn files_that_change_are_read_again_and_bad_ones_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let node3 = Caller::Agent("node3".to_owned());
    let files = put(directory.path(), &node3);
    let identity = TlsIdentity::from_files(files.clone()).unwrap();
    let own = || identity.material().key.cert[0].clone();
    let first = own();
    assert_eq!(own(), first);

    put(directory.path(), &node3);
    let second = own();
    assert_ne!(second, first);

    put(directory.path(), &Caller::Agent("node4".to_owned()));
    assert_eq!(own(), second);
    let renamed = identity.renew().unwrap_err().to_string();
    assert!(renamed.ends_with("is the certificate of the agent of node4 now; this process is the agent of node3"));
    fs::remove_file(&files.key).unwrap();
    assert_eq!(own(), second);
    assert!(matches!(identity.renew(), Err(IdentityError::Read { .. })));

    put(directory.path(), &node3);
    assert_ne!(own(), second);
    assert_eq!(identity.caller(), &node3);
}

#[test]
fn while_somebody_keeps_it_current_nobody_else_looks_at_the_files() {
    let directory = tempfile::tempdir().unwrap();
    let node3 = Caller::Agent("node3".to_owned());
    let identity = TlsIdentity::from_files(put(directory.path(), &node3)).unwrap();
    let own = || identity.material().key.cert[0].clone();
    let (first, kept) = (own(), identity.keep());
    put(directory.path(), &node3);
    // A check that its file system blocks does not delay other callers.
    let looking = identity.inner.looked.lock();
    assert_eq!(own(), first);
    drop(looking);
    identity.look();
    let second = own();
    assert_ne!(second, first);
    drop(kept);
    put(directory.path(), &node3);
    assert_ne!(own(), second);
}

/// As with a file server that does not respond briefly, or a process without free descriptors.
#[test]
fn files_that_could_not_be_read_are_read_later_though_they_have_not_changed() {
    let parent = tempfile::tempdir().unwrap();
    let (here, away) = (parent.path().join("here"), parent.path().join("away"));
    fs::create_dir(&here).unwrap();
    let node3 = Caller::Agent("node3".to_owned());
    let identity = TlsIdentity::from_files(put(&here, &node3)).unwrap();
    let own = || identity.material().key.cert[0].clone();
    let first = own();
    let stamps = put(&here, &node3).stamps();
    fs::rename(&here, &away).unwrap();
    let failed = identity.inner.renew(&mut identity.inner.looked.lock(), stamps);
    assert!(matches!(failed, Err(IdentityError::Read { .. })));
    assert_eq!(own(), first);
    fs::rename(&away, &here).unwrap();
    assert_eq!(identity.inner.files.stamps(), stamps);
    assert_ne!(own(), first);
}
