//! `lattice stacks`: call stacks of the ranks of a launch, merged into a tree of callers.

mod tree;

use std::iter;

use lattice_console::{formatting, print, print_json, report, shown};
use lattice_session::call_stacks::{CallStacks, RankStack};
use lattice_session::cause::RankNumbers;
use lattice_session::wire::event::decode_stacks;
use pmi_core::ids::Rank;
use pmi_transport::proto::v1 as proto;
use serde::Serialize;

use self::tree::CallTree;
use super::error::CommandError;
use super::launches;
use super::status::{Extent, get, left_out, left_out_words};
use crate::args::StacksArgs;

/// Stacks in the JSON output.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Stacks<'a> {
    launch_id: &'a str,
    /// Nodes that did not answer. The state of their ranks is unknown.
    silent_nodes: Vec<&'a str>,
    /// Number of ranks for which the answer had no room.
    left_out: u32,
    /// The outermost callers.
    tree: &'a [CallTree],
    /// Each distinct text once, with its ranks.
    stacks: Vec<Stack<'a>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Stack<'a> {
    #[cfg_attr(test, schemars(with = "Vec<u32>"))]
    ranks: &'a [Rank],
    text: &'a str,
}

/// Prints the stacks of the ranks of a launch; returns the exit code.
pub fn stacks(args: &StacksArgs) -> Result<u8, CommandError> {
    let (answer, _) = get(&args.launch, &args.table.api, Extent::Stacks)?;
    let stacks = merged(&answer);
    let silent_nodes: Vec<&str> =
        answer.nodes.iter().filter(|node| node.silent).map(|node| node.node_id.as_str()).collect();
    if stacks.is_empty() && silent_nodes.is_empty() {
        return Err(CommandError::NothingRuns { launch: args.launch.clone() });
    }
    let tree = CallTree::of(&stacks);
    if args.table.json {
        let stacks = stacks.iter().map(|stack| Stack { ranks: &stack.ranks, text: &stack.text }).collect();
        return Ok(print_json(&Stacks {
            launch_id: &args.launch,
            silent_nodes,
            left_out: left_out(&answer),
            tree: &tree,
            stacks,
        })?);
    }
    for node in silent_nodes {
        report(&format!("warning: {node} has not answered: nothing is known of its ranks"));
    }
    if let Some(words) = left_out_words(&answer) {
        report(&format!("warning: {words}"));
    }
    let text = if args.full { heading(&answer) + &in_full(&stacks) } else { heading(&answer) + &tree::text(&tree) };
    Ok(print(text.as_bytes())?)
}

/// Stacks of all nodes. Equal stacks are merged.
fn merged(answer: &proto::LaunchStatus) -> Vec<RankStack> {
    let mut all = CallStacks::default();
    for node in &answer.nodes {
        decode_stacks(node.stacks.clone()).into_iter().for_each(|stack| all.add(stack.ranks, stack.text));
    }
    all.into_stacks()
}

fn heading(answer: &proto::LaunchStatus) -> String {
    let Some(summary) = &answer.summary else { return String::new() };
    let (id, state, nodes, command) = (&summary.id, launches::state(summary.state()), &summary.nodes, &summary.command);
    let ranks = formatting::count(summary.ranks, "rank");
    shown(&[format!("launch {id}: {state}; {ranks} on {nodes}; {command}")])
}

/// Every stack with all details of its threads.
fn in_full(stacks: &[RankStack]) -> String {
    let lines = stacks.iter().flat_map(|stack| {
        let head = format!("{}:", RankNumbers(&stack.ranks));
        iter::once(head).chain(stack.text.lines().map(|line| format!("  {line}")))
    });
    shown(&lines.collect::<Vec<_>>())
}
