use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use pmi_core::ids::NodeIndex;
use pmi_core::job::{App, Job};

use super::*;
use crate::cause::StartClass;
use crate::sample::{app, spec_on};
use crate::settings::{PmiFamily, TerminalSize};
use crate::template::Template;

/// Node 0 of a launch, as input of a plan.
struct Node {
    spec: SessionSpec,
    ranks: Vec<Rank>,
    entrances: Entrances,
    gpus: Vec<Vec<(&'static str, String)>>,
    fabric: Option<NodeFabric>,
    topology: Option<&'static str>,
    registers_memory: bool,
}

/// Node of a launch of `/bin/sh` with these numbers of ranks on its nodes.
fn node(counts: &[u32]) -> Node {
    let spec = SessionSpec { apps: vec![AppSpec { directory: "/".into(), ..app("sh") }], ..(*spec_on(counts)).clone() };
    let ranks = spec.job.placement.ranks_on(NodeIndex(0));
    let mut node = Node {
        spec,
        ranks,
        entrances: Entrances::default(),
        gpus: Vec::new(),
        fabric: None,
        topology: None,
        registers_memory: true,
    };
    node.inherit(&[("PATH", "/bin:/usr/bin")]);
    node
}

impl Node {
    fn inherit(&mut self, variables: &[(&str, &str)]) {
        self.spec.settings.environment.extend(variables.iter().map(|&(name, value)| (name.into(), value.into())));
    }

    fn serve_pmix(&mut self) {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, 4000));
        self.entrances.pmix = Some(PmixEntrance { namespace: "kvs_1_0.secret".to_owned(), server });
    }

    fn context(&self) -> LaunchContext<'_> {
        let (entrances, fabric) = (self.entrances.clone(), self.fabric.as_ref());
        let cpus = vec![None; self.ranks.len()];
        LaunchContext {
            spec: &self.spec,
            ranks: &self.ranks,
            entrances,
            cpus,
            memory: vec![None; self.ranks.len()],
            gpus: self.gpus.clone(),
            priority: Priority::default(),
            limits: Arc::new([]),
            fabric,
            topology: self.topology,
            registers_memory: self.registers_memory,
        }
    }

    /// Value of a variable of the first rank.
    fn variable(&self, name: &str) -> Option<String> {
        let shared = self.context().program_variables(&self.spec.apps[0]);
        let slurm = self.spec.settings.slurm_environment;
        let slurm = slurm.then(|| slurm_variables(&self.spec, &self.ranks, "n0,n1"));
        let own = self.context().variables(self.ranks[0], LocalRank(0), 0, "n0,n1", slurm.as_ref());
        let own = own.into_iter().find(|(own, _)| *own == name).map(|(_, value)| value);
        own.or_else(|| Some(shared.get(OsStr::new(name))?.to_str().unwrap().to_owned()))
    }

    fn refusal(&self) -> PlanError {
        self.context().plan(&StdinSource::Empty).map(|_| ()).unwrap_err()
    }
}

/// Port of a PMI server with keys for two ranks.
fn pmi_port() -> PmiPort {
    let mut keys = 1..;
    let keys = ClaimKeys::draw(2, || keys.next().ok_or(())).unwrap();
    PmiPort { address: "127.0.0.1:5000".to_owned(), file: Some("/tmp/lattice-x.0/pmi-0.sock".into()), keys }
}

#[test]
fn long_node_lists_are_folded() {
    let names = |count: u32| (0..count).map(|node| format!("node{node}")).collect::<Vec<_>>();
    assert_eq!(node_list(&names(3)), "node0,node1,node2");
    assert_eq!(node_list(&names(10_000)), "node[0-9999]");
}

#[test]
fn a_rank_is_told_its_gpus_whatever_was_inherited() {
    let mut node = node(&[2]);
    node.inherit(&[("CUDA_VISIBLE_DEVICES", "0,1,2,3")]);
    assert_eq!(node.variable("CUDA_VISIBLE_DEVICES").as_deref(), Some("0,1,2,3"));
    node.gpus = vec![vec![("CUDA_VISIBLE_DEVICES", "0".to_owned())], Vec::new()];
    assert_eq!(node.variable("CUDA_VISIBLE_DEVICES").as_deref(), Some("0"));
}

