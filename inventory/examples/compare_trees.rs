//! Compares the inventory of captured machines with the objects that hwloc finds there.
//!
//! `cargo run -p lattice-inventory --example compare_trees -- DIRECTORY [NAME]...`: a directory of directories, each with a tree as captured by
//! `hwloc-gather-topology`. Compares all of them, or only trees with a word in their name. Needs `lstopo`. Adds files to the trees that every
//! kernel has and captured trees lack.

#[path = "../tests/lstopo/mod.rs"]
mod lstopo;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lattice_inventory::{Allowed, CpuSet, Inventory, Root, xml};

/// Lists that kernels offer in addition to masks; captured trees have only the masks.
const LISTS: &[(&str, &str)] = &[
    ("core_cpus", "core_cpus_list"),
    ("thread_siblings", "thread_siblings_list"),
    ("package_cpus", "package_cpus_list"),
    ("core_siblings", "core_siblings_list"),
    ("die_cpus", "die_cpus_list"),
    ("cluster_cpus", "cluster_cpus_list"),
    ("book_siblings", "book_siblings_list"),
    ("drawer_siblings", "drawer_siblings_list"),
    ("shared_cpu_map", "shared_cpu_list"),
    ("cpumap", "cpulist"),
    ("local_cpus", "local_cpulist"),
];

/// Offset of the revision in a PCI device's configuration.
const PCI_REVISION: usize = 8;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(directory) = arguments.next() else {
        eprintln!("compare_trees: no directory of captured trees is named; hwloc-gather-topology makes them");
        return ExitCode::FAILURE;
    };
    let words: Vec<String> = arguments.collect();
    let trees = match trees(Path::new(&directory)) {
        Ok(trees) => trees,
        Err(error) => {
            eprintln!("compare_trees: cannot read {directory}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (mut equal, mut all) = (0, 0);
    for tree in &trees {
        let name = tree.file_name().unwrap_or_default().to_string_lossy();
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        all += 1;
        match compare(tree) {
            Ok(lines) if lines.is_empty() => {
                equal += 1;
                println!("{name}: equal");
            }
            Ok(lines) => println!("{name}: differs\n    {}", lines.join("\n    ")),
            Err(error) => println!("{name}: {error}"),
        }
    }
    println!("{equal} of {all} trees are equal");
    if equal == all && all > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The trees in a directory, sorted.
fn trees(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut trees = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    trees.sort_unstable();
    Ok(trees)
}

/// Returns the lines that only one side has: `-` before lines of this crate, `+` before lines of hwloc.
fn compare(tree: &Path) -> Result<Vec<String>, String> {
    let root = root_below(tree, 2).ok_or("holds no directory sys")?;
    complete(&root).map_err(|error| format!("cannot be completed: {error}"))?;
    let inventory = Inventory::read(&Root::at(&root));
    let mut lines: Vec<String> =
        inventory.trouble.iter().map(|trouble| format!("! {}: {}", trouble.source, trouble.reason)).collect();
    let allowed = Allowed::to_this_process(&Root::at(&root), &inventory.template.cpus);
    let allowed = allowed.unwrap_or_else(|| Allowed::all(&inventory.template));
    let ours = xml::write(&inventory, &allowed).ok_or_else(|| lines.join("; "))?;
    let ours = lstopo::objects(&lstopo::loaded(&ours)?);
    let hwlocs = lstopo::objects(&lstopo::lstopo(&["--whole-io"], Some(&root), &[("HWLOC_HIDE_ERRORS", "2")])?);
    lines.extend(difference(&ours, &hwlocs));
    Ok(lines)
}

/// The directory with `sys`: this one, or one at most `depth` levels below it.
fn root_below(directory: &Path, depth: usize) -> Option<PathBuf> {
    if directory.join("sys").is_dir() {
        return Some(directory.to_owned());
    }
    let within = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    within.filter(|path| depth > 0 && path.is_dir()).find_map(|path| root_below(&path, depth - 1))
}

/// Adds files that every kernel has. Captured trees lack them, because hwloc does not read them.
fn complete(root: &Path) -> io::Result<()> {
    for (directory, depth) in
        [("sys/devices/system/cpu", 3), ("sys/devices/system/node", 1), ("sys/bus/pci/devices", 1)]
    {
        add_lists(&root.join(directory), depth)?;
    }
    add_online(&root.join("sys/devices/system/cpu"))?;
    if let Some(nodes) = nodes_of_group(root) {
        // Bound, so that the control group is read.
        write(&root.join("proc/self/status"), &format!("Cpus_allowed_list:\t0\nMems_allowed_list:\t{nodes}\n"))?;
    }
    if let Ok(about) = fs::read_to_string(root.join("proc/hwloc-nofile-info"))
        && let Some(arch) = about.lines().find_map(|line| line.strip_prefix("Architecture: "))
    {
        fs::create_dir_all(root.join("proc/sys/kernel"))?;
        write(&root.join("proc/sys/kernel/arch"), arch)?;
    }
    for device in fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten() {
        let device = device?.path();
        let config = fs::read(device.join("config")).unwrap_or_default();
        // hwloc reads an unreadable configuration as all ones.
        let revision = config.get(PCI_REVISION).unwrap_or(&0xff);
        write(&device.join("revision"), &format!("{revision:#04x}"))?;
    }
    Ok(())
}

/// Writes the list of online CPUs, unless it exists.
fn add_online(cpus: &Path) -> io::Result<()> {
    if cpus.join("online").exists() {
        return Ok(());
    }
    let mut online = Vec::new();
    for entry in fs::read_dir(cpus)? {
        let entry = entry?;
        let is_off = fs::read_to_string(entry.path().join("online")).is_ok_and(|text| text.trim() == "0");
        let name = entry.file_name();
        let number = name.to_string_lossy().strip_prefix("cpu").and_then(|number| number.parse::<u16>().ok());
        online.extend(number.filter(|_| !is_off));
    }
    write(&cpus.join("online"), &online.into_iter().collect::<CpuSet>().to_string())
}

/// Writes a file, unless it already has this text.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if fs::read(path).is_ok_and(|bytes| bytes == text.as_bytes()) { Ok(()) } else { fs::write(path, text) }
}

/// NUMA nodes of the control group in which the tree was captured.
fn nodes_of_group(root: &Path) -> Option<String> {
    let mounts = fs::read_to_string(root.join("proc/mounts")).ok()?;
    let group = fs::read_to_string(root.join("proc/self/cpuset")).ok()?;
    let mounts = mounts.lines().filter(|line| line.contains("cgroup") || line.contains("cpuset"));
    let mut directories = mounts.filter_map(|line| Some(line.split(' ').nth(1)?.trim_start_matches('/')));
    directories.find_map(|directory| {
        let about = root.join(format!("{directory}{}", group.trim()));
        let files = ["cpuset.mems.effective", "cpuset.mems", "mems"];
        files.iter().find_map(|file| Some(fs::read_to_string(about.join(file)).ok()?.trim().to_owned()))
    })
}

/// Writes the list of each mask in a directory and `depth` levels below it.
fn add_lists(directory: &Path, depth: usize) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() && depth > 0 {
            add_lists(&path, depth - 1)?;
            continue;
        }
        let name = path.file_name().unwrap_or_default();
        let Some((_, list)) = LISTS.iter().find(|(mask, _)| *mask == name) else { continue };
        // In some trees the lists differ from the masks, which hwloc reads.
        if let Some(cpus) = mask(&fs::read_to_string(&path)?) {
            write(&path.with_file_name(list), &cpus.to_string())?;
        }
    }
    Ok(())
}

