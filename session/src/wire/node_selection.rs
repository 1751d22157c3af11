//! Selections of nodes.

use pmi_transport::proto::v1 as proto;

use super::{WireError, wrong};
use crate::gathered::NodeSelection;

/// Encodes a selection; `None` is a selection without nodes.
pub(super) fn encode_ranges(nodes: Option<&NodeSelection>) -> Vec<proto::NodeRange> {
    let ranges = nodes.into_iter().flat_map(NodeSelection::ranges);
    ranges.map(|range| proto::NodeRange { first: *range.start(), last: *range.end() }).collect()
}

/// Decodes a selection of nodes in a launch on `nodes` nodes. `what` names the selection in errors.
///
/// # Errors
/// Fails like [`NodeSelection::new`].
pub(super) fn decode_selection(
    what: &'static str,
    ranges: Vec<proto::NodeRange>,
    nodes: usize,
) -> Result<NodeSelection, WireError> {
    let seen = ranges.iter().map(|range| format!("{}-{}", range.first, range.last)).take(8).collect::<Vec<_>>();
    let ranges = ranges.into_iter().map(|range| range.first..=range.last).collect();
    let limit = u32::try_from(nodes).unwrap_or(u32::MAX);
    NodeSelection::new(ranges, limit).map_err(|error| wrong(what, seen.join(","), error.to_string()))
}

/// Decodes a selection of nodes in any launch.
pub(super) fn decode_ranges(what: &'static str, ranges: Vec<proto::NodeRange>) -> Result<NodeSelection, WireError> {
    decode_selection(what, ranges, u32::MAX as usize)
}
