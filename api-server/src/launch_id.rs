//! Identity of a launch.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Id of a launch. All launches in the state of an API server have different ids. A clone shares the text.
///
/// A text that a client sends is not checked: the id of no launch is not found.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LaunchId(Arc<str>);

impl<T: Into<Arc<str>>> From<T> for LaunchId {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl From<LaunchId> for String {
    fn from(id: LaunchId) -> Self {
        (*id).to_owned()
    }
}

impl Deref for LaunchId {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// A map by id is searched with the text of a message.
impl Borrow<str> for LaunchId {
    fn borrow(&self) -> &str {
        self
    }
}

impl fmt::Display for LaunchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for LaunchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
