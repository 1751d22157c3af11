//! Requests to start a launch: verified first, then decoded, and forwarded unchanged.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lattice_session::wire::foreign::Unsaid;
use lattice_session::wire::order::StartOrder;
use lattice_session::wire::signed_credentials::SignedCredentials;
use lattice_session::wire::{self, WireError};
use pmi_core::ids::NodeIndex;
use pmi_transport::fence::{FanOut, Member, Membership};
use pmi_transport::identity::Security;
use pmi_transport::proto::v1 as proto;
use pmi_transport::session_link::LinkKey;
use pmi_transport::signature::{self, Serial, Signature, VerifyError};
use prost::Message;

/// Request to start a launch, as received: nothing in it is verified yet.
pub(in super::super) struct Received(proto::LaunchProcessesRequest);

/// This node's part of a launch.
pub(in super::super) struct Assignment {
    pub(in super::super) launch_id: String,
    /// Serial number that the API server signed.
    pub(in super::super) serial: Serial,
    pub(in super::super) uid: u32,
    /// The whole launch, as received.
    pub(in super::super) spec: Bytes,
    pub(in super::super) index: NodeIndex,
    /// Number of ranks on this node.
    pub(in super::super) ranks: u32,
    /// All nodes of the launch.
    pub(in super::super) members: Arc<[Member]>,
    pub(in super::super) fan_out: FanOut,
    /// Key of the links between the launch's sessions; `None` for fences through the agents.
    pub(in super::super) link_key: Option<LinkKey>,
    /// Time limit for its ranks to end after an order to end.
    pub(in super::super) grace: Duration,
}

impl Assignment {
    /// Part of this node in fences through the agents; `None` if the sessions have links.
    pub(in super::super) fn membership(&self) -> Option<Membership> {
        let Self { launch_id, index, members, fan_out, link_key, .. } = self;
        let nodes = Arc::clone(members);
        let membership = || Membership { launch_id: launch_id.clone(), me: *index, nodes, fan_out: *fan_out };
        (link_key.is_none() || members.len() == 1).then(membership)
    }

    /// Returns true if its session can continue without an agent. A session with fences through the agents cannot.
    pub(in super::super) fn outlives_agent(&self) -> bool {
        self.link_key.is_some() || self.members.len() == 1
    }
}

impl Received {
    pub(in super::super) fn new(message: proto::LaunchProcessesRequest) -> Self {
        Self(message)
    }

    /// The message itself, for forwarding.
    pub(in super::super) fn message(&self) -> &proto::LaunchProcessesRequest {
        &self.0
    }

    /// Id of the launch outside of the signed part: for the log only.
    pub(in super::super) fn launch_id(&self) -> &str {
        &self.0.launch_id
    }

    /// Serial number of the launch.
    pub(in super::super) fn serial(&self) -> Serial {
        Serial(self.0.serial)
    }

    /// Checks that the API server signed the launch.
    ///
    /// # Errors
    /// Returns the errors of [`signature::verify`].
    pub(in super::super) fn verify(&self, security: &Security) -> Result<(), VerifyError> {
        let request = &self.0;
        signature::verify(security, self.serial(), &request.spec, &request.signature, &request.signer)
    }

    /// Checks that the API server signed the fabric credentials, if any, for the launch with this id.
    ///
    /// # Errors
    /// Returns the errors of [`signature::verify`].
    pub(in super::super) fn verify_credentials(&self, security: &Security, launch_id: &str) -> Result<(), VerifyError> {
        let request = &self.0;
        let Some(credentials) = &request.cxi_credentials else { return Ok(()) };
        let text = wire::fabric::signed_text(launch_id, credentials);
        signature::verify(security, self.serial(), text.expose(), &request.cxi_signature, &request.signer)
    }

    /// The fabric credentials as received, if any.
    pub(in super::super) fn credentials(&self) -> Option<SignedCredentials> {
        let credentials = self.0.cxi_credentials.clone();
        credentials.map(|credentials| SignedCredentials::new(credentials, self.0.cxi_signature.clone()))
    }

    /// The order to start this node's part of the launch.
    pub(in super::super) fn order(&self, of: &Assignment) -> StartOrder {
        let (signature, signer) = (self.0.signature.clone(), self.0.signer.clone());
        StartOrder {
            serial: of.serial,
            spec: of.spec.clone(),
            node: of.index,
            signature: Signature { signature, signer },
            nics: None,
        }
    }

