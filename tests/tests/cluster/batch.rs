//! Batch jobs: scripts that wait for nodes, run on the first of them, and end with their allocation.

use lattice_tests::mpi::{Flavour, MPICHS, OPEN_MPIS};
use lattice_tests::{Command, cluster, script_on, turn};

/// First part of each script: it releases all nodes, and defines `queue ID FIELD`, which prints a field of a job.
const FREE: &str = r#"cd "$LATTICE_DEV_CLUSTER"; lattice alloc release $LATTICE_ALLOC_ID; unset LATTICE_ALLOC_ID
    queue() { lattice queue $1 --json | field $2; }
    until_is() { until [ "$(queue $1 state)" = $2 ]; do sleep 0.05; done; }
    "#;

#[test]
fn a_script_has_its_options_its_nodes_its_files_and_its_exit_code() {
    let script = format!(
        r#"{FREE}
        cat >job.sh <<'SCRIPT'
#!/bin/bash
#LATTICE nodes=2
#LATTICE --output=%x-%j.txt --time=5 # minutes
#LATTICE vcluster=hpc-batch

echo "$LATTICE_JOB_NAME on $(hostname) of $LATTICE_NODELIST with $# words: $2; ${{LATTICE_RANK-no rank}}, {{rank}}"
lattice launch --pmi=none -n 2 -N 2 hostname
echo complaint >&2
exit 3
SCRIPT
        id=$(lattice batch --wait --job-name=demo job.sh one 'two words'); echo "code $?"
        cat demo-$id.txt; queue $id exit_code; lattice queue; lattice queue $id | grep -o 'exit code 3: .*'
        ls ~/.local/state/lattice"#
    );
    let home = tempfile::tempdir().unwrap();
    let outcome = script_on(2, &script).env("HOME", home.path()).run();
    let facts = "demo on node0 of node0,node1 with 2 words: two words; no rank, {rank}";
    let heads = outcome.text().lines().find(|line| line.starts_with("ID")).unwrap().to_owned();
    let end = "exit code 3: rank 0 on node0 exited with status 3".to_owned();
    let lines = ["code 3", facts, "node0", "node1", "complaint", "3"].map(str::to_owned);
    outcome.exits(0).prints_lines(lines.into_iter().chain([heads, end]));
    outcome.says("vcluster or network-domain is ignored: it is for a scheduler in front");
}

/// Returns a cluster that runs a batch job. Its script is `$1`, with `$mpirun` of this library.
fn with_mpirun(mpi: Flavour, line: &str) -> Command {
    let allowed = ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"];
    let names = allowed.into_iter().flat_map(|name| [name.to_owned(), format!("{name}_CONFIRM")]);
    let command = names.fold(cluster(2), |command, name| command.env(&name, "1"));
    let script = format!(
        r#"cd "$LATTICE_DEV_CLUSTER"; lattice alloc release $LATTICE_ALLOC_ID; unset LATTICE_ALLOC_ID
        printf '#!/bin/sh\n%s\n' '{line}' >job.sh
        lattice batch --wait -N 2 -t 90s -o out job.sh "$@" >id; echo "code $?"; cat out"#
    );
    command.bash(&script).arg(mpi.mpirun()).arg(mpi.program("hello"))
}

#[test]
fn an_unchanged_mpirun_in_a_script_starts_its_ranks_on_all_nodes() {
    let _machine = turn::heavy();
    let ranks = (0..4).map(|rank| format!("rank {rank} of 4"));
    let all: Vec<String> = ranks.chain(["code 0".to_owned()]).collect();
    for mpi in [MPICHS[1], OPEN_MPIS[0], OPEN_MPIS[1]] {
        let once = |words: &str| {
            format!("timeout -k 5 25 {words} >said 2>&1; code=$?; grep -v plm: said | sort -u; exit $code")
        };
        with_mpirun(mpi, &once("$1 -np 4 $2")).run().exits(0).prints_lines(&all);
        let hosts = with_mpirun(mpi, &once("$1 hostname")).run();
        hosts.exits(0).prints_lines(["code 0", "node0", "node1"]);
    }
}

#[test]
fn a_launch_in_a_script_wires_up_every_library() {
    for mpi in [MPICHS[1], OPEN_MPIS[1]] {
        let outcome = with_mpirun(mpi, "lattice launch -n 4 $2").run();
        outcome.exits(0).prints_lines((0..4).map(|rank| format!("rank {rank} of 4")).chain(["code 0".to_owned()]));
    }
}

