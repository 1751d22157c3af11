//! `lattice cxi`, for administrators: lists fabric credentials, examines them, and deletes the credentials that are due.

mod findings;

use lattice_console::exit::TROUBLE;
use lattice_console::formatting::count;
use lattice_console::table::{Align, Table};
use lattice_console::{print, print_json, print_lines, report};
use lattice_session::cxi::Finding;
use pmi_transport::proto::v1 as proto;
use proto::FabricGrantState;
use serde::Serialize;

use self::findings::findings;
use super::error::CommandError;
use super::questions::{ask, node_names};
use crate::args::{CxiCommand, TableArgs};

/// A service in the JSON output.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Grant<'a> {
    name: &'a str,
    allocation_id: &'a str,
    vni: Option<u32>,
    state: &'static str,
    /// Nodes that have not confirmed the end of its use.
    unconfirmed_nodes: Vec<String>,
}

/// Result of `lattice cxi doctor` as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Examination<'a> {
    cluster: &'a str,
    manager: &'a str,
    services: Vec<Grant<'a>>,
    num_nodes: usize,
    findings: Vec<Problem<'a>>,
}

/// A problem as JSON, with the next step.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Problem<'a> {
    detail: &'a str,
    action: &'a str,
}

/// Result of `lattice cxi clean` as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Cleaned<'a> {
    dry_run: bool,
    done: &'a [String],
    failed: &'a [String],
}

/// Runs the command; returns the exit code.
pub fn cxi(command: &CxiCommand) -> Result<u8, CommandError> {
    match command {
        CxiCommand::List(table) => {
            let question = proto::ListFabricRequest {};
            let answer =
                ask(&table.api, async |cluster| Ok(cluster.ask(cluster.fabric().list_fabric(question)).await?))?;
            if table.json {
                return Ok(print_json(&answer.grants.iter().map(Grant::from).collect::<Vec<_>>())?);
            }
            Ok(print(grants_table(&answer.grants).as_bytes())?)
        }
        CxiCommand::Doctor(table) => {
            let question = proto::ExamineFabricRequest {};
            let answer =
                ask(&table.api, async |cluster| Ok(cluster.ask(cluster.fabric().examine_fabric(question)).await?))?;
            examined(&answer, table)
        }
        CxiCommand::Clean { dry_run, gone, table } => {
            let question = proto::CleanFabricRequest { dry_run: *dry_run, gone: gone.clone().unwrap_or_default() };
            let answer =
                ask(&table.api, async |cluster| Ok(cluster.ask(cluster.fabric().clean_fabric(question)).await?))?;
            cleaned(&Cleaned { dry_run: *dry_run, done: &answer.done, failed: &answer.failed }, table)
        }
    }
}

fn examined(answer: &proto::ExamineFabricResponse, args: &TableArgs) -> Result<u8, CommandError> {
    let findings = findings(answer);
    let code = if findings.is_empty() { 0 } else { TROUBLE };
    if args.json {
        let services = answer.grants.iter().map(Grant::from).collect();
        let problems = findings.iter().map(|Finding { detail, action }| Problem { detail, action });
        let (cluster, manager) = (&answer.cluster, &answer.manager);
        let examination =
            Examination { cluster, manager, services, num_nodes: answer.nodes.len(), findings: problems.collect() };
        return Ok(print_json(&examination)?.max(code));
    }
    let services = count(answer.grants.len() as u64, "service");
    let nodes = count(answer.nodes.len() as u64, "node");
    let mut lines = vec![format!("{} at {}: {services}, {nodes}", answer.cluster, answer.manager)];
    if findings.is_empty() {
        lines.push("nothing is wrong".to_owned());
    }
    for Finding { detail, action } in &findings {
        lines.extend([detail.clone(), format!("  try: {action}")]);
    }
    Ok(print_lines(&lines)?.max(code))
}

fn cleaned(cleaned: &Cleaned<'_>, args: &TableArgs) -> Result<u8, CommandError> {
    let code = if cleaned.failed.is_empty() { 0 } else { TROUBLE };
    if args.json {
        return Ok(print_json(cleaned)?.max(code));
    }
    cleaned.failed.iter().for_each(|problem| report(problem));
    let printed = match cleaned.done {
        [] => print_lines(&["there is nothing to clean".to_owned()]),
        done => print_lines(done),
    };
    Ok(printed?.max(code))
}

fn grants_table(grants: &[proto::FabricGrant]) -> String {
    let mut table = Table::new([
        ("SERVICE", Align::Left),
        ("ALLOCATION", Align::Left),
        ("VNI", Align::Right),
        ("STATE", Align::Left),
        ("WAITS FOR", Align::Left),
    ]);
    for grant in grants {
        table.push([
            grant.name.clone(),
            grant.allocation_id.clone(),
            if grant.vni == 0 { "-".to_owned() } else { grant.vni.to_string() },
            state(grant.state()).to_owned(),
            grant.unconfirmed.clone(),
        ]);
    }
    table.to_string()
}

impl<'a> From<&'a proto::FabricGrant> for Grant<'a> {
    fn from(grant: &'a proto::FabricGrant) -> Self {
        Self {
            name: &grant.name,
            allocation_id: &grant.allocation_id,
            vni: (grant.vni != 0).then_some(grant.vni),
            state: state(grant.state()),
            unconfirmed_nodes: node_names(&grant.unconfirmed),
        }
    }
}

fn state(state: FabricGrantState) -> &'static str {
    match state {
        FabricGrantState::Unspecified => "unknown",
        FabricGrantState::GrantCreating => "creating",
        FabricGrantState::GrantHeld => "held",
        FabricGrantState::GrantEnding => "ending",
        FabricGrantState::GrantQuarantined => "quarantined",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_shown_in_a_table_and_as_json() {
        let grant = proto::FabricGrant {
            name: "daint.k3jq.0".to_owned(),
            allocation_id: "k3jq".to_owned(),
            vni: 1024,
            state: FabricGrantState::GrantQuarantined.into(),
            unconfirmed: "node[1-2]".to_owned(),
        };
        assert_eq!(
            grants_table(std::slice::from_ref(&grant)),
            "SERVICE       ALLOCATION   VNI  STATE        WAITS FOR\n\
             daint.k3jq.0  k3jq        1024  quarantined  node[1-2]\n"
        );
        let json = serde_json::to_value(Grant::from(&grant)).unwrap();
        assert_eq!((&json["state"], &json["unconfirmed_nodes"][1]), (&"quarantined".into(), &"node2".into()));
    }

    #[test]
    fn every_state_of_a_service_has_a_word_of_its_own() {
        let states = [
            FabricGrantState::Unspecified,
            FabricGrantState::GrantCreating,
            FabricGrantState::GrantHeld,
            FabricGrantState::GrantEnding,
            FabricGrantState::GrantQuarantined,
        ];
        assert_eq!(states.map(state), ["unknown", "creating", "held", "ending", "quarantined"]);
    }

    #[test]
    fn a_service_without_a_vni_has_none() {
        let grant = proto::FabricGrant { name: "daint.k3jq.0".to_owned(), ..Default::default() };
        assert!(grants_table(std::slice::from_ref(&grant)).contains("daint.k3jq.0                -  unknown"));
        assert_eq!(serde_json::to_value(Grant::from(&grant)).unwrap()["vni"], serde_json::Value::Null);
    }
}
