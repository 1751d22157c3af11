//! Names the library as programs that were linked to Slurm's look for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpmi2.so.0");
}
