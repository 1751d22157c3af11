//! The whole machine under virtual time: tables of orders of events, and properties over hundreds of random ones.

mod orders;
mod tables;
mod world;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::job::{Job, Placement};

use crate::settings::{LaunchSettings, StdinTarget, Timeouts};
use crate::spec::{AppSpec, LaunchSecret, SessionSpec};

/// The spec of node 0 of a launch with so many ranks on each node.
pub(super) fn spec_on(counts: &[u32]) -> Arc<SessionSpec> {
    let id = JobId::new("kvs_1_0").unwrap();
    let job = Job { placement: Placement::block(counts), ..Job::on_one_node(id, counts.iter().sum()) };
    let app = AppSpec {
        program: "app".into(),
        args: Vec::new(),
        directory: Path::new("/work").to_owned(),
        set: Vec::new(),
        remove: Vec::new(),
    };
    Arc::new(SessionSpec {
        launch_id: "1".to_owned(),
        allocation_id: None,
        job,
        node: NodeIndex(0),
        hosts: (0..counts.len()).map(|node| format!("n{node}")).collect(),
        address: None,
        secret: LaunchSecret::from_bytes([7; LaunchSecret::LEN]),
        apps: vec![app],
        settings: LaunchSettings {
            stdin: StdinTarget::All,
            timeouts: Timeouts {
                grace_after_failure: Duration::from_millis(400),
                grace_after_interrupt: Duration::from_secs(5),
                ..Timeouts::default()
            },
            ..LaunchSettings::default()
        },
    })
}

/// The spec of a launch of `ranks` ranks on one node.
pub(super) fn spec(ranks: u32) -> Arc<SessionSpec> {
    spec_on(&[ranks])
}
