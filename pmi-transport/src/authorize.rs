//! Authorization of calls: one table of calls and roles, and the check of every request against it.
//!
//! A call that is not in the table is refused. A handler may apply further checks (a user may not act on another user's
//! launch). No request reaches a handler without this check.

use http::{HeaderMap, Request, Response};
use tonic::Status;
use tonic::body::Body;

use crate::call_check::CallCheck;
use crate::identity::{CALLER_HEADER, Caller, Incoming, Peer, Role};

/// Callers that may make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admitted {
    /// Any caller that can connect.
    Anybody,
    /// Any caller with a known identity.
    Known,
    /// Callers of these roles.
    Roles(&'static [Role]),
}

const USERS: Admitted = Admitted::Roles(&[Role::User, Role::Admin]);
const ADMINS: Admitted = Admitted::Roles(&[Role::Admin]);
const USERS_AND_AGENTS: Admitted = Admitted::Roles(&[Role::User, Role::Admin, Role::Agent]);
const API: Admitted = Admitted::Roles(&[Role::Api]);
const AGENTS: Admitted = Admitted::Roles(&[Role::Agent]);
// An agent relays requests that the API server signed. The handlers check the signature, and that the agent belongs to the
// launch.
const API_AND_AGENTS: Admitted = Admitted::Roles(&[Role::Api, Role::Agent]);

/// Every call that exists, by path, with the callers that may make it.
const TABLE: &[(&str, Admitted)] = &[
    ("/lattice.v1.AllocationService/LaunchTasks", USERS),
    ("/lattice.v1.AllocationService/CreateAllocation", USERS),
    ("/lattice.v1.AllocationService/GetAllocation", USERS),
    ("/lattice.v1.AllocationService/ListAllocations", USERS),
    ("/lattice.v1.AllocationService/ReleaseAllocation", USERS),
    ("/lattice.v1.LaunchService/AttachLaunch", USERS),
    ("/lattice.v1.LaunchService/ListLaunches", USERS),
    ("/lattice.v1.LaunchService/GetLaunch", USERS),
    ("/lattice.v1.LaunchService/SignalLaunch", USERS),
    ("/lattice.v1.LaunchService/AbortLaunch", USERS),
    ("/lattice.v1.FabricService/ListFabric", ADMINS),
    ("/lattice.v1.FabricService/ExamineFabric", ADMINS),
    ("/lattice.v1.FabricService/CleanFabric", ADMINS),
    ("/lattice.v1.InventoryService/TellInventory", AGENTS),
    ("/lattice.v1.InventoryService/ListInventories", Admitted::Known),
    ("/lattice.v1.NodeService/RegisterNode", AGENTS),
    ("/lattice.v1.NodeService/Heartbeat", AGENTS),
    ("/lattice.v1.NodeService/RenewCertificate", AGENTS),
    ("/lattice.v1.NodeService/ListNodes", Admitted::Known),
    ("/lattice.v1.NodeService/DrainNodes", ADMINS),
    ("/lattice.v1.NodeService/ResumeNodes", ADMINS),
    ("/lattice.v1.NodeService/ReportLaunch", AGENTS),
    ("/lattice.v1.NodeService/CallName", AGENTS),
    ("/lattice.v1.NodeService/SpawnTasks", AGENTS),
    ("/lattice.v1.NodeService/MeetLaunches", AGENTS),
    ("/lattice.v1.NodeService/PassToSet", USERS_AND_AGENTS),
    ("/lattice.v1.NodeService/ProxyUser", AGENTS),
    ("/lattice.v1.NodeAgentService/LaunchProcesses", API_AND_AGENTS),
    ("/lattice.v1.NodeAgentService/PmiFence", AGENTS),
    ("/lattice.v1.NodeAgentService/PmiFenceComplete", AGENTS),
    ("/lattice.v1.NodeAgentService/AbortProcesses", API_AND_AGENTS),
    ("/lattice.v1.NodeAgentService/RelayReports", API_AND_AGENTS),
    ("/lattice.v1.NodeAgentService/ReportDirectly", API),
    ("/lattice.v1.NodeAgentService/Link", AGENTS),
    ("/lattice.v1.NodeAgentService/RetireVni", API),
    ("/lattice.v1.NodeAgentService/ListCxiServices", API),
    ("/grpc.health.v1.Health/Check", Admitted::Anybody),
    ("/grpc.health.v1.Health/Watch", Admitted::Anybody),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Admitted::Anybody),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Admitted::Anybody),
];

