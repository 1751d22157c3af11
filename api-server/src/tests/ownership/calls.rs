//! The calls of the API server, with the callers that may make them, and requests that are built from the protocol's descriptors.

use pmi_transport::identity::{Caller, Role};
use pmi_transport::proto::DESCRIPTORS;
use prost::Message;
use prost::encoding;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use tonic::Code;

/// Owned object that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// An allocation or a launch, or a list of the visible ones.
    Allocation,
    Launch,
    /// A user for which an object is created.
    User,
    /// The requesting node.
    Node,
    /// A launch, and the requesting node of it.
    PartOfLaunch,
    /// The set of a launch.
    Set,
    Nothing,
}

/// A call, and its answers to callers of its roles.
pub(super) struct Call {
    pub path: &'static str,
    pub roles: &'static [Role],
    pub names: Names,
    /// Answers for an object of another user, and for an object of no user.
    pub anothers: Code,
    pub nobodys: Code,
}

impl Call {
    /// True for callers that may make the call about their own objects. Users on nodes connect to no sets.
    pub(super) fn is_open_to(&self, caller: &Caller) -> bool {
        self.roles.contains(&caller.role()) && !(self.names == Names::Set && matches!(caller, Caller::UserIn { .. }))
    }

    /// True unless another entry of the same call applies to this role.
    pub(super) fn is_of(&self, role: Role) -> bool {
        let has = |call: &Self| call.path == self.path && call.roles.contains(&role);
        has(self) || !TABLE.iter().any(has)
    }
}

const USERS: &[Role] = &[Role::User, Role::Admin];
const ADMINS: &[Role] = &[Role::Admin];
const AGENTS: &[Role] = &[Role::Agent];
// An administrator with a certificate is no user, and has no sets.
const USERS_ALONE: &[Role] = &[Role::User];
const ALL: &[Role] = &[Role::User, Role::Admin, Role::Agent, Role::Api];

const fn call(path: &'static str, roles: &'static [Role], names: Names, anothers: Code, nobodys: Code) -> Call {
    Call { path, roles, names, anothers, nobodys }
}

/// A call that names no owned object.
const fn free(path: &'static str, roles: &'static [Role]) -> Call {
    call(path, roles, Names::Nothing, Code::Ok, Code::Ok)
}

use Code::{FailedPrecondition, InvalidArgument, NotFound, PermissionDenied};
use Names::{Allocation, Launch, Node, PartOfLaunch, User};

/// Every call of the API server.
pub(super) const TABLE: &[Call] = &[
    call("/lattice.v1.AllocationService/LaunchTasks", USERS, Allocation, PermissionDenied, NotFound),
    call("/lattice.v1.AllocationService/CreateAllocation", USERS, User, PermissionDenied, PermissionDenied),
    call("/lattice.v1.AllocationService/GetAllocation", USERS, Allocation, PermissionDenied, NotFound),
    free("/lattice.v1.AllocationService/ListAllocations", USERS),
    call("/lattice.v1.AllocationService/ReleaseAllocation", USERS, Allocation, PermissionDenied, NotFound),
    call("/lattice.v1.LaunchService/AttachLaunch", USERS, Launch, PermissionDenied, NotFound),
    free("/lattice.v1.LaunchService/ListLaunches", USERS),
    call("/lattice.v1.LaunchService/GetLaunch", USERS, Launch, PermissionDenied, NotFound),
    call("/lattice.v1.LaunchService/SignalLaunch", USERS, Launch, PermissionDenied, NotFound),
    call("/lattice.v1.LaunchService/AbortLaunch", USERS, Launch, PermissionDenied, NotFound),
    free("/lattice.v1.FabricService/ListFabric", ADMINS),
    free("/lattice.v1.FabricService/ExamineFabric", ADMINS),
    free("/lattice.v1.FabricService/CleanFabric", ADMINS),
    call("/lattice.v1.InventoryService/TellInventory", AGENTS, Node, PermissionDenied, PermissionDenied),
    free("/lattice.v1.InventoryService/ListInventories", ALL),
    call("/lattice.v1.NodeService/RegisterNode", AGENTS, Node, PermissionDenied, PermissionDenied),
    call("/lattice.v1.NodeService/Heartbeat", AGENTS, Node, PermissionDenied, PermissionDenied),
    call("/lattice.v1.NodeService/RenewCertificate", AGENTS, Node, PermissionDenied, PermissionDenied),
    free("/lattice.v1.NodeService/ListNodes", ALL),
    free("/lattice.v1.NodeService/DrainNodes", ADMINS),
    free("/lattice.v1.NodeService/ResumeNodes", ADMINS),
    call("/lattice.v1.NodeService/ReportLaunch", AGENTS, PartOfLaunch, InvalidArgument, NotFound),
    call("/lattice.v1.NodeService/CallName", AGENTS, PartOfLaunch, FailedPrecondition, NotFound),
    call("/lattice.v1.NodeService/SpawnTasks", AGENTS, PartOfLaunch, FailedPrecondition, NotFound),
    call("/lattice.v1.NodeService/MeetLaunches", AGENTS, PartOfLaunch, FailedPrecondition, NotFound),
    call("/lattice.v1.NodeService/PassToSet", USERS_ALONE, Names::Set, NotFound, NotFound),
    call("/lattice.v1.NodeService/PassToSet", AGENTS, PartOfLaunch, FailedPrecondition, NotFound),
    call("/lattice.v1.NodeService/ProxyUser", AGENTS, Node, PermissionDenied, PermissionDenied),
];

