//! The spec of a launch, as its clients receive it.

use bytes::Bytes;
use pmi_transport::proto::v1::{AppSpec, LaunchSpec};

use crate::store::LaunchRecord;

/// The spec of a launch for its clients, without its secrets and the environment of its ranks. It is only encoded: the API server forwards
/// it, and reads no part of it.
#[derive(Clone, Debug)]
pub(crate) struct ShownSpec(Box<LaunchSpec>);

impl ShownSpec {
    /// The spec of a stored launch; empty if its record has none.
    pub(crate) fn of(record: &LaunchRecord) -> Self {
        Self(Box::new(record.spec.as_ref().map(shown).unwrap_or_default()))
    }

    /// The same for a client that may send `bytes` bytes of input before it is granted more.
    pub(crate) fn with_window(mut self, bytes: u64) -> Self {
        self.0.stdin_window = u32::try_from(bytes).unwrap_or(u32::MAX);
        self
    }

    pub(super) fn into_message(self) -> LaunchSpec {
        *self.0
    }
}

#[cfg(any(test, feature = "simulation"))]
impl Default for ShownSpec {
    fn default() -> Self {
        Self::of(&LaunchRecord::default())
    }
}

/// A spec without the fields that users' tools do not need: secrets, and variables of the launch or of a program.
pub(super) fn shown(spec: &LaunchSpec) -> LaunchSpec {
    let apps = spec.apps.iter().map(|app| AppSpec { set: Vec::new(), ..app.clone() }).collect();
    LaunchSpec { secret: Bytes::new(), link_key: Bytes::new(), environment: Vec::new(), apps, ..spec.clone() }
}
