//! Variables that save ranks the time to look for devices that their node does not have.
//!
//! Without these variables, on a node without a fabric device, a GPU, XPMEM or KNEM:
//! - Open MPI 4.1 and 5 with libfabric: `btl/ofi` finds nothing, is closed, and sleeps for a second (`opal/mca/btl/ofi/btl_ofi_component.c`;
//!   measured with 4.1.8, 5.0.11).
//! - Open MPI 4.1 and 5 with libfabric: `mtl/ofi` makes libfabric's `verbs` read all symbols of the kernel: 40 ms (measured with 4.1.8,
//!   5.0.11).
//! - Open MPI with PSM or PSM2: the libraries measure the clock for 0.1 s each when they are loaded (measured with 4.1.4 of Debian).
//! - UCX, of MPICH and Open MPI: it patches twenty functions of the C library, to detect that registered memory is unmapped. It waits 1 to 2 ms
//!   at each: 40 ms (`src/ucm/bistro`; measured with MPICH 5.0.2).
//!
//! On a node with such a device, libraries find it as before. Settings of the user override these variables.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::spec::AppSpec;

/// A variable that a rank gets unless the user or a file makes the same choice.
struct DefaultVariable {
    name: &'static str,
    value: &'static str,
    /// Prefixes of variables by which a user makes this choice.
    choices: &'static [&'static str],
    /// True if files of Open MPI may make this choice as well.
    is_in_files: bool,
}

const TOLD: [DefaultVariable; 3] = [
    // The three values of Debian's own parameter file, which this variable overrides.
    DefaultVariable { name: "OMPI_MCA_btl", value: "^uct,openib,ofi", choices: &["OMPI_MCA_btl"], is_in_files: true },
    DefaultVariable {
        name: "OMPI_MCA_mtl",
        value: "^ofi,psm,psm2",
        choices: &["OMPI_MCA_mtl", "OMPI_MCA_pml", "PSM"],
        is_in_files: true,
    },
    // All versions of UCX support it.
    DefaultVariable { name: "UCX_MEM_EVENTS", value: "n", choices: &["UCX_MEM_"], is_in_files: false },
];

/// Prefixes of variables for all fabric parts of Open MPI: selections for libfabric and UCX, and parameter files.
const CHOICES_OF_OPEN_MPI: [&str; 6] = [
    "OMPI_MCA_opal_common_ofi",
    "OMPI_MCA_opal_common_ucx",
    "OMPI_MCA_mca_base_param_file",
    "OMPI_MCA_mca_param_files",
    "OMPI_MCA_mca_base_envar_file",
    "FI_PROVIDER",
];

/// Layers that every node has. Their settings, such as `OMPI_MCA_btl_tcp_if_include`, are no choice about other layers.
const LAYERS_OF_ALL: [&str; 5] =
    ["OMPI_MCA_btl_base_", "OMPI_MCA_btl_self_", "OMPI_MCA_btl_sm_", "OMPI_MCA_btl_tcp_", "OMPI_MCA_btl_vader_"];

/// Returns the variables of a program's ranks, except for choices of its user. The user makes a choice by an inherited variable, by a variable
/// of the program, or, with `keeps_transports`, in a file that Open MPI reads.
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

/// Returns true for a variable that was set here for the ranks of an outer launch. An inner launch may have another node.
pub(super) fn is_told(name: &OsStr, value: &OsStr) -> bool {
    TOLD.iter().any(|told| name == told.name && value == told.value)
}