    /// This node's part of the launch, as its session decodes it; `unsaid` completes a request without a spec.
    ///
    /// # Errors
    /// Returns the errors of [`wire::foreign::launch_spec`], [`wire::spec::decode`] and [`wire::spec::addresses`].
    pub(in super::super) fn decode<'a>(&self, unsaid: impl FnOnce() -> Unsaid<'a>) -> Result<Assignment, WireError> {
        let request = &self.0;
        let (launch, index, spec) = if request.spec.is_empty() {
            let (launch, index) = wire::foreign::launch_spec(request, &unsaid())?;
            let spec = launch.encode_to_vec().into();
            (launch, index, spec)
        } else {
            (proto::LaunchSpec::decode(request.spec.clone())?, request.node_index, request.spec.clone())
        };
        let mut assignment = assignment(self.serial(), launch, NodeIndex(index), spec)?;
        if request.spec.is_empty() {
            // Its other agents may support only `PmiFence` of the head.
            assignment.fan_out = FanOut::STAR;
        }
        Ok(assignment)
    }
}

/// This node's part of `launch`; `spec` is the encoded launch.
///
/// # Errors
/// Returns the errors of [`wire::spec::decode`] and [`wire::spec::addresses`].
pub(super) fn assignment(
    serial: Serial,
    launch: proto::LaunchSpec,
    index: NodeIndex,
    spec: Bytes,
) -> Result<Assignment, WireError> {
    let (uid, addresses) = (launch.uid, launch.addresses.clone());
    let (barrier, data) = (launch.barrier_fan_out, launch.data_fan_out);
    let link_key = wire::placed::link_key(&launch.link_key)?;
    let session = wire::spec::decode(launch, index)?;
    let ranks = session.job.placement.ranks_on(index).len() as u32;
    let addresses = wire::spec::addresses(&addresses, session.hosts.len())?;
    let fan_out = FanOut::from_spec(barrier, data, session.hosts.len());
    let members = session.hosts.into_iter().zip(addresses).map(|(name, address)| Member { name, address }).collect();
    let timeouts = &session.settings.timeouts;
    let grace = timeouts.grace_after_failure.max(timeouts.grace_after_interrupt);
    Ok(Assignment { launch_id: session.launch_id, serial, uid, spec, index, ranks, members, fan_out, link_key, grace })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The assignment of a request in the plain fields.
    pub(in super::super) fn plain_assignment() -> Assignment {
        Received::new(proto::LaunchProcessesRequest { serial: 9, ..plain() }).decode(unsaid).unwrap()
    }

    fn unsaid() -> Unsaid<'static> {
        Unsaid { node_id: "n1", address: "n1:7", uid: 1000, secret: vec![7; wire::spec::SECRET_LEN].into() }
    }

    /// A launch of four ranks on two nodes, in the plain fields.
    fn plain() -> proto::LaunchProcessesRequest {
        let peer = |node_id: &str, first_rank| {
            let (node_id, grpc_address) = (node_id.to_owned(), format!("{node_id}:7"));
            proto::PeerInfo { node_id, grpc_address, first_rank, num_ranks: 2 }
        };
        proto::LaunchProcessesRequest {
            launch_id: "abc".to_owned(),
            entrypoint: "./app".to_owned(),
            peers: vec![peer("n0", 0), peer("n1", 2)],
            first_rank: 2,
            world_size: 4,
            ..Default::default()
        }
    }

    #[test]
    fn a_request_in_plain_fields_means_the_same_launch_as_its_spec_but_for_the_fences() {
        let foreign = Received::new(plain()).decode(unsaid).unwrap();
        assert_eq!((foreign.launch_id.as_str(), foreign.uid, foreign.ranks), ("abc", 1000, 2));
        assert_eq!((foreign.index, foreign.fan_out), (NodeIndex(1), FanOut::STAR));
        let nodes: Vec<_> = foreign.members.iter().map(|member| (&*member.name, &*member.address)).collect();
        assert_eq!(nodes, [("n0", "n0:7"), ("n1", "n1:7")]);
        let with_spec =
            proto::LaunchProcessesRequest { spec: foreign.spec, node_index: 1, serial: 9, ..Default::default() };
        let ours = Received::new(with_spec).decode(|| panic!("a spec leaves nothing open")).unwrap();
        assert_eq!((ours.index, ours.ranks, ours.serial), (NodeIndex(1), 2, Serial(9)));
        assert_eq!(ours.fan_out, FanOut::of_launch(2));
        assert_eq!(ours.members, foreign.members);
        assert!(!ours.outlives_agent(), "its fences go by way of the agents");
    }

    #[test]
    fn a_launch_without_fabric_credentials_asks_for_none_and_nonsense_is_refused() {
        assert!(Received::new(plain()).credentials().is_none());
        let cxi_credentials = Some(proto::CxiCredentials::default());
        let nonsense = Received::new(proto::LaunchProcessesRequest { cxi_credentials, ..plain() });
        assert!(nonsense.credentials().unwrap().claims().unwrap_err().to_string().contains("the VNI is 0"));
    }

    #[test]
    fn bytes_that_are_no_spec_are_refused() {
        let noise = proto::LaunchProcessesRequest { spec: Bytes::from_static(b"\xff\xff"), ..plain() };
        assert!(matches!(Received::new(noise).decode(unsaid), Err(WireError::Format(_))));
    }
}
