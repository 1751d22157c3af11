//! Fields of a JSON answer, parsed in place: a secret is copied once, into its [`Secret`]. An error names a field and its
//! kind, never its content.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::secret::Secret;

/// One JSON object.
pub(crate) struct Fields<'a>(BTreeMap<Cow<'a, str>, &'a RawValue>);

/// Actual and expected content of a field.
pub(crate) type FieldError = String;

impl<'a> Fields<'a> {
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, FieldError> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Err("the body is empty where a JSON object should be".into());
        }
        serde_json::from_slice(body).map(Self).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            match error.classify() {
                serde_json::error::Category::Data => "the body is JSON, but no object".to_owned(),
                _ => format!("the body is no JSON (line {line}, column {column})"),
            }
        })
    }

    /// The field, unless it is missing or null.
    fn present(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(|value| value.get()).filter(|json| *json != "null")
    }

    fn expect<T>(&self, name: &str, expected: &str, read: impl FnOnce(&'a str) -> Option<T>) -> Result<T, FieldError> {
        let json = self.present(name).ok_or_else(|| format!("field `{name}` is missing"))?;
        read(json).ok_or_else(|| format!("field `{name}` is {}, not {expected}", kind(json)))
    }

    pub(crate) fn text(&self, name: &str) -> Result<String, FieldError> {
        self.expect(name, "a text", |json| serde_json::from_str(json).ok())
    }

    pub(crate) fn number(&self, name: &str) -> Result<u32, FieldError> {
        self.expect(name, "a number of 32 bits", |json| serde_json::from_str(json).ok())
    }

    pub(crate) fn texts(&self, name: &str) -> Result<Vec<String>, FieldError> {
        self.expect(name, "a list of texts", |json| serde_json::from_str(json).ok())
    }

    pub(crate) fn objects(&self, name: &str) -> Result<Vec<Self>, FieldError> {
        let read = |json| serde_json::from_str::<Vec<BTreeMap<Cow<'a, str>, &'a RawValue>>>(json).ok();
        Ok(self.expect(name, "a list of objects", read)?.into_iter().map(Self).collect())
    }

    /// Secret in hexadecimal digits.
    pub(crate) fn hex(&self, name: &str) -> Result<Secret, FieldError> {
        self.expect(name, "an even number of hexadecimal digits", |json| {
            // JSON has escapes, but hexadecimal digits need none.
            json.strip_prefix('"')?.strip_suffix('"').and_then(Secret::from_hex)
        })
    }

    /// Secret as plain text.
    pub(crate) fn secret(&self, name: &str) -> Result<Secret, FieldError> {
        self.expect(name, "a text", |json| serde_json::from_str::<String>(json).ok().map(Secret::new))
    }

    pub(crate) fn optional<T>(
        &self,
        name: &str,
        read: impl FnOnce(&Self, &str) -> Result<T, FieldError>,
    ) -> Result<Option<T>, FieldError> {
        self.present(name).map(|_| read(self, name)).transpose()
    }
}

/// Kind of a value, from its first byte.
fn kind(json: &str) -> &'static str {
    match json.bytes().next() {
        Some(b'"') => "another text",
        Some(b'{') => "an object",
        Some(b'[') => "another list",
        Some(b't' | b'f') => "true or false",
        _ => "another number",
    }
}

/// A service's text for its own failure: `detail`, `message` or a similar field of a problem document, or a short plain text.
pub(crate) fn error_text(body: &[u8]) -> String {
    if let Ok(fields) = Fields::read(body) {
        let words =
            ["detail", "message", "error_description", "title", "error"].iter().find_map(|name| fields.text(name).ok());
        return words.unwrap_or_default();
    }
    // An HTML page of a gateway is of no use in an error.
    let text = String::from_utf8_lossy(body);
    if text.trim_start().starts_with('<') { String::new() } else { text.into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_a_wrong_type_is_told_by_name_and_kind_only() {
        let body = br#"{"vni": "canary-1", "auth_key": "zz-canary-2", "id": ["canary-3"], "svc_id": -5, "n": null}"#;
        let fields = Fields::read(body).unwrap_or_else(|error| panic!("{error}"));
        let errors = [
            fields.number("vni").expect_err("a text"),
            fields.hex("auth_key").map(|_| ()).expect_err("no digits"),
            fields.text("id").expect_err("a list"),
            fields.number("svc_id").expect_err("negative"),
            fields.text("n").expect_err("null"),
        ];
        assert_eq!(errors[0], "field `vni` is another text, not a number of 32 bits");
        assert_eq!(errors[4], "field `n` is missing");
        assert!(errors.iter().all(|error| !error.contains("canary")), "{errors:?}");
    }

    #[test]
    fn garbage_is_told_by_its_place() {
        for (body, expected) in [
            (b"".as_slice(), "the body is empty where a JSON object should be"),
            (b"{\"vni\": 1024", "the body is no JSON (line 1, column 12)"),
            (b"[1, 2]", "the body is JSON, but no object"),
            (b"\xff\xfe", "the body is no JSON (line 1, column 1)"),
        ] {
            assert_eq!(Fields::read(body).map(|_| ()).expect_err("garbage"), expected);
        }
    }

    #[test]
    fn a_managers_own_words_are_found() {
        for (body, words) in [
            (r#"{"status": 400, "detail": "no such node"}"#, "no such node"),
            (r#"{"message": "quota"}"#, "quota"),
            ("upstream unavailable", "upstream unavailable"),
            ("<html>502</html>", ""),
            ("{}", ""),
        ] {
            assert_eq!(error_text(body.as_bytes()), words);
        }
    }
}
