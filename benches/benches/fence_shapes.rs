//! Tree or all to all: which shape of a fence is faster over plain sockets, and from how many nodes on?
//!
//! Each node is a thread with a socket to every other node. After a fence a node begins the next one at once. The tree is that of sessions, the
//! other shape is `pmi_core::all_to_all`. There is no encryption and no runtime, so that the times are the minimum of either shape on this
//! machine. With more nodes than processors the times are the cost of all messages together, and do not show the latency between machines.
//!
//! ```text
//! cargo bench -p lattice-benches --bench fence_shapes
//! ```
//! Without `--bench` (`cargo test --benches`) the bench only proves that it works, once with three nodes.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use lattice_benches::comparison::Comparison;
use lattice_benches::sample::median;
use lattice_benches::{is_measured, machine};
use pmi_transport::fence::{FanOut, Tree};

/// Bytes that each node contributes to a fence with data.
const RECORD: [u8; 128] = [7; 128];

#[derive(Clone, Copy)]
enum Shape {
    Tree,
    AllToAll,
}

fn main() {
    println!("{}", machine::line());
    let (sizes, turns, fences) = if is_measured() { (&[2, 3, 4, 5, 6, 8][..], 11, 2000) } else { (&[3][..], 1, 3) };
    println!("{:>5} {:>6} {:>10} {:>15}  all to all by tree", "nodes", "bytes", "tree, us", "all to all, us");
    for &nodes in sizes {
        let mut nodes = connect(nodes).expect("loopback connections");
        for record in [&[][..], &RECORD] {
            let mut taken = [Vec::new(), Vec::new()];
            for _ in 0..turns {
                for (shape, taken) in [Shape::Tree, Shape::AllToAll].into_iter().zip(&mut taken) {
                    taken.push(measure(&mut nodes, shape, record, fences));
                }
            }
            let ([tree, all], bytes) = (&taken, record.len());
            let ratio = Comparison::of(all, tree, nodes.len());
            println!("{:>5} {bytes:>6} {:>10.1} {:>15.1}  {ratio}", nodes.len(), median(tree), median(all));
        }
    }
}

/// Returns the mean time of a fence, in microseconds.
fn measure(nodes: &mut [Node], shape: Shape, record: &'static [u8], fences: usize) -> f64 {
    let start = Instant::now();
    thread::scope(|scope| {
        for node in nodes {
            scope.spawn(move || {
                for _ in 0..fences {
                    node.fence(shape, record).expect("sockets work");
                }
            });
        }
    });
    start.elapsed().as_secs_f64() * 1e6 / fences as f64
}

/// A node, with its sockets by the numbers of the other nodes. The entry for the node itself is empty.
struct Node {
    number: usize,
    links: Vec<Option<TcpStream>>,
}

fn connect(count: usize) -> io::Result<Vec<Node>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut nodes: Vec<_> =
        (0..count).map(|number| Node { number, links: (0..count).map(|_| None).collect() }).collect();
    for one in 0..count {
        for other in one + 1..count {
            let (to, (from, _)) = (TcpStream::connect(listener.local_addr()?)?, listener.accept()?);
            to.set_nodelay(true)?;
            from.set_nodelay(true)?;
            nodes[one].links[other] = Some(to);
            nodes[other].links[one] = Some(from);
        }
    }
    Ok(nodes)
}

impl Node {
    fn fence(&mut self, shape: Shape, record: &[u8]) -> io::Result<Vec<u8>> {
        let mut known = record.to_vec();
        match shape {
            Shape::Tree => self.tree(&mut known)?,
            Shape::AllToAll => self.all_to_all(&mut known, record.len())?,
        }
        assert_eq!(known.len(), record.len() * self.links.len());
        Ok(known)
    }

    /// A fence over trees: a wide tree on the way up, and a narrow tree for data on the way down.
    fn tree(&mut self, known: &mut Vec<u8>) -> io::Result<()> {
        let (count, fan_out) = (self.links.len() as u32, FanOut::default());
        let up = Tree::new(count, fan_out.barrier);
        let down = if known.is_empty() { Tree::new(count, fan_out.barrier) } else { Tree::new(count, fan_out.data) };
        for child in up.children(self.number as u32) {
            self.receive(child as usize, known)?;
        }
        if let Some(parent) = up.parent(self.number as u32) {
            self.send(parent as usize, known)?;
        }
        if let Some(parent) = down.parent(self.number as u32) {
            known.clear();
            self.receive(parent as usize, known)?;
        }
        for child in down.children(self.number as u32) {
            self.send(child as usize, known)?;
        }
        Ok(())
    }

    fn all_to_all(&mut self, known: &mut Vec<u8>, record: usize) -> io::Result<()> {
        let count = self.links.len();
        let mut distance = 1;
        while distance < count {
            let told = known.len().min((count - distance) * record);
            self.send((self.number + count - distance) % count, &known[..told])?;
            self.receive((self.number + distance) % count, known)?;
            distance *= 2;
        }
        Ok(())
    }

    fn send(&mut self, to: usize, bytes: &[u8]) -> io::Result<()> {
        let frame = [&(bytes.len() as u32).to_be_bytes(), bytes].concat();
        self.link(to).write_all(&frame)
    }

    /// Appends the received bytes.
    fn receive(&mut self, from: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
        let mut length = [0; 4];
        self.link(from).read_exact(&mut length)?;
        let start = bytes.len();
        bytes.resize(start + u32::from_be_bytes(length) as usize, 0);
        self.link(from).read_exact(&mut bytes[start..])
    }

    fn link(&mut self, other: usize) -> &mut TcpStream {
        self.links[other].as_mut().expect("every other node has a socket")
    }
}
