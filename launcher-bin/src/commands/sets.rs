//! `lattice sets`: the sets of the user on this machine, this command as the last one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use lattice_overlay::directory::SetRecord;
use lattice_overlay::method::Method;
use lattice_session::set::OwnSet;
use serde::Serialize;

use super::{CommandError, overlay, set_graph};
use crate::args::{SetsArgs, SetsCommand};
use crate::console::{print, print_json};
use crate::formatting;
use crate::table::{Align, Table};

/// Time for a root to say that it is there.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A set as it is printed for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Listed {
    set: u32,
    /// Address of its root.
    root: String,
    ranks: u32,
    nodes: u32,
    state: &'static str,
    age_s: u64,
    /// `None` for a command.
    launch: Option<String>,
    command: String,
    host: String,
    pid: u32,
}

/// Shows the sets, or a graph of them; returns the exit code.
pub(crate) fn sets(args: &SetsArgs) -> Result<u8, CommandError> {
    if let Some(SetsCommand::Graph { set, format }) = &args.command {
        return set_graph::graph(*set, *format);
    }
    let listed = overlay::as_set("lattice sets", async |set| Ok(list(set).await?))?;
    if args.json { Ok(print_json(&listed)?) } else { Ok(print(table(&listed).as_bytes())?) }
}

async fn list(own: &OwnSet) -> Result<Vec<Listed>, CommandError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let ours = own.found().await?.id();
    let (others, own_record): (Vec<_>, Vec<_>) = own.sets().await?.into_iter().partition(|set| set.id() != ours);
    let mut listed = Vec::new();
    for set in others.into_iter().chain(own_record) {
        listed.push(describe(own, set, now).await);
    }
    Ok(listed)
}

async fn describe(own: &OwnSet, set: SetRecord, now: u64) -> Listed {
    let answer = own.call(set.id().root(), Method::PING, Bytes::new(), ANSWER_TIMEOUT).await;
    Listed {
        set: set.id().bits(),
        root: set.id().root().to_string(),
        ranks: set.ranks,
        nodes: set.nodes,
        state: if answer.is_ok() { "up" } else { "silent" },
        age_s: now.saturating_sub(set.begun),
        launch: set.launch,
        command: set.command,
        host: set.mark.host,
        pid: set.mark.pid,
    }
}

fn table(sets: &[Listed]) -> String {
    let mut table = Table::new([
        ("SET ID", Align::Right),
        ("SIZE", Align::Right),
        ("NODES", Align::Right),
        ("STATE", Align::Left),
        ("AGE", Align::Right),
        ("LAUNCH", Align::Left),
        ("CMD", Align::Left),
    ]);
    for set in sets {
        table.push([
            set.set.to_string(),
            set.ranks.to_string(),
            set.nodes.to_string(),
            set.state.to_owned(),
            formatting::duration(Duration::from_secs(set.age_s)),
            set.launch.clone().unwrap_or_else(|| "-".to_owned()),
            set.command.clone(),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(set: u32, launch: Option<&str>, command: &str) -> Listed {
        Listed {
            set,
            root: format!("lattice://{set}/node/0"),
            ranks: 4,
            nodes: 1,
            state: "up",
            age_s: 65,
            launch: launch.map(str::to_owned),
            command: command.to_owned(),
            host: "n1".to_owned(),
            pid: 17,
        }
    }

    #[test]
    fn sets_are_shown_in_a_table_and_as_json() {
        let sets = [listed(3098, Some("k3jq09zmf2"), "./a.out -x\x1b[2J"), listed(4129319450, None, "lattice sets")];
        assert_eq!(
            table(&sets),
            "    SET ID  SIZE  NODES  STATE        AGE  LAUNCH      CMD\n\
             \u{20}     3098     4      1  up     1 min 5 s  k3jq09zmf2  ./a.out -x\\x1b[2J\n\
             4129319450     4      1  up     1 min 5 s  -           lattice sets\n"
        );
        let json = serde_json::to_value(&sets).unwrap();
        assert_eq!((&json[0]["set"], &json[1]["launch"]), (&3098.into(), &serde_json::Value::Null));
    }
}
