//! Reads a template from XML of hwloc 2, as written by `lstopo --of xml` on a node, for nodes that are described in
//! files.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::cpus::CpuSet;
use crate::source::pci_kind;
use crate::template::{CacheKind, CacheType, Group, NumaNode, OsDevice, OsKind, PciDevice, Template};

/// Limit on the words in a set of CPUs, since CPU numbers have 16 bits.
const WORDS_MAX: usize = 65_536 / 32;

/// Error for a text that is not a topology.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XmlError {
    /// The text is not valid XML.
    #[error("at byte {at}: {source}")]
    Syntax {
        /// Position.
        at: u64,
        /// Error.
        source: quick_xml::Error,
    },
    /// The XML has no topology of hwloc 2.
    #[error("it has no element <topology version=\"2...\">; `lstopo --of xml` of hwloc 2 writes one")]
    NoTopology,
    /// The value of an attribute is not valid.
    #[error("at byte {at}: {attribute} is {value:?}")]
    Attribute {
        /// Position.
        at: u64,
        /// Name of the attribute.
        attribute: &'static str,
        /// Its value.
        value: String,
    },
    /// The text ends before its elements end.
    #[error("it is cut off")]
    Cut,
    /// The topology has no CPUs.
    #[error("it has no CPUs")]
    NoCpus,
}

/// Reads a kind of node from XML: all except distances, kinds of cores, and models of devices.
///
/// # Errors
/// Fails if the text is not XML of hwloc 2, or has invalid values.
pub fn read(text: &str) -> Result<Template, XmlError> {
    let mut reader = Reader::from_str(text);
    let mut reading = Reading::default();
    let mut open = 0_usize;
    loop {
        let at = reader.buffer_position();
        match reader.read_event().map_err(|source| XmlError::Syntax { at, source })? {
            Event::Start(element) => {
                reading.open(&Element { element: &element, at })?;
                open += 1;
            }
            Event::Empty(element) => {
                reading.open(&Element { element: &element, at })?;
                reading.close(element.name().as_ref() == "object");
            }
            Event::End(element) => {
                reading.close(element.name().as_ref() == "object");
                open = open.saturating_sub(1);
            }
            Event::Eof if open > 0 => return Err(XmlError::Cut),
            Event::Eof => break,
            _ => {}
        }
    }
    if !reading.is_topology {
        return Err(XmlError::NoTopology);
    }
    let mut template = reading.template;
    if template.cpus.is_empty() {
        return Err(XmlError::NoCpus);
    }
    template.sort();
    Ok(template)
}

/// Template during parsing.
#[derive(Default)]
struct Reading {
    template: Template,
    is_topology: bool,
    /// Enclosing objects at the present position.
    around: Vec<Around>,
}

/// Object that is open.
struct Around {
    /// CPUs; for a device, those of the enclosing object.
    cpus: CpuSet,
    is_kept_device: bool,
}

/// Element with its position in the text.
struct Element<'a> {
    element: &'a BytesStart<'a>,
    at: u64,
}

impl Reading {
    fn open(&mut self, element: &Element<'_>) -> Result<(), XmlError> {
        match element.element.name().as_ref() {
            "topology" => self.is_topology = element.text("version").is_some_and(|version| version.starts_with("2.")),
            "info" => self.info(element),
            "object" => self.object(element)?,
            _ => {}
        }
        Ok(())
    }

    fn close(&mut self, is_object: bool) {
        if is_object {
            self.around.pop();
        }
    }

    fn info(&mut self, element: &Element<'_>) {
        let value = || element.text("value").unwrap_or_default();
        match element.text("name").as_deref() {
            Some("Architecture") => self.template.arch = value(),
            Some("CPUModel") => self.template.model = value(),
            _ => {}
        }
    }

