//! Launches on a cluster as sets of their user. The API server can read them, calls use the launches' links, and no other user has access.

use lattice_tests::built::example;
use lattice_tests::mpi::Flavour;
use lattice_tests::{Command, script_on};
use nix::unistd::geteuid;

/// Start of the scripts. `serving RANKS` starts a launch of the program in `$1` with ranks that call each other back, and returns when all
/// of them serve. `set_of N` prints the set of the `N`th launch, and `columns` the columns of a list of sets without ids and ages.
const SETS: &str = r#"
    export LATTICE_SETS="$LATTICE_DEV_CLUSTER/sets"
    program=$1; launches=0
    serving() {
        local said="$LATTICE_DEV_CLUSTER/said$((launches++))" ranks=$1; shift
        lattice launch "$@" -n "$ranks" "$program" >"$said" & jobs+=($!)
        until [ "$(grep -c serves "$said")" = "$ranks" ]; do sleep 0.05; done
    }
    set_of() { sed -nE 's|lattice://([0-9]+)/.*|\1|p' "$LATTICE_DEV_CLUSTER/said$(($1 - 1))" | head -1; }
    columns() { sed -E "s/^ *[0-9]+ +([0-9]+) +([0-9]+) +([a-z]+) +[0-9a-z ]+ s +([a-z0-9]{10}|-) +/\1 \2 \3 /; s/^ *SET/SET/"; }
    end() { kill "${jobs[@]}"; wait "${jobs[@]}"; true; }
"#;

/// Returns a script in a cluster of three nodes, with the functions of [`SETS`].
fn script(script: &str) -> Command {
    script_on(3, &format!("{SETS}\n{script}")).arg(example("call_back"))
}

#[test]
fn the_api_server_lists_the_sets_of_a_user_and_every_process_answers() {
    let outcome = script(
        r#"serving 6; serving 1 -N 1
        lattice set list >$LATTICE_DEV_CLUSTER/listed; columns <$LATTICE_DEV_CLUSTER/listed | sed "s|$program|PROGRAM|" | LC_ALL=C sort
        tail -1 $LATTICE_DEV_CLUSTER/listed | columns
        a=$(set_of 1); b=$(set_of 2)
        for to in $a/0 $a/5 $a/node/0 $a/node/2 $b/0; do lattice set ping --count 3 lattice://$to | tail -1 | cut -d' ' -f2-7; done
        lattice set call lattice://$a/node/2 set-info | sed "s/$a/A/g; s/\"launch\":\"[a-z0-9]*\"/LAUNCH/"
        lattice set call lattice://$a/5 connectivity | grep -o '"kind":"stride"' | head -1
        lattice set call lattice://$a/0 400 2>&1 | sed "s/$a/A/"
        lattice set call lattice://$a/6 ping 2>&1 | sed "s/$a/A/"
        end"#,
    )
    .run();
    let answered = "3 of 3 calls were answered;";
    outcome.exits(0).prints(
        &[
            "1 1 active PROGRAM",
            "1 1 active lattice set list",
            "6 3 active PROGRAM",
            "SET ID  SIZE  NODES  STATE   AGE  LAUNCH      CMD",
            "1 1 active lattice set list",
            &[answered; 5].join("\n"),
            r#"{"set":A,LAUNCH,"ranks":6,"members":3,"root":"lattice://A/node/0"}"#,
            r#""kind":"stride""#,
            "lattice: lattice://A/0: no process serves this method there",
            "lattice: lattice://A/6: the set has no such process",
        ]
        .join("\n"),
    );
}

