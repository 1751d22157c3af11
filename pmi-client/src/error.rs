//! Errors of a rank, grouped by cause: the launcher's environment, the server, or the caller.

use alloc::format;
use alloc::string::{String, ToString};
use job_memory::SystemError;

/// Reason why a call of the client failed.
///
/// After a failure of the connection, or a reply that does not end or belongs to another request, no request is sent any more. Then
/// every call fails as [`Closed`](Self::Closed). After any other error the client remains usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The launcher (or a wrapper script) left an unusable value in the environment.
    #[error("{variable}={value:?} in the environment is not {expected}")]
    Variable {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// Description of the valid values.
        expected: &'static str,
    },
    /// The environment contains only a part of the required variables.
    #[error("the environment has {present} but no {missing}; a launcher sets both")]
    VariableMissing {
        /// The variable that is set.
        present: &'static str,
        /// The variable that is not set.
        missing: &'static str,
    },
    /// The memory that the launcher announced does not exist.
    #[error(
        "the ranks of this node share memory, which this process cannot map: {0}; a runtime between launcher and program may have closed it"
    )]
    NodeMemory(#[from] job_memory::NotReadable),
    /// The launcher serves only PMIx.
    #[error(
        "the environment has {variable}, and neither PMI_FD nor PMI_PORT: the launcher serves PMIx, which this client does not speak"
    )]
    OnlyPmix {
        /// The variable that shows it.
        variable: &'static str,
    },
    /// `PMI_FD` is not a connection that this process inherited.
    #[error("PMI_FD={fd} is no connection to a launcher: {reason}")]
    Descriptor {
        /// The number in `PMI_FD`.
        fd: i32,
        /// Description of the found descriptor.
        reason: &'static str,
    },
    /// Another part of this process has already taken the connection.
    #[error("this process has taken its PMI connection before; there is one per rank")]
    ConnectionTaken,
    /// The connection to the address in `PMI_PORT` failed.
    #[error("cannot connect to the PMI server at {address}")]
    Connect {
        /// The address, unchanged.
        address: String,
        /// Error of the operating system.
        source: SystemError,
    },

    /// The server closed the connection: the job is ending, or its launcher died.
    #[error("the PMI server closed the connection before it answered `{command}`")]
    Closed {
        /// The request without a reply.
        command: &'static str,
    },
    /// A read or write failed in another way.
    #[error("the connection to the PMI server failed during `{command}`")]
    Io {
        /// The request in progress.
        command: &'static str,
        /// Error of the operating system.
        source: SystemError,
    },
    /// The server sent bytes that are not a reply to the request.
    #[error("the PMI server answered `{command}` with \"{seen}\": {defect}")]
    Malformed {
        /// The request.
        command: &'static str,
        /// Fault in the reply.
        defect: Defect,
        /// The bytes of the reply, escaped, and cut if they are long.
        seen: String,
    },
    /// The server refused the request. The connection remains usable.
    #[error("the PMI server refused `{command}`: rc={rc}{}", .message.as_ref().map(|text| format!(", {text}")).unwrap_or_default())]
    Refused {
        /// The request.
        command: &'static str,
        /// The server's return code, never 0.
        rc: i64,
        /// The server's reason, if any.
        message: Option<String>,
    },
    /// The server does not serve the requested protocol.
    #[error("the PMI server speaks version {offered}, this client asked for version {wanted}")]
    Version {
        /// The version that the client requested.
        wanted: u32,
        /// The version that the server returned.
        offered: u32,
    },

    /// The protocol in use has no such call.
    #[error("{call} does not exist {place}")]
    Unsupported {
        /// The call.
        call: &'static str,
        /// Place where it is missing: `in PMI-1`, `without a launcher`.
        place: &'static str,
    },
    /// A text that the protocol cannot carry.
    #[error("a {what} cannot hold {found:?}: {text:?}")]
    Text {
        /// `key`, `value` and the like.
        what: &'static str,
        /// The first invalid character.
        found: char,
        /// The text, escaped, and cut if it is long.
        text: String,
    },
    /// A text that is empty but must not be, or longer than the server accepts.
    #[error("a {what} has {min} to {max} bytes, not {len}")]
    Length {
        /// `key`, `value` and the like.
        what: &'static str,
        /// The minimum number of bytes.
        min: usize,
        /// The maximum number of bytes.
        max: usize,
        /// The actual number of bytes.
        len: usize,
    },
    /// A text that is not the name of a resource.
    #[error(
        "{name:?} names no resource: shm:ID, sem:ID, msg:ID, pshm:NAME, psem:NAME, mq:NAME, file:PATH, dir:PATH, pid:ID, of at most {max} bytes"
    )]
    ResourceName {
        /// The name, escaped, and cut if it is long.
        name: String,
        /// The maximum number of bytes.
        max: usize,
    },
    /// A group, or a tag, that is invalid for a barrier.
    #[error("a barrier of a group needs {needed}")]
    GroupBarrier {
        /// Description of the valid values.
        needed: &'static str,
    },
    /// A spawn request without a program.
    #[error("a spawn request names no program")]
    NothingToSpawn,
    /// No rank on this node can put the attribute for which the caller waits.
    #[error("no rank of this node put the node attribute {key:?}")]
    NotFound {
        /// The attribute's key.
        key: String,
    },
}

/// Fault in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Defect {
    /// The reply belongs to something else.
    #[error("expected `cmd={expected}` first")]
    WrongReply {
        /// The reply's name.
        expected: &'static str,
    },
    /// The reply belongs to another request.
    #[error("field `{field}` is missing")]
    MissingField {
        /// The field's name.
        field: &'static str,
    },
    /// A field that should be a number is not, or is out of range.
    #[error("field `{field}` is not a number in range")]
    NotANumber {
        /// The field's name.
        field: &'static str,
    },
    /// A field that should be text is not UTF-8.
    #[error("field `{field}` is not text")]
    NotText {
        /// The field's name.
        field: &'static str,
    },
    /// The server assigned a rank that the job cannot have.
    #[error("rank {rank} does not exist in a job of {size}")]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// The job's size.
        size: u32,
    },
    /// The six bytes before a PMI-2 message are not a decimal length within the limit.
    #[error("the first 6 bytes are not a length from 1 to {max}")]
    BadLength {
        /// The limit in bytes.
        max: usize,
    },
    /// The reply does not end within the limit.
    #[error("longer than {max} bytes")]
    TooLong {
        /// The limit in bytes.
        max: usize,
    },
}

/// Maximum number of bytes of a quoted text in an error.
const QUOTED_MAX: usize = 96;

/// Formats bytes for a message: escaped, and cut if they are long.
pub(crate) fn quote(bytes: &[u8]) -> String {
    match bytes.get(..QUOTED_MAX) {
        Some(head) if bytes.len() > QUOTED_MAX => format!("{}.. ({} bytes)", head.escape_ascii(), bytes.len()),
        _ => bytes.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_short_and_printable() {
        assert_eq!(quote(b"cmd=x\n\xff"), "cmd=x\\n\\xff");
        assert_eq!(quote(&[b'a'; 96]), "a".repeat(96));
        assert_eq!(quote(&[b'a'; 70_000]), "a".repeat(96) + ".. (70000 bytes)");
    }

    #[test]
    fn a_refusal_names_command_code_and_reason() {
        let refused = |message| ClientError::Refused { command: "put", rc: -1, message };
        assert_eq!(refused(None).to_string(), "the PMI server refused `put`: rc=-1");
        assert_eq!(refused(Some("full".into())).to_string(), "the PMI server refused `put`: rc=-1, full");
    }
}
