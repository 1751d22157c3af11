//! Faults of the fake manager: a list of rules, each of which spoils the next calls of one kind.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// Kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Asked {
    /// A service.
    Create,
    /// A service's key.
    Auth,
    /// A service's end.
    Delete,
    /// List of all services.
    List,
    /// A token.
    Token,
    /// One job of vnid, or anything that is not served.
    Other,
}

/// Spoils calls.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Kind of the calls; all, if none is given.
    pub on: Option<Asked>,
    /// Number of calls.
    #[serde(default = "once")]
    pub times: u32,
    /// Fault.
    pub fault: Fault,
}

fn once() -> u32 {
    1
}

/// Fault of a call.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// Answers with a status and does nothing.
    Status {
        /// The status.
        status: u16,
        /// Seconds for the `Retry-After` header.
        retry_after: Option<u64>,
        /// The `detail` of the problem document.
        detail: Option<String>,
    },
    /// Answers with 503 and the date of a later try, by a clock of the manager's own.
    RetryAt {
        /// Time until the later try.
        seconds: u8,
        /// Seconds by which its clock is ahead of ours; behind it, if negative.
        hours_off: i16,
    },
    /// No token that was given out so far is good any more, also not that of this very call.
    ExpireTokens,
    /// Carries out the call, with a delay.
    Slow {
        /// Delay, in milliseconds.
        milliseconds: u64,
    },
    /// The connection is closed, and nothing done.
    Down,
    /// Carries out the call, and closes the connection before the answer.
    LoseAnswer,
    /// Carries out the call, and answers with bytes that are no JSON.
    Garbage,
    /// Carries out the call, and answers with JSON of other types.
    WrongTypes,
}

impl Rule {
    /// Spoils the next call that asks for `on`.
    pub fn once(on: Asked, fault: Fault) -> Self {
        Self::times(1, on, fault)
    }

    /// Spoils the next calls that ask for `on`.
    pub fn times(times: u32, on: Asked, fault: Fault) -> Self {
        Self { on: Some(on), times, fault }
    }
}

impl Fault {
    /// An answer with that status.
    pub fn status(status: u16) -> Self {
        Self::Status { status, retry_after: None, detail: None }
    }

    pub(super) fn pause(&self) -> Duration {
        if let Self::Slow { milliseconds } = self { Duration::from_millis(*milliseconds) } else { Duration::ZERO }
    }

    /// The `Retry-After` and `Date` of an answer that is given `now`.
    pub(super) fn later(&self, now: SystemTime) -> (Option<String>, Option<String>) {
        match self {
            Self::Status { retry_after, .. } => (retry_after.map(|seconds| seconds.to_string()), None),
            Self::RetryAt { seconds, hours_off } => {
                let off = Duration::from_secs(3600 * u64::from(hours_off.unsigned_abs()));
                let date = if *hours_off < 0 { now - off } else { now + off };
                let text = |time| Some(httpdate::fmt_http_date(time));
                (text(date + Duration::from_secs((*seconds).into())), text(date))
            }
            _ => (None, None),
        }
    }

    pub(super) fn loses_the_answer(&self) -> bool {
        matches!(self, Self::Down | Self::LoseAnswer)
    }
}

/// Takes the fault that the script has for a call, if it has one.
pub(super) fn next(script: &mut Vec<Rule>, asked: Asked) -> Option<Fault> {
    let at = script.iter().position(|rule| rule.times > 0 && rule.on.is_none_or(|on| on == asked))?;
    script[at].times -= 1;
    let fault = script[at].fault.clone();
    script.retain(|rule| rule.times > 0);
    Some(fault)
}
