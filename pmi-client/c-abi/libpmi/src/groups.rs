//! Barriers of groups, which MPICH's `pmi.h` has since PMI-1.2.

use alloc::vec::Vec;
use core::ffi::c_int;

use pmi_c_abi::arguments::{Array, Text};
use pmi_c_abi::code::{Code, Failure};
use pmi_c_abi::process;
use pmi_client::RankGroup;

use crate::call;

/// A group with a name: an address that is never dereferenced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    /// `PMI_GROUP_WORLD`
    World,
    /// `PMI_GROUP_SELF`
    Own,
    /// `PMI_GROUP_NODE`
    Node,
}

impl Named {
    /// Returns the group of this name; `None` for an array.
    pub(crate) fn of(group: Array<'_, c_int>) -> Option<Self> {
        match group.address() {
            0 => Some(Self::World),
            1 => Some(Self::Own),
            2 => Some(Self::Node),
            _ => None,
        }
    }
}

/// Waits for all ranks of a group.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Barrier_group(group: Array<'_, c_int>, count: c_int, tag: Text<'_>) -> c_int {
    call(|| {
        let tag = tag.bytes().map(|tag| str::from_utf8(tag).map_err(|_| Code::ARGUMENT)).transpose()?;
        match Named::of(group) {
            // All ranks: the same as PMI_Barrier, as in MPICH's library.
            Some(Named::World) if tag.is_none() => process::with(|client| Ok(client.fence()?)),
            Some(Named::World) => wait(RankGroup::World, tag),
            Some(Named::Node) => wait(RankGroup::Node, tag),
            Some(Named::Own) => process::with(|client| Ok(client.need_group_barriers()?)),
            None => wait(RankGroup::Ranks(&ranks(group, count)?), tag),
        }
    })
}

fn ranks(group: Array<'_, c_int>, count: c_int) -> Result<Vec<u32>, Code> {
    let ranks = group.with_length(count).filter(|ranks| !ranks.is_empty()).ok_or(Code::ARGUMENT)?;
    ranks.iter().map(|&rank| u32::try_from(rank).map_err(|_| Code::ARGUMENT)).collect()
}

fn wait(group: RankGroup<'_>, tag: Option<&str>) -> Result<(), Failure> {
    let begun = process::with(|client| Ok(client.begin_barrier(group, tag)?))?;
    process::wait_until(|client| Ok(client.test_barrier(&begun)?))
}
