use lattice_pki::{Authority, Validity};

use std::collections::BTreeSet;

use super::*;
use crate::daemon::own_address::OwnAddress;

fn load(text: &str, overrides: Overrides) -> Result<Config, ConfigError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    Config::load(Some(file.path()), overrides)
}

#[test]
fn a_file_says_everything_and_flags_are_over_it() {
    let text = r#"
        node_id = "node3"
        listen = "0.0.0.0:1"
        advertise = "10.0.0.5:2"
        api = "https://api:50051/"
        min_uid = 1000
        setuid_programs = true
        limits = ["memlock=unlimited"]
        metrics = "127.0.0.1:9100"
        runtime_dir = "/run/x"
        agent_lease = 60
        when_stopped = "end"
        share_topology = "env"
        [tls]
        ca = "/ca"
        cert = "/cert"
        key = "/key"
    "#;
    let config = load(text, Overrides::default()).unwrap();
    assert_eq!((config.node_id.as_str(), config.api.to_string()), ("node3", "api:50051".to_owned()));
    assert_eq!(OwnAddress::new(&config, &config.listen).get().to_string(), "10.0.0.5:2");
    assert_eq!((config.agent_lease, config.when_stopped), (Duration::from_secs(60), WhenStopped::End));
    assert_eq!(config.runtime_dir.as_deref(), Some(Path::new("/run/x/node3")));
    assert_eq!(config.share_topology, ShareTopology::Env);
    assert_eq!((config.limits.len(), config.tls.as_ref().unwrap().key.to_str()), (1, Some("/key")));
    let over = Overrides { node_id: Some("x".into()), api: Some("http://y:1".into()), ..Overrides::default() };
    let config = load(text, over).unwrap();
    assert_eq!((config.node_id.as_str(), config.api.to_string()), ("x", "y:1".to_owned()));
    let variable = Overrides { api_variable: Some("c:1".into()), ..Overrides::default() };
    let api = |text| load(text, variable.clone()).unwrap().api.to_string();
    assert_eq!([api("insecure = true\napi = 'a:1'"), api("insecure = true")], ["a:1", "c:1"]);
    let config = load("insecure = true\napi = 'a:1'", Overrides::default()).unwrap();
    assert_eq!((config.agent_lease, config.when_stopped), (timeouts::AGENT_LEASE, WhenStopped::Keep));
    assert!(config.runtime_dir.as_ref().is_some_and(|path| path.is_absolute()), "{:?}", config.runtime_dir);
    assert_eq!(config.share_topology, ShareTopology::Asked);
}

