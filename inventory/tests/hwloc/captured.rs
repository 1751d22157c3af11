//! Captured machines, each in one file of `tests/captured`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use lattice_inventory::{Inventory, Root};
use tempfile::TempDir;

use super::check;

/// Decodes the text of a captured file: `\n`, `\t` and `\xHH`; all other bytes are literal.
fn bytes(text: &str) -> Vec<u8> {
    let mut parts = text.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (byte, length) = match part.as_bytes()[0] {
            b'n' => (b'\n', 1),
            b't' => (b'\t', 1),
            _ => (u8::from_str_radix(&part[1..3], 16).unwrap(), 3),
        };
        bytes.push(byte);
        bytes.extend(&part.as_bytes()[length..]);
    }
    bytes
}

/// Writes a captured machine into a directory.
fn unpacked(captured: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let parent = |path: &Path| fs::create_dir_all(path.parent().unwrap()).unwrap();
    for line in captured.lines().filter(|line| !line.starts_with('#')) {
        if let Some((path, text)) = line.split_once(" = ") {
            let path = directory.path().join(path);
            parent(&path);
            fs::write(path, bytes(text)).unwrap();
        } else {
            let (path, target) = line.split_once(" -> ").unwrap();
            let path = directory.path().join(path);
            parent(&path);
            symlink(target, path).unwrap();
        }
    }
    directory
}

#[test]
fn a_virtual_machine_as_it_was_captured() {
    let directory = unpacked(include_str!("../captured/virtual-machine.tree"));
    let inventory = check(&Root::at(directory.path()), Some(directory.path()));
    assert_eq!(inventory, Inventory::read(&Root::at(directory.path())));
    let template = &inventory.template;
    assert_eq!((template.cpus.to_string().as_str(), template.cores.len(), template.numa.len()), ("0-1", 2, 1));
    let devices: Vec<_> = template.pci.iter().map(|device| (device.kind, &device.names[..])).collect();
    assert_eq!(devices.len(), 1, "the network interface: {devices:?}");
    // A version that reads the same machine differently gives another signature, and then every cluster must send all its templates
    // again.
    assert_eq!(template.signature().to_string(), "f02c6448beffaa58bec6fec44d6ec117");
}
