//! Sessions of users by PAM: the real libpam and modules of the system, with services that the tests make.

use std::fs;
use std::path::PathBuf;

use lattice_tests::{Outcome, script_on};
use tempfile::TempDir;

/// A service with a unique name. It is removed with the test.
struct Service {
    name: String,
    path: PathBuf,
    /// Files that the service names.
    files: TempDir,
}

impl Service {
    fn new(name: &str) -> Self {
        let name = format!("lattice-test-{name}-{}", std::process::id());
        let path = PathBuf::from("/etc/pam.d").join(&name);
        let service = Self { name, path, files: tempfile::tempdir().unwrap() };
        service.says("account required pam_permit.so");
        service
    }

    /// Writes the service; `$FILES` is the directory of its files.
    fn says(&self, lines: &str) {
        let lines = lines.replace("$FILES", &self.files.path().display().to_string());
        fs::write(&self.path, format!("auth required pam_permit.so\n{lines}\n")).expect("root makes services");
    }

    fn file(&self, name: &str, text: &str) {
        fs::write(self.files.path().join(name), text).unwrap();
    }

    /// Runs a script in a cluster of two nodes. node1 uses the service: `$service` is its name, `$files` the directory.
    fn try_in_cluster(&self, script: &str) -> Outcome {
        let script = format!("{BY_PAM}\n{script}");
        script_on(2, &script).arg(&self.name).arg(self.files.path()).run()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // A test that failed early has no service.
        let _ = fs::remove_file(&self.path);
    }
}

const BY_PAM: &str = r#"cd "$LATTICE_DEV_CLUSTER"; service=$1 files=$2; lattice alloc release $LATTICE_ALLOC_ID >/dev/null
    sed -i "1i pam_service = '$service'\npam_timeout = 5" node1.toml; kill_agent node1; start_agent node1
    until nodes_up 2; do sleep 0.05; done
    alloc=$(lattice alloc create -w node0,node1 --uid 65534) || exit
    by_nobody() { setpriv --reuid nobody --regid nogroup --init-groups lattice launch --alloc $alloc --chdir / "$@"; }
    forks=$(pgrep -P $(daemon node1) -x lattice-forks)
    # No PAM process is left, nor what its modules have started.
    until_closed() { while pgrep -P $forks -x lattice-pam >/dev/null || pgrep -P $forks -x sleep >/dev/null; do sleep 0.05; done; }"#;

#[test]
fn limits_and_variables_of_a_pam_session_are_those_of_ranks_and_it_is_closed_at_the_end() {
    let service = Service::new("session");
    service.file("limits.conf", "nobody - nofile 777\n");
    service.file("env.conf", "TOLD_BY_PAM DEFAULT=a_word\nTOLD_BY_BOTH DEFAULT=no\n");
    service.file("note", "#!/bin/sh\necho \"$PAM_TYPE of $PAM_USER by $(id -u)\" >>${0%/*}/noted\n");
    service.says(
        "account required pam_permit.so
        session required pam_limits.so conf=$FILES/limits.conf
        session required pam_env.so conffile=$FILES/env.conf readenv=0
        session optional pam_echo.so welcome %u
        session required pam_exec.so /bin/sh $FILES/note",
    );
    let script = r#"by_nobody -N 2 -n 2 --env TOLD_BY_BOTH=yes bash -c '
            echo "$(hostname): $([ "$(ulimit -Sn) $(ulimit -Hn)" = "777 777" ] && echo limited) $TOLD_BY_PAM $TOLD_BY_BOTH"'
        until_closed; cat $files/noted; rm $files/noted
        # However it ends.
        by_nobody -w node1 -n 1 sleep 1000 2>/dev/null & launch=$!
        id=$(launch_with 1); kill -KILL $(ps -o ppid= -p $(pid_of_rank $id 0)); wait $launch
        until_closed; cat $files/noted
        grep -o 'PAM: welcome [a-z]*' node1.log | sort -u"#;
    let outcome = service.try_in_cluster(script);
    let noted = ["open_session of nobody by 0", "close_session of nobody by 0"];
    let ranks = ["node0:   yes", "node1: limited a_word yes", "PAM: welcome nobody"];
    outcome.exits(0).prints_lines(ranks.into_iter().chain(noted).chain(noted));
}

/// Afterwards the node continues with the same agent and the same fork server.
#[test]
fn a_service_that_denies_hangs_or_dies_ends_the_launch_and_nothing_else() {
    let service = Service::new("denials");
    service.file("die", "kill -KILL $PPID\n");
    let script = r#"as_it_says() {
            { echo "auth required pam_permit.so"; cat; } >/etc/pam.d/$service
            by_nobody -w node1 -n 1 echo ran; echo "$1: code $?"
        }
        as_it_says account <<<'account optional pam_echo.so closed to %u
account required pam_deny.so'
        as_it_says session <<<'account required pam_permit.so
session required pam_deny.so'
        as_it_says prompt <<<'account required pam_permit.so
session required pam_exec.so /bin/false'
        as_it_says hang <<<'account required pam_permit.so
session required pam_exec.so /bin/sleep 31337'
        as_it_says death <<<"account required pam_exec.so /bin/sh $files/die"
        until_closed
        as_it_says good <<<'account required pam_permit.so
session required pam_permit.so'
        until_closed
        [ $forks = "$(pgrep -P $(daemon node1) -x lattice-forks)" ] && echo "the same fork server""#;
    let outcome = service.try_in_cluster(script);
    let denied = ["account", "session", "prompt", "hang", "death"].map(|why| format!("{why}: code 125"));
    let good = ["ran", "good: code 0", "the same fork server"].map(str::to_owned);
    outcome.exits(0).prints_lines(denied.into_iter().chain(good));
    let denial = format!("node1: PAM service {} lets in no session of user nobody (65534): ", service.name);
    for reason in [
        "account management: Authentication failure (closed to nobody)",
        "opening the session: ",
        "no answer within 5 s (pam_timeout): a module hangs",
        "the process that runs its modules ended without an answer",
    ] {
        outcome.says(&format!("{denial}{reason}"));
    }
}

#[test]
fn an_agent_whose_service_has_no_file_does_not_start() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; sed "1i pam_service = 'lattice-test-none'" node1.toml >other.toml
        lattice-agent --config other.toml --check-config; echo "code $?""#;
    let outcome = script_on(2, script).run();
    outcome.exits(0).prints_lines(["code 125"]);
    outcome.says("there is no /etc/pam.d/lattice-test-none; make one, or leave pam_service out");
}
