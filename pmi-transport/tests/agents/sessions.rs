//! Sessions with links of their own, in this process. Each is reached through the port of an agent that only accepts
//! links.

use std::io;
use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use pmi_core::ids::NodeIndex;
use pmi_transport::fence::{FenceNode, Incoming, Limits, Member, Outgoing, Transport};
use pmi_transport::listen::{Listener, serve};
use pmi_transport::session_link::{Arrivals, HandOver, Handed, LinkKey, SessionLinks, Visitable};
use tokio::task::AbortHandle;
use tonic::Status;
use tonic::service::Routes;

use super::proxy::{self, Pace, Recording};
use super::{World, insecure};

/// The launch of the links of [`World::of_sessions`].
pub(crate) const LAUNCH: &str = "launch";

/// Opens links of a session, once the addresses of all sessions are known.
#[derive(Default)]
struct Links(OnceLock<Arc<SessionLinks>>);

#[async_trait]
impl Transport for Links {
    async fn link(&self, node: &str, address: &str, outgoing: Outgoing) -> Result<Incoming, Status> {
        let links = self.0.get().expect("the world is complete");
        links.open(node, address, outgoing).await.map_err(|error| Status::unavailable(error.to_string()))
    }
}

/// Passes connections to a session of this process.
struct InProcess {
    fences: Weak<FenceNode>,
    links: Arc<SessionLinks>,
}

impl HandOver for InProcess {
    fn hand_over(&self, handed: &Handed) -> io::Result<()> {
        let fences = self.fences.upgrade().ok_or(io::ErrorKind::BrokenPipe)?;
        let (links, greeting, socket) = (Arc::clone(&self.links), handed.greeting.clone(), handed.socket.try_clone()?);
        tokio::spawn(async move { links.accept(&fences, Handed { greeting, socket }).await });
        Ok(())
    }
}

/// Port of an agent that accepts links while the runtime lives.
async fn serve_links(name: &str) -> (Arc<Arrivals>, String, AbortHandle) {
    let arrivals = Arc::<Arrivals>::default();
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &insecure(name)).await.unwrap();
    let listener = listener.with_links(Arc::clone(&arrivals));
    let address = listener.local_address().to_string();
    let serving =
        tokio::spawn(async { serve(vec![listener], Routes::default(), std::future::pending()).await.unwrap() });
    (arrivals, address, serving.abort_handle())
}

impl World {
    /// Sessions of the launch [`LAUNCH`], one for each node.
    pub(crate) async fn of_sessions(nodes: u32, limits: Limits) -> Self {
        Self::behind_proxies(nodes, limits, |_| None).await.0
    }

    /// The same with a proxy before each node's port for which `pace` returns one. Also returns the recordings of the
    /// proxies.
    pub(crate) async fn behind_proxies(
        nodes: u32,
        limits: Limits,
        pace: impl Fn(u32) -> Option<Pace>,
    ) -> (Self, Vec<Recording>) {
        let key = LinkKey::from_bytes([7; LinkKey::LEN]);
        let (mut ports, mut members, mut serving) = (Vec::new(), Vec::new(), Vec::new());
        let mut recordings = Vec::new();
        for node in 0..nodes {
            let name = format!("node{node}");
            let (arrivals, port, handle) = serve_links(&name).await;
            let (address, recording) = match pace(node) {
                Some(pace) => proxy::in_front_of(port, pace).await,
                None => (port, Recording::default()),
            };
            recordings.push(recording);
            ports.push(arrivals);
            members.push(Member { name, address });
            serving.push(handle);
        }
        let members: Arc<[Member]> = members.into();
        let (mut agents, mut sessions) = (Vec::new(), Vec::new());
        for (arrivals, me) in ports.iter().zip((0..).map(NodeIndex)) {
            let transport = Arc::<Links>::default();
            let links = Arc::new(SessionLinks::new(key.clone(), LAUNCH, me, Arc::clone(&members)));
            let _ = transport.0.set(Arc::clone(&links));
            let fences = FenceNode::with_limits(members[me.index()].name.clone(), transport, limits);
            sessions.push(Arc::clone(&links));
            let session = Arc::new(InProcess { fences: Arc::downgrade(&fences), links });
            // It accepts links during the whole test.
            std::mem::forget::<Visitable>(arrivals.expect(LAUNCH, key.gate_key(), me, Arc::clone(&members), session));
            agents.push(Some(fences));
        }
        (Self { agents, members, sessions, serving }, recordings)
    }
}
