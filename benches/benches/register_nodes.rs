//! What does it cost the API server that very many nodes register, report their inventories and are listed, and to place very many ranks on
//! them?
//!
//! Simulated agents register nodes of 50 kinds with a real API server. They make 64 calls at a time over one connection without certificates. A
//! node has two packages, 64 cores, 128 CPUs, 8 NUMA nodes, four network interfaces with their GUIDs and four GPUs with their UUIDs. A tenth of
//! the nodes are one allocation. The bench plans a launch on it, with ten ranks for each node of the cluster, in the same way as `--dry-run`.
//!
//! ```text
//! cargo bench -p lattice-benches --bench register_nodes
//! ```
//! Without `--bench` (`cargo test --benches`) the bench only proves that it works, with 200 nodes.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lattice_benches::{is_measured, lattice_binary, machine};
use lattice_inventory::{
    AddressKind, CacheKind, CacheType, CpuSet, DeviceAddress, Devices, Group, NumaNode, PciDevice, PciKind, Template,
};
use pmi_transport::identity::Caller;
use pmi_transport::limits::LISTING_MAX;
use pmi_transport::proto::v1::allocation_service_client::AllocationServiceClient;
use pmi_transport::proto::v1::inventory_service_client::InventoryServiceClient;
use pmi_transport::proto::v1::node_service_client::NodeServiceClient;
use pmi_transport::proto::v1::{
    CreateAllocationRequest, Distribution, LaunchTasksRequest, ListInventoriesRequest, ListNodesRequest,
    PlacementRequest, RegisterNodeRequest, TellInventoryRequest,
};
use prost::Message;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

const KINDS: usize = 50;
/// Number of concurrent calls.
const AGENTS: usize = 64;
/// Time limit until the server listens.
const START: Duration = Duration::from_secs(20);

/// Content of the registrations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Say {
    /// Presence only.
    Presence,
    /// Presence and inventory.
    All,
}

type Failure = Box<dyn Error + Send + Sync>;

/// Counts of bytes and messages, for encoded requests.
#[derive(Debug, Default)]
struct Sent {
    registrations: AtomicUsize,
    inventories: AtomicUsize,
    templates: AtomicUsize,
    template_bytes: AtomicUsize,
}

