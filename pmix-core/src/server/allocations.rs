//! Requests for resources (`PMIx_Allocation_request`), answered from the job's own allocation. The job holds whole nodes as long as it
//! runs. So requests for existing resources are granted, and no resource can be added or returned.

use std::collections::HashSet;

use super::client::Address;
use super::launch::Launch;
use crate::namespace::Namespace;
use crate::wire::value::{Info, Value};
use crate::wire::writer::Writer;
use crate::wire::{reply, status};

/// Directives of the standard (PMIx 4.1, 11.1.2.1).
const NEW: u8 = 1;
const EXTEND: u8 = 2;
const REACQUIRE: u8 = 4;

const NODES: &[u8] = b"pmix.alloc.nnodes";
const NODE_LIST: &[u8] = b"pmix.alloc.nlist";
const REQUEST: &[u8] = b"pmix.alloc.reqid";

/// Status of a refused request.
type Refusal = i32;

/// Grants the resources that the allocation has.
pub(super) fn allocate(launch: &mut Launch, address: Address, directive: u8, infos: &[Info<'_>]) {
    let namespace = &launch.jobs[launch.jobs.meant_by(address.identity.seat)].namespace;
    let encoding = address.identity.encoding;
    let granted = match directive {
        NEW | EXTEND | REACQUIRE => granted(namespace, infos),
        _ => Err(status::NOT_SUPPORTED),
    };
    let reply = match granted {
        Err(status) => reply::status(encoding, status),
        Ok(nodes) => {
            let list = nodes.join(",");
            let mut answer = vec![
                Info::new("pmix.alloc.id", Value::Text(namespace.allocation.as_deref().unwrap_or("local").as_bytes())),
                Info::new("pmix.alloc.nnodes", Value::U64(nodes.len() as u64)),
                Info::new("pmix.alloc.nlist", Value::Text(list.as_bytes())),
            ];
            answer.extend(infos.iter().find(|info| info.key == REQUEST).cloned());
            let mut written = Writer::new(encoding);
            answer.iter().for_each(|info| written.info(info));
            reply::infos(encoding, status::SUCCESS, answer.len(), &written)
        }
    };
    launch.reply(address, &reply);
}

/// The nodes for a request.
fn granted<'a>(namespace: &'a Namespace, infos: &[Info<'_>]) -> Result<Vec<&'a str>, Refusal> {
    let mut nodes: Vec<&str> = namespace.hosts.iter().map(String::as_str).collect();
    let known: HashSet<&str> = nodes.iter().copied().collect();
    for info in infos {
        match (info.key, &info.value) {
            (NODE_LIST, Value::Text(list)) => {
                let list = std::str::from_utf8(list).map_err(|_| status::BAD_PARAM)?;
                nodes = listed(list, &known).ok_or(status::OUT_OF_RESOURCE)?;
            }
            (REQUEST, _) | (NODES, _) => {}
            // Other kinds of resources are not counted here.
            (_, _) if info.is_required() => return Err(status::NOT_SUPPORTED),
            _ => {}
        }
    }
    if let Some(asked) = infos.iter().find(|info| info.key == NODES) {
        let asked = asked.value.number().ok_or(status::BAD_PARAM)?;
        if asked > nodes.len() as u64 {
            return Err(status::OUT_OF_RESOURCE);
        }
        nodes.truncate(asked as usize);
    }
    Ok(nodes)
}

/// The nodes of a list, each once; `None` if a name is unknown, or the list has more names than nodes.
fn listed<'a>(list: &str, known: &HashSet<&'a str>) -> Option<Vec<&'a str>> {
    let (mut nodes, mut seen) = (Vec::new(), HashSet::new());
    for (count, name) in list.split(',').enumerate() {
        let node = known.get(name).filter(|_| count < known.len())?;
        if seen.insert(*node) {
            nodes.push(*node);
        }
    }
    Some(nodes)
}
