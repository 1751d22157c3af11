//! `lattice explain`: an exit code in words, or the first cause of a launch, with the next step.

mod next_step;

use lattice_console::exit::{self, Losses, Meaning};
use lattice_console::{print_json, print_lines};
use lattice_render::CauseLine;
use lattice_session::cause::Cause;
use pmi_transport::proto::v1 as proto;
use proto::LaunchState;
use serde::Serialize;

use self::next_step::next_step;
use super::error::CommandError;
use super::launches::state;
use super::status::{self, Extent};
use crate::args::{ExplainArgs, TableArgs};

/// Number of characters of the id of a launch. An id can consist of digits.
const ID_LENGTH: usize = 10;

/// An exit code in the JSON output.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Code {
    exit_code: u8,
    /// The most specific one first.
    meanings: Vec<MeaningLine>,
}

/// A possible meaning of an exit code.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct MeaningLine {
    codes: String,
    meaning: &'static str,
    /// Next step; `null` for a success.
    action: Option<&'static str>,
}

/// A launch in the JSON output.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Launch<'a> {
    launch_id: &'a str,
    state: &'static str,
    /// Exit code of the client that follows the launch; `null` while it is unknown.
    exit_code: Option<u8>,
    cause: Option<CauseLine<'a>>,
    /// Next step; `null` for a success.
    action: Option<String>,
}

/// Prints the meaning of an exit code, or the first cause of a launch; returns the exit code of the command.
pub fn explain(args: &ExplainArgs) -> Result<u8, CommandError> {
    match code(&args.word)? {
        Some(code) => explain_code(code, &args.table),
        None => explain_launch(&args.word, args),
    }
}

/// The exit code that a word is; `None` for the id of a launch.
fn code(word: &str) -> Result<Option<u8>, CommandError> {
    if word.len() == ID_LENGTH || word.is_empty() || !word.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    word.parse().map(Some).map_err(|_| CommandError::NoExitCode { word: word.to_owned() })
}

fn explain_code(code: u8, table: &TableArgs) -> Result<u8, CommandError> {
    let meanings = exit::meanings(code);
    if table.json {
        let line = |Meaning { codes, row }| MeaningLine {
            codes,
            meaning: row.cause,
            action: Some(row.action).filter(|action| !action.is_empty()),
        };
        return Ok(print_json(&Code { exit_code: code, meanings: meanings.into_iter().map(line).collect() })?);
    }
    Ok(print_lines(&meanings.iter().flat_map(lines).collect::<Vec<_>>())?)
}

/// A meaning, and the next step below.
fn lines(Meaning { codes, row }: &Meaning) -> Vec<String> {
    let action = Some(row.action).filter(|action| !action.is_empty());
    std::iter::once(format!("{codes}: {}", row.cause)).chain(action.map(|action| format!("  try: {action}"))).collect()
}

fn explain_launch(id: &str, args: &ExplainArgs) -> Result<u8, CommandError> {
    let (answer, cause) = status::get(id, &args.table.api, Extent::Progress).map_err(|error| match error {
        CommandError::NotHere { id, error } => CommandError::NotExplained { word: id, error },
        other => other,
    })?;
    let launch = launch(&answer, cause.as_ref());
    if args.table.json { Ok(print_json(&launch)?) } else { Ok(print_lines(&text(&launch, cause.as_ref()))?) }
}

fn launch<'a>(answer: &'a proto::LaunchStatus, cause: Option<&'a Cause>) -> Launch<'a> {
    let (launch_id, of) =
        answer.summary.as_ref().map_or(("", LaunchState::Unspecified), |summary| (&*summary.id, summary.state()));
    let (exit_code, action) = match (cause, of) {
        (Some(cause), _) => (Some(exit::code(Some(cause), Losses::default())), Some(next_step(cause, launch_id))),
        (None, LaunchState::Succeeded) => (Some(0), None),
        (None, LaunchState::LaunchFailed) => {
            (None, Some(format!("lattice status {launch_id} shows the end of each rank")))
        }
        (None, _) => (
            None,
            Some(format!("lattice status {launch_id} shows each rank, and lattice stacks {launch_id} its functions")),
        ),
    };
    Launch { launch_id, state: state(of), exit_code, cause: cause.map(CauseLine::of), action }
}

fn text(launch: &Launch<'_>, cause: Option<&Cause>) -> Vec<String> {
    let Launch { launch_id, state, exit_code, .. } = launch;
    let code = exit_code.map(|code| format!("; exit code {code}")).unwrap_or_default();
    let first = match (cause, exit_code) {
        (Some(cause), _) => format!("cause: {cause}"),
        (None, Some(_)) => "each rank returned 0".to_owned(),
        (None, None) if *state == "failed" => "no cause is known".to_owned(),
        (None, None) => "nothing has failed".to_owned(),
    };
    let lines = [format!("launch {launch_id}: {state}{code}"), first];
    lines.into_iter().chain(launch.action.iter().map(|action| format!("  try: {action}"))).collect()
}

#[cfg(test)]
mod tests {
    use lattice_session::cause::CauseKind;
    use pmi_core::ids::Rank;
    use rank_spawner::RankExit;

    use super::super::launches::tests::sample;
    use super::*;

    fn answer(state: LaunchState) -> proto::LaunchStatus {
        let summary = proto::LaunchSummary { state: state.into(), ..sample() };
        proto::LaunchStatus { summary: Some(summary), ..Default::default() }
    }

    #[test]
    fn a_number_is_a_code_and_any_other_word_an_id() {
        assert_eq!(code("139").unwrap(), Some(139));
        assert_eq!(code("0").unwrap(), Some(0));
        for id in ["k3jq09zmf2", "1234567890", "", "abc"] {
            assert_eq!(code(id).unwrap(), None, "{id}");
        }
        let refused = code("256").unwrap_err().to_string();
        assert!(refused.starts_with("256 is no exit code; exit codes are 0 to 255\ntry: "), "{refused}");
    }

    #[test]
    fn a_code_is_lines_with_the_next_step_below() {
        let meanings = exit::meanings(126);
        let expected = ["126: the program cannot be executed", "  try: chmod +x PROGRAM, or its interpreter before it"];
        assert_eq!(lines(&meanings[0]), expected);
        assert_eq!(lines(&exit::meanings(0)[0]), ["0: each rank returned 0"]);
    }

    #[test]
    fn a_launch_has_its_cause_its_code_and_the_next_step() {
        let check = |state, kind: Option<CauseKind>, expected: &[&str]| {
            let cause = kind.map(|kind| Cause { host: "pc1".to_owned(), kind });
            let answer = answer(state);
            let launch = launch(&answer, cause.as_ref());
            let lines = text(&launch, cause.as_ref());
            assert_eq!(lines.iter().map(String::as_str).take(2).collect::<Vec<_>>(), expected);
            assert_eq!(lines.len(), if state == LaunchState::Succeeded { 2 } else { 3 }, "{lines:?}");
        };
        let failed = CauseKind::Failed { rank: Rank(2), exit: RankExit::Code(3) };
        let told = ["launch k3jq09zmf2: failed; exit code 3", "cause: rank 2 on pc1 exited with status 3"];
        check(LaunchState::LaunchFailed, Some(failed), &told);
        check(LaunchState::LaunchFailed, None, &["launch k3jq09zmf2: failed", "no cause is known"]);
        check(LaunchState::Succeeded, None, &["launch k3jq09zmf2: succeeded; exit code 0", "each rank returned 0"]);
        check(LaunchState::Active, None, &["launch k3jq09zmf2: active", "nothing has failed"]);
    }
}
