//! The book: the pages of `docs`, built by mdBook into `target/book`.

use anyhow::Result;

use crate::shell::{command, repository, run, target_directory, tool};

/// Release of mdBook that builds the book.
const VERSION: &str = "0.5.4";

/// Builds the book, with mdBook from the registry; prints where its first page is.
///
/// # Errors
/// Fails if mdBook cannot be installed, or reports a mistake.
pub(crate) fn build() -> Result<()> {
    let book = target_directory()?.join("book");
    run(command(tool("mdbook", VERSION, "--no-default-features --features search")?, "build")
        .arg(repository().join("docs"))
        .arg("--dest-dir")
        .arg(&book))?;
    println!("{}", book.join("index.html").display());
    Ok(())
}