fn main() -> Result<(), Failure> {
    let nodes = if is_measured() { 100_000 } else { 200 };
    println!("{}", machine::line());
    let lattice = match lattice_binary() {
        Ok(lattice) => lattice,
        Err(why) => {
            println!("lattice: absent, {why}");
            return Ok(());
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(&lattice, nodes))
}

async fn measure(lattice: &Path, nodes: usize) -> Result<(), Failure> {
    let server = Server::start(lattice)?;
    let channel = server.connect().await?;
    let sent = Arc::new(Sent::default());
    let before = server.cost()?;
    let begin = Instant::now();
    register_all(&channel, nodes, &sent, Say::All).await?;
    let (wall, after) = (begin.elapsed(), server.cost()?);
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    println!(
        "{nodes} nodes of {KINDS} kinds register: {:.1} s, {:.1} s of the server's CPU",
        wall.as_secs_f64(),
        after.cpu - before.cpu
    );
    println!(
        "  registrations {} kB, inventories {} kB",
        count(&sent.registrations) / 1000,
        count(&sent.inventories) / 1000
    );
    println!("  {} templates, {} kB", count(&sent.templates), count(&sent.template_bytes) / 1000);
    println!("  memory of the server {} MB -> {} MB", before.memory_kb / 1000, after.memory_kb / 1000);
    list(&channel, nodes).await?;
    plan(&channel, nodes / 10, nodes as u32 * 10).await
}

/// Plans a launch on some nodes, with several placements.
async fn plan(channel: &Channel, nodes: usize, ranks: u32) -> Result<(), Failure> {
    let mut client = AllocationServiceClient::new(channel.clone()).max_decoding_message_size(LISTING_MAX);
    let admin = Caller::Admin(None);
    let sent = Arc::new(Sent::default());
    register_all(channel, nodes, &sent, Say::Presence).await?;
    let names = hostlist::fold(&(0..nodes).map(|number| format!("node{number}")).collect::<Vec<_>>());
    let wanted = CreateAllocationRequest { nodes: names, uid: Some(0), ..CreateAllocationRequest::default() };
    let allocation = client.create_allocation(as_caller(wanted, &admin)?).await?.into_inner();
    let ways =
        [("block", Distribution::Block, 0), ("cyclic", Distribution::Cyclic, 0), ("plane=2", Distribution::Plane, 2)];
    for (name, distribution, plane) in ways {
        // A heartbeat: without registrations nodes are away after some seconds.
        register_all(channel, nodes, &sent, Say::Presence).await?;
        let placement = PlacementRequest { distribution: distribution.into(), plane, ..PlacementRequest::default() };
        let wanted = LaunchTasksRequest {
            allocation_id: allocation.id.clone(),
            num_tasks: ranks,
            entrypoint: "/bin/true".to_owned(),
            placement: Some(placement),
            plan_only: true,
            ..LaunchTasksRequest::default()
        };
        let begin = Instant::now();
        let planned = client.launch_tasks(as_caller(wanted, &admin)?).await;
        let wall = begin.elapsed();
        match planned {
            Ok(answer) => {
                let bytes = answer.into_inner().encoded_len();
                println!("{ranks} ranks on {nodes} nodes, {name}: {:.3} s, {} kB", wall.as_secs_f64(), bytes / 1000);
            }
            Err(status) => println!("{ranks} ranks on {nodes} nodes, {name}: {}", status.message()),
        }
    }
    Ok(())
}

/// Registers the nodes from [`AGENTS`] concurrent agents, and reports their inventories if requested.
async fn register_all(channel: &Channel, nodes: usize, sent: &Arc<Sent>, say: Say) -> Result<(), Failure> {
    let kinds: Arc<[Vec<u8>]> = (0..KINDS).map(|kind| template(kind).encode()).collect();
    let signatures: Arc<[Vec<u8>]> = (0..KINDS).map(|kind| template(kind).signature().0.to_vec()).collect();
    let next = Arc::new(AtomicUsize::new(0));
    let mut agents = tokio::task::JoinSet::new();
    for _ in 0..AGENTS {
        let (channel, sent, next) = (channel.clone(), Arc::clone(sent), Arc::clone(&next));
        let (kinds, signatures) = (Arc::clone(&kinds), Arc::clone(&signatures));
        agents.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= nodes {
                    return Ok(());
                }
                let kind = number % KINDS;
                register(&channel, number, &sent).await?;
                if say == Say::All {
                    tell(&channel, number, &signatures[kind], &kinds[kind], &sent).await?;
                }
            }
        });
    }
    while let Some(ended) = agents.join_next().await {
        ended?.map_err(|status: tonic::Status| status.to_string())?;
    }
    Ok(())
}

/// Lists all nodes, with their inventories.
async fn list(channel: &Channel, nodes: usize) -> Result<(), Failure> {
    let begin = Instant::now();
    let mut client = NodeServiceClient::new(channel.clone()).max_decoding_message_size(LISTING_MAX);
    let listing = client.list_nodes(as_caller(ListNodesRequest {}, &Caller::Admin(None))?).await?.into_inner();
    println!("all nodes: {:.2} s, {} kB", begin.elapsed().as_secs_f64(), listing.encoded_len() / 1000);

    let begin = Instant::now();
    let mut client = InventoryServiceClient::new(channel.clone()).max_decoding_message_size(LISTING_MAX);
    let listing =
        client.list_inventories(as_caller(ListInventoriesRequest {}, &Caller::Admin(None))?).await?.into_inner();
    let known = listing.kinds.iter().filter(|kind| !kind.template.is_empty()).count();
    println!("all kinds: {:.2} s, {} kB", begin.elapsed().as_secs_f64(), listing.encoded_len() / 1000);
    let named: usize =
        listing.kinds.iter().map(|kind| hostlist::expand(&kind.nodes).map_or(0, |nodes| nodes.len())).sum();
    if (known, named) != (KINDS, nodes) {
        return Err(format!("{known} kinds are known, and {named} nodes").into());
    }
    Ok(())
}

