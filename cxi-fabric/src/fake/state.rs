//! Existing services, and the effects of calls on them.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::Options;
use super::connection::{Request, Response};
use super::script::{self, CallKind, Fault, Rule};

/// Access control of the fake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// All clients.
    Anybody,
    /// Clients that send exactly this `Authorization` header.
    Header(String),
    /// Clients with a token, which `/token` issues for this client secret.
    Token {
        /// The secret.
        client_secret: String,
    },
}

/// One call and its answer.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Kind of the call.
    pub asked: CallKind,
    /// The HTTP method.
    pub method: String,
    /// The path.
    pub path: String,
    /// The request's body, if it is JSON.
    pub request: Option<Value>,
    /// Status of the answer; `None` if the connection was closed instead.
    pub status: Option<u16>,
    /// The answer's body, if it is JSON. It may have keys.
    pub response: Option<Value>,
    /// Fault from the script.
    pub fault: Option<Fault>,
}

struct Entry {
    id: String,
    vni: u64,
    /// Second VNI, for a job that requested two.
    job_vni: Option<u64>,
    key: String,
}

pub(super) struct State {
    pub(super) script: Vec<Rule>,
    pub(super) exchanges: Vec<Exchange>,
    /// Services by name.
    services: BTreeMap<String, Entry>,
    made: u32,
    /// Each token has its number; tokens from `first_good_token` on are valid.
    tokens: u32,
    first_good_token: u32,
    options: Options,
}

type Reply = (u16, Value);

