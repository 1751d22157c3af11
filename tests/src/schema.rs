//! Checks JSON against a schema, with the keywords of Lattice's own schemas: `$ref`, `oneOf`, `anyOf`, `const`,
//! `enum`, `type`, `properties`, `required`, `items`, `minimum`, `maximum`, `additionalProperties`. The check fails for an unknown keyword, so that no keyword is
//! ignored.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// Keywords without an effect on the check.
const REMARKS: &[&str] = &["$schema", "title", "description", "$defs", "format"];

/// Directory of the schemas of documents.
const DOCUMENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/schemas");

/// A schema.
#[derive(Debug)]
pub struct Schema(Value);

impl Schema {
    /// Parses a schema.
    ///
    /// # Errors
    /// Fails if the text is not JSON.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text).map(Self)
    }

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
        Self::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    }

    /// Checks a value.
    ///
    /// # Errors
    /// Returns the position of the mismatch, and the expected value.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        self.check_against(&self.0, value)
    }

    fn check_against(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let keywords = schema.as_object().ok_or_else(|| format!("{schema} is no schema"))?;
        keywords.iter().try_for_each(|(keyword, expected)| self.check_keyword(keyword, expected, value))
    }

    fn check_keyword(&self, keyword: &str, expected: &Value, value: &Value) -> Result<(), String> {
        let unless =
            |fits: bool| if fits { Ok(()) } else { Err(format!("{value} does not fit {keyword}: {expected}")) };
        let list = || expected.as_array().map(Vec::as_slice).unwrap_or_default();
        match keyword {
            "$ref" => self.check_against(self.definition(expected)?, value),
            "oneOf" => self.check_one_of(list(), value),
            "anyOf" => {
                let fits = |schema: &Value| self.check_against(schema, value);
                let mismatches: Vec<String> = list().iter().map_while(|schema| fits(schema).err()).collect();
                if mismatches.len() < list().len() {
                    Ok(())
                } else {
                    Err(format!("{value} fits none: {mismatches:#?}"))
                }
            }
            "const" => unless(value == expected),
            "enum" => unless(list().contains(value)),
            "type" => unless(list().iter().chain([expected]).any(|name| is_of_type(value, name))),
            // These two only apply to numbers.
            "minimum" => unless(!value.is_number() || value.as_f64() >= expected.as_f64()),
            "maximum" => unless(!value.is_number() || value.as_f64() <= expected.as_f64()),
            // Only an object of any content has it.
            "additionalProperties" if *expected == Value::Bool(true) => Ok(()),
            "required" => {
                let has = |name: &Value| name.as_str().is_some_and(|name| value.get(name).is_some());
                // The keyword only applies to objects.
                unless(!value.is_object() || list().iter().all(has))
            }
            "properties" => self.check_properties(expected, value),
            "items" => {
                let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
                items.iter().try_for_each(|item| self.check_against(expected, item))
            }
            remark if REMARKS.contains(&remark) => Ok(()),
            unknown => Err(format!("the schema uses {unknown}, which this check does not know")),
        }
    }

    fn definition(&self, reference: &Value) -> Result<&Value, String> {
        let pointer = reference.as_str().and_then(|text| text.strip_prefix('#'));
        pointer.and_then(|pointer| self.0.pointer(pointer)).ok_or_else(|| format!("there is no {reference}"))
    }

    fn check_one_of(&self, schemas: &[Value], value: &Value) -> Result<(), String> {
        let results: Vec<_> = schemas.iter().map(|schema| self.check_against(schema, value)).collect();
        match results.iter().filter(|result| result.is_ok()).count() {
            1 => Ok(()),
            0 => Err(format!("{value} fits none: {results:#?}")),
            several => Err(format!("{value} fits {several} of what must exclude each other")),
        }
    }

    /// The schema must describe every property. Any other property is an undocumented change of the format.
    fn check_properties(&self, schemas: &Value, value: &Value) -> Result<(), String> {
        let Some(properties) = value.as_object() else { return Ok(()) };
        properties.iter().try_for_each(|(name, property)| {
            let schema = schemas.get(name).ok_or_else(|| format!("{name} in {value} is not documented"))?;
            self.check_against(schema, property).map_err(|error| format!("{name}: {error}"))
        })
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

fn is_of_type(value: &Value, name: &Value) -> bool {
    match name.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_does_not_fit_is_told() {
        let schema = json!({
            "oneOf": [{ "$ref": "#/$defs/a" }, { "const": 3 }],
            "$defs": { "a": {
                "type": ["object", "null"],
                "properties": { "n": { "type": "integer", "minimum": 0 }, "s": { "items": { "enum": ["x", "y"] } } },
                "required": ["n"]
            } }
        });
        let schema = Schema(schema);
        let fits = |value: Value| schema.check(&value).is_ok();
        assert!(fits(json!(3)) && fits(json!({ "n": 1 })) && fits(json!({ "n": 0, "s": ["x", "y"] })));
        assert!(fits(json!(null)));
        let either =
            Schema(json!({ "anyOf": [{ "type": "null" }, { "type": "integer", "minimum": 0, "maximum": 9 }] }));
        assert!([json!(null), json!(9)].iter().all(|value| either.check(value).is_ok()));
        assert!([json!(10), json!("9")].iter().all(|value| either.check(value).is_err()));
        assert!(!fits(json!(4)) && !fits(json!({})) && !fits(json!({ "n": -1 })) && !fits(json!({ "n": "1" })));
        assert!(!fits(json!({ "n": 1, "s": ["z"] })) && !fits(json!({ "n": 1, "t": 1 })));
        assert!(Schema(json!({ "maxLength": 3 })).check(&json!("a")).unwrap_err().contains("maxLength"));
    }
}