/// Its `srun` lines start a task on each node, and `scontrol` prints the names of the nodes.
#[test]
fn a_script_of_slurms_runs_as_it_is() {
    let script = format!(
        r#"{FREE}
        printf '%s\n' '#!/bin/bash' '#SBATCH --job-name=wave --partition=debug' '#SBATCH --ntasks=2' '#SBATCH --ntasks-per-node=1' \
            '#SBATCH --time=00:10:00 --output=%x.txt' 'srun hostname | sort' \
            'scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1; echo $SLURM_JOB_NAME $SLURM_NNODES $SLURM_NODELIST' \
            '[ "$SLURM_SUBMIT_DIR" = "$PWD" ] && [ "$SLURM_JOB_ID" = "$LATTICE_ALLOC_ID" ] && echo "job and directory"' >job.sh
        lattice batch --wait job.sh >/dev/null; echo "code $?"; cat wave.txt
        sed -i 's/^#SBATCH --ntasks=2/#SBATCH --array=1-9/' job.sh; lattice batch job.sh"#
    );
    let outcome = script_on(2, &script).run();
    let lines = ["code 0", "node0", "node1", "node1", "wave 2 node[0-1]", "job and directory"];
    assert_eq!(outcome.text().lines().collect::<Vec<_>>(), lines, "{}", outcome.errors());
    outcome.exits(125).says("job.sh, line 3: there is no option --array");
}

#[test]
fn a_script_may_be_a_line_or_come_from_standard_input() {
    let script = format!(
        r#"{FREE}
        lattice batch --wait -o wrap.txt --wrap 'echo "$LATTICE_JOB_NAME on $(hostname)"; exit 3'; echo "code $?"; cat wrap.txt
        printf '%s\n' '#!/bin/bash' '#SBATCH -o stdin.txt' 'echo $LATTICE_JOB_NAME' | lattice batch --wait; echo "code $?"; cat stdin.txt
        echo hostname | lattice batch"#
    );
    let outcome = script_on(1, &script).run();
    let lines: Vec<_> = outcome.text().lines().filter(|line| line.contains(' ') || *line == "stdin").collect();
    assert_eq!(lines, ["code 3", "wrap on node0", "code 0", "stdin"], "{}", outcome.errors());
    outcome.exits(125).says("/dev/stdin is no script: its first line must begin with #!");
}

#[test]
fn those_who_wait_begin_in_their_order_or_where_nobody_waits_longer_for_it() {
    let script = format!(
        r#"{FREE}
        printf '#!/bin/sh\necho $LATTICE_JOB_NAME >>order; until [ -e go ]; do sleep 0.05; done\n' >job.sh
        hold=$(lattice alloc create -w node0 --time 1:00:00)
        head=$(lattice batch -J head -N 2 job.sh); next=$(lattice batch -J next -N 2 job.sh)
        short=$(lattice batch -J short -t 10 job.sh); long=$(lattice batch -J long -t 2:00:00 job.sh)
        until_is $short running; echo $(queue $head state) $(queue $next state) $(queue $long state)
        lattice queue | grep -o "waits behind allocation $head" | uniq
        lattice alloc create -N 1 || lattice alloc create -w node1 || echo refused
        restart_api :
        echo $(queue $head state) $(queue $next state) $(queue $long state) $(queue $short state)
        lattice cancel $long; touch go; until_is $short released; lattice cancel $hold; until_is $next released
        cat order; queue $long state; lattice queue $long --json | grep -c exit_code.*null"#
    );
    let outcome = script_on(2, &script).run();
    let expected = [
        "pending pending pending",
        "waits behind allocation HEAD",
        "refused",
        "pending pending pending running",
        "short",
        "head",
        "next",
        "released",
        "1",
    ];
    let text = outcome.text().lines().map(|line| match line.strip_prefix("waits behind allocation ") {
        Some(_) => "waits behind allocation HEAD",
        None => line,
    });
    assert_eq!(text.collect::<Vec<_>>(), expected, "{}", outcome.errors());
    outcome.exits(0).says("1 node was asked for, and 0 are up and free");
}

#[test]
fn a_script_ends_at_its_time_limit_or_when_it_is_cancelled() {
    let script = format!(
        r#"{FREE}
        printf '#!/bin/sh\ntrap "echo term; exit 9" TERM; echo up; sleep 1000 & wait\n' >job.sh
        id=$(lattice batch --wait -t 3s -o out job.sh); [ $? != 0 ] && echo ended
        lattice queue $id | grep -o 'its time limit of 3 seconds is over'
        id=$(lattice batch -o second job.sh); until grep -qs up second; do sleep 0.05; done
        lattice cancel $id; until_is $id released; queue $id exit_code; grep -v ends: second
        grep -c 'ends: its time limit of 3 seconds is over' out; grep -c 'ends: it was cancelled' second
        lattice batch -N 2 -w x job.sh 2>&1 | head -n 1"#
    );
    let conflict = "lattice: --nodes 2 and --nodelist x, which names 1 node, do not agree: leave one of the two away";
    script_on(1, &script).run().prints_lines([
        "ended",
        "its time limit of 3 seconds is over",
        "9",
        "up",
        "term",
        "1",
        "1",
        conflict,
    ]);
}

#[test]
fn a_job_tells_that_its_output_cannot_be_written_and_which_signal_killed_its_script() {
    let script = format!(
        r#"{FREE}
        lattice batch --wait -o /nodir/x --wrap true >id 2>said; echo "code $?"; grep -c 'cannot write the output of the script to /nodir/x' said
        lattice batch --wait -o out --wrap 'kill -SEGV $$' >id 2>said; echo "code $?"; grep -c 'killed by' said"#
    );
    script_on(1, &script).run().prints_lines(["code 125", "1", "code 139", "1"]);
}

