//! The book: the pages of `docs`, built by mdBook into `target/book`.

use std::path::PathBuf;

use anyhow::Result;

use crate::shell::{cargo, command, repository, run, target_directory};

/// Release of mdBook that builds the book.
const VERSION: &str = "0.5.4";

/// Builds the book, with mdBook from the registry; prints where its first page is.
///
/// # Errors
/// Fails if mdBook cannot be installed, or reports a mistake.
pub(crate) fn build() -> Result<()> {
    let book = target_directory()?.join("book");
    run(command(mdbook()?, "build").arg(repository().join("docs")).arg("--dest-dir").arg(&book))?;
    println!("{}", book.join("index.html").display());
    Ok(())
}

/// The program, which is installed below `target` if it is not there.
fn mdbook() -> Result<PathBuf> {
    let root = target_directory()?.join(format!("mdbook-{VERSION}"));
    let program = root.join("bin/mdbook");
    if !program.exists() {
        let install = "install mdbook --locked --no-default-features --features search --version";
        run(cargo(install).arg(VERSION).arg("--root").arg(&root))?;
    }
    Ok(program)
}
