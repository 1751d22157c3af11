//! Faults of the fake manager: a list of rules, each for the next calls of one kind.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// Kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallKind {
    /// Creates a service.
    Create,
    /// Returns a service's key.
    Auth,
    /// Deletes a service.
    Delete,
    /// Lists all services.
    List,
    /// Issues a token.
    Token,
    /// Reads one job of vnid, or requests something that is not served.
    Other,
}

/// Fault rule for calls.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Kind of the calls; all kinds if `None`.
    pub on: Option<CallKind>,
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
    /// Answers with a status, and does nothing.
    Status {
        /// The status.
        status: u16,
        /// Seconds for the `Retry-After` header.
        retry_after: Option<u64>,
        /// The `detail` of the problem document.
        detail: Option<String>,
    },
    /// Answers with 503 and the date of a later try, by the manager's own clock.
    RetryAt {
        /// Time until the later try.
        seconds: u8,
        /// Hours by which the manager's clock is ahead of this machine's; negative if it is late.
        hours_off: i16,
    },
    /// Invalidates all tokens issued so far, including the token of this call.
    ExpireTokens,
    /// Carries out the call, with a delay.
    Slow {
        /// Delay, in milliseconds.
        milliseconds: u64,
    },
    /// Closes the connection, and does nothing.
    Down,
    /// Carries out the call, and closes the connection before the answer.
    LoseAnswer,
    /// Carries out the call, and answers with bytes that are not JSON.
    Garbage,
    /// Carries out the call, and answers with JSON of wrong types.
    WrongTypes,
}

impl Rule {
    /// Rule for the next call of kind `on`.
    pub fn once(on: CallKind, fault: Fault) -> Self {
        Self::times(1, on, fault)
    }

    /// Rule for the next calls of kind `on`.
    pub fn times(times: u32, on: CallKind, fault: Fault) -> Self {
        Self { on: Some(on), times, fault }
    }
}

impl Fault {
    /// Fault with this status, and without other details.
    pub fn status(status: u16) -> Self {
        Self::Status { status, retry_after: None, detail: None }
    }

    pub(super) fn pause(&self) -> Duration {
        if let Self::Slow { milliseconds } = self { Duration::from_millis(*milliseconds) } else { Duration::ZERO }
    }

    /// `Retry-After` and `Date` of an answer at the time `now`.
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

/// Takes the script's fault for a call, if there is one.
pub(super) fn next(script: &mut Vec<Rule>, asked: CallKind) -> Option<Fault> {
    let at = script.iter().position(|rule| rule.times > 0 && rule.on.is_none_or(|on| on == asked))?;
    script[at].times -= 1;
    let fault = script[at].fault.clone();
    script.retain(|rule| rule.times > 0);
    Some(fault)
}
