//! Specs for tests.

use std::path::Path;
use std::sync::Arc;

use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::job::{Job, Placement};

use crate::settings::{LaunchSettings, StdinTarget};
use crate::spec::{AppSpec, LaunchSecret, SessionSpec};

/// Spec of node 0 of a launch with these numbers of ranks on its nodes.
pub(crate) fn spec_on(counts: &[u32]) -> Arc<SessionSpec> {
    let id = JobId::new("kvs_1_0").unwrap();
    let job = Job { placement: Placement::block(counts), ..Job::on_one_node(id, counts.iter().sum()) };
    Arc::new(SessionSpec {
        launch_id: "1".to_owned(),
        allocation_id: None,
        job,
        node: NodeIndex(0),
        hosts: (0..counts.len()).map(|node| format!("n{node}")).collect(),
        addresses: Vec::new(),
        secret: LaunchSecret::from_bytes([7; LaunchSecret::LEN]),
        apps: vec![app("app")],
        settings: LaunchSettings { stdin: StdinTarget::All, ..LaunchSettings::default() },
    })
}

/// Spec of a launch of `ranks` ranks on one node.
pub(crate) fn spec(ranks: u32) -> Arc<SessionSpec> {
    spec_on(&[ranks])
}

/// Program without arguments that starts in `/work`.
pub(crate) fn app(program: &str) -> AppSpec {
    AppSpec {
        program: program.into(),
        args: Vec::new(),
        directory: Path::new("/work").to_owned(),
        set: Vec::new(),
        remove: Vec::new(),
        process_set: None,
    }
}