#[test]
fn a_rank_that_cannot_ask_finds_the_topology_by_variables_unless_its_user_says_otherwise() {
    let told = |node: &Node| ["HWLOC_XMLFILE", "HWLOC_THISSYSTEM"].map(|name| node.variable(name));
    let of = |file: &str| [Some(file.to_owned()), Some("1".to_owned())];
    let shared = || Node { topology: Some("/run/t.xml"), ..node(&[1]) };
    assert_eq!(told(&node(&[1])), [None, None]);
    assert_eq!(told(&shared()), of("/run/t.xml"));
    // The user's file may describe another machine.
    let mut own = shared();
    own.inherit(&[("HWLOC_XMLFILE", "/home/t.xml")]);
    assert_eq!(told(&own), [Some("/home/t.xml".to_owned()), None]);
    let mut made_up = shared();
    made_up.spec.apps[0].set.push(("HWLOC_SYNTHETIC".into(), "pu:4".into()));
    assert_eq!(told(&made_up), [None, None]);
    let mut none = shared();
    none.spec.apps[0].remove.push("HWLOC_XMLFILE".into());
    assert_eq!(told(&none), [None, None]);
}

#[test]
fn ranks_do_not_look_for_devices_that_their_node_does_not_have() {
    const BTL: &str = "OMPI_MCA_btl=^uct,openib,ofi";
    const MTL: &str = "OMPI_MCA_mtl=^ofi,psm,psm2";
    const UCX: &str = "UCX_MEM_EVENTS=n";
    let told = |node: &Node| {
        let variables = node.context().program_variables(&node.spec.apps[0]);
        let written = variables.iter().map(|(name, value)| format!("{}={}", name.display(), value.display()));
        written.filter(|variable| [BTL, MTL, UCX].contains(&variable.as_str())).collect::<Vec<_>>()
    };
    let without = || Node { registers_memory: false, ..node(&[1]) };
    assert!(told(&node(&[1])).is_empty(), "it may have one");
    assert_eq!(told(&without()), [BTL, MTL, UCX]);
    // The user's choices count, in variables of the launch.
    let cases: [(&str, &[&str]); 8] = [
        ("OMPI_MCA_btl", &[MTL, UCX]),
        ("OMPI_MCA_btl_ofi_mode", &[MTL, UCX]),
        ("OMPI_MCA_pml", &[BTL, UCX]),
        ("PSM2_DEVICES", &[BTL, UCX]),
        ("FI_PROVIDER", &[UCX]),
        ("OMPI_MCA_mca_base_param_files", &[UCX]),
        ("UCX_MEM_MMAP_HOOK_MODE", &[BTL, MTL]),
        ("OMPI_MCA_btl_tcp_if_include", &[BTL, MTL, UCX]),
    ];
    for (name, expected) in cases {
        let mut chosen = without();
        chosen.inherit(&[(name, "x"), ("UCX_TLS", "tcp")]);
        assert_eq!(told(&chosen), expected, "{name}");
        let mut of_program = without();
        of_program.spec.apps[0].set.push((name.into(), "x".into()));
        assert_eq!(told(&of_program), expected, "{name}");
    }
    let mut in_a_file = without();
    in_a_file.spec.settings.keeps_transports = true;
    in_a_file.spec.apps[0].remove.push("UCX_*".into());
    assert!(told(&in_a_file).is_empty());
    // Daemons of another launcher pass on their environment.
    let mut daemon = without();
    daemon.spec.settings.rank_variables = false;
    assert!(told(&daemon).is_empty());
}

#[test]
fn ranks_of_an_inner_launch_do_not_inherit_what_another_node_does_not_have() {
    let btl = |node: &Node| node.variable("OMPI_MCA_btl");
    let mut node = node(&[1]);
    node.inherit(&[("OMPI_MCA_btl", "^uct,openib,ofi")]);
    assert_eq!(btl(&node).as_deref(), Some("^uct,openib,ofi"), "a user's words");
    node.inherit(&[("LATTICE_LAUNCH_ID", "5")]);
    assert_eq!(btl(&node), None);
}

