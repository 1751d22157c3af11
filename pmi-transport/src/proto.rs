//! Messages and services of the package `lattice.v1`.
//!
//! The code is generated from `proto/` by `cargo xtask proto`, and committed.

use std::fmt;

/// The package `lattice.v1`. The `.proto` files document its messages.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    rust_2018_idioms,
    clippy::all,
    clippy::use_self,
    clippy::uninlined_format_args,
    clippy::semicolon_if_nothing_returned,
    reason = "generated"
)]
pub mod v1 {
    include!("generated/lattice.v1.rs");
}

/// Paths of the calls that take a stream of messages.
const STREAMS: [&str; 5] = [
    "/lattice.v1.LaunchService/AttachLaunch",
    "/lattice.v1.NodeAgentService/Link",
    "/lattice.v1.NodeAgentService/RelayReports",
    "/lattice.v1.NodeService/ProxyUser",
    "/lattice.v1.NodeService/ReportLaunch",
];

/// Returns true if the call at this path takes a stream of messages.
pub(crate) fn takes_stream(path: &str) -> bool {
    STREAMS.contains(&path)
}

impl fmt::Debug for v1::CxiCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vni, auth_key, svc_id, nics, job_vni, traffic_classes } = self;
        let mut shown = f.debug_struct("CxiCredentials");
        shown.field("vni", vni).field("auth_key", &format_args!("[{} bytes]", auth_key.len())).field("svc_id", svc_id);
        shown.field("nics", nics).field("job_vni", job_vni).field("traffic_classes", traffic_classes).finish()
    }
}

impl fmt::Debug for v1::SetPass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, address, opening: _, key } = self;
        let key = format_args!("[{} bytes]", key.len());
        f.debug_struct("SetPass").field("from", from).field("address", address).field("key", &key).finish()
    }
}

/// The encoded descriptors of all files, for the reflection service.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::v1::{CxiCredentials, LaunchProcessesRequest};
    use super::{DESCRIPTORS, STREAMS};

    #[test]
    fn the_calls_that_take_a_stream_are_those_of_the_protocol() {
        let mut paths = Vec::new();
        for file in FileDescriptorSet::decode(DESCRIPTORS).unwrap().file {
            for service in &file.service {
                let streams = service.method.iter().filter(|method| method.client_streaming());
                paths.extend(streams.map(|method| format!("/{}.{}/{}", file.package(), service.name(), method.name())));
            }
        }
        paths.sort();
        assert_eq!(paths, STREAMS);
    }

    #[test]
    fn a_request_that_is_shown_does_not_show_the_key() {
        let auth_key = Bytes::from_static(b"canary");
        let credentials = CxiCredentials { vni: 1024, auth_key, ..Default::default() };
        let request = LaunchProcessesRequest { cxi_credentials: Some(credentials), ..Default::default() };
        let shown = format!("{request:?} {request:#?}");
        assert!(shown.contains("1024") && shown.contains("[6 bytes]"), "{shown}");
        assert!(!shown.contains("canary") && !shown.contains("99, 97, 110"), "{shown}");
    }
}
