//! A PMIx client as bytes: the requests of Open MPI 5, for benches that run a server without sockets.

use bytes::Bytes;
use pmi_core::server::ConnectionId;
use pmix_core::server::Server;
use pmix_core::wire::Encoding;
use pmix_core::wire::frame::message;
use pmix_core::wire::reader::Proc;
use pmix_core::wire::request::command;
use pmix_core::wire::types::RANK_WILDCARD;
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::writer::Writer;

/// Namespace of the clients' job.
pub const NAMESPACE: &str = "job0";

/// Performs the handshake with a server as this rank.
pub fn join(server: &mut Server, rank: u32) -> ConnectionId {
    let mut payload = b"native\0\0\0\0\x08\0\0\0\0\0\0\0\0\0job0\0".to_vec();
    payload.extend(rank.to_be_bytes());
    payload.extend(b"5.0.11rc1\0v41\0\x01hash\0");
    let mut bytes = vec![0xff; 8];
    bytes.extend((payload.len() as u32).to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(payload);
    let connection = server.accept();
    server.handle_bytes(connection, &bytes);
    connection
}

/// Returns a request: the command, and the bytes from `write`.
pub fn request(command: u8, write: impl FnOnce(&mut Writer)) -> Bytes {
    let mut payload = Writer::new(Encoding::Flex);
    payload.one();
    payload.byte(command);
    write(&mut payload);
    message(101, &payload.into_bytes())
}

/// Returns a commit of a value with this scope.
pub fn commit(scope: u8, key: &str, value: &[u8]) -> Bytes {
    request(command::COMMIT, |out| {
        let mut buffer = Writer::new(Encoding::Flex);
        buffer.kval(key, &Value::Bytes(value));
        out.one();
        out.byte(scope);
        out.one();
        out.byte(1);
        out.byte_object(&buffer.into_bytes());
    })
}

/// Returns a fence of the whole job that collects the committed values.
pub fn fence() -> Bytes {
    request(command::FENCE, |out| {
        out.count(1);
        out.group(1);
        out.proc(Proc { namespace: NAMESPACE.as_bytes(), rank: RANK_WILDCARD });
        out.count(1);
        out.group(1);
        out.info(&Info::new("pmix.collect", Value::Bool(true)));
    })
}

/// Returns a get of a value of a rank.
pub fn get(rank: u32, key: &str) -> Bytes {
    request(command::GET, |out| {
        out.one();
        out.text(Some(NAMESPACE.as_bytes()));
        out.one();
        out.u32(rank);
        out.count(0);
        out.one();
        out.text(Some(key.as_bytes()));
    })
}
