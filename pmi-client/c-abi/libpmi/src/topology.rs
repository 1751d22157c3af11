//! Levels of the machine to which a rank belongs.

use alloc::vec::Vec;
use core::ffi::c_int;

use pmi_c_abi::arguments::{Array, ArrayOut, Out};
use pmi_c_abi::code::{Code, Failure};
use pmi_c_abi::process;
use pmi_client::Cluster;

use crate::call;
use crate::groups::Named;

/// `PMI_TOPO_CLUSTER`.
const CLUSTER: c_int = 1;

/// Kind of the topology; a cluster if the nodes of the ranks are known.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Topo_type(group: Array<'_, c_int>, kind: Out<'_, c_int>) -> c_int {
    call(|| {
        let (_, kind) = (Named::of(group).ok_or(Code::ARGUMENT)?, kind.or(Code::ARGUMENT)?);
        clusters()?;
        kind.set(CLUSTER);
        Ok(())
    })
}

/// The clusters to which this rank belongs, up to the room of the caller.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Topo_cluster_info<'c>(
    group: Array<'c, c_int>,
    levels: Out<'c, c_int>,
    my_cluster: ArrayOut<'c, c_int>,
    my_rank: ArrayOut<'c, c_int>,
) -> c_int {
    call(|| {
        let (group, levels) = (Named::of(group).ok_or(Code::ARGUMENT)?, levels.or(Code::ARGUMENT)?);
        let room = levels.value();
        if room < 1 || my_cluster.is_null() || my_rank.is_null() {
            return Err(Code::ARGUMENT.into());
        }
        let clusters = clusters()?;
        // The job and the group of the node have the same ranks on a node and on the levels below it.
        let position = |cluster: &Cluster| if group == Named::Own { 0 } else { cluster.position.cast_signed() };
        my_rank.fill(room, clusters.iter().map(position));
        let written = my_cluster.fill(room, clusters.iter().map(|cluster| cluster.number.cast_signed()));
        // At most `room`.
        levels.set(written as c_int);
        Ok(())
    })
}

/// Coordinates in a mesh, which no launcher provides.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Topo_mesh_info(group: Array<'_, c_int>, dimensions: c_int, sizes: ArrayOut<'_, c_int>) -> c_int {
    call(|| {
        Named::of(group).ok_or(Code::ARGUMENT)?;
        if dimensions < 1 || sizes.is_null() {
            return Err(Code::ARGUMENT.into());
        }
        process::with(|_| Err(Code::UNSUPPORTED.into()))
    })
}

fn clusters() -> Result<Vec<Cluster>, Failure> {
    let clusters = process::with(|client| Ok(client.topology()?))?;
    if clusters.is_empty() { Err(Code::UNSUPPORTED.into()) } else { Ok(clusters) }
}