/// Phrase for the action of a call, for error messages to users and administrators, because the names of calls are
/// internal.
fn deed(path: &str) -> String {
    let words = match path.rsplit('/').next().unwrap_or_default() {
        "LaunchTasks" => "start launches",
        "CreateAllocation" => "make allocations",
        "GetAllocation" | "ListAllocations" => "see allocations",
        "ReleaseAllocation" => "release allocations",
        "AttachLaunch" => "attach to launches",
        "ListLaunches" | "GetLaunch" => "see launches",
        "SignalLaunch" => "send signals to launches",
        "AbortLaunch" => "end launches",
        "ListFabric" => "see the credentials of the fabric",
        "ExamineFabric" => "examine the fabric",
        "CleanFabric" => "clean up the credentials of the fabric",
        "ListInventories" => "see what nodes consist of",
        "ListNodes" => "see nodes",
        "DrainNodes" => "drain nodes",
        "ResumeNodes" => "resume nodes",
        "PassToSet" => "call processes of sets",
        _ => return format!("call {path}"),
    };
    words.to_owned()
}

/// Refuses the call at `path` unless `caller` may make it. `caller` is an error if the caller is unknown; the error is the
/// reason.
fn admit(path: &str, caller: Result<&Caller, &str>) -> Result<(), Status> {
    let Some((_, admitted)) = TABLE.iter().find(|(known, _)| *known == path) else {
        return Err(Status::unimplemented(format!("there is no call {path} here")));
    };
    match (admitted, caller) {
        (Admitted::Anybody, _) | (Admitted::Known, Ok(_)) => Ok(()),
        (Admitted::Roles(roles), Ok(caller)) if roles.contains(&caller.role()) => Ok(()),
        (Admitted::Roles(roles), Ok(caller)) => {
            Err(Status::permission_denied(format!("{caller} may not {}; {} may", deed(path), words(roles))))
        }
        (_, Err(why)) => {
            Err(Status::unauthenticated(format!("the caller that would {} is not known: {why}", deed(path))))
        }
    }
}

fn words(roles: &[Role]) -> String {
    let word = |role: &Role| match role {
        Role::Agent => "agents",
        Role::Api => "the API server",
        Role::User => "users",
        Role::Admin => "administrators",
    };
    roles.iter().map(word).collect::<Vec<_>>().join(" and ")
}

/// Identifies the caller of a request with these headers over a connection to `peer`.
fn identify(peer: Option<&Peer>, headers: &HeaderMap) -> Result<Caller, String> {
    match peer {
        Some(Peer::Local(caller)) => Ok(caller.clone()),
        Some(Peer::Proxied(caller)) => caller.clone(),
        Some(Peer::Certified { caller, .. }) => caller.clone().map_err(|reason| reason.to_string()),
        Some(Peer::Claimed) => {
            let header = headers.get(CALLER_HEADER).ok_or("the call has no metadata x-lattice-caller")?;
            let uri = header.to_str().map_err(|_| "the metadata x-lattice-caller is not ASCII")?;
            uri.parse().map_err(|error| format!("{error}"))
        }
        None => Err("the request came over no connection of ours".to_owned()),
    }
}

/// Refuses calls that the table does not admit. Adds the [`Caller`] to the extensions of admitted requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Authorize;

impl CallCheck for Authorize {
    type Held = ();

    fn admit(&self, mut request: Request<Body>) -> Result<(Request<Body>, ()), Status> {
        let caller = identify(request.extensions().get::<Incoming>().map(|incoming| &incoming.peer), request.headers());
        admit(request.uri().path(), caller.as_ref().map_err(String::as_str))?;
        if let Ok(caller) = caller {
            request.extensions_mut().insert(caller);
        }
        Ok((request, ()))
    }

