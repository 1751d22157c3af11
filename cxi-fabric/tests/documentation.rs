//! The examples of docs/operate/fabric.md and docs/dev/testing.md are accepted by the program.

use cxi_fabric::FabricConfig;
use cxi_fabric::fake::{CallKind, Fault, Rule};
use cxi_fabric::node::{NodeBackend, NodeFabricConfig};

/// The blocks of code in that language, in order.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    let begun = text.split(&begin).skip(1).map(|rest| rest.split_once("```"));
    begun.map(|block| block.expect("its end").0).collect()
}

fn section<T: serde::de::DeserializeOwned>(text: &str) -> T {
    let table: toml::Table = text.parse().expect("TOML");
    table["fabric"].clone().try_into().expect("the example is a configuration")
}

#[test]
fn the_configuration_is_read_whole() {
    let page = include_str!("../../docs/operate/fabric.md");
    let [server, agent] = blocks(page, "toml")[..] else { panic!("one for the server, one for agents") };
    assert_eq!(section::<NodeFabricConfig>(agent).backend, NodeBackend::Libcxi);
    let config: FabricConfig = section(server);
    assert_eq!(config.vnis.len(), 64_512);
    assert!(config.foreign_vnis.iter().all(|foreign| !foreign.overlaps(&config.vnis)));
}

#[test]
fn the_script_of_faults_is_read_whole() {
    let page = include_str!("../../docs/dev/testing.md");
    let rules: Vec<Rule> = serde_json::from_str(blocks(page, "json")[0]).expect("the example is a script");
    assert_eq!(rules[1], Rule::once(CallKind::Auth, Fault::Slow { milliseconds: 500 }));
    assert_eq!(rules[2], Rule::once(CallKind::Delete, Fault::LoseAnswer));
}
