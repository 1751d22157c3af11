//! Inventory as XML of hwloc 2. hwloc 2.0 and later load it instead of reading the machine.
//!
//! hwloc has two parsers. Its own small one needs the three header lines on separate lines, only five entities, and content of the
//! announced length; this output suits both. Objects, sets and sizes are equal to the results of hwloc itself (`tests/hwloc.rs` compares
//! them).

mod read;

use quick_xml::Writer;
use quick_xml::escape::partial_escape;
use quick_xml::events::attributes::Attribute;
use quick_xml::events::{BytesDecl, BytesEnd, BytesStart, BytesText, Event};
use quick_xml::name::QName;

pub use self::read::{XmlError, read};
use crate::allowed::Allowed;
use crate::cpus::{CpuSet, NodeSet};
use crate::node::{AddressKind, Inventory};
use crate::template::{CacheKind, CacheType, OsDevice, OsKind, PciDevice};
use crate::tree::{Object, ObjectKind, Tree};

/// Kinds of groups, with the numbers of hwloc's `private/misc.h`.
const GROUP_BOOK: &str = "110";
const GROUP_CLUSTER: &str = "222";
const GROUP_MEMORY: &str = "1001";

/// Kind of a distance matrix: reported by the system, a latency.
const DISTANCES_FROM_SYSTEM: &str = "5";

/// Returns the XML of an inventory for processes with these allowed CPUs and NUMA nodes. `None` if CPUs, memory or the PCI bus could not
/// be read: a library that selects its network interface from incomplete XML would select any.
pub fn write(inventory: &Inventory, allowed: &Allowed) -> Option<String> {
    let is_whole = inventory.trouble.iter().all(|trouble| !["cpu", "memory", "pci"].contains(&trouble.source.as_str()));
    if !is_whole || inventory.template.cpus.is_empty() {
        return None;
    }
    let tree = Tree::of(&inventory.template);
    let mut out = Output { xml: Writer::new_with_indent(Vec::new(), b' ', 0), objects: 0 };
    out.emit(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)));
    out.emit(Event::DocType(BytesText::from_escaped("topology SYSTEM \"hwloc2.dtd\"")));
    out.open("topology", &[("version", "2.0")]);
    out.machine(inventory, &tree, allowed);
    out.distances(inventory);
    for name in ["discovery.pu", "discovery.numa", "discovery.numa_memory", "custom.exported_support"] {
        out.empty("support", &[("name", name)]);
    }
    out.core_kinds(inventory);
    out.close("topology");
    String::from_utf8(out.xml.into_inner()).ok()
}

/// XML writer with its state.
struct Output {
    xml: Writer<Vec<u8>>,
    /// Number of objects so far; the `gp_index` of each object.
    objects: u64,
}

type Attributes<'a> = Vec<(&'a str, String)>;

impl Output {
    fn emit(&mut self, event: Event<'_>) {
        self.xml.write_event(event).expect("memory takes everything that is written to it");
    }

    fn element(name: &'static str, attributes: &[(&str, impl AsRef<str>)]) -> BytesStart<'static> {
        let mut start = BytesStart::new(name);
        for (key, value) in attributes {
            // The characters that hwloc itself writes. A quotation mark would need an entity that only one of its parsers supports.
            let plain = |c: &char| matches!(c, ' '..='~') && *c != '"';
            let value: String = value.as_ref().chars().filter(plain).collect();
            start.push_attribute(Attribute { key: QName(key), value: partial_escape(&value) });
        }
        start
    }

    fn open(&mut self, name: &'static str, attributes: &[(&str, impl AsRef<str>)]) {
        self.emit(Event::Start(Self::element(name, attributes)));
    }

    fn empty(&mut self, name: &'static str, attributes: &[(&str, impl AsRef<str>)]) {
        self.emit(Event::Empty(Self::element(name, attributes)));
    }

    fn close(&mut self, name: &'static str) {
        self.emit(Event::End(BytesEnd::new(name)));
    }

    fn info(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.empty("info", &[("name", name), ("value", value)]);
        }
    }

    /// Opens an object, and adds its `gp_index`.
    fn object(&mut self, kind: &str, attributes: Attributes<'_>) {
        self.objects += 1;
        let mut all = vec![("type", kind.to_owned())];
        all.extend(attributes);
        all.push(("gp_index", self.objects.to_string()));
        self.open("object", &all);
    }