async fn register(channel: &Channel, number: usize, sent: &Sent) -> Result<(), tonic::Status> {
    let node_id = format!("node{number}");
    let agent = Caller::Agent(node_id.clone());
    let registration = RegisterNodeRequest {
        node_id: node_id.clone(),
        grpc_address: format!("10.{}.{}.{}:50052", number >> 16, number >> 8 & 255, number & 255),
        network_addresses: vec![format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255)],
        cores: 64,
        memory_bytes: 512 << 30,
        capabilities: ["pmi1", "pmi2", "pmix"].map(str::to_owned).to_vec(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        incarnation: number as u64,
        ..RegisterNodeRequest::default()
    };
    sent.registrations.fetch_add(registration.encoded_len(), Ordering::Relaxed);
    let request = as_caller(registration, &agent)?;
    NodeServiceClient::new(channel.clone()).register_node(request).await.map(drop)
}

/// Reports the inventory of a node.
async fn tell(
    channel: &Channel,
    number: usize,
    signature: &[u8],
    template: &[u8],
    sent: &Sent,
) -> Result<(), tonic::Status> {
    let node_id = format!("node{number}");
    let agent = Caller::Agent(node_id.clone());
    let devices = serde_json::to_vec(&devices(number)).map_err(|error| tonic::Status::internal(error.to_string()))?;
    let inventory = TellInventoryRequest {
        node_id,
        signature: signature.to_vec().into(),
        devices: devices.into(),
        ..Default::default()
    };
    sent.inventories.fetch_add(inventory.encoded_len(), Ordering::Relaxed);
    let mut client = InventoryServiceClient::new(channel.clone());
    let answer = client.tell_inventory(as_caller(inventory.clone(), &agent)?).await?.into_inner();
    if answer.want_template {
        let whole = TellInventoryRequest { template: template.to_vec().into(), ..inventory };
        sent.templates.fetch_add(1, Ordering::Relaxed);
        sent.template_bytes.fetch_add(whole.encoded_len(), Ordering::Relaxed);
        client.tell_inventory(as_caller(whole, &agent)?).await?;
    }
    Ok(())
}

/// Returns a request that claims to be from this caller, as agents without certificates send it.
fn as_caller<T>(message: T, caller: &Caller) -> Result<Request<T>, tonic::Status> {
    let mut request = Request::new(message);
    let value = caller.uri().parse().map_err(|_| tonic::Status::internal("a name that is no header"))?;
    request.metadata_mut().insert("x-lattice-caller", value);
    Ok(request)
}

/// Addresses of the devices of a node.
fn devices(node: usize) -> Devices {
    let address = |kind, value| vec![DeviceAddress { kind, value }];
    let nics = (0..4).map(|nic| {
        (
            format!("mlx5_{nic}"),
            address(AddressKind::NodeGuid, format!("b8ce:f6{nic:02x}:{:04x}:{:04x}", node >> 16, node & 0xffff)),
        )
    });
    let gpus = (0..4).map(|gpu| {
        (format!("0000:{gpu}1:00.0"), address(AddressKind::Uuid, format!("GPU-{node:08x}-0000-4000-8000-{gpu:012x}")))
    });
    nics.chain(gpus).collect()
}

