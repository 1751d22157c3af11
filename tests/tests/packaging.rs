//! The additional files of the packages are valid for the programs that read them.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use lattice_tests::mpi::environment_program;
use lattice_tests::{Command, built, lattice};
use nix::unistd::geteuid;

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
}

/// The unit files name the installed programs. Here they name the programs of the build.
#[test]
fn systemd_understands_the_units() {
    let directory = tempfile::tempdir().unwrap();
    let programs = built::lattice().parent().unwrap().display().to_string();
    for unit in ["lattice-api.service", "lattice-agent.service"] {
        let text = fs::read_to_string(packaging().join("systemd").join(unit)).unwrap();
        let path = directory.path().join(unit);
        fs::write(&path, text.replace("/usr/bin", &programs)).unwrap();
        Command::new("systemd-analyze").words("verify --man=no").arg(&path).run().exits(0).does_not_say(unit);
    }
}

#[test]
fn sysusers_and_tmpfiles_understand_theirs() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("etc")).unwrap();
    let sysusers = Command::new("systemd-sysusers").arg(format!("--root={}", root.path().display()));
    sysusers.arg(packaging().join("sysusers.d/lattice.conf")).run().exits(0);
    let users = fs::read_to_string(root.path().join("etc/passwd")).unwrap();
    assert!(users.contains("lattice:") && users.contains("lattice-agent:"), "{users}");
    let tmpfiles = Command::new("systemd-tmpfiles").words("--create").arg(format!("--root={}", root.path().display()));
    tmpfiles.arg(packaging().join("tmpfiles.d/lattice.conf")).run().exits(0);
    assert!(root.path().join("etc/lattice/pki").is_dir());
    let of_agent = fs::metadata(root.path().join("etc/lattice/agent")).unwrap();
    assert_eq!(of_agent.permissions().mode() & 0o7777, 0o1770, "root alone changes the authority's certificate there");
}

#[test]
fn a_check_refuses_what_the_server_would_refuse() {
    let check = |flags: &str| lattice("api --check-config --config /dev/null").words(flags).run();
    check("--insecure --listen 127.0.0.1:0 --state /tmp/api.redb").exits(0).prints("make sense");
    let open = check("--insecure --listen 0.0.0.0:0 --state /tmp/api.redb");
    open.exits(125).says("can be reached from other machines");
}

/// The examples are valid except for their certificates, in place of which the test uses its own.
#[test]
fn the_daemons_understand_the_example_configurations() {
    let directory = tempfile::tempdir().unwrap();
    let pki = directory.path().join("pki");
    lattice("pki init").arg(&pki).run().exits(0);
    lattice("pki issue").arg(&pki).words("--api head --agents node0").run().exits(0);
    let config = |name: &str, place: &str, owner: &str| {
        let example = fs::read_to_string(packaging().join("config").join(name)).unwrap();
        assert!(example.contains(place), "{example}");
        let text = example.replace(place, &format!("{}/", pki.join(owner).display()));
        // A user that exists on every machine.
        let text = text.replace("user = \"lattice-agent\"", "user = \"daemon\"").replace("#node_id", "node_id");
        let file = directory.path().join(name);
        fs::write(&file, text).unwrap();
        file
    };
    lattice("api --check-config --config").arg(config("api.toml", "/etc/lattice/pki/", "api")).run().exits(0);
    let own = pki.join("agent-node0");
    let agent = |config: &Path| {
        let agent = Command::new(built::lattice().with_file_name("lattice-agent"));
        agent.words("--check-config --config").arg(config).run()
    };
    let config = config("agent.toml", "/etc/lattice/agent/", "agent-node0");
    if geteuid().is_root() {
        // Only the daemon that listens may read them.
        agent(&config).exits(125).says("cannot read ");
        let all_may_pass = Permissions::from_mode(0o711);
        for above in [directory.path(), &pki] {
            fs::set_permissions(above, all_may_pass.clone()).unwrap();
        }
        fs::set_permissions(&own, Permissions::from_mode(0o1770)).unwrap();
        chown(&own, None, Some(1)).unwrap();
        for file in ["cert.pem", "key.pem"] {
            chown(own.join(file), Some(1), Some(1)).unwrap();
        }
    }
    agent(&config).exits(0);
}

