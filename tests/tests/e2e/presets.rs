//! Variables that differ between ranks: names in braces, and presets.

use std::fs;

use lattice_tests::launch;

#[test]
fn names_in_values_are_filled_in_for_each_rank() {
    let command = launch("-n 2 --pmi none --env A={rank}of{size} --env B={unknown}").bash("echo $A $B");
    command.run().exits(0).prints_lines(["0of2 {unknown}", "1of2 {unknown}"]);
}

#[test]
fn ranks_of_pytorch_find_each_other_by_the_preset() {
    let print = "echo $RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR; echo $MASTER_PORT >&2";
    let outcome = launch("-n 2 --pmi none --preset torch").bash(print).run();
    outcome.exits(0).prints_lines(["0 2 0 127.0.0.1", "1 2 1 127.0.0.1"]);
    let ports: Vec<u16> = outcome.errors().lines().map(|line| line.parse().unwrap()).collect();
    outcome.check(ports.len() == 2 && ports[0] == ports[1], || "ranks should have one port".into());
}

#[test]
fn a_preset_of_the_user_is_taken_and_another_one_is_refused() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir_all(home.path().join("lattice")).unwrap();
    let text = "[mine]\nabout = 'of mine'\nenv = { MINE = '{launch_id}' }\n";
    fs::write(home.path().join("lattice/presets.toml"), text).unwrap();
    let command = launch("-n 1 --pmi none --preset mine").env("XDG_CONFIG_HOME", home.path());
    command.bash("test $MINE = $LATTICE_LAUNCH_ID").run().exits(0);
    let command = launch("-n 1 --preset theirs").env("XDG_CONFIG_HOME", home.path());
    command.arg("true").run().exits(125).says("mine: of mine").says("torch: PyTorch");
}