    fn machine(&mut self, inventory: &Inventory, tree: &Tree<'_>, allowed: &Allowed) {
        let template = &inventory.template;
        let mut complete = template.cpus.clone();
        complete.add(&template.offline);
        let nodes = &tree.root.nodes;
        let attributes = vec![
            ("os_index", "0".to_owned()),
            ("cpuset", bitmap(&template.cpus)),
            ("complete_cpuset", bitmap(&complete)),
            ("allowed_cpuset", bitmap(&allowed.cpus.intersection(&template.cpus))),
            ("nodeset", bitmap(nodes)),
            ("complete_nodeset", bitmap(nodes)),
            ("allowed_nodeset", bitmap(&allowed.nodes.intersection(nodes))),
        ];
        self.object("Machine", attributes);
        self.info("Backend", "Linux");
        self.info("OSName", "Linux");
        self.info("OSRelease", &inventory.kernel);
        self.info("Architecture", &template.arch);
        self.within(&tree.root, inventory, tree);
        self.close("object");
    }

    /// Writes the content of an object: NUMA nodes, objects with CPUs, devices.
    fn within(&mut self, object: &Object<'_>, inventory: &Inventory, tree: &Tree<'_>) {
        for &index in &object.numa {
            self.numa_node(index, object, inventory, tree);
        }
        for child in &object.children {
            let mut attributes = Attributes::new();
            attributes.extend(child.id.map(|id| ("os_index", id.to_string())));
            attributes.extend(sets(&child.cpus, &child.nodes));
            let name = type_name(child.kind, &mut attributes);
            self.object(&name, attributes);
            if child.kind == ObjectKind::Package {
                self.info("CPUModel", &inventory.template.model);
            }
            self.within(child, inventory, tree);
            self.close("object");
        }
        // hwloc needs a bridge between CPUs and devices. The devices are sorted by address.
        for devices in object.pci.chunk_by(|one, next| one.address.domain == next.address.domain) {
            self.host_bridge(devices, inventory);
        }
    }

    fn numa_node(&mut self, index: usize, at: &Object<'_>, inventory: &Inventory, tree: &Tree<'_>) {
        let node = &tree.numa[index];
        let mut attributes = vec![("os_index", node.id.to_string())];
        // hwloc gives memory the CPUs of the object to which it is attached.
        attributes.extend(sets(&at.cpus, &[node.id].into_iter().collect()));
        attributes.extend(inventory.memory.get(index).map(|bytes| ("local_memory", bytes.to_string())));
        self.object("NUMANode", attributes);
        self.close("object");
    }

    fn host_bridge(&mut self, devices: &[&PciDevice], inventory: &Inventory) {
        let domain = devices.first().map_or(0, |device| device.address.domain);
        let buses = devices.iter().map(|device| device.address.bus);
        let (first, last) = (buses.clone().min().unwrap_or(0), buses.max().unwrap_or(0));
        let attributes = vec![
            ("bridge_type", "0-1".to_owned()),
            ("depth", "0".to_owned()),
            ("bridge_pci", format!("{domain:04x}:[{first:02x}-{last:02x}]")),
        ];
        self.object("Bridge", attributes);
        for device in devices {
            let [vendor, product] = device.id;
            let [board_vendor, board] = device.board;
            let (class, revision) = (device.class, device.revision);
            let attributes = vec![
                ("pci_busid", device.address.to_string()),
                (
                    "pci_type",
                    format!("{class:04x} [{vendor:04x}:{product:04x}] [{board_vendor:04x}:{board:04x}] {revision:02x}"),
                ),
                ("pci_link_speed", format!("{:.6}", f64::from(device.link_mb) / 1000.0)),
            ];
            self.object("PCIDev", attributes);
            for os in &device.names {
                self.os_device(os, inventory);
            }
            self.close("object");
        }
        self.close("object");
    }

    fn os_device(&mut self, os: &OsDevice, inventory: &Inventory) {
        let number = match os.kind {
            OsKind::Block => "0",
            OsKind::Gpu => "1",
            OsKind::Net => "2",
            OsKind::Fabric => "3",
            // hwloc has no such class: the network interface represents the device.
            OsKind::Cxi => return,
        };
        self.object("OSDev", vec![("name", os.name.clone()), ("osdev_type", number.to_owned())]);
        let infos = [
            ("Address", AddressKind::Mac),
            ("NodeGUID", AddressKind::NodeGuid),
            ("SysImageGUID", AddressKind::SystemGuid),
            ("Port1LID", AddressKind::Lid),
        ];
        for (name, kind) in infos {
            self.info(name, inventory.address(&os.name, kind).unwrap_or_default());
        }
        self.close("object");
    }

