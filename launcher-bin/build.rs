//! Arguments of the linker for the program `lattice`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

/// Symbols by which debuggers find the ranks (MPIR), as dynamic symbols of the program, which `strip` keeps.
const MPIR: &str = "-Wl,--export-dynamic-symbol=MPIR_*";
/// Merges functions with equal code, which saves 0.15 MB of the program. The function in which debuggers stop is excluded.
const FOLDED: [&str; 2] = ["-Wl,--icf=all", "-Wl,--keep-unique=MPIR_Breakpoint"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The linker of zig does not support it. `cargo xtask dist` then keeps the symbols in the table that debuggers read.
    if links_with(&[MPIR]) {
        println!("cargo::rustc-link-arg-bins={MPIR}");
    }
    // LLD, which rustc includes on some platforms, supports these arguments. The GNU linker does not.
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") && links_with(&FOLDED) {
        FOLDED.iter().for_each(|argument| println!("cargo::rustc-link-arg-bins={argument}"));
    }
}

/// True if an empty program can be linked with these arguments, in the same way as `lattice`.
fn links_with(arguments: &[&str]) -> bool {
    let variable = |name| env::var_os(name).unwrap_or_default();
    let directory = PathBuf::from(variable("OUT_DIR"));
    let source = directory.join("empty.rs");
    if fs::write(&source, "fn main() {}").is_err() {
        return false;
    }
    let flags = variable("CARGO_ENCODED_RUSTFLAGS").into_string().unwrap_or_default();
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.arg("--target").arg(variable("TARGET")).arg("--out-dir").arg(&directory).arg(source);
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    rustc.args(arguments.iter().map(|argument| format!("-Clink-arg={argument}")));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg([OsString::from("-Clinker="), linker].into_iter().collect::<OsString>());
    }
    rustc.output().is_ok_and(|output| output.status.success())
}