    fn object(&mut self, element: &Element<'_>) -> Result<(), XmlError> {
        let outer = || self.around.last().map(|around| around.cpus.clone()).unwrap_or_default();
        let cpus = element.cpus("cpuset")?.unwrap_or_else(outer);
        let kind = element.text("type").unwrap_or_default();
        let group = || -> Result<Group, XmlError> { Ok(Group { cpus: cpus.clone(), id: element.number("os_index")? }) };
        let template = &mut self.template;
        let mut is_kept_device = false;
        match kind.as_str() {
            "Machine" => {
                template.offline = element.cpus("complete_cpuset")?.unwrap_or_default().without(&cpus);
                template.cpus = cpus.clone();
            }
            "Package" => template.packages.push(group()?),
            "Die" => template.dies.push(group()?),
            "Group" => match element.text("subtype").as_deref() {
                Some("Drawer") => template.drawers.push(group()?),
                Some("Book") => template.books.push(group()?),
                Some("Cluster") => template.clusters.push(group()?),
                _ => {}
            },
            "Core" => template.cores.push(group()?),
            "NUMANode" => template.numa.push(NumaNode {
                id: element.number("os_index")?.unwrap_or_default(),
                cpus: cpus.clone(),
                memory_gib: element.number::<u64>("local_memory")?.unwrap_or(0).saturating_add(1 << 29) >> 30,
                ..NumaNode::default()
            }),
            "PCIDev" => {
                let device = element.device(cpus.clone())?;
                is_kept_device = device.is_some();
                template.pci.extend(device);
            }
            "OSDev" if self.around.last().is_some_and(|around| around.is_kept_device) => {
                let name = element.text("name").unwrap_or_default();
                let kind = element.text("osdev_type").and_then(|number| os_kind(&number));
                if let Some((device, kind)) = template.pci.last_mut().zip(kind) {
                    device.names.push(OsDevice { kind, name });
                }
            }
            name if name.ends_with("Cache") => self.cache(element, group()?)?,
            _ => {}
        }
        self.around.push(Around { cpus, is_kept_device });
        Ok(())
    }

    fn cache(&mut self, element: &Element<'_>, cache: Group) -> Result<(), XmlError> {
        let kind = match element.text("cache_type").as_deref() {
            Some("1") => CacheType::Data,
            Some("2") => CacheType::Instruction,
            _ => CacheType::Unified,
        };
        let of = CacheKind {
            level: element.number("depth")?.unwrap_or_default(),
            kind,
            size: element.number("cache_size")?.unwrap_or_default(),
            line: element.number("cache_linesize")?.unwrap_or_default(),
            // -1 means fully associative.
            ways: element.number::<i64>("cache_associativity")?.and_then(|ways| ways.try_into().ok()).unwrap_or(0),
            instances: Vec::new(),
        };
        let is_same = |known: &&mut CacheKind| {
            (known.level, known.kind, known.size, known.line, known.ways)
                == (of.level, of.kind, of.size, of.line, of.ways)
        };
        match self.template.caches.iter_mut().find(is_same) {
            Some(known) => known.instances.push(cache),
            None => self.template.caches.push(CacheKind { instances: vec![cache], ..of }),
        }
        Ok(())
    }
}

impl Element<'_> {
    /// Value of an attribute, without white space around it.
    fn text(&self, name: &str) -> Option<String> {
        let attribute = self.element.try_get_attribute(name).ok().flatten()?;
        let value = quick_xml::escape::unescape(&attribute.value).ok()?;
        Some(value.trim().to_owned())
    }

    fn parsed<T>(&self, name: &'static str, parse: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, XmlError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match parse(&value) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(XmlError::Attribute { at: self.at, attribute: name, value }),
        }
    }

    fn number<T: std::str::FromStr>(&self, name: &'static str) -> Result<Option<T>, XmlError> {
        self.parsed(name, |value| value.parse().ok())
    }

    fn cpus(&self, name: &'static str) -> Result<Option<CpuSet>, XmlError> {
        self.parsed(name, bitmap)
    }

    /// The PCI device; `None` if parallel programs do not use it.
    fn device(&self, cpus: CpuSet) -> Result<Option<PciDevice>, XmlError> {
        let Some(address) = self.parsed("pci_busid", |value| value.parse().ok())? else { return Ok(None) };
        let Some((class, id, board, revision)) = self.parsed("pci_type", pci_type)? else { return Ok(None) };
        let gigabytes: f64 = self.number("pci_link_speed")?.unwrap_or(0.0);
        Ok(pci_kind(class).map(|kind| PciDevice {
            address,
            kind,
            class,
            id,
            board,
            revision,
            numa: None,
            cpus,
            link_mb: if (0.0..1e6).contains(&gigabytes) { (gigabytes * 1000.0).round() as u32 } else { 0 },
            model: String::new(),
            names: Vec::new(),
        }))
    }
}

/// Parses `0200 [17db:0501] [17db:0502] 01`: class, vendor and device, vendor and device of the board, revision.
fn pci_type(text: &str) -> Option<(u16, [u16; 2], [u16; 2], u8)> {
    let mut words = text.split_whitespace();
    let hex = |text: &str| u16::from_str_radix(text, 16).ok();
    let class = hex(words.next()?)?;
    let mut pair = || {
        let (vendor, device) = words.next()?.strip_prefix('[')?.strip_suffix(']')?.split_once(':')?;
        Some([hex(vendor)?, hex(device)?])
    };
    let (id, board) = (pair()?, pair()?);
    Some((class, id, board, u8::from_str_radix(words.next()?, 16).ok()?))
}