/// Parses a mask in the kernel's format: words of 32 bits in hexadecimal, the highest first.
fn mask(text: &str) -> Option<CpuSet> {
    let mut cpus = Vec::new();
    for (word, index) in text.trim_matches(['\0', '\n', ' ']).rsplit(',').zip(0_u16..) {
        let bits = u32::from_str_radix(word, 16).ok()?;
        cpus.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| index * 32 + bit));
    }
    Some(cpus.into_iter().collect())
}

/// Lines of one side only, in their order, without the common lines.
fn difference(ours: &[String], hwlocs: &[String]) -> Vec<String> {
    // Length of the longest common part of the remaining lines.
    let mut common = vec![vec![0_u32; hwlocs.len() + 1]; ours.len() + 1];
    for (i, our) in ours.iter().enumerate().rev() {
        for (j, hwloc) in hwlocs.iter().enumerate().rev() {
            common[i][j] = if our == hwloc { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < ours.len() || j < hwlocs.len() {
        if i < ours.len() && j < hwlocs.len() && ours[i] == hwlocs[j] {
            (i, j) = (i + 1, j + 1);
        } else if j == hwlocs.len() || (i < ours.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(format!("- {}", ours[i]));
            i += 1;
        } else {
            lines.push(format!("+ {}", hwlocs[j]));
            j += 1;
        }
    }
    lines
}