/// Returns the output of the command `words`, of the Kubernetes client `program`, for these files.
fn rendered(program: &str, words: &str, files: &str) -> Command {
    let program = environment_program("kubernetes-clients-1.33", program);
    Command::new(program).words(words).arg(packaging().join("kubernetes").join(files))
}

/// Checks the text against the schemas of the oldest and the newest supported Kubernetes that the validator has.
fn is_valid(manifests: &str) {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    fs::write(file.path(), manifests).unwrap();
    for version in ["1.30", "1.37"] {
        let validator = Command::new(environment_program("kubernetes-validate-1.37.0", "kubernetes-validate"));
        validator.words("--strict --quiet -k").arg(version).arg(file.path()).run().exits(0);
    }
}

#[test]
fn kubernetes_understands_the_manifests() {
    for (directory, kind, pods) in
        [("base", "StatefulSet", "[0-1]"), ("job", "Job", "[0-1]"), ("overlays/example", "StatefulSet", "[0-3]")]
    {
        let outcome = rendered("kubectl", "kustomize", directory).run();
        let manifests = outcome.exits(0).text();
        assert!(manifests.contains(&format!("kind: {kind}\n")), "{manifests}");
        assert!(manifests.contains(&format!("value: lattice-{pods}.lattice\n")), "{manifests}");
        is_valid(manifests);
    }
}

#[test]
fn kubernetes_understands_the_chart() {
    rendered("helm", "lint --strict", "chart").run().exits(0);
    for (set, kind, pods) in [
        ("pods=2", "StatefulSet", "mpi-[0-1].mpi"),
        ("kind=Job,pods=5,launch={-n,4,./a.out}", "Job", "mpi-[0-4].mpi"),
        ("joinSecret=mine", "StatefulSet", "secretName: mine"),
    ] {
        let outcome = rendered("helm", &format!("template --set {set} mpi"), "chart").run();
        let manifests = outcome.exits(0).text();
        assert!(manifests.contains(&format!("kind: {kind}\n")) && manifests.contains(pods), "{manifests}");
        is_valid(manifests);
    }
    let refused = rendered("helm", "template --set kind=Pod mpi", "chart").run();
    refused.says("kind is \"Pod\"; StatefulSet and Job are possible");
    rendered("helm", "template --set pods=0 mpi", "chart").run().says("pods is 0; a launch needs one or more");
}

/// Helm reads the numbers of a file of values as floating-point numbers.
#[test]
fn numbers_in_a_file_of_values_stay_as_they_are() {
    let values = tempfile::NamedTempFile::new().unwrap();
    let of = |text: &str| {
        fs::write(values.path(), text).unwrap();
        rendered("helm", &format!("template -f {} mpi", values.path().display()), "chart").run()
    };
    let outcome = of("kind: Job\nuser: 1000660000\nlaunch: [\"-n\", \"4\", ./a.out, \"1000000\"]\n");
    let manifests = outcome.exits(0).text();
    assert!(manifests.contains("runAsUser: 1000660000\n"), "{manifests}");
    assert!(manifests.contains(r#"args: ["-n", "4", "./a.out", "1000000"]"#), "{manifests}");
    is_valid(manifests);
    of("kind: Job\nlaunch: [./a.out, 1000000]\n").says("1e+06 of launch is a number; write it in quotes");
}

/// Both ways of installation have the same pods.
#[test]
fn the_chart_and_the_manifests_start_jobs_alike() {
    let command = |file: &str| {
        let text = fs::read_to_string(packaging().join("kubernetes").join(file)).unwrap();
        text.lines().find_map(|line| Some(line.trim().strip_prefix("command: [\"sh\"")?.to_owned())).unwrap()
    };
    assert_eq!(command("job/job.yaml"), command("chart/templates/_pod.tpl"));
}
