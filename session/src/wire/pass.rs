//! Passes to the roots of other sets.

use bytes::Bytes;
use lattice_overlay::address::SetId;
use pmi_transport::proto::v1 as proto;
use pmi_transport::session_link::Pass;

/// Permission to connect to a set, and its address.
#[derive(Clone, Debug)]
pub struct SetPass {
    /// Set with the permission.
    pub from: SetId,
    /// Address of the agent of the other set's root.
    pub address: String,
    /// The pass; `None` if the request did not ask for one.
    pub pass: Option<Pass>,
}

/// Encodes a pass.
pub fn encode(pass: &SetPass) -> proto::SetPass {
    let SetPass { from, address, pass } = pass;
    let part =
        |part: fn(&Pass) -> &[u8]| pass.as_ref().map_or_else(Bytes::new, |pass| Bytes::copy_from_slice(part(pass)));
    proto::SetPass {
        from: from.bits(),
        address: address.clone(),
        opening: part(|pass| pass.opening()),
        key: part(|pass| pass.key().as_bytes()),
    }
}

/// Decodes a pass. Parts with a wrong length count as no pass.
pub fn decode(message: &proto::SetPass) -> SetPass {
    let proto::SetPass { from, address, opening, key } = message;
    SetPass { from: SetId::from_bits(*from), address: address.clone(), pass: Pass::from_parts(opening, key) }
}
