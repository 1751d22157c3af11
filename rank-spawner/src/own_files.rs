//! Files and directories of this program outside the state directories of its daemons, in places that other users can write to, such as
//! `/tmp`.
//!
//! ```text
//! OwnDirectory       new, made by plain mkdir with an explicit mode; removed only if device and inode equal the recorded ones
//! PrivateDirectory   may exist already; used only if the user owns it and no other user has access; its entries are reached by descriptor
//! Records            directories of a process without a keeper; if it is killed, the user's next process removes them
//! ```
//!
//! A look-up never follows a link, and a removal never relies on a name alone. Callers choose names with a random part.

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
