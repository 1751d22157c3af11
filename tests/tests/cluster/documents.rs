//! `--json` of every command on a cluster with a fabric: each document matches its schema.

use lattice_tests::schema::{Schema, check_documents};

use super::fabric::with_fabric;

/// Prints each document after a line with the name of its schema.
const SCRIPT: &str = include_str!("../../scripts/documents.sh");

#[test]
fn every_document_matches_its_schema() {
    let outcome = with_fabric(SCRIPT).run();
    assert_eq!(check_documents(outcome.exits(0).text()), Schema::documents());
}
