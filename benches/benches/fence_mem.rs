//! Which fan-outs are best, and what do fences of very many nodes take?
//!
//! All nodes are in this process and pass frames to each other through memory, so that the counts of messages and bytes are exact. The
//! time is that of a model: one hop takes 30 us, a frame costs its sender and its receiver 5 us of work each, and a link moves 1.2 GB/s.
//! The wall time is the time of this process for all nodes together.
//!
//! ```text
//! cargo bench -p lattice-benches --bench fence_mem
//! ```
//! With `--picture FILE` the bench only draws the curves of `docs/dev/performance.md`, up to 100,000 nodes. Without `--bench` (`cargo test
//! --benches`) it only proves that it works, with 64 nodes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use lattice_benches::picture::{self, Chart, Scale};
use lattice_benches::{is_measured, machine};
use pmi_transport::fence::{FanOut, Gather, GatherEffects, Limits, Progress, Tree};
use pmi_transport::proto::v1::link_frame::What;

/// Times of the model, in nanoseconds.
const HOP: u64 = 30_000;
const WORK: u64 = 5_000;
const BYTES_PER_MICROSECOND: u64 = 1_200;
/// Approximate size of the key and the envelope of a frame, in bytes.
const ENVELOPE: usize = 60;

/// Frames in transit, by the time of their arrival.
#[derive(Default)]
struct Network {
    arriving: BinaryHeap<Reverse<(u64, u64)>>,
    frames: HashMap<u64, (u32, u32, What)>,
    /// By node: the time at which it has finished its work.
    free: Vec<u64>,
    sent_frames: Vec<u64>,
    sent_bytes: Vec<u64>,
    count: u64,
}

/// Cost of a fence in the model.
struct Outcome {
    microseconds: u64,
    /// Number of frames of all nodes, and of the node that sends the most frames.
    frames: u64,
    most_frames: u64,
    /// The same for bytes.
    bytes: u64,
    most_bytes: u64,
}

fn main() {
    println!("{}", machine::line());
    let mut words = std::env::args().skip_while(|word| word != "--picture");
    if let (Some(_), Some(file)) = (words.next(), words.next()) {
        draw_curves(file.as_ref());
        return;
    }
    println!(
        "{:>6} {:>8} {:>5} {:>7}  {:>9} {:>8} {:>9} {:>9}  {:>9}",
        "nodes", "barrier", "data", "bytes", "model, us", "frames", "of 1 node", "of mean", "wall, ms"
    );
    let sizes: &[u32] = if is_measured() { &[64, 128, 1024, 4096, 16384] } else { &[64] };
    for &nodes in sizes {
        for barrier in [2, 4, 8, 16, 32, 64, nodes - 1] {
            measure(nodes, FanOut { barrier, data: 2 }, 0);
        }
        for data in [2, 3, 4, 8, 16] {
            measure(nodes, FanOut { data, ..FanOut::default() }, 100);
        }
    }
    println!("memory of this process at its highest: {}", highest_memory());
}

/// Draws the depth, the time and the bytes of the busiest node, by the number of nodes.
fn draw_curves(file: &Path) {
    const NODES: [u32; 9] = [16, 64, 256, 1024, 4096, 16_384, 32_768, 65_536, 100_000];
    let [mut depth, mut barrier, mut data, mut busiest] = [const { Vec::new() }; 4];
    for nodes in NODES {
        let at = |number: f64| (f64::from(nodes), number);
        depth.push(at(f64::from(Tree::new(nodes, FanOut::default().barrier).depth())));
        barrier.push(at(fence(nodes, FanOut::default(), 0).microseconds as f64 / 1e3));
        let brought = fence(nodes, FanOut::default(), 100);
        data.push(at(brought.microseconds as f64 / 1e3));
        busiest.push(at(brought.most_bytes as f64 / 1e6));
        println!(
            "{nodes:>6} nodes: barrier {:.2} ms, 100 B of each {:.2} ms",
            barrier[barrier.len() - 1].1,
            data[data.len() - 1].1
        );
    }
    let charts = [
        Chart { title: "hops from the root to the last node", scale: Scale::Linear, lines: vec![("barrier", depth)] },
        Chart {
            title: "time, ms",
            scale: Scale::Logarithmic,
            lines: vec![("barrier", barrier), ("100 B of each node", data)],
        },
        Chart {
            title: "sent by the busiest node, MB",
            scale: Scale::Logarithmic,
            lines: vec![("100 B of each node", busiest)],
        },
    ];
    picture::draw(file, "nodes", &charts).expect("the file can be written");
}

