//! Sets the library's soname, for which programs that are linked to Slurm's library search.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpmi2.so.0");
}
