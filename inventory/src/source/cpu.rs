//! CPUs, cores, dies, packages and kinds of cores, from `/sys/devices/system/cpu`.

use super::caches::Caches;
use super::{SYSTEM_CPU, Source};
use crate::cpus::CpuSet;
use crate::node::Inventory;
use crate::root::{ReadError, Root};
use crate::template::{CoreKind, Group, Template};

/// See the [module](self).
pub(super) struct Cpus;

impl Source for Cpus {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn gives(&self) -> &'static str {
        "binding, and no topology for ranks"
    }

    fn collect(&self, root: &Root, into: &mut Inventory) -> Result<(), ReadError> {
        let template = &mut into.template;
        template.cpus = root.required_list(&format!("{SYSTEM_CPU}/online"))?;
        let known: CpuSet = root.numbered(SYSTEM_CPU, "cpu")?.into_iter().collect();
        template.offline = known.without(&template.cpus);
        let processor = Processor::read(root);
        let online = template.cpus.clone();
        let (mut caches, mut looked_at) = (Caches::default(), LookedAt::default());
        for cpu in online.iter() {
            let topology = Topology { root, cpu, online: &online };
            topology.add_groups(&processor, template, &mut looked_at)?;
            let core = template.cores.iter().find(|core| core.cpus.contains(cpu)).map(|core| &core.cpus);
            caches.read(root, cpu, core.unwrap_or(&CpuSet::default()), &online)?;
        }
        (template.arch, template.model) = (processor.arch, processor.model);
        template.caches = caches.into_kinds();
        template.core_kinds = core_kinds(root, template)?;
        Ok(())
    }
}

/// Machine and processor, from the start of a long file of the kernel.
struct Processor {
    arch: String,
    model: String,
    /// True if siblings may be cores of a module, each with its own number: AMD families 21 and 22.
    may_have_modules: bool,
}

impl Processor {
    fn read(root: &Root) -> Self {
        let about = root.head("proc/cpuinfo");
        let field = |name: &str| {
            let value = about.lines().find_map(|line| line.strip_prefix(name)?.split_once(": "));
            value.map(|(_, value)| value.trim())
        };
        Self {
            arch: root.word("proc/sys/kernel/arch").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            model: field("model name").or_else(|| field("cpu\t")).unwrap_or_default().to_owned(),
            may_have_modules: field("vendor_id") == Some("AuthenticAMD")
                && matches!(field("cpu family"), Some("21" | "22")),
        }
    }

    /// True for architectures that may have books and drawers.
    fn may_have_books(&self) -> bool {
        self.arch.starts_with("s390")
    }
}

/// CPUs with known groups, including redundant groups that are not stored. The group files of these CPUs are not read.
#[derive(Default)]
struct LookedAt {
    dies: CpuSet,
    clusters: CpuSet,
}

/// Reads the location of one CPU from the kernel's files.
struct Topology<'a> {
    root: &'a Root,
    cpu: u16,
    online: &'a CpuSet,
}

