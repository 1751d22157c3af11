//! Commands of new users that need a cluster. Each command works, or fails with the available choices and a suggested command.

use lattice_tests::{Command, built, script_on};

/// Commands in an allocation of node0 and node1, each with its exit code and a part of its error message. If the code is 0, the text is a part
/// of its output.
const LINES: &[(&str, i32, &str)] = &[
    ("lattice launch --hostfile local true", 125, "node localhost is not in the allocation, which has node[0-1]"),
    ("lattice launch --hostfile named echo x", 0, "x"),
    ("lattice launch -x VAR true", 125, "node VAR is not in the allocation, which has node[0-1]"),
    ("VAR=1 lattice launch -x VAR true", 125, "try: --env VAR, which sets it in the ranks"),
    ("lattice launch -w nonode true", 125, "node nonode is not in the allocation, which has node[0-1]"),
    ("lattice launch --include nonode -N 2 true", 125, "node nonode is not in the allocation, which has node[0-1]"),
    ("lattice launch -wdir / /bin/pwd", 0, "/"),
    ("lattice launch -n 4 --output out.%t echo x; ls out.* | wc -l", 0, "4"),
    ("lattice launch -n 4 nofile", 127, "cannot find program nofile"),
    ("lattice launch -n 4 --chdir /nodir true", 125, "cannot enter directory /nodir"),
    ("lattice launch -N 3 true", 125, "3 nodes were asked for, and 2 can be used: node[0-1]"),
    ("lattice launch -N 1-9 -n 4 echo x", 0, "x"),
    ("lattice launch --tasks-per-node 2 -n 6 true", 125, "try: -n 4, or fewer; --tasks-per-node=3"),
    ("lattice launch --cpu-bind=map:9999 true", 125, "or have --cpu-bind=cores choose"),
    ("lattice launch -N 2 -x node0 true", 125, "try: -N 1; or lattice alloc create -N 2, and its id as --alloc ID"),
    ("lattice launch -x node0,node1 true", 125, "try: fewer nodes in --exclude"),
    ("lattice launch -r 5 -N 1 true", 125, "try: --relative with a smaller number"),
    ("lattice launch -w node9 true", 125, "try: one of those; or lattice alloc create -w node9"),
    ("lattice launch -n 2 -i 7 true", 125, "the job has ranks 0 to 1 lattice: try: --stdin 1, or --stdin all"),
    ("lattice launch -H node0:1 -n 2 true", 125, "the nodes have 1 slot lattice: try: -n 1, or fewer"),
    ("lattice launch -N 1 -n 1 true : -N 2 -n 2 true", 125, "1 is left for it lattice: try: -N 1 for program 2"),
    (
        "lattice launch --bcast=/nodir/ true",
        125,
        "node0: there is no directory /nodir/ that you may write to, for /nodir/true",
    ),
    ("lattice launch --bcast=/nodir/ true", 125, "try: --bcast without a value"),
    ("lattice launch --bcast nofile", 127, "try: its path, such as ./NAME"),
    ("lattice launch ./local", 126, "try: chmod +x, where its nodes have it"),
    ("lattice launch /tmp", 126, "try: the path of a program in that directory"),
    ("lattice exec node0 -- /tmp", 126, "try: the path of a program in that directory"),
    ("lattice launch --gpus-per-task=1 true", 125, "try: lattice nodes --topology"),
    ("lattice nodes resume node9", 125, "try: lattice nodes, which lists them"),
    ("lattice cxi list", 125, "try: the section [fabric] in the configuration"),
    ("lattice launch --mem-bind map_mem:99 true", 125, "or have --mem-bind=local choose"),
    ("lattice launch --tmpdir=/nodir true", 125, "try: --tmpdir=DIR"),
    ("lattice launch --chdir /nodir true", 125, "try: --chdir with a directory that all nodes have"),
    ("lattice launch nofile", 127, "try: its path as its nodes have it"),
    (
        "lattice launch -n 1 --task-prolog nofile true",
        127,
        "rank 0 on node0: the task prolog nofile is no program there; type",
    ),
    ("lattice exec -n 4 ./a.out", 125, "tip: did you mean: lattice launch -n 4 ./a.out"),
    ("lattice exec --json node1 -- echo x", 0, "\"text\":\"x"),
    ("lattice alloc create -w nonode", 125, "node nonode has not registered lattice: try: another node; lattice nodes"),
    ("lattice alloc create -w node0", 125, "try: --wait for a place in the queue, or other nodes; lattice nodes"),
    ("lattice alloc create -N 1", 125, "try: --wait for a place in the queue; lattice nodes shows"),
    ("lattice batch --wrap true 2>&1", 0, "in which you are; it has 2 of 2 nodes lattice: try: lattice launch"),
    ("lattice exec node0 echo x", 125, "tip: type -- before the command: lattice exec node0 -- echo x"),
    ("lattice exec nonode -- echo x", 125, "node nonode is not in the allocation, which has node[0-1]"),
    ("lattice exec node1 -- echo x", 0, "x"),
    ("lattice launches", 0, "ID  ALLOCATION"),
    ("lattice launches --all", 0, "cannot enter directory /nodir"),
    (
        "lattice status nosuchlaunch",
        125,
        "try: lattice launches --all or lattice queue --all, which show those that are known",
    ),
    (
        "lattice cancel nosuchjob",
        125,
        "try: lattice launches --all or lattice queue --all, which show those that are known",
    ),
    (
        "lattice batch --wrap true -N 9",
        125,
        "9 nodes were asked for, and this cluster has 2 lattice: try: -N 2, or fewer",
    ),
    ("lattice nodes drain node0", 125, "Usage: lattice nodes drain --reason <TEXT> <NODES>"),
    ("lattice nodes drain --reason test nonode", 0, "not registered yet, and drained when they are: nonode"),
    ("lattice alloc show nosuch", 125, "try: lattice alloc list"),
    ("lattice launch --alloc nosuch true", 125, "try: lattice alloc list"),
];