/// Each session reports its own ranks. Two nodes that create separate groups give them different ids.
#[test]
fn every_session_tells_the_communicators_of_its_ranks() {
    let outcome = script_on(
        2,
        r#"export LATTICE_SETS="$LATTICE_DEV_CLUSTER/sets"; said="$LATTICE_DEV_CLUSTER/said"
        mkfifo $LATTICE_DEV_CLUSTER/in; exec 7<>$LATTICE_DEV_CLUSTER/in
        lattice launch --pmi pmix --stdin all -N 2 -n 4 "$1" ocean <$LATTICE_DEV_CLUSTER/in >$said & launch=$!
        until [ "$(grep -c context $said)" = 4 ]; do sleep 0.05; done
        a=$(lattice set list | awk '$2 == 4 && $3 == 2 { print $1 }')
        for of in 0 3 node/1; do lattice set call lattice://$a/$of communicator ocean | sed "s/$a/A/g"; done
        sort -u $said | sed "s/$((a * 4294967296 + 1))/A-1/"
        echo >&7; wait $launch"#,
    )
    .arg(Flavour::Pmix.program("pmix_group"))
    .run();
    let told = |node: u32| {
        let members = r#"[{"of":"lattice://A","ranks":"0-3"}]"#;
        let group = format!(r#"{{"id":"A/1","name":"ocean","size":4,"members":{members}}}"#);
        format!(r#"{{"member":"lattice://A/node/{node}","communicators":[{group}],"left_out":0}}"#)
    };
    outcome.exits(0).prints(&[told(0), told(1), told(1), "context A-1".to_owned()].join("\n"));
}

/// Rank 2 of the first launch, on another node than its root, calls rank 1 of the second launch, which calls it back, and so on.
#[test]
fn ranks_of_two_launches_call_each_other_by_their_roots() {
    let outcome = script(
        r#"serving 3; serving 3
        a=lattice://$(set_of 1) b=lattice://$(set_of 2)
        for hops in 0 1 50; do lattice set call $a/2 303 "$a/2 $b/1 $hops"; done
        lattice set call $b 303 "x" 2>&1 | sed "s|$b|B|"
        lattice set graph --json >$LATTICE_DEV_CLUSTER/graph
        field address <$LATTICE_DEV_CLUSTER/graph | sed "s|$a|A|; s|$b|B|; s|lattice://[0-9]*|THIS|" | sort
        field kind <$LATTICE_DEV_CLUSTER/graph | sort | uniq | xargs
        grep -c '"round_trip_s": [0-9]' $LATTICE_DEV_CLUSTER/graph
        lattice set graph | grep -c ' on node'
        end"#,
    )
    .run();
    outcome.exits(0).prints(
        &[
            "0 hops",
            "1 hops",
            "50 hops",
            "lattice: B/node/0: no process serves this method there",
            "A/node/0\nA/node/1\nA/node/2\nB/node/0\nB/node/1\nB/node/2\nTHIS/node/0",
            "root stride",
            "6",
            "6",
        ]
        .join("\n"),
    );
}

#[test]
fn names_are_published_and_looked_up_by_calls() {
    let outcome = script(
        r#"serving 1; serving 3
        a=lattice://$(set_of 1) b=lattice://$(set_of 2)
        lattice set call $a publish 'bay the port' && lattice set call $b/2 lookup bay
        lattice set call $b/1 unpublish bay 2>&1 | sed "s|$b|B|"; lattice set call $a unpublish bay
        lattice set call $a lookup bay 2>&1 | sed "s|$a|A|"
        end"#,
    )
    .run();
    let failed = |at| format!("lattice: {at}: the handler failed: the name is not published");
    outcome.exits(0).prints(&format!("\nthe port\n{}\n\n{}", failed("B/1"), failed("A/node/0")));
}

#[test]
fn ids_and_ways_outlive_the_api_server_and_end_with_the_launch() {
    let outcome = script(
        r#"serving 3; serving 3
        a=$(set_of 1) b=$(set_of 2)
        restart_api true
        lattice set list --json | field set_id | grep -cx -e $a -e $b
        lattice set call lattice://$a/2 303 "lattice://$a/2 lattice://$b/1 4"
        end
        lattice set ping --count 1 lattice://$a/0 | tail -1 | sed "s/$a/A/g"; echo ${PIPESTATUS[0]}
        lattice set list | columns"#,
    )
    .run();
    outcome.exits(0).prints(
        "2\n4 hops\nlattice://A/0: it is refused: A is no set of yours that lives; lattice set list shows those that do\n1\n\
         SET ID  SIZE  NODES  STATE   AGE  LAUNCH  CMD\n1 1 active lattice set list",
    );
}

/// A rank of the first launch waits for a handler of the second one. The handler is stopped, then killed: first the rank alone, then its
/// session.
#[test]
fn a_call_ends_when_whoever_was_called_is_gone() {
    let outcome = script(
        r#"serving 3
        for killed in rank session; do
            serving 1 -N 1; b=lattice://$(set_of $launches)
            rank=$(lattice set call $b/0 305); session=$(cut -d' ' -f4 /proc/$rank/stat); kill -STOP $rank
            lattice set call lattice://$(set_of 1)/2 303 "me $b/0 1" >$LATTICE_DEV_CLUSTER/answer 2>&1 & call=$!
            until lattice set call $b connectivity | grep -q '"kind":"rank","opened":false,"sent":2'; do sleep 0.05; done
            kill -KILL ${!killed}; wait $call
            sed -E "s|$b|B|; s|lattice://$(set_of 1)|A|g" $LATTICE_DEV_CLUSTER/answer
        done
        kill ${jobs[0]}; wait"#,
    )
    .run();
    let gone = |who, at| {
        format!(
            "lattice: A/2: {who}the called process, or the way to it, is gone, as {at} reports; the method may have been called"
        )
    };
    let handler = "the handler failed: ";
    let of_rank = gone(handler, "B/node/0");
    // Both sessions of A on the path detect the end of B's session. The session of the first rank notifies the handler, the session of rank
    // 2 notifies the shell.
    let of_session = [gone(handler, "A/node/0"), gone("", "A/node/2")];
    let texts = of_session.map(|of_session| format!("{of_rank}\n{of_session}"));
    let said = String::from_utf8_lossy(outcome.exits(0).stdout());
    assert!(texts.iter().any(|text| text == said.trim_end()), "{said}");
}

/// A program in a plain shell on a node of the launch calls each of its ranks through the session there. Other nodes and other users have
/// no access.
#[test]
fn a_program_of_a_plain_shell_on_a_node_calls_the_ranks_of_a_launch() {
    assert!(geteuid().is_root(), "this test must run as root");
    let outcome = script(
        r#"on() { local at=$(daemon $1); shift; nsenter --net=/proc/$at/ns/net env -u LATTICE_API_URL "$@"; }
        lattice launch -n 2 -N 2 "$2" serve >$LATTICE_DEV_CLUSTER/said0 & jobs+=($!)
        until [ "$(grep -c serves $LATTICE_DEV_CLUSTER/said0)" = 2 ]; do sleep 0.05; done
        a=$(set_of 1)
        for node in node0 node1; do for rank in 0 1; do on $node "$2" call lattice://$a/$rank 2$rank || exit; done; done
        on node2 "$2" call lattice://$a/0 21 2>&1 | grep -o NoSet
        on node1 setpriv --reuid nobody --clear-groups "$2" call lattice://$a/0 21 2>&1 | grep -o Impostor
        end"#,
    )
    .arg(example("across_launches"))
    .run();
    outcome.exits(0).prints("40\n42\n40\n42\nNoSet\nImpostor");
}

/// Not even a ping, and not even by root: only the owner of a set has access to it.
#[test]
fn other_users_get_nothing() {
    assert!(geteuid().is_root(), "this test must run as root");
    let outcome = script(
        r#"chmod 755 "$LATTICE_DEV_CLUSTER"; nobody="setpriv --reuid nobody --regid nogroup --init-groups env LATTICE_SETS=/tmp/none.$$"
        serving 3; a=$(set_of 1)
        $nobody lattice set list | columns
        $nobody lattice set ping --count 2 lattice://$a/0 | tail -1 | sed "s/$a/A/g"
        $nobody lattice set call lattice://$a/0 set-info 2>&1 | sed "s/$a/A/g"
        lattice alloc release $LATTICE_ALLOC_ID >/dev/null; end
        alloc=$(lattice alloc create -N 1 --uid 65534)
        $nobody lattice launch --alloc $alloc -n 1 sleep 30 & theirs=$!
        launch_with 1 >/dev/null
        lattice set list | columns; lattice set list --all | sed -E 's/ +/ /g; s/ [0-9]+ 1 1/ ID 1 1/; s/ [0-9]+ s / AGE /; s/[a-z0-9]{10}/LAUNCH/'
        b=$(lattice set list --all --json | field set_id | head -1)
        lattice set ping --count 2 lattice://$b/0 | tail -1 | sed "s/$b/B/g"
        kill $theirs; wait $theirs; true"#,
    )
    .run();
    let refused =
        |set| format!("it is refused: {set} is no set of yours that lives; lattice set list shows those that do");
    outcome.exits(0).prints(
        &[
            "SET ID  SIZE  NODES  STATE   AGE  LAUNCH  CMD",
            "1 1 active lattice set list",
            &format!("lattice://A/0: {}", refused('A')),
            &format!("lattice: lattice://A/0: {}", refused('A')),
            "SET ID  SIZE  NODES  STATE   AGE  LAUNCH  CMD",
            "1 1 active lattice set list",
            "USER SET ID SIZE NODES STATE AGE LAUNCH CMD",
            "nobody ID 1 1 active AGE LAUNCH sleep 30",
            "root ID 1 1 active AGE - lattice set list",
            &format!("lattice://B/0: {}", refused('B')),
        ]
        .join("\n"),
    );
}