/// The objects that a request names.
pub(super) struct Target<'a> {
    pub allocation: String,
    pub launch: String,
    pub node: &'a str,
    pub uid: u32,
    pub set: u32,
}

/// All messages of the protocol, by name.
pub(super) struct Protocol(FileDescriptorSet);

/// A call of the protocol.
pub(super) struct Defined {
    pub path: String,
    pub request: String,
}

impl Protocol {
    pub(super) fn read() -> Self {
        Self(FileDescriptorSet::decode(DESCRIPTORS).expect("our own descriptors"))
    }

    /// The calls of the API server: all calls except the calls to agents.
    pub(super) fn calls(&self) -> Vec<Defined> {
        let services = self.0.file.iter().flat_map(|file| &file.service);
        let served = services.filter(|service| service.name() != "NodeAgentService");
        let calls = served.flat_map(|service| {
            service.method.iter().map(|method| Defined {
                path: format!("/lattice.v1.{}/{}", service.name(), method.name()),
                request: method.input_type().to_owned(),
            })
        });
        calls.collect()
    }

    pub(super) fn request_of(&self, path: &str) -> String {
        self.calls().into_iter().find(|call| call.path == path).expect("the table names calls that exist").request
    }

    fn message(&self, name: &str) -> &DescriptorProto {
        let (_, own) = name.rsplit_once('.').expect("names are full");
        let messages = self.0.file.iter().flat_map(|file| &file.message_type);
        messages.into_iter().find(|message| message.name() == own).expect("messages refer to messages")
    }

    /// A request of this type that names the target in each possible field. Other fields are set only if they are required.
    pub(super) fn request(&self, name: &str, target: &Target<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut chosen = Vec::new();
        for field in &self.message(name).field {
            let is_choice = field.oneof_index.is_some() && !field.proto3_optional();
            // The first of several possible parts.
            if is_choice && chosen.contains(&field.oneof_index) || field.label() == Label::Repeated {
                continue;
            }
            if is_choice {
                chosen.push(field.oneof_index);
            }
            self.fill(field, is_choice, target, name, &mut bytes);
        }
        bytes
    }

    fn fill(&self, field: &FieldDescriptorProto, is_choice: bool, target: &Target<'_>, of: &str, bytes: &mut Vec<u8>) {
        let number = u32::try_from(field.number()).expect("numbers are positive");
        let text = |value: &str, bytes: &mut Vec<u8>| encoding::string::encode(number, &value.to_owned(), bytes);
        match (field.r#type(), field.name()) {
            (Type::String, "allocation_id") => text(&target.allocation, bytes),
            (Type::String, "launch_id") => text(&target.launch, bytes),
            // Only administrators choose the id of a new allocation.
            (Type::String, "id") if of.ends_with("CreateAllocationRequest") => {}
            (Type::String, "id") if of.contains("Allocation") => text(&target.allocation, bytes),
            (Type::String, "id") => text(&target.launch, bytes),
            (Type::String, "node_id") => text(target.node, bytes),
            // A valid address.
            (Type::String, "grpc_address") => text("127.0.0.1:1", bytes),
            (Type::String, "entrypoint") => text("./app", bytes),
            // Nodes of a new allocation, or nodes to drain: free ones.
            (Type::String, "nodes") => text("node2", bytes),
            (Type::Uint32, "num_tasks") => encoding::uint32::encode(number, &1, bytes),
            (Type::Int32, "signal") => encoding::int32::encode(number, &1, bytes),
            (Type::Uint32, "uid") => encoding::uint32::encode(number, &target.uid, bytes),
            (Type::Uint32, "to") => encoding::uint32::encode(number, &target.set, bytes),
            (Type::Uint64, "incarnation") => encoding::uint64::encode(number, &1, bytes),
            (Type::Message, name) if is_choice || name == "call" => {
                encoding::bytes::encode(number, &self.request(field.type_name(), target), bytes);
            }
            _ => {}
        }
    }
}
