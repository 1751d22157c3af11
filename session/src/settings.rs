//! Settings that hold for every rank of a launch, in each of the stages that [`crate::request`] draws.

use std::ffi::OsString;

use rank_spawner::CpuBind;

use crate::spec::{PmiSpec, StdinTarget, Timeouts};

/// Settings that hold for every rank of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchSettings {
    /// The environment that every rank starts from; an outer launcher's variables are scrubbed from it.
    pub environment: Vec<(OsString, OsString)>,
    /// The PMI that ranks are served, and how they reach it.
    pub pmi: PmiSpec,
    /// Report every PMI message.
    pub pmi_trace: bool,
    /// Also set the `SLURM_*` variables.
    pub slurm_environment: bool,
    /// CPUs that each rank may use.
    pub cpu_bind: CpuBind,
    /// Ranks that read the launch's standard input.
    pub stdin: StdinTarget,
    /// Time limits of the session.
    pub timeouts: Timeouts,
}

impl Default for LaunchSettings {
    fn default() -> Self {
        Self {
            environment: Vec::new(),
            pmi: PmiSpec::default(),
            pmi_trace: false,
            slurm_environment: false,
            cpu_bind: CpuBind::None,
            stdin: StdinTarget::None,
            timeouts: Timeouts::default(),
        }
    }
}