/// A kind of node.
fn template(kind: usize) -> Template {
    let set = |text: String| text.parse::<CpuSet>().unwrap_or_default();
    let group = |cpus: CpuSet, id: u32| Group { cpus, id: Some(id) };
    let eighth = |node: u32| set(format!("{}-{},{}-{}", node * 8, node * 8 + 7, node * 8 + 64, node * 8 + 71));
    let core = |core: u32| set(format!("{core},{}", core + 64));
    let cache = |level, kind, size, instances| CacheKind { level, kind, size, line: 64, ways: 8, instances };
    let cores: Vec<Group> = (0..64).map(|number| group(core(number), number)).collect();
    let eighths: Vec<Group> = (0..8).map(|number| group(eighth(number), number)).collect();
    let device = |number: u8, kind, class| PciDevice {
        address: format!("0000:{:02x}:00.0", 0x10 * (number + 1)).parse().expect("an address"),
        kind,
        class,
        id: [0x15b3, 0x1021],
        board: [0x15b3, 0x0023],
        revision: 0,
        numa: Some(u16::from(number)),
        cpus: eighth(number.into()),
        link_mb: 31_508,
        model: String::new(),
        names: Vec::new(),
    };
    Template {
        arch: "x86_64".to_owned(),
        model: format!("Made-up processor {kind}"),
        cpus: set("0-127".to_owned()),
        packages: vec![group(set("0-31,64-95".to_owned()), 0), group(set("32-63,96-127".to_owned()), 1)],
        caches: vec![
            cache(1, CacheType::Data, 32 << 10, cores.clone()),
            cache(1, CacheType::Instruction, 32 << 10, cores.clone()),
            cache(2, CacheType::Unified, 512 << 10, cores.clone()),
            cache(3, CacheType::Unified, 32 << 20, eighths),
        ],
        cores,
        numa: (0..8)
            .map(|id| NumaNode {
                id,
                cpus: eighth(id.into()),
                memory_gib: 64,
                distances: vec![10; 8],
                ..NumaNode::default()
            })
            .collect(),
        pci: (0..4)
            .map(|nic| device(nic, PciKind::Nic, 0x0207))
            .chain((4..8).map(|gpu| device(gpu, PciKind::Gpu, 0x0302)))
            .collect(),
        ..Template::default()
    }
}

/// An API server with its own state directory.
struct Server {
    child: Child,
    port: u16,
    _directory: tempfile::TempDir,
}

/// Resources that the server has used.
struct Cost {
    /// Seconds of processor time.
    cpu: f64,
    memory_kb: u64,
}

impl Server {
    fn start(lattice: &Path) -> Result<Self, Failure> {
        let directory = tempfile::tempdir()?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = directory.path().join("api.toml");
        let state = directory.path().join("state.redb");
        fs::write(
            &config,
            format!("insecure = true\nlisten = ['127.0.0.1:{port}']\nsocket = ''\nstate = '{}'\n", state.display()),
        )?;
        let log = fs::File::create(directory.path().join("log"))?;
        let child = Command::new(lattice)
            .args(["api", "--config"])
            .arg(&config)
            .env("LATTICE_LOG", "warn")
            .stderr(log)
            .spawn()?;
        Ok(Self { child, port, _directory: directory })
    }

    /// Connects to the server as soon as it listens.
    async fn connect(&self) -> Result<Channel, Failure> {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", self.port))?;
        let begin = Instant::now();
        loop {
            match endpoint.connect().await {
                Ok(channel) => return Ok(channel),
                Err(error) if begin.elapsed() > START => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn cost(&self) -> Result<Cost, Failure> {
        let proc = format!("/proc/{}", self.child.id());
        let stat = fs::read_to_string(format!("{proc}/stat"))?;
        // The fields after the name, which may contain spaces; in ticks of 10 ms.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: u64 =
            fields.get(11..13).unwrap_or_default().iter().filter_map(|field| field.parse::<u64>().ok()).sum();
        let status = fs::read_to_string(format!("{proc}/status"))?;
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let memory_kb = memory.trim().trim_end_matches(" kB").parse().unwrap_or(0);
        Ok(Cost { cpu: ticks as f64 / 100.0, memory_kb })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
