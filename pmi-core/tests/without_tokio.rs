//! Without its default features the crate contains no runtime. A step of `cargo xtask test` builds it this way.

use std::process::Command;

#[test]
fn it_depends_on_no_runtime() {
    let mut command = Command::new(env!("CARGO"));
    command.args([
        "tree",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "-p",
        "pmi-core",
        "--no-default-features",
        "--offline",
    ]);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("cargo prints text");
    assert!(tree.starts_with("pmi-core ") && tree.contains("\nbytes "), "{tree}");
    for runtime in ["tokio", "mio", "parking_lot"] {
        assert!(!tree.lines().any(|package| package.starts_with(runtime)), "{runtime} in {tree}");
    }
}
