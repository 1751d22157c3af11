//! `lattice top`: resources that the processes of each rank use. The table is redrawn every few seconds, or printed once.

mod keys;
mod screen;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::thread::sleep;
use std::time::{Duration, Instant};

use lattice_console::table::{Align, Table};
use lattice_console::{exit, formatting, print, print_json, shown, terminal};
use lattice_session::event::{RankProgress, RankUsage};
use pmi_core::ids::Rank;
use pmi_transport::proto::v1 as proto;
use proto::LaunchState;
use serde::Serialize;

use self::keys::{Keys, Wish};
use super::error::CommandError;
use super::launches;
use super::questions::here;
use super::status::{Extent, RankUsageLine, RankView, fences, get, left_out_words, rank_state, ranks};
use crate::args::{TableArgs, TopArgs, TopOrder};

/// Clears the screen, and moves the cursor to the top left corner.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// A rank in the JSON output.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct RankLine<'a> {
    #[cfg_attr(test, schemars(with = "u32"))]
    rank: Rank,
    node: &'a str,
    pid: Option<u32>,
    /// `null` if unknown: the rank has ended, or its node does not report usage.
    usage: Option<RankUsageLine>,
    /// Number of processors kept busy since the previous table; `null` in the first table.
    busy: Option<f64>,
    state: String,
    last_command: Option<&'a str>,
    program: &'a str,
}

/// Resources that the processes of a rank had used at a point in time.
type Sample = (RankUsage, Instant);

/// Shows the resources that the ranks of a launch use, until the launch ends or once; returns the exit code.
pub fn top(args: &TopArgs) -> Result<u8, CommandError> {
    let launch = match &args.launch {
        Some(id) => id.clone(),
        None => only_launch(&args.table)?,
    };
    let is_repeated = !args.once && !args.table.json && io::stdout().is_terminal();
    let keys = if is_repeated { Keys::of_input()? } else { None };
    let (mut before, mut order) = (HashMap::<Rank, Sample>::new(), args.sort);
    let is_here = here(&launch, &args.table.api).is_some();
    loop {
        let answer = match get(&launch, &args.table.api, Extent::Progress) {
            Ok((answer, _)) => answer,
            // A launch on this machine is no longer found after its end.
            Err(_) if is_here && here(&launch, &args.table.api).is_none() => return Ok(0),
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        let mut rows: Vec<Row<'_>> = ranks(&answer).into_iter().map(|view| Row::new(view, &before, now)).collect();
        if args.table.json {
            sort(&mut rows, order);
            return Ok(print_json(&rows.iter().map(Row::line).collect::<Vec<_>>())?);
        }
        loop {
            sort(&mut rows, order);
            let heading = heading(&answer, &ranks(&answer));
            let text = format!("{heading}{}", table(&rows));
            let help = if keys.is_some() { keys::HELP } else { "" };
            let text = match is_repeated {
                true => CLEAR.to_owned() + &screen::fitted(&text, heading.lines().count() + 1, help, terminal::size()),
                false => text,
            };
            let code = print(text.as_bytes())?;
            if !is_repeated || code != 0 || is_over(&answer) {
                return Ok(code);
            }
            match wish(keys.as_ref(), now + args.interval)? {
                Some(Wish::Sort(wanted)) => order = wanted,
                Some(Wish::Draw) => {}
                Some(Wish::Quit) => return Ok(0),
                Some(Wish::Signal(signal)) => return Ok(exit::by_signal(signal)),
                None => break,
            }
        }
        before = rows.iter().filter_map(|row| Some((row.view.progress.rank, (row.usage()?, now)))).collect();
    }
}

/// Waits for a key; without keys, until the deadline.
fn wish(keys: Option<&Keys>, deadline: Instant) -> io::Result<Option<Wish>> {
    match keys {
        Some(keys) => keys.wait(deadline),
        None => {
            sleep(deadline.saturating_duration_since(Instant::now()));
            Ok(None)
        }
    }
}

/// Id of the only running launch.
fn only_launch(table: &TableArgs) -> Result<String, CommandError> {
    let mut launches = launches::running(table)?;
    match (launches.pop(), launches.is_empty()) {
        (Some(launch), true) => Ok(launch.id),
        (None, _) => Err(CommandError::NoLaunch),
        (Some(last), false) => {
            let ids = launches.into_iter().chain([last]).map(|launch| launch.id).collect::<Vec<_>>().join(" ");
            Err(CommandError::SeveralLaunches { ids })
        }
    }
}

fn is_over(answer: &proto::LaunchStatus) -> bool {
    let state = answer.summary.as_ref().map(proto::LaunchSummary::state);
    matches!(state, Some(LaunchState::Succeeded | LaunchState::LaunchFailed))
}

/// A rank with the number of processors that it kept busy.
struct Row<'a> {
    view: RankView<'a>,
    busy: Option<f64>,
}

impl<'a> Row<'a> {
    fn new(view: RankView<'a>, before: &HashMap<Rank, Sample>, now: Instant) -> Self {
        let busy = view.progress.usage.and_then(|usage| {
            let (then, at) = before.get(&view.progress.rank)?;
            let spent = usage.cpu.saturating_sub(then.cpu).as_secs_f64();
            Some(spent / now.duration_since(*at).as_secs_f64().max(0.001))
        });
        Self { view, busy }
    }

    fn usage(&self) -> Option<RankUsage> {
        self.view.progress.usage
    }

