//! A fence of one's own: a star over plain TCP, and the suite of pmi-core that says whether it keeps a fence's promises.
//!
//! ```text
//! $ cargo run -p lattice-examples --example fence_over_tcp
//! a star of 9 nodes keeps all promises of a fence
//! ```
//!
//! A call is a connection to the hub: a line that names the fence, then what the node brings; the answer is `+` and what all
//! brought. A node also holds a connection on which it says nothing: when one of those ends, the hub hangs up on everybody.

use std::collections::{BTreeMap, HashMap};
use std::{error::Error, io, net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use pmi_core::conformance::{Cluster, check};
use pmi_core::fence::{Contribution, Fence, FenceError, FenceId, Merged, Scope};
use pmi_core::{ids::NodeIndex, kvs::Segment};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::{net::TcpListener, net::TcpStream, task::JoinSet};

struct Star {
    hub: SocketAddr,
    node: NodeIndex,
    nodes: usize,
}

#[async_trait]
impl Fence for Star {
    async fn exchange(&self, id: &FenceId, contribution: Contribution) -> Result<Merged, FenceError> {
        let lost = |reason| FenceError::NodeLost { node: NodeIndex(0), epoch: id.epoch, reason };
        let members = match &id.scope {
            Scope::Group { nodes, .. } | Scope::Foreign { nodes, .. } => nodes.len(),
            _ => self.nodes,
        };
        // `Debug` shows a group's nodes: groups of one name with other nodes are other fences.
        let mut message = format!("{} {members} {id:?}\n", self.node).into_bytes();
        // Segments that follow each other mean the same as one.
        contribution.segments.iter().for_each(|segment| message.extend_from_slice(segment.as_bytes()));
        let answer = self.call(&message).await.map_err(|error| lost(error.to_string()))?;
        let Some((b'+', merged)) = answer.split_first() else { return Err(lost("the hub hung up".into())) };
        let segment = Segment::decode(merged.to_vec().into()).map_err(|error| lost(error.to_string()))?;
        Ok(vec![segment].into())
    }
}

impl Star {
    async fn call(&self, message: &[u8]) -> io::Result<Vec<u8>> {
        let (mut hub, mut answer) = (TcpStream::connect(self.hub).await?, Vec::new());
        hub.write_all(message).await?;
        hub.shutdown().await?;
        hub.read_to_end(&mut answer).await.map(|_| answer)
    }
}

/// Answers each fence when all its members have called; ends when a node does.
async fn hub(listener: TcpListener) -> Option<()> {
    let (mut calls, mut fences) = (JoinSet::new(), HashMap::<String, BTreeMap<u32, (TcpStream, Vec<u8>)>>::new());
    loop {
        let (stream, message) = tokio::select! {
            Ok((mut stream, _)) = listener.accept() => {
                let mut message = Vec::new();
                calls.spawn(async move { stream.read_to_end(&mut message).await.map(|_| (stream, message)) });
                continue;
            }
            Some(call) = calls.join_next() => call.ok()?.ok()?,
        };
        // A connection that ends without a line was a node's.
        let end = message.iter().position(|&byte| byte == b'\n')?;
        let mut words = std::str::from_utf8(&message[..end]).ok()?.splitn(3, ' ');
        let (node, members, name) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?);
        let brought = fences.entry(name.to_owned()).or_default();
        brought.insert(node, (stream, message[end + 1..].to_vec()));
        if brought.len() == members {
            let all = brought.values().flat_map(|(_, segments)| segments);
            let answer: Vec<u8> = b"+".iter().chain(all).copied().collect();
            for (mut stream, _) in fences.remove(name)?.into_values() {
                stream.write_all(&answer).await.ok()?;
            }
        }
    }
}

async fn cluster(nodes: u32) -> io::Result<Cluster> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, mut present, mut fences) = (listener.local_addr()?, Vec::new(), Vec::<Arc<dyn Fence>>::new());
    tokio::spawn(hub(listener));
    for node in (0..nodes).map(NodeIndex) {
        present.push(TcpStream::connect(address).await?);
        fences.push(Arc::new(Star { hub: address, node, nodes: nodes as usize }));
    }
    Ok(Cluster { fences, lose: Some(Box::new(move |node| drop(present.swap_remove(node.index())))) })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    check(9, async |nodes| cluster(nodes).await.expect("loopback connections")).await?;
    println!("a star of 9 nodes keeps all promises of a fence");
    Ok(())
}