#[test]
fn a_script_hears_each_signal_once_and_decides_what_it_means() {
    let script = format!(
        r#"{FREE}
        printf '%s\n' '#!/bin/bash' 'trap "echo hup" HUP; trap "echo usr1; exit 5" USR1; echo up' 'while :; do sleep 0.02; done' >job.sh
        id=$(lattice batch -o out -e err job.sh); until grep -qs up out; do sleep 0.05; done
        launch=$(lattice launches --json | field launch_id)
        lattice signal $launch HUP; until grep -q hup out; do sleep 0.05; done; sleep 0.3
        lattice signal $launch USR1; until_is $id released; queue $id exit_code; cat out"#
    );
    script_on(1, &script).run().prints_lines(["5", "up", "hup", "usr1"]);
}

/// The launch of a job has another id, which users do not need.
#[test]
fn a_job_is_known_by_its_id_wherever_a_launch_is() {
    let script = format!(
        r#"{FREE}
        id=$(lattice batch -o out --wrap 'echo up; exec sleep 1000'); until grep -qs up out; do sleep 0.05; done
        waits=$(lattice batch -o x --wrap true); until lattice queue $waits | grep -q 'belongs\|free'; do sleep 0.05; done
        lattice status $id | grep -c ' runs '; lattice signal $waits TERM
        lattice queue --all | grep $waits | grep -c 'up and free'
        lattice signal $id KILL; until_is $id released; lattice status $id | grep -o 'cause: rank 0'; lattice cancel $waits"#
    );
    let outcome = script_on(1, &script).run();
    outcome.prints_lines(["1", "1", "cause: rank 0"]).says("has not been started");
}

#[test]
fn a_job_that_lost_a_node_runs_again_on_others() {
    let script = format!(
        r#"{FREE}
        cat >job.sh <<'SCRIPT'
#!/bin/sh
#LATTICE nodes=2 requeue output=out
echo "try $LATTICE_REQUEUES on $LATTICE_NODELIST"
[ $LATTICE_REQUEUES = 0 ] && lattice launch --pmi=none -n 2 -N 2 sleep 1000
echo done
SCRIPT
        id=$(lattice batch job.sh)
        until [ "$(lattice launches --json | grep -c '"active"')" = 2 ]; do sleep 0.05; done
        agent=$(daemon node1); forks=$(pgrep -P $agent); kill -KILL $agent $forks
        until_is $id released; cat out; queue $id requeues; queue $id exit_code"#
    );
    let outcome = script_on(3, &script).run();
    let is_of_the_script = |line: &&str| *line != "done" && !line.starts_with("lattice: ");
    let lines: Vec<&str> = outcome.text().lines().filter(is_of_the_script).collect();
    let expected = ["try 0 on node0,node1", "try 1 on node0,node2", "1", "0"];
    assert_eq!(lines, expected, "{}\n{}", outcome.text(), outcome.errors());
}

#[test]
fn a_script_that_makes_no_sense_is_refused_where_it_does_not() {
    let script = r#"cd "$LATTICE_DEV_CLUSTER"; printf '#!/bin/sh\n\n#LATTICE --node=2\n' >a; lattice batch a; echo $?
        printf 'echo\n' >a; lattice batch a; lattice batch none; printf '#!/bin/sh\n' >a; lattice batch -N 3 a
        printf '#!/no/such/interpreter\n' >a; lattice alloc release $LATTICE_ALLOC_ID
        LATTICE_ALLOC_ID= lattice batch --wait -o out a; echo $?; cat out"#;
    let outcome = script_on(2, script).run();
    outcome.says("a, line 3: there is no option --node; the nearest is --nodes");
    outcome.says("a is no script: its first line must begin with #!").says("cannot read the script none: ");
    outcome.says("3 nodes were asked for, and this cluster has 2");
    let lines: Vec<&str> = outcome.text().lines().collect();
    assert_eq!((lines[0], lines[2]), ("125", "127"), "{lines:?}");
    assert!(lines[3].starts_with("lattice: cannot run /no/such/interpreter: "), "{lines:?}");
}

/// As in scancel: all jobs of the caller, or all jobs of a given user.
#[test]
fn all_jobs_of_a_user_are_cancelled_at_once() {
    let script = format!(
        r#"{FREE}
        runs=$(lattice batch -N 1 -o x --wrap 'exec sleep 1000'); until_is $runs running
        lattice alloc create --wait -N 1 --uid 65534 >theirs 2>&1 & until lattice queue | grep -q nobody; do sleep 0.05; done
        for i in 1 2; do lattice batch -N 1 -o x --wrap true >/dev/null 2>&1; done
        lattice cancel --me; until_is $runs released
        lattice queue --json | field uid
        lattice cancel --user nobody; until [ -z "$(lattice queue --json | field uid)" ]; do sleep 0.05; done
        lattice cancel --user nosuchuser; echo "code $?"; lattice cancel; echo "code $?""#
    );
    let outcome = script_on(1, &script).run();
    outcome.exits(0).prints_lines(["65534", "code 125", "code 125"]).says("neither the name nor the number of a user");
}
