//! The messages of the protocol's files: their fields, and the messages within requests.

use std::collections::{BTreeMap, BTreeSet};

use prost_types::FileDescriptorSet;

/// Messages by their name in the package, such as `LaunchTasksRequest.EnvEntry`.
pub(crate) struct Messages<'a> {
    files: &'a FileDescriptorSet,
    fields: BTreeMap<String, Vec<Field>>,
}

/// Field of a message.
pub(crate) struct Field {
    pub(crate) number: i32,
    pub(crate) name: String,
    pub(crate) is_repeated: bool,
    pub(crate) kind: Kind,
}

/// Type of a field, with regard to its encoding.
pub(crate) enum Kind {
    Text,
    Bytes,
    /// An integer, a boolean, or an enum value.
    Number,
    Message(String),
}

const PACKAGE: &str = ".lattice.v1.";

/// Numbers of types and labels in descriptor.proto.
const TYPE_STRING: i32 = 9;
const TYPE_MESSAGE: i32 = 11;
const TYPE_BYTES: i32 = 12;
const LABEL_REPEATED: i32 = 3;

impl<'a> Messages<'a> {
    pub(crate) fn of(files: &'a FileDescriptorSet) -> Self {
        let mut fields = BTreeMap::new();
        for message in files.file.iter().flat_map(|file| &file.message_type) {
            fields.insert(message.name().to_owned(), message.field.iter().map(field).collect());
            for nested in &message.nested_type {
                let name = format!("{}.{}", message.name(), nested.name());
                fields.insert(name, nested.field.iter().map(field).collect());
            }
        }
        Self { files, fields }
    }

    pub(crate) fn fields(&self, message: &str) -> &[Field] {
        &self.fields[message]
    }

    /// Messages within requests to these services, by name.
    pub(crate) fn of_requests(&self, is_meant: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let services = self.files.file.iter().flat_map(|file| &file.service);
        let methods = services.filter(|service| is_meant(service.name())).flat_map(|service| &service.method);
        let mut open: Vec<String> = methods.map(|method| local(method.input_type())).collect();
        let mut found = BTreeSet::new();
        while let Some(name) = open.pop() {
            for field in self.fields(&name) {
                if let Kind::Message(inner) = &field.kind
                    && !found.contains(inner)
                {
                    open.push(inner.clone());
                }
            }
            found.insert(name);
        }
        found
    }
}

fn local(name: &str) -> String {
    name.strip_prefix(PACKAGE).expect("all types are of our package").to_owned()
}

fn field(field: &prost_types::FieldDescriptorProto) -> Field {
    let kind = match field.r#type.unwrap_or_default() {
        TYPE_STRING => Kind::Text,
        TYPE_BYTES => Kind::Bytes,
        TYPE_MESSAGE => Kind::Message(local(field.type_name())),
        _ => Kind::Number,
    };
    let is_repeated = field.label == Some(LABEL_REPEATED);
    Field { number: field.number(), name: field.name().to_owned(), is_repeated, kind }
}