#[test]
fn what_is_wrong_is_named() {
    let check = |text: &str, expected: &str| {
        let error = load(text, Overrides::default()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check("insecure = true", "no api is given; name the API server");
    check("api = 'a:1'", "try: lattice pki init DIR, which makes certificates");
    check("api = 'a:1'\ntls.key = '/c'", "tls.key is set, tls.ca is not");
    check("insecure = true\napi = 'nonsense'", "api: \"nonsense\" is no address");
    check("insecure = true\napi = 'a:1'\nagent_lease = 0", "agent_lease is 0 seconds; it can be 1 to 86400");
    check("insecure = true\napi = 'a:1'\nwhen_stopped = 'never'", "unknown variant `never`");
    check("insecure = true\napi = 'a:1'\nshare_topology = 'file'", "unknown variant `file`");
    check("api = 'unix:/run/x'\nnode_id = 'n'\n[tls]\nca='/a'\ncert='/b'\nkey='/c'", "name HOST:PORT");
    check("colour = 1", "unknown field `colour`");
    check("insecure = true\napi = 'a:1'\nnode_id = 'a b'", "node_id is \"a b\"");
    check("insecure = true\napi = 'a:1'\nlimits = ['x=1']", "there is no limit \"x\"");
    check("insecure = true\napi = 'a:1'\n[tls]\nca='/a'\ncert='/b'\nkey='/c'", "exclude each other");
    let missing = Config::load(Some(Path::new("/no/such.toml")), Overrides::default()).unwrap_err();
    assert!(missing.to_string().starts_with("cannot read /no/such.toml"));
}

/// The process that becomes the fork server reads the settings, and no session may inherit the key.
#[test]
fn a_node_is_named_by_its_certificate_and_no_key_is_read_for_that() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::create(&directory.path().join("ca")).unwrap();
    let issue = |subject: &Caller, name: &str| {
        let issued = authority.issue(subject, &[], Validity::days(1).unwrap()).unwrap();
        let files = directory.path().join(name);
        authority.write(&files, &issued).unwrap();
        let files = TlsFiles::in_directory(&files);
        std::fs::remove_file(&files.key).unwrap();
        let (ca, cert, key) = (files.ca.display(), files.cert.display(), files.key.display());
        format!("api = 'a:1'\ntls.ca = '{ca}'\ntls.cert = '{cert}'\ntls.key = '{key}'")
    };
    let config = load(&issue(&Caller::Agent("node7".into()), "node"), Overrides::default()).unwrap();
    assert_eq!(config.node_id, "node7");
    let error = load(&issue(&Caller::Api, "api"), Overrides::default()).unwrap_err().to_string();
    assert!(error.contains("a node agent needs one for lattice:///agent/NODE"), "{error}");
}

#[test]
fn the_daemon_of_root_alone_becomes_another_user() {
    let tls = "api = 'a:1'\nnode_id = 'n'\n[tls]\nca='/a'\ncert='/b'\nkey='/c'";
    let loaded = |user: &str| load(&format!("user = '{user}'\n{tls}"), Overrides::default());
    if !Uid::effective().is_root() {
        assert_eq!(loaded("nobody").unwrap().user, None);
        return;
    }
    assert_eq!(loaded("nobody").unwrap().user, Some(Account::named("nobody").unwrap()));
    assert_eq!(load(tls, Overrides::default()).unwrap().user, None);
    // For a daemon that becomes another user, the node's name does not come from the certificate.
    let nameless = load(&format!("user = 'nobody'\n{}", tls.replace("node_id = 'n'", "")), Overrides::default());
    assert_eq!(nameless.unwrap().node_id, node_info::host_name());
    let over = Overrides { user: Some("games".into()), ..Overrides::default() };
    let config = load(&format!("user = 'nobody'\n{tls}"), over).unwrap();
    assert_eq!(config.user.map(|account| account.name), Some("games".to_owned()));
    let refusal = |user: &str| loaded(user).unwrap_err().to_string();
    assert_eq!(refusal("no such"), "user: user \"no such\" is not known on this node");
    assert!(refusal("root").starts_with("user is \"root\", which is root"));
    let insecure = load("user = 'nobody'\ninsecure = true\napi = 'a:1'", Overrides::default()).unwrap_err();
    assert!(matches!(insecure, ConfigError::UserWithoutCertificates), "{insecure}");
}

#[test]
fn users_are_refused_in_words() {
    let mut config = load("insecure = true\napi = 'a:1'", Overrides::default()).unwrap();
    if !Uid::effective().is_root() {
        assert!(config.refuse_user(Uid::effective().as_raw() + 1).unwrap().contains("is not root: it starts"));
        return;
    }
    assert!(config.refuse_user(1000).unwrap().contains("no certificates, so that no caller is identified"));
    config.tls = Some(TlsFiles { ca: "/ca".into(), cert: "/cert".into(), key: "/key".into() });
    assert_eq!(config.refuse_user(1000), None);
    assert!(config.refuse_user(999).unwrap().contains("from 1000 on (min_uid), not of user 999"));
    assert!(config.refuse_user(0).unwrap().contains("set allow_root"));
    config.allow_root = true;
    assert_eq!(config.refuse_user(0), None);
}

/// The error for an unknown setting lists all settings.
#[test]
fn the_manual_lists_each_setting_and_no_other() {
    let names = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<String>>();
    let error = load("not_a_setting = 1", Overrides::default()).unwrap_err();
    let error = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
    let known = names(error.split_once("expected one of").unwrap().1);
    let manual = include_str!("../../../../docs/operate/settings.md");
    let section = manual.split("\n## ").find(|section| section.starts_with("/etc/lattice/agent.toml")).unwrap();
    let table = section.split("\n`[fabric]`").next().unwrap();
    // The first name of a row, or its section, such as `[tls]`.
    let first = |row: &str| row.split('`').next().map(|name| name.trim_matches(['[', ']']).to_owned());
    let listed: BTreeSet<String> = table.lines().filter_map(|line| line.strip_prefix("| `").and_then(first)).collect();
    assert_eq!(listed, known);
}
