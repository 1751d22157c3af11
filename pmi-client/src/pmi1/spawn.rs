//! A request for new jobs, in blocks of lines.

use alloc::format;
use alloc::string::String;

use crate::spawn::SpawnRequest;

/// Returns one block per program, all for one write. Only the first block has the preput pairs, as in MPICH 4.1 and
/// later.
pub(super) fn spawn_blocks(wanted: &SpawnRequest) -> String {
    let mut text = String::new();
    for (number, app) in (1..).zip(&wanted.apps) {
        let mut line = |key: &str, value: &dyn core::fmt::Display| text += &format!("{key}={value}\n");
        line("mcmd", &"spawn");
        line("nprocs", &app.ranks);
        line("execname", &app.program);
        line("totspawns", &wanted.apps.len());
        line("spawnssofar", &number);
        line("argcnt", &app.args.len());
        for (index, arg) in (1..).zip(&app.args) {
            line(&format!("arg{index}"), arg);
        }
        if number == 1 {
            line("preput_num", &wanted.preput.len());
            for (index, (key, value)) in wanted.preput.iter().enumerate() {
                line(&format!("preput_key_{index}"), key);
                line(&format!("preput_val_{index}"), value);
            }
        }
        line("info_num", &app.info.len());
        for (index, (key, value)) in app.info.iter().enumerate() {
            line(&format!("info_key_{index}"), key);
            line(&format!("info_val_{index}"), value);
        }
        text += "endcmd\n";
    }
    text
}
