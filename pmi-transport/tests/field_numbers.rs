//! The wire format of the package `lattice.v1` does not change: agents, API servers and commands of different versions communicate. So
//! the number of a field or value keeps its meaning permanently.
//!
//! `testdata/lattice.v1.txt` has a line for each field, enum value and call. A new one is added there by hand. An existing line is
//! never changed, and an unused field becomes `reserved` in its `.proto` file.

use std::collections::BTreeSet;

use pmi_transport::proto::DESCRIPTORS;
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};

const GOLDEN: &str = include_str!("../testdata/lattice.v1.txt");

/// A line for each number and name in the descriptors that the wire format depends on.
fn lines() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for file in FileDescriptorSet::decode(DESCRIPTORS).unwrap().file {
        file.message_type.iter().for_each(|message| of_message(message.name(), message, &mut lines));
        file.enum_type.iter().for_each(|values| of_enum(values.name(), values, &mut lines));
        for service in &file.service {
            for method in &service.method {
                let stream = |streams| if streams { "stream " } else { "" };
                let (input, output) = (stream(method.client_streaming()), stream(method.server_streaming()));
                let call = format!("{}/{}", service.name(), method.name());
                let (from, to) = (short(method.input_type()), short(method.output_type()));
                lines.insert(format!("call {call}: {input}{from} -> {output}{to}"));
            }
        }
    }
    lines
}

fn of_message(name: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    lines.extend(message.field.iter().map(|field| format!("{name} {}", of_field(field))));
    for nested in &message.nested_type {
        of_message(&format!("{name}.{}", nested.name()), nested, lines);
    }
    message.enum_type.iter().for_each(|values| of_enum(&format!("{name}.{}", values.name()), values, lines));
}

fn of_field(field: &FieldDescriptorProto) -> String {
    let label = if field.label() == Label::Repeated { "repeated " } else { "" };
    let kind = match field.r#type() {
        Type::Message | Type::Enum => short(field.type_name()).to_owned(),
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    format!("{:>3} {}: {label}{kind}", field.number(), field.name())
}

fn of_enum(name: &str, values: &EnumDescriptorProto, lines: &mut BTreeSet<String>) {
    lines.extend(values.value.iter().map(|value| format!("{name} {:>3} {}", value.number(), value.name())));
}

fn short(name: &str) -> &str {
    name.strip_prefix(".lattice.v1.").unwrap_or(name)
}

#[test]
fn numbers_names_and_types_of_the_protocol_stay_as_they_are() {
    let golden: BTreeSet<String> = GOLDEN.lines().map(str::to_owned).collect();
    let lines = lines();
    let (gone, new): (Vec<_>, Vec<_>) = (golden.difference(&lines).collect(), lines.difference(&golden).collect());
    assert!(gone.is_empty(), "changed or removed: {gone:#?}, new: {new:#?}");
    assert!(new.is_empty(), "not in testdata/lattice.v1.txt yet: {new:#?}");
}

#[test]
fn no_number_means_two_fields() {
    let mut numbers = BTreeSet::new();
    for line in GOLDEN.lines().filter(|line| line.contains(':') && !line.starts_with("call ")) {
        let mut words = line.split_whitespace();
        let field = (words.next(), words.next());
        assert!(numbers.insert(field), "{line}");
    }
    assert!(numbers.len() > 200, "{} fields", numbers.len());
}