fn os_kind(number: &str) -> Option<OsKind> {
    match number {
        "0" => Some(OsKind::Block),
        "1" => Some(OsKind::Gpu),
        "2" => Some(OsKind::Net),
        "3" => Some(OsKind::Fabric),
        _ => None,
    }
}

/// Parses a set in hwloc's format: words of 32 bits in hexadecimal, the highest first; an empty word is 0.
fn bitmap(text: &str) -> Option<CpuSet> {
    let words: Vec<&str> = text.split(',').collect();
    if words.len() > WORDS_MAX {
        return None;
    }
    let mut cpus = Vec::new();
    for (word, index) in words.iter().rev().zip(0_u16..) {
        let bits = match word.strip_prefix("0x").unwrap_or(word) {
            "" => 0,
            digits => u32::from_str_radix(digits, 16).ok()?,
        };
        cpus.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| index * 32 + bit));
    }
    Some(cpus.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allowed::Allowed;
    use crate::node::Inventory;

    /// A node of two CPUs with an interface, in hwloc's format.
    const NODE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
        <!DOCTYPE topology SYSTEM "hwloc2.dtd">
        <topology version="2.0">
        <object type="Machine" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000007" gp_index="1">
          <info name="Architecture" value="x86_64"/>
          <object type="Package" os_index="0" cpuset="0x00000003" gp_index="2">
            <info name="CPUModel" value="A &amp; B"/>
            <object type="NUMANode" os_index="0" cpuset="0x00000003" local_memory="4123456789" gp_index="3"/>
            <object type="L3Cache" os_index="0" cpuset="0x00000003" cache_size="1024" depth="3" cache_linesize="64" cache_associativity="-1" cache_type="0">
              <object type="Core" os_index="0" cpuset="0x00000001"><object type="PU" os_index="0" cpuset="0x00000001"/></object>
              <object type="Core" os_index="1" cpuset="0x00000002"><object type="PU" os_index="1" cpuset="0x00000002"/></object>
            </object>
          </object>
          <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[00-01]">
            <object type="PCIDev" pci_busid="0000:00:03.0" pci_type="0200 [1af4:1041] [1af4:1100] 01" pci_link_speed="31.507692">
              <object type="OSDev" name="hsn0" osdev_type="2"><info name="Address" value="02:00"/></object>
            </object>
            <object type="PCIDev" pci_busid="0000:00:01.0" pci_type="0601 [8086:7000] [1af4:1100] 00" pci_link_speed="0.000000"/>
          </object>
        </object>
        </topology>"#;

    #[test]
    fn what_hwloc_writes_is_a_template() {
        let template = read(NODE).unwrap();
        assert_eq!((template.cpus.to_string(), template.offline.to_string()), ("0-1".into(), "2".into()));
        assert_eq!((template.arch.as_str(), template.model.as_str()), ("x86_64", "A & B"));
        assert_eq!((template.packages.len(), template.cores.len(), template.numa[0].memory_gib), (1, 2, 4));
        assert_eq!((template.caches[0].size, template.caches[0].ways), (1024, 0));
        let [nic] = &template.pci[..] else { panic!("{:?}", template.pci) };
        assert_eq!((nic.id, nic.link_mb, nic.cpus.to_string()), ([0x1af4, 0x1041], 31508, "0-1".into()));
        assert_eq!(nic.names, [OsDevice { kind: OsKind::Net, name: "hsn0".into() }]);
    }

    #[test]
    fn what_is_written_is_read() {
        let template = read(NODE).unwrap();
        let written = crate::xml::write(&Inventory::of_kind(template.clone()), &Allowed::all(&template)).unwrap();
        assert_eq!(read(&written).unwrap(), template);
    }

    #[test]
    fn no_text_is_taken_for_what_it_is_not() {
        let check = |text: &str, expected: &str| {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("", "no element <topology");
        check("<topology><object type=\"Machine\" cpuset=\"0x1\"/></topology>", "no element <topology");
        check("<topology version=\"2.0\"></topology>", "no CPUs");
        check("<topology version=\"2.0\"><object type=\"Machine\" cpuset=\"0x1\"></topology>", "at byte");
        check(&NODE.replace("0x00000003", "0xf...f"), "cpuset is \"0xf...f\"");
        check(&NODE.replace("[1af4:1041]", "[1af4]"), "pci_type is");
        for length in (0..NODE.len()).filter(|&length| NODE.is_char_boundary(length)) {
            assert!(read(&NODE[..length]).is_err(), "{}", &NODE[..length]);
        }
    }
}
