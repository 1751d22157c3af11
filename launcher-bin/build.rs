//! Exports the symbols by which debuggers find the ranks (MPIR): as dynamic symbols of the program, which `strip` leaves.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol=MPIR_*");
}
