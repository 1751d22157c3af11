//! The lower limit for a fence over TCP on this machine: the same tree, with only lengths and bytes on plain
//! sockets.

use std::io;
use std::time::Instant;

use lattice_benches::sample::median;
use pmi_transport::fence::{FanOut, Tree};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::{Figures, RECORD};

/// Nodes that are connected by two trees: one tree carries data on the way down, the other one all else.
pub(crate) struct Floor {
    runtime: Runtime,
    nodes: &'static [Mutex<Node>],
}

struct Node {
    wide: Edges,
    narrow: Edges,
}

#[derive(Default)]
struct Edges {
    above: Option<TcpStream>,
    below: Vec<TcpStream>,
}

impl Floor {
    pub(crate) fn new(nodes: u32, fan_out: FanOut) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
        let connected = runtime.block_on(async {
            let wide = connect(Tree::new(nodes, fan_out.barrier), nodes).await?;
            let narrow = connect(Tree::new(nodes, fan_out.data), nodes).await?;
            Ok::<_, io::Error>(wide.into_iter().zip(narrow))
        });
        let nodes = connected.expect("loopback connections").map(|(wide, narrow)| Mutex::new(Node { wide, narrow }));
        Self { runtime, nodes: nodes.collect::<Vec<_>>().leak() }
    }

    pub(crate) fn measure(&self, fences: usize) -> Figures {
        let times = self.runtime.block_on(async {
            let mut running = JoinSet::new();
            for node in self.nodes {
                running.spawn(async move { node.lock().await.go_through(fences).await.expect("a tree of sockets") });
            }
            running.join_all().await
        });
        let all = |at: usize| median(&times.iter().map(|times| times[at]).collect::<Vec<_>>());
        Figures { barrier: all(0), data: all(1) }
    }
}

async fn connect(tree: Tree, nodes: u32) -> io::Result<Vec<Edges>> {
    let mut edges: Vec<Edges> = (0..nodes).map(|_| Edges::default()).collect();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    for node in 0..nodes {
        for child in tree.children(node) {
            let (below, (above, _)) = tokio::try_join!(TcpStream::connect(listener.local_addr()?), listener.accept())?;
            below.set_nodelay(true)?;
            above.set_nodelay(true)?;
            edges[node as usize].below.push(below);
            edges[child as usize].above = Some(above);
        }
    }
    Ok(edges)
}

impl Node {
    async fn go_through(&mut self, fences: usize) -> io::Result<[f64; 2]> {
        let mut taken = [Vec::new(), Vec::new()];
        for _ in 0..fences {
            for (kind, record) in [&[][..], &[7; RECORD]].into_iter().enumerate() {
                let start = Instant::now();
                self.fence(record).await?;
                taken[kind].push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        Ok(taken.map(|times| median(&times)))
    }

    async fn fence(&mut self, record: &[u8]) -> io::Result<()> {
        let mut all = record.to_vec();
        for child in &mut self.wide.below {
            read(child, &mut all).await?;
        }
        if let Some(above) = &mut self.wide.above {
            write(above, &all).await?;
        }
        let down = if record.is_empty() { &mut self.wide } else { &mut self.narrow };
        if let Some(above) = &mut down.above {
            all.clear();
            read(above, &mut all).await?;
        }
        for child in &mut down.below {
            write(child, &all).await?;
        }
        Ok(())
    }
}

/// Appends the received bytes.
async fn read(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<()> {
    let more = stream.read_u32().await? as usize;
    let start = bytes.len();
    bytes.resize(start + more, 0);
    stream.read_exact(&mut bytes[start..]).await.map(drop)
}

async fn write(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut frame = (bytes.len() as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(bytes);
    stream.write_all(&frame).await
}
