//! The spec of a launch, as its clients are shown it.

use bytes::Bytes;
use pmi_transport::proto::v1::{AppSpec, LaunchSpec};

use crate::store::LaunchRecord;

/// The spec of a launch as its clients are shown it, without its secrets and the environment of its ranks. Only encoded: the API
/// server passes it on and reads nothing of it.
#[derive(Clone, Debug)]
pub(crate) struct ShownSpec(Box<LaunchSpec>);

impl ShownSpec {
    /// The spec of a launch that is kept; an empty one if its record has none.
    pub(crate) fn of(record: &LaunchRecord) -> Self {
        Self(Box::new(record.spec.as_ref().map(shown).unwrap_or_default()))
    }

    /// The same for a client that may send so many bytes of input before it is granted more.
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

/// A spec without what the users' own tools need not know: secrets, and variables, whether they are the launch's or a program's.
pub(super) fn shown(spec: &LaunchSpec) -> LaunchSpec {
    let apps = spec.apps.iter().map(|app| AppSpec { set: Vec::new(), ..app.clone() }).collect();
    LaunchSpec { secret: Bytes::new(), link_key: Bytes::new(), environment: Vec::new(), apps, ..spec.clone() }
}