/// Measures one fence with `len` bytes from each node. Prints one line.
fn measure(nodes: u32, fan_out: FanOut, len: usize) {
    let start = Instant::now();
    let Outcome { microseconds, frames, most_frames, bytes, most_bytes } = fence(nodes, fan_out, len);
    println!(
        "{nodes:>6} {:>8} {:>5} {len:>7}  {microseconds:>9} {frames:>8} {most_frames:>9} {:>9.2}  {:>9.1}",
        fan_out.barrier,
        fan_out.data,
        most_bytes as f64 * f64::from(nodes) / bytes as f64,
        start.elapsed().as_secs_f64() * 1e3
    );
}

/// Runs one fence with `len` bytes from each node.
fn fence(nodes: u32, fan_out: FanOut, len: usize) -> Outcome {
    let mut network = Network::new(nodes);
    let mut gathers: Vec<_> = (0..nodes).map(|node| Gather::new(node, nodes, fan_out, Limits::default())).collect();
    let mut done = 0;
    for node in (0..nodes).rev() {
        let segments = if len == 0 { Vec::new() } else { vec![vec![node as u8; len].into()] };
        let mut out = GatherEffects::default();
        let progress = gathers[node as usize].bring(segments.into(), &mut out);
        done += check(progress, nodes as usize * len);
        network.send(node, out);
    }
    while let Some((from, to, what)) = network.receive() {
        let (gather, mut out) = (&mut gathers[to as usize], GatherEffects::default());
        let progress = match what {
            What::Up(frame) => gather.on_up(from, frame, &mut out),
            What::Down(frame) => gather.on_down(from, frame, &mut out),
            _ => unreachable!("a gather sends nothing else"),
        };
        done += check(progress, nodes as usize * len);
        network.send(to, out);
    }
    assert_eq!(done, nodes);
    let most = |counts: &[u64]| counts.iter().max().copied().unwrap_or_default();
    Outcome {
        microseconds: most(&network.free) / 1000,
        frames: network.sent_frames.iter().sum(),
        most_frames: most(&network.sent_frames),
        bytes: network.sent_bytes.iter().sum(),
        most_bytes: most(&network.sent_bytes),
    }
}

/// Returns 1 if the node has completed the fence. Checks the size of the gathered data.
fn check(progress: Progress, expected: usize) -> u32 {
    let gathered = progress.expect("nothing is lost here");
    gathered.map_or(0, |gathered| {
        assert_eq!(gathered.runs.iter().map(Bytes::len).sum::<usize>(), expected);
        1
    })
}

impl Network {
    fn new(nodes: u32) -> Self {
        let zeros = vec![0; nodes as usize];
        Self { free: zeros.clone(), sent_frames: zeros.clone(), sent_bytes: zeros, ..Self::default() }
    }

    fn send(&mut self, from: u32, out: GatherEffects) {
        for (to, what) in out.frames {
            let bytes = size(&what) as u64;
            let free = &mut self.free[from as usize];
            *free += WORK + bytes * 1000 / BYTES_PER_MICROSECOND;
            self.sent_frames[from as usize] += 1;
            self.sent_bytes[from as usize] += bytes;
            self.count += 1;
            self.arriving.push(Reverse((*free + HOP, self.count)));
            self.frames.insert(self.count, (from, to, what));
        }
    }

    fn receive(&mut self) -> Option<(u32, u32, What)> {
        let Reverse((time, number)) = self.arriving.pop()?;
        let (from, to, what) = self.frames.remove(&number)?;
        let free = &mut self.free[to as usize];
        *free = time.max(*free) + WORK;
        Some((from, to, what))
    }
}

fn size(what: &What) -> usize {
    ENVELOPE
        + match what {
            What::Up(frame) => frame.brought.iter().map(|piece| piece.run.len() + 6).sum(),
            What::Down(frame) => frame.run.len(),
            _ => 0,
        }
}

fn highest_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or("unknown", str::trim).to_owned()
}