#[test]
fn a_rank_knows_its_place_in_the_launch() {
    let mut node = node(&[2, 1]);
    let expected = [
        ("LATTICE_LAUNCH_ID", "1"),
        ("LATTICE_ALLOC_ID", "local"),
        ("LATTICE_NODELIST", "n0,n1"),
        ("LATTICE_NNODES", "2"),
        ("LATTICE_NPROCS", "3"),
        ("LATTICE_RANK", "0"),
        ("LATTICE_LOCAL_RANK", "0"),
        ("LATTICE_LOCAL_SIZE", "2"),
        ("LATTICE_NODE", "0"),
        ("LATTICE_APPNUM", "0"),
    ];
    for (name, value) in expected {
        assert_eq!(node.variable(name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(node.variable("SLURM_PROCID"), None, "nobody asked for it");
    node.spec.settings.rank_variables = false;
    let of_ranks = ["LATTICE_RANK", "LATTICE_NPROCS", "LATTICE_LOCAL_RANK", "LATTICE_NODE", "LATTICE_APPNUM"];
    assert!(of_ranks.iter().all(|name| node.variable(name).is_none()), "it is no rank");
    assert!(node.variable("LATTICE_LAUNCH_ID").is_some(), "what is left of it is found by that");
    node.spec.settings.rank_variables = true;
    node.spec.allocation_id = Some("a7".to_owned());
    node.spec.settings.slurm_environment = true;
    let expected = [
        ("LATTICE_ALLOC_ID", "a7"),
        ("SLURM_PROCID", "0"),
        ("SLURM_NPROCS", "3"),
        ("SLURM_NTASKS", "3"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NODEID", "0"),
        ("SLURM_NNODES", "2"),
        ("SLURM_JOB_NUM_NODES", "2"),
        ("SLURM_NODELIST", "n0,n1"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_STEP_TASKS_PER_NODE", "2,1"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NODELIST", "n0,n1"),
        ("SLURM_GTIDS", "0,1"),
        ("SLURMD_NODENAME", "n0"),
    ];
    for (name, value) in expected {
        assert_eq!(node.variable(name).as_deref(), Some(value), "{name}");
    }
}

#[test]
fn a_rank_is_told_of_the_servers_that_its_launch_has_and_of_no_others() {
    let check = |family: PmiFamily, port: bool, pmix: bool, there: &[&str], missing: &[&str]| {
        let mut node = node(&[2]);
        node.spec.settings.pmi.family = family;
        if port {
            node.entrances.port = Some(pmi_port());
        }
        if pmix {
            node.serve_pmix();
        }
        for name in there {
            assert!(node.variable(name).is_some(), "{family:?}: no {name}");
        }
        for name in missing {
            assert_eq!(node.variable(name), None, "{family:?}: {name}");
        }
    };
    check(PmiFamily::Auto, false, true, &["PMI_FD", "PMI_RANK", "PMIX_NAMESPACE"], &["PMI_PORT"]);
    check(PmiFamily::Pmi2, true, false, &["PMI_PORT", "PMI_ID"], &["PMI_FD", "PMI_RANK", "PMIX_NAMESPACE"]);
    check(PmiFamily::Pmix, false, true, &["PMIX_NAMESPACE", "PMIX_RANK"], &["PMI_FD", "PMI_PORT", "PMI_RANK"]);
    check(PmiFamily::None, false, false, &["LATTICE_RANK"], &["PMI_FD", "PMI_PORT", "PMIX_NAMESPACE"]);
}

#[test]
fn a_rank_with_a_port_inherits_no_pmi_socket() {
    let sockets = |node: &Node| {
        let plan = node.context().plan(&StdinSource::Empty).unwrap();
        plan.commands.iter().map(|command| command.pmi).collect::<Vec<_>>()
    };
    let mut node = node(&[2]);
    assert_eq!(sockets(&node), [true, true]);
    node.entrances.port = Some(pmi_port());
    assert_eq!(sockets(&node), [false, false]);
    node.entrances.port = None;
    node.spec.settings.pmi.family = PmiFamily::Pmix;
    assert_eq!(sockets(&node), [false, false]);
}

#[test]
fn an_outer_launchers_variables_and_removed_ones_do_not_reach_a_rank() {
    let mut node = node(&[1]);
    node.inherit(&[
        ("PMI_SIZE", "7"),
        ("OMPI_COMM_WORLD_RANK", "7"),
        ("SECRET_A", "1"),
        ("SECRETS", "1"),
        ("HOME", "/h"),
    ]);
    node.spec.settings.pmi.family = PmiFamily::None;
    node.spec.apps[0].remove = vec!["SECRET_*".to_owned()];
    let seen = ["PMI_SIZE", "OMPI_COMM_WORLD_RANK", "SECRET_A", "SECRETS", "HOME"].map(|name| node.variable(name));
    let expected = [None, None, None, Some("1"), Some("/h")];
    assert_eq!(seen.each_ref().map(Option::as_deref), expected);
}

#[test]
fn later_sources_of_a_variable_win() {
    let mut node = node(&[1]);
    node.inherit(&[("A", "inherited"), ("B", "inherited"), ("A", "inherited later"), ("MPIR_CVAR_PMI_VERSION", "2")]);
    node.spec.apps[0].set = vec![("B".into(), "program".into()), ("FI_PROVIDER".into(), "tcp".into())];
    node.serve_pmix();
    assert_eq!(node.variable("A").as_deref(), Some("inherited later"));
    assert_eq!(node.variable("B").as_deref(), Some("program"));
    assert_eq!(node.variable("MPIR_CVAR_PMI_VERSION").as_deref(), Some("2"), "a default gives way to what is set");
    assert_eq!(node.variable("OMPI_MCA_hwloc_base_binding_policy").as_deref(), Some("none"));
    node.spec.apps[0].set.push(("LATTICE_RANK".into(), "9".into()));
    assert_eq!(node.variable("LATTICE_RANK").as_deref(), Some("0"), "the rank's own come last");
}

#[test]
fn the_fabric_of_a_node_replaces_what_an_outer_launcher_left() {
    let mut node = node(&[1]);
    node.inherit(&[("SLINGSHOT_VNIS", "7")]);
    assert_eq!(node.variable("SLINGSHOT_VNIS").as_deref(), Some("7"), "a launch without a fabric inherits it");
    node.fabric = Some(NodeFabric { provider: Some(cxi_fabric::environment::Provider::Verbs), claims: None });
    assert_eq!(node.variable("SLINGSHOT_VNIS"), None);
    assert_eq!(node.variable("FI_PROVIDER").as_deref(), Some("verbs"));
    node.spec.apps[0].set = vec![("FI_PROVIDER".into(), "tcp".into())];
    assert_eq!(node.variable("FI_PROVIDER").as_deref(), Some("tcp"), "the user chose another");
}

/// Standard input of both ranks of a node.
fn inputs(target: StdinTarget, source: &StdinSource) -> [&'static str; 2] {
    let mut node = node(&[2]);
    node.spec.settings.stdin = target;
    let plan = node.context().plan(source).unwrap();
    let word = |command: &RankCommand| match &command.stdin {
        _ if command.terminal.is_some() => "terminal",
        Stdio::Null if !plan.inputs.is_empty() => "a file to be opened",
        Stdio::Null => "null",
        Stdio::Pipe => "pipe",
        Stdio::Terminal => "a terminal for output",
        Stdio::Fd(_) => "file",
    };
    [word(&plan.commands[0]), word(&plan.commands[1])]
}

#[test]
fn standard_input_reaches_the_ranks_that_read_it_and_no_others() {
    let stream = || StdinSource::Stream(tokio::sync::mpsc::channel(1).1);
    let direct = || StdinSource::Direct(File::open("/dev/null").unwrap().into());
    let check = |target: StdinTarget, source: StdinSource, expected: [&str; 2]| {
        assert_eq!(inputs(target.clone(), &source), expected, "{target:?} from {source:?}");
    };
    check(StdinTarget::All, stream(), ["pipe", "pipe"]);
    check(StdinTarget::All, StdinSource::Empty, ["null", "null"]);
    check(StdinTarget::None, stream(), ["null", "null"]);
    check(StdinTarget::Rank(Rank(1)), stream(), ["null", "pipe"]);
    check(StdinTarget::Rank(Rank(1)), direct(), ["null", "file"]);
    check(StdinTarget::Rank(Rank(5)), stream(), ["null", "null"]);
    check(StdinTarget::Terminal(TerminalSize::default()), stream(), ["terminal", "null"]);
    let template = Template::parse("/dev/null".as_ref()).unwrap();
    check(StdinTarget::File(template), stream(), ["a file to be opened"; 2]);
}

#[test]
fn a_file_for_standard_input_that_cannot_be_read_is_named_with_its_rank() {
    let mut node = node(&[2]);
    node.spec.settings.stdin = StdinTarget::File(Template::parse("/nonexistent/%r.%n".as_ref()).unwrap());
    let inputs = node.context().plan(&StdinSource::Empty).unwrap().inputs;
    let error = inputs.into_iter().map(InputFile::open).next().unwrap().unwrap_err();
    assert!(matches!(&error, PlanError::Stdin { rank: Rank(0), path, .. } if path == Path::new("/nonexistent/0.0")));
    assert_eq!(error.class(), StartClass::System);
}

#[test]
fn a_program_that_cannot_run_is_classified_as_a_shell_would() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("text"), "no program").unwrap();
    let class = |program: &str| {
        let mut node = node(&[1]);
        node.spec.apps = vec![AppSpec { directory: directory.path().to_owned(), ..app(program) }];
        node.refusal().class()
    };
    assert_eq!(class("no-such-program-anywhere"), StartClass::NotFound);
    assert_eq!(class("./missing"), StartClass::NotFound);
    assert_eq!(class("./text"), StartClass::NotPermitted);
    fs::set_permissions(directory.path().join("text"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(class("./text"), StartClass::CannotExecute);
    assert_eq!(class("./"), StartClass::IsDirectory);
    assert!([StartClass::NotPermitted, StartClass::CannotExecute].into_iter().all(StartClass::is_of_program));
    assert!(![StartClass::NotFound, StartClass::System].into_iter().any(StartClass::is_of_program));
}

#[test]
fn a_plan_has_one_command_for_each_rank_of_the_node_and_its_programs_alone() {
    let mut node = node(&[2, 1]);
    node.spec.apps.push(app("exists-on-the-other-node-only"));
    node.spec.job = Job { apps: vec![App { ranks: 2, appnum: 0 }, App { ranks: 1, appnum: 1 }], ..node.spec.job };
    let plan = node.context().plan(&StdinSource::Empty).unwrap();
    assert_eq!(plan.commands.iter().map(|command| command.rank).collect::<Vec<_>>(), [Rank(0), Rank(1)]);
    assert!(plan.commands.iter().all(|command| command.directory.as_deref() == Some(Path::new("/"))));
    assert_eq!(plan.programs.into_iter().collect::<Vec<_>>(), [(0, PathBuf::from("/bin/sh"))]);
}

#[test]
fn a_rank_without_a_program_is_an_error_of_the_plan() {
    let mut node = node(&[2]);
    node.spec.apps.clear();
    assert!(matches!(node.refusal(), PlanError::NoProgram { rank: Rank(0), apps: 0 }));
}

#[test]
fn removed_variables_are_named_whole_or_by_their_beginning() {
    let removes = |pattern: &str, name: &str| AppSpec { remove: vec![pattern.to_owned()], ..app("a") }.removes(name);
    assert!(removes("A", "A") && !removes("A", "AB") && !removes("AB", "A"));
    assert!(removes("A*", "A") && removes("A*", "AB") && !removes("A*", "BA"));
    assert!(removes("*", "anything"));
    assert!(!app("a").removes("A"));
}

#[test]
fn ranks_are_told_of_their_jobs_memory_where_there_is_one() {
    let mut node = node(&[1]);
    assert_eq!(node.variable("LATTICE_JOB_MEMORY"), None);
    node.entrances.job_memory = Some(Arc::new(File::open("/dev/null").unwrap().into()));
    assert_eq!(node.variable("LATTICE_JOB_MEMORY").as_deref(), Some("31"));
    assert!(node.context().plan(&StdinSource::Empty).unwrap().commands[0].job_memory.is_some());
}

#[test]
fn names_in_values_are_filled_in_for_each_rank() {
    let mut node = node(&[2, 1]);
    node.spec.addresses = vec!["[fe80::1]:7".to_owned(), "10.0.0.2:7".to_owned()];
    let set = [
        ("RANK", "{rank}"),
        ("AT", "{host}:{local_rank}/{local_size}"),
        ("HEAD", "{head}"),
        ("JSON", "{\"a\": 1}"),
        ("LATTICE_RANK", "{size}"),
    ];
    node.spec.apps[0].set = set.map(|(name, value)| (name.into(), value.into())).to_vec();
    let plan = node.context().plan(&StdinSource::Empty).unwrap();
    let of = |rank: usize| format!("{:?}", plan.commands[rank].environment);
    for text in ["RANK=0", "AT=n0:0/2", "HEAD=fe80::1", "JSON={\\\"a\\\": 1}", "LATTICE_RANK=0"] {
        assert!(of(0).contains(text), "{text} in {}", of(0));
    }
    assert!(of(1).contains("\"RANK=1\"") && of(1).contains("AT=n0:1/2"), "{}", of(1));
}
