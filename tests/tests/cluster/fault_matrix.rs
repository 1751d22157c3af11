//! Each process of a cluster is killed or stopped in each phase of a launch: the launch ends or goes on as it should, within bounds, with
//! one cause, nothing is left of it, and the cluster serves the next one.
//!
//! `LATTICE_FAULT_REPEATS=20 cargo test -p lattice-tests --test cluster fault_matrix` goes through the matrix so many times.

use lattice_tests::command::DEADLINE;
use lattice_tests::mpi::Flavour;
use lattice_tests::{script_on, turn};

/// Functions of the script, of which `$1` is the program: `cell` goes through one phase. In it `fault` strikes, `mend` repairs what it
/// did, and `wanted` says which exit codes are right in which phase.
const CELL: &str = r#"
    cd "$LATTICE_DEV_CLUSTER"
    # No other process of this machine has the name.
    name=steps$$; program=$PWD/$name; cp "$1" $program
    restart_api sed -i '1i lease = 10' api.toml
    # Fails when the words that are given do not succeed within so many seconds.
    within() { local end=$((SECONDS + $1)); shift; until "$@"; do [ $SECONDS -lt $end ] || return 1; sleep 0.05; done; }
    no_ranks() { ! pgrep -x $name >/dev/null; }
    rank_there() { pgrep -x $name >/dev/null; }
    ended() { ! kill -0 $launch 2>/dev/null; }
    stepped() { grep -qs "step $1" out; }
    all_up() { [ "$(lattice nodes --json | field state | sort | uniq -c | tr -d ' \n')" = 3up ]; }
    cell() {
        local phase=$1 code bad=
        rm -f go; : >out; : >err
        lattice launch -n 6 --timeout 60s "$program" "$PWD/go" >out 2>err & launch=$!
        case $phase in
            start) sleep 0.0$((RANDOM % 10));;
            steps) within 20 stepped 5 || bad="no steps before the fault";;
            end) within 20 stepped 5; touch go; sleep 0.0$((RANDOM % 5));;
        esac
        fault $phase; mend; touch go
        within 30 ended || { bad="hangs"; kill -KILL $launch; }
        wait $launch; code=$?
        [[ " $(wanted $phase) " = *" $code "* ]] || bad="$bad code $code"
        [ $code = 0 ] || grep -q '^lattice: ' err || bad="$bad no cause"
        within 5 no_ranks || bad="$bad survivors"
        within 15 all_up || bad="$bad nodes are not up: $(lattice nodes --json | field state | tr '\n' ' ')"
        # The loss of a node is the end of its allocation.
        [ "$(lattice alloc show $LATTICE_ALLOC_ID --json | field state)" = running ] || {
            lattice alloc release $LATTICE_ALLOC_ID >/dev/null 2>&1
            LATTICE_ALLOC_ID=$(timeout 20 lattice alloc create -N 3 --wait) || bad="$bad no allocation"
        }
        lattice launch -n 6 --timeout 20s true 2>>err || bad="$bad the next launch fails"
        echo "$phase: ${bad:-as it should}"
        [ -z "$bad" ] || { cat err; tail -n 3 api.log node*.log; } >&2
    }
    mend() { :; }
"#;

/// Goes through all phases, `$2` times.
const PHASES: &str =
    "for ((repeat = 0; repeat < $2; repeat++)); do for phase in start steps end; do cell $phase; done; done";

/// Three phases on three nodes, with this behaviour of the script's functions.
#[track_caller]
fn strike(functions: &str) {
    let _machine = turn::heavy();
    let repeats: u32 = std::env::var("LATTICE_FAULT_REPEATS").map_or(1, |text| text.parse().expect("a number"));
    let script = format!("{CELL}\n{functions}\n{PHASES}");
    let program = Flavour::WheelMpich.program("steps");
    let command = script_on(3, &script).arg(program).arg(repeats.to_string());
    let outcome = command.within(DEADLINE * repeats).run();
    let lines = ["start", "steps", "end"].map(|phase| format!("{phase}: as it should"));
    outcome.exits(0).prints_lines(std::iter::repeat_n(lines, repeats as usize).flatten());
}

/// The process of the last rank's session, or of the first one's.
const SESSIONS: &str = r#"
    rank_of() { pgrep -x $name | sort -n | $1 -1; }
    session_of() {
        local parent=$(ps -o ppid= -p $(rank_of $1) 2>/dev/null)
        [ "$(ps -o comm= -p $parent 2>/dev/null)" = lattice-session ] && echo $parent
    }
"#;

#[test]
fn ranks_are_killed() {
    strike(&format!(
        r#"{SESSIONS}
        fault() {{ within 10 rank_there; kill -KILL $(rank_of tail) 2>/dev/null; }}
        wanted() {{ case $1 in steps) echo 137;; *) echo 137 0;; esac; }}"#
    ));
}

#[test]
fn ranks_are_stopped_and_go_on() {
    strike(&format!(
        r#"{SESSIONS}
        fault() {{ within 10 rank_there; struck=$(rank_of tail); kill -STOP $struck 2>/dev/null; }}
        mend() {{ sleep 0.5; kill -CONT $struck 2>/dev/null; }}
        wanted() {{ echo 0; }}"#
    ));
}

#[test]
fn sessions_are_killed() {
    for which in ["head", "tail"] {
        strike(&format!(
            r#"{SESSIONS}
            fault() {{ within 10 rank_there; kill -KILL $(session_of {which}) 2>/dev/null; }}
            wanted() {{ case $1 in steps) echo 125;; *) echo 125 0;; esac; }}"#
        ));
    }
}

#[test]
fn agents_are_killed_and_started_again() {
    for node in ["node0", "node2"] {
        strike(&format!(
            "fault() {{ kill_agent {node}; }}
            mend() {{ sleep 0.5; start_agent {node}; }}
            # What is not begun on a node yet is not begun while its agent is away.
            wanted() {{ case $1 in start) echo 0 125;; *) echo 0;; esac; }}"
        ));
    }
}

/// Nobody can tell whether it is dead: its node is lost.
#[test]
fn agents_are_stopped_and_go_on() {
    strike(
        "fault() { kill -STOP $(daemon node1); }
        mend() { sleep 5; kill -CONT $(daemon node1); }
        wanted() { case $1 in steps) echo 125;; *) echo 125 0;; esac; }",
    );
}

#[test]
fn fork_servers_are_killed() {
    strike(
        "fault() { keep_namespaces node1; kill -KILL $(pgrep -P $(daemon node1) -x lattice-forks); }
        mend() { within 10 gone $(daemon node1); start_agent node1; }
        gone() { ! kill -0 $1 2>/dev/null; }
        wanted() { case $1 in steps) echo 125;; *) echo 125 0;; esac; }",
    );
}

#[test]
fn the_api_server_is_killed_and_started_again() {
    strike(
        "fault() { restart_api sleep 0.5; }
        # A launch that was not written down yet is not known to the next one.
        wanted() { case $1 in start) echo 0 125;; *) echo 0;; esac; }",
    );
}

#[test]
fn the_api_server_is_stopped_and_goes_on() {
    strike(
        "fault() { kill -STOP $(daemon api); }
        mend() { sleep 2; kill -CONT $(daemon api); }
        wanted() { echo 0; }",
    );
}
