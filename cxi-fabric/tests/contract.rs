//! Checks that client and fake follow `openapi.json`.

mod scene;

use cxi_fabric::fake::{CallKind, Exchange, Fault, Options, Rule};
use scene::{fake_with, request, rest, soon};
use serde_json::{Value, json};

/// Contract with look-up functions.
struct Contract(Value);

impl Contract {
    fn read() -> Self {
        let text = include_str!("../openapi.json");
        Self(serde_json::from_str(text).expect("openapi.json is JSON"))
    }

    /// Operation of a call; a path of the contract matches if its parts are equal or in braces.
    fn operation(&self, exchange: &Exchange) -> &Value {
        let parts = |path: &str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
        let seen = parts(&exchange.path);
        let paths = self.0["paths"].as_object().expect("paths");
        let matches = |path: &str| {
            let path = parts(path);
            path.len() == seen.len() && path.iter().zip(&seen).all(|(part, seen)| part == seen || part.starts_with('{'))
        };
        let (path, operations) = paths
            .iter()
            .find(|(path, _)| matches(path))
            .unwrap_or_else(|| panic!("{} is in no contract", exchange.path));
        let operation = &operations[exchange.method.to_lowercase()];
        assert!(operation.is_object(), "{path} has no {}", exchange.method);
        operation
    }

    fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str() {
            Some(link) => {
                self.0.pointer(link.trim_start_matches('#')).unwrap_or_else(|| panic!("{link} leads nowhere"))
            }
            None => value,
        }
    }

    /// Checks a document against a schema of the contract.
    fn check(&self, what: &str, content: &Value, document: Option<&Value>) {
        let Some(schema) =
            content.as_object().and_then(|kinds| kinds.values().next()).map(|kind| kind["schema"].clone())
        else {
            assert_eq!(document, None, "{what} has a body, and the contract none");
            return;
        };
        let mut schema = schema;
        schema["components"] = self.0["components"].clone();
        let validator = jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{what}: {error}"));
        let document = document.unwrap_or(&Value::Null);
        let errors: Vec<_> = validator.iter_errors(document).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{what}: {document}: {errors:?}");
    }

    fn check_exchange(&self, exchange: &Exchange) {
        let what = format!("{} {}", exchange.method, exchange.path);
        let operation = self.operation(exchange);
        self.check(&format!("{what}, request"), &operation["requestBody"]["content"], exchange.request.as_ref());
        let Some(status) = exchange.status else { return };
        let responses = &operation["responses"];
        let exact = &responses[status.to_string()];
        let response = self.resolve(if exact.is_null() { &responses["default"] } else { exact });
        assert!(response.is_object(), "{what}: {status} is in no contract");
        self.check(&format!("{what}, {status}"), &response["content"], exchange.response.as_ref());
    }
}

#[test]
fn requests_and_answers_keep_to_the_contract() {
    let contract = Contract::read();
    let mut seen = std::collections::BTreeSet::new();
    for (conflicts, offers_list) in [(false, true), (true, true), (false, false)] {
        let fake = fake_with(Options { conflicts, offers_list, ..Options::default() });
        fake.script([Rule::once(CallKind::Create, Fault::status(503)), Rule::once(CallKind::Auth, Fault::status(429))]);
        let manager = rest(&fake);
        let service = manager.create(&request(0), soon()).expect("made");
        manager.create(&request(0), soon()).expect("found");
        manager.credentials(&service, soon()).expect("answered");
        let _ = manager.list(soon());
        manager.delete(&service.id, soon()).expect("deleted");
        manager.delete(&service.id, soon()).expect("gone");
        assert_eq!(manager.credentials(&service, soon()), Ok(None));
        for exchange in fake.exchanges() {
            contract.check_exchange(&exchange);
            seen.insert((exchange.method.clone(), exchange.status));
        }
    }
    for (method, status) in [
        ("POST", 200),
        ("POST", 201),
        ("POST", 409),
        ("POST", 503),
        ("GET", 200),
        ("GET", 404),
        ("DELETE", 204),
        ("DELETE", 404),
    ] {
        assert!(seen.contains(&(method.to_owned(), Some(status))), "{method} {status} was not seen: {seen:?}");
    }
}

#[test]
fn the_contract_has_the_three_endpoints_of_the_design_document() {
    let contract = Contract::read();
    for (path, method) in [
        ("/fabric/cxi/services", "post"),
        ("/fabric/cxi/services/{id}/auth", "get"),
        ("/fabric/cxi/services/{id}", "delete"),
    ] {
        assert!(contract.0["paths"][path][method].is_object(), "{method} {path}");
    }
}

#[test]
fn the_check_itself_notices_what_is_wrong() {
    let contract = Contract::read();
    let exchange = |request: Value| Exchange {
        asked: CallKind::Create,
        method: "POST".into(),
        path: "/fabric/cxi/services".into(),
        request: Some(request),
        status: None,
        response: None,
        fault: None,
    };
    let good = json!({"name": "a.b.0", "allocation_id": "b", "vni": 1, "nodes": ["n"], "uid": 0});
    contract.check_exchange(&exchange(good.clone()));
    for (field, bad) in
        [("vni", json!(0)), ("vni", json!("1")), ("nodes", json!([])), ("name", json!("a/b")), ("more", json!(1))]
    {
        let mut document = good.clone();
        document[field] = bad;
        let caught = std::panic::catch_unwind(|| Contract::read().check_exchange(&exchange(document)));
        assert!(caught.is_err(), "a wrong `{field}` was not noticed");
    }
}
