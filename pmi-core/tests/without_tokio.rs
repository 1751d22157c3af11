//! Without its default features the crate builds, and has no runtime in it.

use std::process::Command;

fn cargo(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).args(["-p", "pmi-core", "--no-default-features", "--offline"]);
    // Features of other packages unify within one build, so this one has a directory of its own.
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("CARGO_TARGET_DIR", env!("CARGO_TARGET_TMPDIR"));
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("cargo prints text")
}

#[test]
fn it_depends_on_no_runtime() {
    let tree = cargo(&["tree", "--edges", "normal", "--prefix", "none"]);
    assert!(tree.starts_with("pmi-core ") && tree.contains("\nbytes "), "{tree}");
    for runtime in ["tokio", "mio", "parking_lot"] {
        assert!(!tree.lines().any(|package| package.starts_with(runtime)), "{runtime} in {tree}");
    }
}

#[test]
fn it_builds() {
    cargo(&["check", "--quiet", "--lib"]);
}
