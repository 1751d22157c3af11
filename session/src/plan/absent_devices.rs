//! Variables by which ranks do not spend their start on devices that their node does not have.
//!
//! | library | without them, on a node without a device of a fabric, a GPU, XPMEM or KNEM | source |
//! |---|---|---|
//! | Open MPI 4.1, 5 with libfabric | `btl/ofi` finds nothing, is closed, and sleeps for a second | `opal/mca/btl/ofi/btl_ofi_component.c`; measured with 4.1.8, 5.0.11 |
//! | the same | `mtl/ofi` has libfabric's `verbs` read all symbols of the kernel: 40 ms | measured with 4.1.8, 5.0.11 |
//! | Open MPI with PSM or PSM2 | the libraries measure the clock for 0.1 s each when they are loaded | measured with 4.1.4 of Debian |
//! | UCX, of MPICH and Open MPI | twenty functions of the C library are patched, with a wait of 1 to 2 ms at each, to hear of registered memory that is unmapped: 40 ms | `src/ucm/bistro`; measured with MPICH 5.0.2 |
//!
//! On nodes that have such a device they find it as before, and a user who says something else is obeyed.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::spec::AppSpec;

/// A variable that a rank gets where nothing of the kind is chosen.
struct Told {
    name: &'static str,
    value: &'static str,
    /// Beginnings of variables by which a user chooses what this would decide.
    choices: &'static [&'static str],
    /// True if files of Open MPI may choose it as well.
    is_in_files: bool,
}

const TOLD: [Told; 3] = [
    // These three, as Debian's own file of parameters has them, in the place of which this comes.
    Told { name: "OMPI_MCA_btl", value: "^uct,openib,ofi", choices: &["OMPI_MCA_btl"], is_in_files: true },
    Told {
        name: "OMPI_MCA_mtl",
        value: "^ofi,psm,psm2",
        choices: &["OMPI_MCA_mtl", "OMPI_MCA_pml", "PSM"],
        is_in_files: true,
    },
    // All versions of UCX know it.
    Told { name: "UCX_MEM_EVENTS", value: "n", choices: &["UCX_MEM_"], is_in_files: false },
];

/// Beginnings of variables that concern all parts of Open MPI for fabrics: what libfabric and UCX shall use, files of parameters.
const CHOICES_OF_OPEN_MPI: [&str; 6] = [
    "OMPI_MCA_opal_common_ofi",
    "OMPI_MCA_opal_common_ucx",
    "OMPI_MCA_mca_base_param_file",
    "OMPI_MCA_mca_param_files",
    "OMPI_MCA_mca_base_envar_file",
    "FI_PROVIDER",
];

/// Layers that every node has: their settings, such as `OMPI_MCA_btl_tcp_if_include`, say nothing about others.
const LAYERS_OF_ALL: [&str; 5] =
    ["OMPI_MCA_btl_base_", "OMPI_MCA_btl_self_", "OMPI_MCA_btl_sm_", "OMPI_MCA_btl_tcp_", "OMPI_MCA_btl_vader_"];

/// The variables of a program's ranks, but for those about what its user has chosen: by variables that it inherits or has of its own, or,
/// with `keeps_transports`, in a file that Open MPI reads.
pub(super) fn variables<'a>(
    inherited: &'a BTreeMap<OsString, OsString>,
    app: &'a AppSpec,
    keeps_transports: bool,
) -> impl Iterator<Item = (OsString, OsString)> + use<'a> {
    let is_chosen = |beginnings: &[&str]| {
        let mut names = inherited.keys().chain(app.set.iter().map(|(name, _)| name));
        names.any(|name| begins(name, beginnings) && !begins(name, &LAYERS_OF_ALL))
    };
    let all_chosen = keeps_transports || is_chosen(&CHOICES_OF_OPEN_MPI);
    let told = TOLD
        .iter()
        .filter(move |told| !(told.is_in_files && all_chosen || is_chosen(told.choices) || app.removes(told.name)));
    told.map(|told| (told.name.into(), told.value.into()))
}

fn begins(name: &OsStr, beginnings: &[&str]) -> bool {
    let name = name.as_encoded_bytes();
    beginnings.iter().any(|beginning| name.starts_with(beginning.as_bytes()))
}

/// True for a variable that was set here for the ranks of an outer launch: its node is not always that of an inner one.
pub(super) fn is_told(name: &OsStr, value: &OsStr) -> bool {
    TOLD.iter().any(|told| name == told.name && value == told.value)
}
