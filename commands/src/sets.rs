//! `lattice set list`: lists the user's sets on this machine and on the cluster. This command is the last one.

use std::time::Duration;

use bytes::Bytes;
use lattice_console::table::{Align, Table};
use lattice_console::{formatting, print, print_json};
use lattice_overlay::method::Method;
use serde::Serialize;

use super::error::CommandError;
use super::own_sets::{Known, OwnSets, Whose, as_set};
use super::{overlay, set_graph};
use crate::args::{SetCommand, TableArgs};

/// Time limit for the answer of a root.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A set in the JSON output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Listed {
    set_id: u32,
    uid: u32,
    /// Address of its root.
    root: String,
    num_ranks: u32,
    num_nodes: u32,
    state: &'static str,
    age_s: u64,
    /// Id of the launch; `None` for a command.
    launch_id: Option<String>,
    command: String,
    /// Node of the root.
    node: String,
    /// Pid of the root; `None` on a cluster.
    pid: Option<u32>,
}

/// Prints the sets or a graph of them, or calls a process; returns the exit code.
pub fn set(command: &SetCommand) -> Result<u8, CommandError> {
    match command {
        SetCommand::List { all, table } => print_sets(if *all { Whose::All } else { Whose::Own }, table),
        SetCommand::Graph { set, table } => set_graph::graph(table, *set),
        SetCommand::Ping(args) => overlay::ping(args),
        SetCommand::Call(args) => overlay::call(args),
    }
}

fn print_sets(whose: Whose, form: &TableArgs) -> Result<u8, CommandError> {
    let listed = as_set("lattice set list", &form.api, async |sets| list(sets, whose).await)?;
    if form.json { Ok(print_json(&listed)?) } else { Ok(print(table(&listed, whose).as_bytes())?) }
}

async fn list(sets: &OwnSets, whose: Whose) -> Result<Vec<Listed>, CommandError> {
    let mut listed = Vec::new();
    for set in sets.known(whose).await? {
        listed.push(describe(sets, set).await);
    }
    Ok(listed)
}

async fn describe(sets: &OwnSets, set: Known) -> Listed {
    let root = set.id.root();
    let state = match set.state {
        Some(state) => state,
        None if sets.call(root, Method::PING, Bytes::new(), ANSWER_TIMEOUT).await.is_ok() => "up",
        None => "silent",
    };
    Listed {
        set_id: set.id.bits(),
        uid: set.uid,
        root: root.to_string(),
        num_ranks: set.ranks,
        num_nodes: set.hosts.len() as u32,
        state,
        age_s: set.age.as_secs(),
        launch_id: set.launch,
        command: set.command,
        node: set.hosts.into_iter().next().unwrap_or_default(),
        pid: set.pid,
    }
}

const COLUMNS: [(&str, Align); 7] = [
    ("SET ID", Align::Right),
    ("SIZE", Align::Right),
    ("NODES", Align::Right),
    ("STATE", Align::Left),
    ("AGE", Align::Right),
    ("LAUNCH", Align::Left),
    ("CMD", Align::Left),
];

fn table(sets: &[Listed], whose: Whose) -> String {
    if whose == Whose::Own {
        let mut table = Table::new(COLUMNS);
        sets.iter().for_each(|set| table.push(row(set)));
        return table.to_string();
    }
    let [id, size, nodes, state, age, launch, command] = COLUMNS;
    let mut table = Table::new([("USER", Align::Left), id, size, nodes, state, age, launch, command]);
    for set in sets {
        let [id, size, nodes, state, age, launch, command] = row(set);
        table.push([formatting::user(set.uid), id, size, nodes, state, age, launch, command]);
    }
    table.to_string()
}

fn row(set: &Listed) -> [String; 7] {
    [
        set.set_id.to_string(),
        set.num_ranks.to_string(),
        set.num_nodes.to_string(),
        set.state.to_owned(),
        formatting::duration(Duration::from_secs(set.age_s)),
        set.launch_id.clone().unwrap_or_else(|| "-".to_owned()),
        set.command.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(set: u32, launch: Option<&str>, command: &str) -> Listed {
        Listed {
            set_id: set,
            uid: 0,
            root: format!("lattice://{set}/node/0"),
            num_ranks: 4,
            num_nodes: 1,
            state: "up",
            age_s: 65,
            launch_id: launch.map(str::to_owned),
            command: command.to_owned(),
            node: "n1".to_owned(),
            pid: Some(17),
        }
    }

    #[test]
    fn sets_are_shown_in_a_table_and_as_json() {
        let sets =
            [listed(3098, Some("k3jq09zmf2"), "./a.out -x\x1b[2J"), listed(4129319450, None, "lattice set list")];
        assert_eq!(
            table(&sets, Whose::Own),
            "    SET ID  SIZE  NODES  STATE        AGE  LAUNCH      CMD\n\
             \u{20}     3098     4      1  up     1 min 5 s  k3jq09zmf2  ./a.out -x\\x1b[2J\n\
             4129319450     4      1  up     1 min 5 s  -           lattice set list\n"
        );
        assert!(table(&sets, Whose::All).starts_with("USER      SET ID"), "{}", table(&sets, Whose::All));
        let json = serde_json::to_value(&sets).unwrap();
        assert_eq!((&json[0]["set_id"], &json[1]["launch_id"]), (&3098.into(), &serde_json::Value::Null));
    }
}