impl State {
    pub(super) fn new(mut options: Options) -> Self {
        Self {
            script: std::mem::take(&mut options.script),
            exchanges: Vec::new(),
            services: BTreeMap::new(),
            made: 0,
            tokens: 0,
            first_good_token: 0,
            options,
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.services.keys().cloned().collect()
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.services.remove(name);
    }

    pub(super) fn expire_tokens(&mut self) {
        self.first_good_token = self.tokens;
    }

    pub(super) fn add(&mut self, name: &str, vni: u64, job_vni: Option<u64>) {
        self.made += 1;
        let key = self.options.auth_key.clone().unwrap_or_else(|| format!("{:032x}", fastrand::u128(..)));
        self.services.insert(name.to_owned(), Entry { id: format!("svc-{}", self.made), vni, job_vni, key });
    }

    /// Carries out the request, or the fault that the script has for it. Also returns the pause before the answer.
    pub(super) fn answer(&mut self, request: &Request) -> (Option<Response>, Duration) {
        let path: Vec<&str> = request.path.trim_matches('/').split('/').collect();
        if (request.method.as_str(), path.as_slice()) == ("POST", &["faults"]) {
            return (Some(self.rewrite_script(&request.body)), Duration::ZERO);
        }
        let asked = asked(&request.method, &path);
        let fault = script::next(&mut self.script, asked);
        if fault == Some(Fault::ExpireTokens) {
            self.expire_tokens();
        }
        let (status, body) = match &fault {
            Some(Fault::Status { status, detail, .. }) => (*status, problem(*status, detail.as_deref().unwrap_or(""))),
            Some(Fault::RetryAt { .. }) => (503, problem(503, "later")),
            Some(Fault::Down) => (0, Value::Null),
            _ if asked != CallKind::Token && !self.lets_in(request) => (401, problem(401, "no valid credentials")),
            _ => self.serve(asked, &path, request),
        };
        let body = match fault {
            Some(Fault::Garbage) => "{\"id\": \"svc-1\", ".to_owned(),
            Some(Fault::WrongTypes) => other_types(&body).to_string(),
            _ if body.is_null() => String::new(),
            _ => body.to_string(),
        };
        let is_lost = fault.as_ref().is_some_and(Fault::loses_the_answer);
        let pause = fault.as_ref().map(Fault::pause).unwrap_or_default();
        let (retry_after, date) = fault.as_ref().map(|fault| fault.later(SystemTime::now())).unwrap_or_default();
        let content_type = if status >= 400 { "application/problem+json" } else { "application/json" };
        self.record(Exchange {
            asked,
            method: request.method.clone(),
            path: request.path.clone(),
            request: serde_json::from_slice(&request.body).ok(),
            status: (!is_lost).then_some(status),
            response: serde_json::from_str(&body).ok(),
            fault,
        });
        ((!is_lost).then_some(Response { status, content_type, retry_after, date, body }), pause)
    }

    /// Replaces the script. This needs no token.
    fn rewrite_script(&mut self, body: &[u8]) -> Response {
        let (status, body) = match serde_json::from_slice(body) {
            Ok(script) => {
                self.script = script;
                (204, String::new())
            }
            Err(error) => (400, problem(400, &error.to_string()).to_string()),
        };
        Response { status, content_type: "application/json", retry_after: None, date: None, body }
    }

    fn record(&mut self, exchange: Exchange) {
        let line = json!({
            "call": exchange.asked,
            "method": exchange.method,
            "path": exchange.path,
            "request": exchange.request,
            "status": exchange.status,
            "spoilt": exchange.fault.is_some(),
        });
        if let Some(log) = &mut self.options.log {
            // A failed write to the log must not end a demonstration.
            let _ = writeln!(log, "{line}").and_then(|()| log.flush());
        }
        self.exchanges.push(exchange);
    }

    fn lets_in(&self, request: &Request) -> bool {
        let header = request.headers.get("authorization").map_or("", String::as_str);
        match &self.options.access {
            Access::Anybody => true,
            Access::Header(expected) => header == expected,
            Access::Token { .. } => header
                .strip_prefix("Bearer token-number-")
                .and_then(|number| number.parse().ok())
                .is_some_and(|number| (self.first_good_token..self.tokens).contains(&number)),
        }
    }

    fn serve(&mut self, asked: CallKind, path: &[&str], request: &Request) -> Reply {
        let is_vnid = path.first() == Some(&"vnis");
        match asked {
            CallKind::Token => self.token(&request.body),
            CallKind::Create if is_vnid => self.create_job(path[1], &request.body),
            CallKind::Create => self.create(&request.body),
            CallKind::Delete if is_vnid => match self.services.remove(path[3]) {
                Some(_) => (200, json!({})),
                None => (404, problem(404, "no such job")),
            },
            CallKind::Delete => match self.named(path[3]) {
                Some(name) => {
                    self.services.remove(&name);
                    (204, Value::Null)
                }
                None => (404, problem(404, "no such service")),
            },
            CallKind::Auth => self.auth(path[3]),
            CallKind::List if is_vnid => {
                let link = |name: &String| format!("/fabric/vnis/{}/jobs/{name}", path[1]);
                (200, json!({ "documentSelfLinks": self.services.keys().map(link).collect::<Vec<_>>() }))
            }
            CallKind::List if self.options.offers_list => {
                let shown =
                    |(name, entry): (&String, &Entry)| json!({ "id": entry.id, "name": name, "vni": entry.vni });
                (200, json!({ "services": self.services.iter().map(shown).collect::<Vec<_>>() }))
            }
            CallKind::Other if is_vnid && path.len() == 4 && request.method == "GET" => {
                match self.services.get(path[3]) {
                    Some(entry) => (200, job(path[1], path[3], entry)),
                    None => (404, problem(404, "no such job")),
                }
            }
            CallKind::List => (405, problem(405, "not allowed")),
            CallKind::Other => (404, problem(404, "nothing is here")),
        }
    }

    fn create(&mut self, body: &[u8]) -> Reply {
        let document: Value = serde_json::from_slice(body).unwrap_or_default();
        let (Some(name), Some(vni)) = (document["name"].as_str(), document["vni"].as_u64()) else {
            return (400, problem(400, "name and vni are needed"));
        };
        if let Some(entry) = self.services.get(name) {
            let status = if self.options.conflicts { 409 } else { 200 };
            let body = if self.options.conflicts { problem(409, "exists") } else { service(name, entry) };
            return (status, body);
        }
        self.add(name, vni, None);
        (201, service(name, &self.services[name]))
    }

    fn create_job(&mut self, partition: &str, body: &[u8]) -> Reply {
        let document: Value = serde_json::from_slice(body).unwrap_or_default();
        let (Some(name), Some(_)) = (document["jobID"].as_str(), document["UID"].as_u64()) else {
            return (400, problem(400, "jobID and UID are needed"));
        };
        if self.services.contains_key(name) {
            return (409, problem(409, "the job exists"));
        }
        let is_free = |vni: &u64| !self.services.values().any(|entry| entry.vni == *vni || entry.job_vni == Some(*vni));
        let mut free = (2048..65536).filter(is_free);
        let Some(vni) = free.next() else { return (503, problem(503, "no VNI is left")) };
        let job_vni = if document["vniCount"].as_u64() == Some(2) { free.next() } else { None };
        drop(free);
        self.add(name, vni, job_vni);
        (200, job(partition, name, &self.services[name]))
    }

    fn auth(&self, id: &str) -> Reply {
        match self.services.values().find(|entry| entry.id == id) {
            Some(Entry { vni, key, .. }) => (200, json!({ "auth_key": key, "svc_id": 0, "vni": vni })),
            None => (404, problem(404, "no such service")),
        }
    }

    fn named(&self, id: &str) -> Option<String> {
        self.services.iter().find(|(_, entry)| entry.id == id).map(|(name, _)| name.clone())
    }

    fn token(&mut self, body: &[u8]) -> Reply {
        let Access::Token { client_secret } = &self.options.access else {
            return (404, problem(404, "nothing is here"));
        };
        let form = String::from_utf8_lossy(body);
        let is_theirs = form.split('&').any(|field| field.strip_prefix("client_secret=") == Some(client_secret));
        if !is_theirs || !form.contains("grant_type=client_credentials") {
            return (401, json!({ "error": "invalid_client", "error_description": "unknown client or wrong secret" }));
        }
        let token = format!("token-number-{}", self.tokens);
        self.tokens += 1;
        (200, json!({ "access_token": token, "token_type": "Bearer", "expires_in": 300 }))
    }
}

fn asked(method: &str, path: &[&str]) -> CallKind {
    match (method, path) {
        ("POST", ["token"]) => CallKind::Token,
        ("POST", ["fabric", "cxi", "services"] | ["vnis", _, "jobs"]) => CallKind::Create,
        ("GET", ["fabric", "cxi", "services"] | ["vnis", _, "jobs"]) => CallKind::List,
        ("GET", ["fabric", "cxi", "services", _, "auth"]) => CallKind::Auth,
        ("DELETE", ["fabric", "cxi", "services", _] | ["vnis", _, "jobs", _]) => CallKind::Delete,
        _ => CallKind::Other,
    }
}

fn service(name: &str, entry: &Entry) -> Value {
    json!({ "id": entry.id, "name": name, "vni": entry.vni })
}

fn job(partition: &str, name: &str, entry: &Entry) -> Value {
    let link = |vni| format!("/fabric/vnis/{partition}/vnis/{vni}");
    let links: Vec<String> = std::iter::once(entry.vni).chain(entry.job_vni).map(link).collect();
    json!({ "jobID": name, "UID": 0, "VNIs": links, "jobStepVNIs": [] })
}

fn problem(status: u16, detail: &str) -> Value {
    json!({ "status": status, "title": "problem", "detail": detail })
}

/// Changes the types of all fields: texts become numbers, all other values become texts.
fn other_types(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), other_types(value))).collect(),
        Value::String(_) => json!(-1),
        other => json!(other.to_string()),
    }
}
