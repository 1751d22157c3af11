//! Signals on the command line: by name or by number, and with the time before the limit at which they are sent.

use std::time::Duration;

use crate::formatting::{NotADuration, parse_duration};
use nix::sys::signal::Signal;

/// Default time before the limit, as with srun.
const AHEAD: Duration = Duration::from_secs(60);

/// Error for a text that is no signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no signal; a name such as TERM or SIGUSR1, or a number from 1 to 31, is")]
pub struct NoSignal;

/// Parses a signal: its name with or without `SIG`, or its number.
///
/// # Errors
/// Refuses every other text.
pub fn parse(text: &str) -> Result<Signal, NoSignal> {
    if let Ok(number) = text.parse::<i32>() {
        return Signal::try_from(number).map_err(|_| NoSignal);
    }
    let name = text.to_ascii_uppercase();
    let name = if name.starts_with("SIG") { name } else { format!("SIG{name}") };
    name.parse().map_err(|_| NoSignal)
}

/// The value of `--signal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalAhead {
    /// The signal.
    pub signal: Signal,
    /// Time from the signal to the time limit.
    pub ahead: Duration,
}

/// Error for an invalid value of `--signal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignalAheadError {
    /// The signal is invalid.
    #[error(transparent)]
    Signal(#[from] NoSignal),
    /// `B:` of sbatch.
    #[error("B: is sbatch's, and signals the script alone; without it the ranks of each launch get the signal")]
    ScriptAlone,
    /// The time is invalid.
    #[error("after the @: {0}")]
    Time(#[from] NotADuration),
}

/// Parses the value of `--signal`: `SIGNAL[@TIME]`.
///
/// # Errors
/// Refuses every other text.
pub fn parse_ahead(text: &str) -> Result<SignalAhead, SignalAheadError> {
    // Slurm's prefixes: `R:` is about reservations, which Lattice does not have, and `B:` about the script alone.
    let text = text.strip_prefix("R:").unwrap_or(text);
    if text.starts_with("B:") {
        return Err(SignalAheadError::ScriptAlone);
    }
    Ok(match text.split_once('@') {
        Some((signal, time)) => SignalAhead { signal: parse(signal)?, ahead: parse_duration(time)? },
        None => SignalAhead { signal: parse(text)?, ahead: AHEAD },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_known_by_name_and_number() {
        for text in ["USR1", "usr1", "SIGUSR1", "10"] {
            assert_eq!(parse(text), Ok(Signal::SIGUSR1), "{text}");
        }
        for text in ["", "0", "99", "-1", "SIGNONE"] {
            assert_eq!(parse(text), Err(NoSignal), "{text}");
        }
    }

    #[test]
    fn a_signal_before_the_limit_has_a_time_or_a_minute() {
        let check = |text: &str, seconds| {
            let ahead = Duration::from_secs(seconds);
            assert_eq!(parse_ahead(text), Ok(SignalAhead { signal: Signal::SIGUSR1, ahead }), "{text}");
        };
        check("USR1", 60);
        check("10@30", 30);
        check("SIGUSR1@1m30s", 90);
        assert_eq!(parse_ahead("USR1@"), Err(SignalAheadError::Time(NotADuration)));
        assert_eq!(parse_ahead("USR1@soon"), Err(SignalAheadError::Time(NotADuration)));
        check("R:USR1@60", 60);
        assert_eq!(parse_ahead("B:USR1@5"), Err(SignalAheadError::ScriptAlone));
        assert_eq!(parse_ahead("X:USR1@5"), Err(SignalAheadError::Signal(NoSignal)));
    }
}