impl Topology<'_> {
    fn number(&self, cpu: u16, name: &str) -> Option<u32> {
        self.root.number(&format!("{SYSTEM_CPU}/cpu{cpu}/topology/{name}"))
    }

    /// Online CPUs in the first list that exists; `None` if this CPU is not among them.
    fn list(&self, names: &[&str]) -> Result<Option<CpuSet>, ReadError> {
        for name in names {
            if let Some(list) = self.root.list(&format!("{SYSTEM_CPU}/cpu{}/topology/{name}", self.cpu))? {
                let here = list.intersection(self.online);
                return Ok(here.contains(self.cpu).then_some(here));
            }
        }
        Ok(None)
    }

    /// Online CPUs in the list `name`, unless the CPU is in `looked_at`. Adds them to `looked_at`.
    fn new_list(&self, looked_at: &mut CpuSet, name: &str) -> Result<Option<CpuSet>, ReadError> {
        if looked_at.contains(self.cpu) {
            return Ok(None);
        }
        let list = self.list(&[name])?;
        if let Some(cpus) = &list {
            looked_at.add(cpus);
        }
        Ok(list)
    }

    /// Adds the core, cluster, die and package of the CPU, each at its first online CPU.
    fn add_groups(
        &self,
        processor: &Processor,
        template: &mut Template,
        looked_at: &mut LookedAt,
    ) -> Result<(), ReadError> {
        if covers(&template.cores, self.cpu) {
            return Ok(());
        }
        // The second name was used before Linux 5.3.
        if let Some(core) = self.list(&["core_cpus_list", "thread_siblings_list"])? {
            self.add_core(core, processor, template);
        }
        if !covers(&template.packages, self.cpu) {
            let id = self.number(self.cpu, "physical_package_id");
            match self.list(&["package_cpus_list", "core_siblings_list"])? {
                Some(cpus) => template.packages.push(Group { cpus, id }),
                None => add_to_package(template, id, self.cpu),
            }
        }
        let package =
            template.packages.iter().find(|package| package.cpus.contains(self.cpu)).map(|package| &package.cpus);
        if let Some(die) = self.new_list(&mut looked_at.dies, "die_cpus_list")?
            // One die per package, or one CPU per die on architectures without dies, is the kernel's default.
            && die.len() > 1
            && package != Some(&die)
        {
            template.dies.push(Group { cpus: die, id: self.number(self.cpu, "die_id") });
        }
        if let Some(cluster) = self.new_list(&mut looked_at.clusters, "cluster_cpus_list")?
            && cluster.len() > 1
            && !template.packages.iter().chain(&template.dies).chain(&template.cores).any(|group| group.cpus == cluster)
        {
            template.clusters.push(Group { cpus: cluster, id: self.number(self.cpu, "cluster_id") });
        }
        if processor.may_have_books() {
            self.add_books(template)?;
        }
        Ok(())
    }

    /// Adds a core, or the cores of a module: the kernel lists all CPUs of a module as siblings, and each has its own
    /// core number.
    fn add_core(&self, cpus: CpuSet, processor: &Processor, template: &mut Template) {
        let id = |cpu: u16| self.number(cpu, "core_id");
        if processor.may_have_modules && cpus.iter().any(|cpu| id(cpu) != id(self.cpu)) {
            template.cores.extend(cpus.iter().map(|cpu| Group { cpus: [cpu].into_iter().collect(), id: id(cpu) }));
        } else {
            template.cores.push(Group { cpus, id: id(self.cpu) });
        }
    }

    fn add_books(&self, template: &mut Template) -> Result<(), ReadError> {
        if !covers(&template.books, self.cpu)
            && let Some(id) = self.number(self.cpu, "book_id")
            && let Some(cpus) = self.list(&["book_siblings_list"])?
        {
            template.books.push(Group { cpus, id: Some(id) });
        }
        if !covers(&template.drawers, self.cpu)
            && let Some(id) = self.number(self.cpu, "drawer_id")
            && let Some(cpus) = self.list(&["drawer_siblings_list"])?
        {
            template.drawers.push(Group { cpus, id: Some(id) });
        }
        Ok(())
    }
}

/// Adds a core to the package with its number, for kernels that do not list the CPUs of packages.
fn add_to_package(template: &mut Template, number: Option<u32>, cpu: u16) {
    let core = template.cores.iter().find(|core| core.cpus.contains(cpu)).map(|core| core.cpus.clone());
    let Some((core, number)) = core.zip(number) else { return };
    match template.packages.iter_mut().find(|package| package.id == Some(number)) {
        Some(package) => package.cpus.add(&core),
        None => template.packages.push(Group { cpus: core, id: Some(number) }),
    }
}

fn covers(groups: &[Group], cpu: u16) -> bool {
    groups.iter().any(|group| group.cpus.contains(cpu))
}

/// Kinds of cores of a processor that has several: from the lists of Intel's drivers, otherwise from the capacity.
fn core_kinds(root: &Root, template: &Template) -> Result<Vec<CoreKind>, ReadError> {
    let mut kinds = Vec::new();
    for (capacity, name) in [(0, "atom"), (1, "core")] {
        if let Some(list) = root.list(&format!("sys/devices/cpu_{name}/cpus"))? {
            let cpus = list.intersection(&template.cpus);
            if !cpus.is_empty() {
                kinds.push(CoreKind { capacity, name: name.to_owned(), cpus });
            }
        }
    }
    if kinds.is_empty() {
        for core in &template.cores {
            let cpu = core.cpus.first().unwrap_or_default();
            let Some(capacity) = root.number(&format!("{SYSTEM_CPU}/cpu{cpu}/cpu_capacity")) else { break };
            match kinds.iter_mut().find(|kind: &&mut CoreKind| kind.capacity == capacity) {
                Some(kind) => kind.cpus.add(&core.cpus),
                None => kinds.push(CoreKind { capacity, name: String::new(), cpus: core.cpus.clone() }),
            }
        }
    }
    if kinds.len() < 2 { Ok(Vec::new()) } else { Ok(kinds) }
}
