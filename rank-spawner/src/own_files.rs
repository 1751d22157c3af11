//! Files and directories that this program creates outside the state of its daemons, in places that other users may write to, such as `/tmp`.
//!
//! ```text
//! OwnDirectory       new, made by plain mkdir with an explicit mode; removed only if device and inode are those that were recorded
//! PrivateDirectory   may be there already; used only if it is the user's, and closed to others; what is in it is reached by its descriptor
//! Records            directories of a process that no keeper guards, for the user's next process to remove if that one is killed
//! ```
//!
//! No name that is looked up here is followed if it is a link, and nothing is removed for its name. Callers choose names, with a random part.

mod directory;
mod identity;
mod private;
mod records;

pub use self::directory::{OwnDirectory, write_own_file};
pub(crate) use self::identity::remove_empty;
pub use self::identity::{FileIdentity, NoIdentity, remove_recorded};
pub(crate) use self::private::remove_private_socket;
pub use self::private::{NotPrivate, PrivateDirectory};
pub use self::records::Records;
