//! JSON schemas of the documents that commands print with `--json`, generated from their types. `docs/reference/schemas` has one file for
//! each document.

use std::path::Path;

use lattice_render::EventLine;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

use super::pki;
use super::{
    alloc, batch, control, cxi, doctor, explain, launch_topology, launches, nodes, overlay, queue, set_graph, sets,
    stacks, status, top, topology,
};

/// Directory of the generated files.
const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/schemas");

/// Command that writes the files again.
const WRITE: &str = "LATTICE_WRITE_DOCS=1 cargo test -p lattice-commands schemas";

/// Schema of a document, under the name of its file without the extension.
fn schema<T: JsonSchema>(file: &'static str, command: &str) -> (&'static str, Schema) {
    let mut schema = SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>();
    schema.insert("title".to_owned(), format!("Document of `lattice {command}`").into());
    (file, schema)
}

/// All schemas.
fn schemas() -> Vec<(&'static str, Schema)> {
    vec![
        schema::<alloc::Allocation>("alloc", "alloc create|show|release --json"),
        schema::<Vec<alloc::Allocation>>("alloc-list", "alloc list --json"),
        schema::<batch::Submitted<'_>>("batch", "batch --json"),
        schema::<queue::Cancelled<'_>>("cancel", "cancel --json"),
        schema::<cxi::Cleaned<'_>>("cxi-clean", "cxi clean --json"),
        schema::<cxi::Examination<'_>>("cxi-doctor", "cxi doctor --json"),
        schema::<Vec<cxi::Grant<'_>>>("cxi-list", "cxi list --json"),
        schema::<doctor::Report<'_>>("doctor", "doctor --json"),
        schema::<EventLine<'_>>("events", "launch --json"),
        schema::<explain::Code>("explain-code", "explain CODE --json"),
        schema::<explain::Launch<'_>>("explain-launch", "explain LAUNCH --json"),
        schema::<Vec<launches::Summary<'_>>>("launches", "launches --json"),
        schema::<Vec<nodes::Node<'_>>>("nodes", "nodes --json"),
        schema::<nodes::Changed>("nodes-change", "nodes drain|resume --json"),
        schema::<topology::Kinds>("nodes-topology", "nodes --topology --json"),
        schema::<Vec<launch_topology::NodeWithRanks>>("nodes-topology-launch", "nodes --topology LAUNCH --json"),
        schema::<pki::Made>("pki", "pki init|issue|revoke --json"),
        schema::<Vec<status::Process<'_>>>("proctable", "proctable --json"),
        schema::<Vec<queue::Entry<'_>>>("queue", "queue --json"),
        schema::<set_graph::Graph>("set-graph", "set graph --json"),
        schema::<Vec<sets::Listed>>("set-list", "set list --json"),
        schema::<overlay::Pinged>("set-ping", "set ping --json"),
        schema::<control::Sent<'_>>("signal", "signal --json"),
        schema::<stacks::Stacks<'_>>("stacks", "stacks --json"),
        schema::<status::Status<'_>>("status", "status --json"),
        schema::<Vec<top::RankLine<'_>>>("top", "top --json"),
    ]
}

#[test]
fn the_schemas_in_the_book_are_those_of_the_types() {
    let directory = Path::new(DIRECTORY);
    for (name, schema) in schemas() {
        let path = directory.join(format!("{name}.schema.json"));
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("LATTICE_WRITE_DOCS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(written == text, "{} is old: {WRITE}", path.display());
    }
    let mut files: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    // The agent compares its own.
    files.retain(|file| {
        !file.starts_with("agent-") && schemas().iter().all(|(name, _)| *file != format!("{name}.schema.json"))
    });
    assert_eq!(files, [""; 0], "files without a document");
}

/// One name for one thing in all documents.
#[test]
fn names_of_fields_are_those_of_the_book() {
    let page = include_str!("../../docs/reference/json.md");
    for (name, schema) in schemas() {
        assert!(
            page.contains(&format!("(schemas/{name}.schema.json)")),
            "docs/reference/json.md has no link to {name}"
        );
        let text = serde_json::to_string(&schema).unwrap();
        // `time` is the time of an event line itself.
        for wrong in ["id", "launch", "allocation", "host", "job", "since", "time"] {
            if (name, wrong) == ("events", "time") {
                continue;
            }
            assert!(!text.contains(&format!("\"{wrong}\":{{")), "{name} has a field {wrong}");
        }
        for ending in ["_ms", "_us", "_ns", "_ago"] {
            assert!(!text.contains(&format!("{ending}\":{{")), "a field of {name} ends with {ending}");
        }
    }
}
