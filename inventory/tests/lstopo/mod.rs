//! hwloc's view of a topology, as comparable lines: from the XML of this crate, and from the files of a machine.
//!
//! With `HWLOC_FSROOT` hwloc reads another root, and with `HWLOC_COMPONENTS=linux,stop` only the kernel's files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// Objects in their order, as text: depth, type, and the attributes that must agree. Distances and kinds of cores follow. Devices
/// come last, by address.
pub(crate) type Objects = Vec<String>;

/// Runs hwloc's `lstopo`, and returns its XML.
///
/// # Errors
/// Fails if `lstopo` fails or prints a message; the error is that message.
pub(crate) fn lstopo(arguments: &[&str], root: Option<&Path>, environment: &[(&str, &str)]) -> Result<String, String> {
    let mut command = Command::new("lstopo");
    command.args(["--of", "xml", "--no-collapse"]).args(arguments).env("HWLOC_COMPONENTS", "linux,stop");
    command.envs(environment.iter().copied());
    if let Some(root) = root {
        command.env("HWLOC_FSROOT", root).env("HWLOC_THISSYSTEM", "0");
    }
    let missing = |error| format!("lstopo cannot be run: {error}; the Debian package hwloc-nox brings it");
    let output = command.output().map_err(missing)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || !errors.is_empty() {
        return Err(format!("lstopo: {}: {errors}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("lstopo: {error}"))
}

/// Loads XML of this crate into hwloc, and returns hwloc's XML of it.
///
/// # Errors
/// Fails if hwloc does not load the XML.
pub(crate) fn loaded(xml: &str) -> Result<String, String> {
    let file = tempfile::NamedTempFile::with_suffix(".xml").map_err(|error| format!("no temporary file: {error}"))?;
    fs::write(file.path(), xml).map_err(|error| format!("{}: {error}", file.path().display()))?;
    lstopo(&["-i", &file.path().to_string_lossy()], None, &[])
}

/// Attributes that must agree, by type.
fn compared(kind: &str) -> &'static [&'static str] {
    match kind {
        "Machine" => &["cpuset", "complete_cpuset", "allowed_cpuset", "nodeset", "allowed_nodeset"],
        "NUMANode" => &["os_index", "cpuset", "nodeset", "local_memory"],
        "Group" => &["cpuset", "nodeset", "subtype"],
        "PCIDev" => &["pci_busid", "pci_type"],
        "OSDev" => &["name", "osdev_type"],
        "Bridge" => &[],
        _ if kind.ends_with("Cache") => &[
            "os_index",
            "cpuset",
            "nodeset",
            "cache_size",
            "depth",
            "cache_linesize",
            "cache_associativity",
            "cache_type",
        ],
        _ => &["os_index", "cpuset", "nodeset"],
    }
}

/// Infos that must agree.
const INFOS: &[&str] = &["Address", "NodeGUID", "SysImageGUID"];

/// Enclosing object.
enum Around {
    /// Object with CPUs.
    Cpus(String),
    /// Relevant PCI device, or a kernel device of it.
    Device,
    /// Any other object.
    Other,
}

/// Parser of hwloc's XML.
#[derive(Default)]
struct Lines {
    lines: Objects,
    kinds: Objects,
    /// PCI devices, each with its kernel devices.
    devices: Vec<(String, Vec<String>)>,
    around: Vec<Around>,
    /// Number of enclosing objects that are not compared.
    left_out: usize,
}

/// Objects of a topology. Bridges are omitted, and all device properties that MPI libraries do not use.
pub(crate) fn objects(xml: &str) -> Objects {
    let mut reader = Reader::from_str(xml);
    let mut lines = Lines::default();
    let mut in_numbers = false;
    loop {
        let event = reader.read_event().unwrap();
        let is_empty = matches!(event, Event::Empty(_));
        match event {
            Event::Eof => return lines.into_objects(),
            Event::Start(start) | Event::Empty(start) => {
                let attributes = attributes(&start);
                match start.name().0 {
                    "object" => lines.object(attributes, is_empty),
                    "info" if lines.left_out == 0 => lines.info(&attributes),
                    "distances2" => lines.lines.push(format!("distances of {}", attributes["type"])),
                    "cpukind" => lines.kinds.push(format!("kind of cores {}", attributes["cpuset"])),
                    name => in_numbers = ["indexes", "u64values"].contains(&name),
                }
            }
            Event::Text(text) if in_numbers => lines.lines.last_mut().unwrap().push_str(&format!(" {}", text.trim())),
            Event::End(end) if end.name().0 == "object" => {
                lines.around.pop();
                lines.left_out = lines.left_out.saturating_sub(1);
            }
            Event::End(_) => in_numbers = false,
            _ => {}
        }
    }
}

impl Lines {
    fn object(&mut self, attributes: BTreeMap<String, String>, is_empty: bool) {
        let kind = attributes["type"].as_str();
        let is_in_device = matches!(self.around.last(), Some(Around::Device));
        let is_left_out = self.left_out > 0 || !matters(&attributes);
        let is_shown = !is_left_out && !["Bridge", "MemCache"].contains(&kind);
        if is_shown {
            let shown = compared(kind).iter().filter_map(|name| Some(format!(" {name}={}", attributes.get(*name)?)));
            let shown = shown.collect::<String>();
            match kind {
                "PCIDev" => {
                    let place = self.cpus_around().last().cloned().unwrap_or_default();
                    self.devices.push((format!("PCIDev{shown} at={place}"), Vec::new()));
                }
                "OSDev" if is_in_device => self.devices.last_mut().unwrap().1.push(format!(" OSDev{shown}")),
                // A device that belongs to no PCI device is not compared.
                "OSDev" => {}
                _ => self.lines.push(format!("{} {kind}{shown}", self.cpus_around().count())),
            }
        }
        if !is_empty {
            self.around.push(match attributes.get("cpuset") {
                Some(cpus) if is_shown => Around::Cpus(cpus.clone()),
                _ if is_shown && (kind == "PCIDev" || is_in_device) => Around::Device,
                _ => Around::Other,
            });
            self.left_out += usize::from(is_left_out);
        }
    }

    fn cpus_around(&self) -> impl Iterator<Item = &String> {
        self.around.iter().filter_map(|around| if let Around::Cpus(cpus) = around { Some(cpus) } else { None })
    }

    fn info(&mut self, attributes: &BTreeMap<String, String>) {
        if INFOS.contains(&attributes["name"].as_str())
            && let Some(Around::Device) = self.around.last()
            && let Some(device) = self.devices.last_mut().and_then(|(_, within)| within.last_mut())
        {
            device.push_str(&format!(" {}={}", attributes["name"], attributes["value"]));
        }
    }

    /// All lines: objects and distances, devices, kinds of cores.
    fn into_objects(mut self) -> Objects {
        self.devices.sort_unstable();
        for (mut device, mut within) in self.devices {
            within.sort_unstable();
            device.extend(within);
            self.lines.push(device);
        }
        // A single kind of cores is no information.
        if self.kinds.len() > 1 {
            self.lines.append(&mut self.kinds);
        }
        self.lines
    }
}

fn attributes(start: &BytesStart<'_>) -> BTreeMap<String, String> {
    start.attributes().map(|attribute| attribute.unwrap()).map(|a| (a.key.0.to_owned(), a.value.into_owned())).collect()
}

/// False for PCI devices other than network, GPU and NVMe disk, for names that only old drivers give, and for memory modules.
fn matters(attributes: &BTreeMap<String, String>) -> bool {
    if attributes["type"] == "Misc" || attributes.get("name").is_some_and(|name| name.starts_with("controlD")) {
        return false;
    }
    let Some(class) = attributes.get("pci_type").filter(|_| attributes["type"] == "PCIDev") else { return true };
    ["02", "0c06", "03", "12", "0108"].iter().any(|kind| class.starts_with(kind))
}