    fn line(&self) -> RankLine<'_> {
        let progress: &RankProgress = &self.view.progress;
        RankLine {
            rank: progress.rank,
            node: self.view.node,
            pid: progress.pid,
            usage: progress.usage.map(RankUsageLine::from),
            busy: self.busy,
            state: rank_state(progress),
            last_command: progress.last_command.as_deref(),
            program: &self.view.program,
        }
    }
}

/// Sorts rows, which are in rank order.
fn sort(rows: &mut [Row<'_>], order: TopOrder) {
    rows.sort_by_key(|row| {
        let used = row.usage().unwrap_or_default();
        Reverse(match order {
            TopOrder::Rank => (None, Duration::ZERO),
            TopOrder::Cpu => (row.busy.map(|busy| (busy * 1e6) as u64), used.cpu),
            TopOrder::Memory => (Some(used.memory), Duration::ZERO),
            TopOrder::Io => (Some(used.read.saturating_add(used.written)), Duration::ZERO),
        })
    });
}

fn heading(answer: &proto::LaunchStatus, ranks: &[RankView<'_>]) -> String {
    let Some(summary) = &answer.summary else { return String::new() };
    let time = formatting::duration(Duration::from_micros(summary.duration_us));
    let (id, state, nodes, command) = (&summary.id, launches::state(summary.state()), &summary.nodes, &summary.command);
    let number = formatting::count(summary.ranks, "rank");
    let mut lines = vec![format!("launch {id}: {state}; {number} on {nodes}; {time}; {command}")];
    lines.extend(fences(ranks));
    lines.extend(left_out_words(answer));
    shown(&lines)
}

fn table(rows: &[Row<'_>]) -> String {
    let mut table = Table::new([
        ("RANK", Align::Right),
        ("NODE", Align::Left),
        ("PID", Align::Right),
        ("BUSY", Align::Right),
        ("CPU TIME", Align::Right),
        ("MEMORY", Align::Right),
        ("READ", Align::Right),
        ("WRITTEN", Align::Right),
        ("STATE", Align::Left),
        ("LAST PMI COMMAND", Align::Left),
        ("PROGRAM", Align::Left),
    ]);
    let dash = || "-".to_owned();
    for row in rows {
        let progress = &row.view.progress;
        let used = |text: fn(RankUsage) -> String| progress.usage.map_or_else(dash, text);
        table.push([
            progress.rank.to_string(),
            row.view.node.to_owned(),
            progress.pid.map_or_else(dash, |pid| pid.to_string()),
            row.busy.map_or_else(dash, |busy| format!("{:.0} %", busy * 100.0)),
            used(|usage| formatting::duration(usage.cpu)),
            used(|usage| formatting::size(usage.memory)),
            used(|usage| formatting::size(usage.read)),
            used(|usage| formatting::size(usage.written)),
            rank_state(progress),
            progress.last_command.clone().unwrap_or_else(dash),
            row.view.program.to_string(),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn row(rank: u32, cpu_ms: u64, memory: u64, busy: Option<f64>) -> Row<'static> {
        let usage = RankUsage { cpu: Duration::from_millis(cpu_ms), memory, read: 10 * memory, written: 1 << 10 };
        let progress = RankProgress { pid: Some(100 + rank), usage: Some(usage), ..RankProgress::unknown(Rank(rank)) };
        Row { view: RankView { node: "node0", silent: false, program: Cow::Borrowed("/bin/app"), progress }, busy }
    }

    #[test]
    fn ranks_are_shown_with_what_they_use() {
        let ended = RankProgress { exit: Some(rank_spawner::RankExit::Code(0)), ..RankProgress::unknown(Rank(2)) };
        let ended = RankView { node: "node1", silent: false, program: Cow::Borrowed("/bin/app"), progress: ended };
        let rows = [row(0, 1500, 3 << 20, Some(0.987)), Row { view: ended, busy: None }];
        assert_eq!(
            table(&rows),
            "RANK  NODE   PID  BUSY  CPU TIME   MEMORY      READ  WRITTEN  STATE                 LAST PMI COMMAND  PROGRAM\n   \
             0  node0  100  99 %     1.5 s  3.0 MiB  30.0 MiB  1.0 KiB  runs                  -                 /bin/app\n   \
             2  node1    -     -         -        -         -        -  exited with status 0  -                 /bin/app\n"
        );
    }

    #[test]
    fn ranks_are_in_the_order_that_was_asked_for() {
        let order = |by: TopOrder| {
            let mut rows = [row(0, 10, 5, Some(0.1)), row(1, 30, 1, None), row(2, 20, 9, Some(0.9))];
            sort(&mut rows, by);
            rows.map(|row| row.view.progress.rank.0)
        };
        assert_eq!(order(TopOrder::Rank), [0, 1, 2]);
        assert_eq!(order(TopOrder::Cpu), [2, 0, 1]);
        assert_eq!(order(TopOrder::Memory), [2, 0, 1]);
        assert_eq!(order(TopOrder::Io), [2, 0, 1]);
    }

    #[test]
    fn what_a_rank_kept_busy_is_told_from_the_second_table_on() {
        let now = Instant::now();
        let view = |cpu| row(0, cpu, 1, None).view;
        assert_eq!(Row::new(view(500), &HashMap::new(), now).busy, None);
        let then = view(500).progress.usage.unwrap();
        let before = HashMap::from([(Rank(0), (then, now))]);
        let busy = Row::new(view(2500), &before, now + Duration::from_secs(1)).busy.unwrap();
        assert!((busy - 2.0).abs() < 0.01, "{busy}");
    }
}
