//! `--hint`: a binding for a kind of application, in the words of srun(1).

use std::num::NonZeroU32;

use clap::ValueEnum;
use rank_spawner::{NodePart, Object};

/// Kind of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Hint {
    /// All cores of each socket, with one thread of each core.
    ComputeBound,
    /// One core of each socket, with one thread.
    MemoryBound,
    /// Hardware threads, in order of cores.
    Multithread,
    /// One hardware thread of each core.
    Nomultithread,
}

impl Hint {
    /// Object that ranks are bound to, and the part of the node that they use.
    pub(crate) fn binding(self) -> (Object, NodePart) {
        let one = Some(NonZeroU32::MIN);
        match self {
            Self::ComputeBound => (Object::Core, NodePart { threads_per_core: one, cores_per_socket: None }),
            Self::MemoryBound => (Object::Core, NodePart { threads_per_core: one, cores_per_socket: one }),
            Self::Multithread => (Object::Thread, NodePart::default()),
            Self::Nomultithread => (Object::Thread, NodePart { threads_per_core: one, cores_per_socket: None }),
        }
    }
}
