//! What docs/fabric.md shows is what the program takes.

use cxi_fabric::FabricConfig;
use cxi_fabric::fake::{Asked, Fault, Rule};

/// The first block of code in that language.
fn block(language: &str) -> &'static str {
    let text = include_str!("../../docs/fabric.md");
    let (_, rest) = text.split_once(&format!("```{language}\n")).expect("a block of that language");
    rest.split_once("```").expect("its end").0
}

#[test]
fn the_configuration_is_read_whole() {
    let config: FabricConfig = toml::from_str(block("toml")).expect("the example is a configuration");
    assert_eq!(config.vnis.len(), 64_512);
    assert!(config.foreign_vnis.iter().all(|foreign| !foreign.overlaps(&config.vnis)));
}

#[test]
fn the_script_of_faults_is_read_whole() {
    let rules: Vec<Rule> = serde_json::from_str(block("json")).expect("the example is a script");
    assert_eq!(rules[1], Rule::once(Asked::Auth, Fault::Slow { milliseconds: 500 }));
    assert_eq!(rules[2], Rule::once(Asked::Delete, Fault::LoseAnswer));
}