    fn answer((): (), answer: Response<Body>) -> Response<Body> {
        answer
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use tonic::Code;

    use super::*;
    use crate::proto::DESCRIPTORS;

    /// The paths of all calls in the protocol files.
    fn defined() -> Vec<String> {
        let files = prost_types::FileDescriptorSet::decode(DESCRIPTORS).unwrap().file;
        let path = |package: &str, service: &str, method: &str| format!("/{package}.{service}/{method}");
        let mut paths = Vec::new();
        for file in &files {
            for service in &file.service {
                paths.extend(service.method.iter().map(|method| path(file.package(), service.name(), method.name())));
            }
        }
        paths
    }

    #[test]
    fn the_table_names_every_call_of_the_protocol_and_no_other() {
        let mut defined = defined();
        defined.sort();
        let ours = TABLE.iter().map(|(path, _)| (*path).to_owned()).filter(|path| path.starts_with("/lattice."));
        let mut ours: Vec<String> = ours.collect();
        ours.sort();
        assert_eq!(ours, defined);
        assert!(defined.len() > 20, "{defined:?}");
    }

    /// Roles that may make a call: an independent copy of the table, by service.
    fn expected(path: &str, role: Role) -> bool {
        let (service, method) = path.strip_prefix("/lattice.v1.").unwrap().split_once('/').unwrap();
        match (service, method) {
            ("AllocationService" | "LaunchService", _) => matches!(role, Role::User | Role::Admin),
            ("FabricService", _) => role == Role::Admin,
            ("NodeService", "ListNodes") | ("InventoryService", "ListInventories") => true,
            ("InventoryService", _) => role == Role::Agent,
            ("NodeService", "PassToSet") => role != Role::Api,
            ("NodeService", "DrainNodes" | "ResumeNodes") => role == Role::Admin,
            ("NodeService", _) => role == Role::Agent,
            ("NodeAgentService", "LaunchProcesses" | "AbortProcesses" | "RelayReports") => {
                matches!(role, Role::Api | Role::Agent)
            }
            ("NodeAgentService", "RetireVni" | "ListCxiServices" | "ReportDirectly") => role == Role::Api,
            ("NodeAgentService", _) => role == Role::Agent,
            _ => panic!("{path} is of no service that this test knows"),
        }
    }

    #[test]
    fn every_call_is_open_to_its_roles_only() {
        let callers =
            [Caller::Agent("node3".to_owned()), Caller::Api, Caller::User(1000), Caller::User(0), Caller::Admin(None)];
        for path in defined() {
            for caller in &callers {
                let answer = admit(&path, Ok(caller));
                let refusal = answer.err().map(|status| status.code());
                let expected = (!expected(&path, caller.role())).then_some(Code::PermissionDenied);
                assert_eq!(refusal, expected, "{path} by {caller}");
            }
            let status = admit(&path, Err("it sent no certificate")).unwrap_err();
            assert_eq!(status.code(), Code::Unauthenticated);
            assert_eq!(
                status.message(),
                format!("the caller that would {} is not known: it sent no certificate", deed(&path))
            );
        }
    }

    #[test]
    fn what_users_and_administrators_call_is_told_in_words() {
        let calls = TABLE.iter().filter(|(_, admitted)| [USERS, ADMINS, USERS_AND_AGENTS].contains(admitted));
        for (path, _) in calls {
            assert!(!deed(path).contains('/'), "{path}");
        }
        let refused = admit("/lattice.v1.NodeService/DrainNodes", Ok(&Caller::User(1000))).unwrap_err();
        assert_eq!(refused.message(), "user 1000 may not drain nodes; administrators may");
    }

    #[test]
    fn unknown_calls_are_refused_whoever_makes_them() {
        for path in [
            "/",
            "/lattice.v1.NodeService/Reboot",
            "/lattice.v1.nodeservice/ListNodes",
            "/lattice.v1.NodeService/ListNodes/",
        ] {
            let status = admit(path, Ok(&Caller::Admin(Some(0)))).unwrap_err();
            assert_eq!(status.code(), Code::Unimplemented, "{path}");
        }
        assert!(admit("/grpc.health.v1.Health/Check", Err("no certificate")).is_ok());
    }

    #[test]
    fn a_claim_counts_only_where_claims_are_believed() {
        let mut headers = HeaderMap::new();
        assert!(identify(Some(&Peer::Claimed), &headers).unwrap_err().contains("no metadata"));
        headers.insert(CALLER_HEADER, "lattice:///admin".parse().unwrap());
        assert_eq!(identify(Some(&Peer::Claimed), &headers), Ok(Caller::Admin(None)));
        assert_eq!(identify(Some(&Peer::Local(Caller::User(7))), &headers), Ok(Caller::User(7)));
        assert!(identify(None, &headers).is_err());
    }
}
