//! The version of glibc that programs need.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::shell::command;

/// The newest version of glibc with symbols that one of the programs needs, such as `2.28`.
pub(super) fn newest(programs: &[PathBuf]) -> Result<String> {
    let mut all = Vec::new();
    for program in programs {
        all.extend(versions(&symbols(program)?));
    }
    let newest = all.into_iter().max().context("the programs need no symbol of glibc")?;
    Ok(newest.map(|part| part.to_string()).join("."))
}

/// Compares versions such as `2.9` and `2.28`.
pub(super) fn is_at_most(version: &str, limit: &str) -> bool {
    parse(version) <= parse(limit)
}

fn symbols(program: &Path) -> Result<String> {
    let output = command("objdump", "--dynamic-syms").arg(program).output().context("cannot run objdump")?;
    ensure!(output.status.success(), "objdump: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn versions(symbols: &str) -> Vec<[u32; 2]> {
    let after = symbols.split("GLIBC_").skip(1);
    after.filter_map(|rest| parse(rest.split(|c: char| c != '.' && !c.is_ascii_digit()).next()?)).collect()
}

/// Parses the first two parts of a version.
fn parse(version: &str) -> Option<[u32; 2]> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some([parts.next()??, parts.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(is_at_most("2.9", "2.28") && is_at_most("2.28", "2.28") && !is_at_most("2.34", "2.28"));
        let symbols = "DF *UND* (GLIBC_2.3.4) a\nDF *UND* (GLIBC_2.17) b\nDF *UND* (GCC_3.0) c\n";
        assert_eq!(versions(symbols), [[2, 3], [2, 17]]);
    }
}
