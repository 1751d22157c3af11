//! A custom fence by files in a directory that all nodes share, and the suite of pmi-core that checks the guarantees of a fence.
//!
//! ```text
//! $ cargo run -p lattice-examples --example fence_over_files
//! 9 nodes with one directory keep all promises of a fence
//! ```
//! A node contributes the file `FENCE.NODE`, and is present as long as the file `NODE` exists.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::{error::Error, fs, io, sync::Arc, time::Duration};

use pmi_core::conformance::{Cluster, check};
use pmi_core::fence::{Contribution, Fence, FenceError, FenceId, Merged};
use pmi_core::{ids::NodeIndex, kvs::Segment};

struct ByFiles(Arc<tempfile::TempDir>, NodeIndex, Vec<NodeIndex>);

#[async_trait::async_trait]
impl Fence for ByFiles {
    async fn exchange(&self, id: &FenceId, contribution: Contribution) -> Result<Merged, FenceError> {
        let Self(directory, own, all) = self;
        let fence = BuildHasherDefault::<DefaultHasher>::default().hash_one(id);
        let part = |node| directory.path().join(format!("{fence:016x}.{node}"));
        let lost =
            |node| move |error: io::Error| FenceError::NodeLost { node, epoch: id.epoch, reason: error.to_string() };

        let segments: Vec<&[u8]> = contribution.segments.iter().map(Segment::as_bytes).collect();
        let draft = directory.path().join(format!("{fence:016x}.new.{own}"));
        fs::write(&draft, segments.concat()).and_then(|()| fs::rename(draft, part(*own))).map_err(lost(*own))?;
        let mut merged = Vec::new();
        for &node in id.scope.members(all) {
            while !part(node).exists() {
                fs::metadata(directory.path().join(node.to_string())).map_err(lost(node))?;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let part = fs::read(part(node)).map_err(lost(node))?;
            merged.push(Segment::decode(part.into()).map_err(|error| lost(node)(io::Error::other(error)))?);
        }
        Ok(merged.into())
    }
}

fn cluster(nodes: u32) -> io::Result<Cluster> {
    let (directory, all) = (Arc::new(tempfile::tempdir()?), (0..nodes).map(NodeIndex).collect::<Vec<_>>());
    all.iter().try_for_each(|node| fs::write(directory.path().join(node.to_string()), []))?;
    let fences = all.iter().map(|&node| Arc::new(ByFiles(directory.clone(), node, all.clone())) as Arc<dyn Fence>);
    let fences = fences.collect();
    let lose = move |node: NodeIndex| _ = fs::remove_file(directory.path().join(node.to_string()));
    Ok(Cluster { fences, lose: Some(Box::new(lose)) })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    check(9, async |nodes| cluster(nodes).expect("files can be made")).await?;
    println!("9 nodes with one directory keep all promises of a fence");
    Ok(())
}