    fn distances(&mut self, inventory: &Inventory) {
        let numa = &inventory.template.numa;
        if numa.len() < 2 || numa.iter().any(|node| node.distances.len() != numa.len()) {
            return;
        }
        let count = numa.len().to_string();
        let attributes = [
            ("type", "NUMANode"),
            ("nbobjs", &count),
            ("kind", DISTANCES_FROM_SYSTEM),
            ("name", "NUMALatency"),
            ("indexing", "os"),
        ];
        self.open("distances2", &attributes);
        self.numbers("indexes", numa.iter().map(|node| node.id.into()));
        self.numbers("u64values", numa.iter().flat_map(|node| node.distances.iter().copied()));
        self.close("distances2");
    }

    fn numbers(&mut self, name: &'static str, numbers: impl Iterator<Item = u32>) {
        let text: String = numbers.map(|number| format!("{number} ")).collect();
        self.open(name, &[("length", text.len().to_string())]);
        self.emit(Event::Text(BytesText::new(&text)));
        self.close(name);
    }

    fn core_kinds(&mut self, inventory: &Inventory) {
        for (efficiency, kind) in inventory.template.core_kinds.iter().enumerate() {
            let attributes = [("cpuset", bitmap(&kind.cpus)), ("forced_efficiency", efficiency.to_string())];
            self.open("cpukind", &attributes);
            match kind.name.as_str() {
                "" => self.info("LinuxCapacity", &kind.capacity.to_string()),
                "atom" => self.info("CoreType", "IntelAtom"),
                _ => self.info("CoreType", "IntelCore"),
            }
            self.close("cpukind");
        }
    }
}

/// Sets of an object. hwloc 2.9 crashes without the complete sets, though they equal the other sets below the machine.
fn sets(cpus: &CpuSet, nodes: &NodeSet) -> [(&'static str, String); 4] {
    let (cpus, nodes) = (bitmap(cpus), bitmap(nodes));
    [("cpuset", cpus.clone()), ("complete_cpuset", cpus), ("nodeset", nodes.clone()), ("complete_nodeset", nodes)]
}

/// Name of an object's type; adds the attributes of the type.
fn type_name(kind: ObjectKind<'_>, attributes: &mut Attributes<'_>) -> String {
    match kind {
        ObjectKind::Machine => "Machine".to_owned(),
        ObjectKind::Package => "Package".to_owned(),
        ObjectKind::Die => "Die".to_owned(),
        ObjectKind::Drawer => group(attributes, "Drawer", GROUP_BOOK, "1"),
        ObjectKind::Book => group(attributes, "Book", GROUP_BOOK, "0"),
        ObjectKind::Cluster => group(attributes, "Cluster", GROUP_CLUSTER, "0"),
        ObjectKind::NumaGroup => group(attributes, "", GROUP_MEMORY, "0"),
        ObjectKind::Cache(cache) => {
            attributes.extend(cache_attributes(cache));
            let suffix = if cache.kind == CacheType::Instruction { "i" } else { "" };
            format!("L{}{suffix}Cache", cache.level)
        }
        ObjectKind::Core => "Core".to_owned(),
        ObjectKind::Cpu => "PU".to_owned(),
    }
}

fn group(attributes: &mut Attributes<'_>, subtype: &str, kind: &str, subkind: &str) -> String {
    if !subtype.is_empty() {
        attributes.push(("subtype", subtype.to_owned()));
    }
    attributes.extend([("kind", kind.to_owned()), ("subkind", subkind.to_owned())]);
    "Group".to_owned()
}

fn cache_attributes(cache: &CacheKind) -> [(&'static str, String); 5] {
    let kind = match cache.kind {
        CacheType::Unified => "0",
        CacheType::Data => "1",
        CacheType::Instruction => "2",
    };
    [
        ("cache_size", cache.size.to_string()),
        ("depth", cache.level.to_string()),
        ("cache_linesize", cache.line.to_string()),
        ("cache_associativity", cache.ways.to_string()),
        ("cache_type", kind.to_owned()),
    ]
}

/// Set in hwloc's format: words of 32 bits in hexadecimal, the highest first.
fn bitmap(set: &CpuSet) -> String {
    let words = set.words();
    if words.is_empty() {
        return "0x0".to_owned();
    }
    words.iter().rev().map(|word| format!("0x{word:08x}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_written_as_hwloc_does() {
        let check = |set: &str, expected: &str| assert_eq!(bitmap(&set.parse().unwrap()), expected);
        check("", "0x0");
        check("0-1", "0x00000003");
        check("0,32", "0x00000001,0x00000001");
        check("64", "0x00000001,0x00000000,0x00000000");
    }
}