#[test]
fn each_line_of_a_newcomer_works_or_is_refused_with_what_there_is() {
    let mut script =
        "printf 'localhost slots=4\\n' >local; printf 'node0 slots=1\\nnode1 slots=1\\n' >named\n".to_owned();
    for (number, (line, ..)) in LINES.iter().enumerate() {
        script += &format!("({line}) >o 2>e </dev/null; echo \"{number}: $? $(cat o e | tr '\\n' ' ')\"\n");
    }
    let outcome = script_on(2, &script).directory(tempfile::tempdir().unwrap().path()).run();
    outcome.exits(0);
    let seen: Vec<&str> = outcome.text().lines().collect();
    let wrong: String = LINES
        .iter()
        .enumerate()
        .filter(|(number, (_, code, part))| {
            let beginning = format!("{number}: {code} ");
            !seen.iter().any(|seen| seen.starts_with(&beginning) && seen.contains(part))
        })
        .map(|(number, (line, code, part))| {
            format!("{line}\n    {code} {part}\n  but {}\n", seen.get(number).unwrap_or(&""))
        })
        .collect();
    assert!(wrong.is_empty(), "these do something else:\n{wrong}");
}

/// As in a system that was just made by debootstrap.
#[test]
fn a_system_without_a_file_of_hosts_is_named() {
    let script = r#"
        cp -a /etc "$2/etc"; rm "$2/etc/hosts"; mount --bind "$2/etc" /etc
        "$1" dev-cluster --nodes 1 -- true; echo "code $?"; "$1" dev-cluster --loopback --nodes 1 -- echo works"#;
    let directory = tempfile::tempdir().unwrap();
    let outside = Command::new("unshare").words("--mount").bash(script).arg(built::lattice()).arg(directory.path());
    let outcome = outside.run();
    outcome.exits(0).prints_lines(["code 125", "works"]).says("there is no /etc/hosts, which each node replaces");
}
