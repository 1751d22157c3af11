//! Checks JSON against the schemas of the documentation. A field that the schema does not describe is an error too.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use jsonschema::Validator;
use serde_json::Value;

/// Directory of the schemas.
const DOCUMENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/schemas");

/// A schema.
#[derive(Debug)]
pub struct Schema(Validator);

impl Schema {
    /// Names of the documents that have a schema in the documentation.
    ///
    /// # Panics
    /// Panics if the directory of the schemas cannot be read.
    #[must_use]
    pub fn documents() -> BTreeSet<String> {
        let files = fs::read_dir(DOCUMENTS).expect("the documentation has a directory of schemas").flatten();
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        names.map(|name| name.trim_end_matches(".schema.json").to_owned()).collect()
    }

    /// Reads the schema of a document of a command, such as `launches`, from the documentation.
    ///
    /// # Panics
    /// Panics if there is none.
    #[must_use]
    pub fn of_document(name: &str) -> Self {
        let file = Path::new(DOCUMENTS).join(format!("{name}.schema.json"));
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let schema = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        Self::new(schema)
    }

    fn new(mut schema: Value) -> Self {
        close(&mut schema);
        Self(jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{schema:#} is no schema: {error}")))
    }

    /// Checks a value.
    ///
    /// # Errors
    /// Returns the position of each mismatch, and the mismatch.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        let mismatches = self.0.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path()));
        let mismatches: Vec<String> = mismatches.collect();
        if mismatches.is_empty() { Ok(()) } else { Err(format!("{value}: {}", mismatches.join("; "))) }
    }
}

/// Excludes fields without a description from each object that the schema describes.
fn close(schema: &mut Value) {
    close_inner(schema);
    if let Some(keywords) = schema.as_object_mut() {
        keywords.insert("unevaluatedProperties".to_owned(), false.into());
    }
}

/// As [`close`], for the schemas in this one. It may itself describe a part of an object.
fn close_inner(schema: &mut Value) {
    for (keyword, value) in schema.as_object_mut().into_iter().flatten() {
        match (keyword.as_str(), value) {
            ("properties" | "$defs", Value::Object(schemas)) => schemas.values_mut().for_each(close),
            ("items" | "additionalProperties", schema) => close(schema),
            ("prefixItems", Value::Array(schemas)) => schemas.iter_mut().for_each(close),
            ("oneOf" | "anyOf" | "allOf", Value::Array(parts)) => parts.iter_mut().for_each(close_inner),
            _ => {}
        }
    }
}

/// Checks the documents in the output of a script. The line `== NAME` before each document names its schema. Returns the names.
///
/// # Panics
/// Panics if a document is not JSON, or does not match its schema.
#[must_use]
#[track_caller]
pub fn check_documents(output: &str) -> BTreeSet<String> {
    let lines = format!("\n{output}");
    let check = |section: &str| {
        let (name, text) = section.split_once('\n').unwrap_or((section, ""));
        let document = serde_json::from_str(text).unwrap_or_else(|error| panic!("{name} is no JSON: {error}: {text}"));
        Schema::of_document(name).check(&document).unwrap_or_else(|error| panic!("{name}: {error}"));
        name.to_owned()
    };
    lines.split("\n== ").skip(1).map(check).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_without_a_description_is_an_error() {
        let schema = Schema::new(json!({
            "type": "object",
            "properties": { "time": { "type": "string" }, "inner": { "anyOf": [{ "$ref": "#/$defs/inner" }, { "type": "null" }] } },
            "required": ["time"],
            "oneOf": [
                { "properties": { "event": { "const": "a" }, "n": { "type": "integer" } }, "required": ["event", "n"] },
                { "properties": { "event": { "const": "b" } }, "required": ["event"] }
            ],
            "$defs": { "inner": { "type": "object", "properties": { "x": { "enum": [1, 2] } }, "required": ["x"] } }
        }));
        let check = |value: Value, expected: bool| assert_eq!(schema.check(&value).is_ok(), expected, "{value}");
        check(json!({ "time": "", "event": "a", "n": 3 }), true);
        check(json!({ "time": "", "event": "b", "inner": { "x": 2 } }), true);
        check(json!({ "time": "", "event": "b", "inner": null }), true);
        check(json!({ "time": "", "event": "b", "n": 3 }), false);
        check(json!({ "time": "", "event": "b", "inner": { "x": 3 } }), false);
        check(json!({ "time": "", "event": "b", "inner": { "x": 2, "y": 2 } }), false);
        check(json!({ "event": "b" }), false);
    }
}
