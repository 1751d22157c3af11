//! Client of one service: sends a request, classifies the answer, pauses and retries, until the call succeeds, fails permanently, or reaches
//! its deadline. An [`Authorise`] provides the credentials.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::answer::{self, FieldError};
use crate::clock::Clock;
use crate::error::{Call, FabricError, Trouble};
use crate::retry::{self, Backoff, Disposition};
use crate::scrubber::Scrubber;
use crate::secret::Secret;
use crate::wire::{Body, Failure, Method, Request, Response, Wire};

/// Source of the `Authorization` header of requests.
pub(crate) trait Authorise: Send + Sync {
    /// Value of the header; `None` for requests without one. May request it from a server, until `deadline`.
    fn header(
        &self,
        now: Instant,
        deadline: Instant,
        scrubber: &Scrubber,
    ) -> Result<Option<Zeroizing<String>>, FabricError>;

    /// Drops the credentials if they still equal the rejected header. Returns true if new credentials can be fetched. Waits for calls that
    /// are fetching credentials, until `deadline`.
    fn refresh(&self, refused: Option<&str>, now: Instant, deadline: Instant) -> bool;
}

/// Client of a service with a base URL.
pub(crate) struct Client {
    /// Without a slash at the end.
    pub(crate) base: Arc<str>,
    pub(crate) wire: Box<dyn Wire>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) authoriser: Box<dyn Authorise>,
    pub(crate) backoff: Backoff,
    /// Time limit of one try.
    pub(crate) try_timeout: Duration,
    pub(crate) random: Mutex<fastrand::Rng>,
    pub(crate) scrubber: Arc<Scrubber>,
}

/// Result of a call that did not fail.
pub(crate) enum Outcome {
    Done(Answer),
    /// 404, if that is a valid answer.
    Absent(Answer),
    /// 409 to a POST.
    Conflict(Answer),
}

/// Body of an answer, with the call.
pub(crate) struct Answer {
    pub(crate) call: Call,
    body: Zeroizing<Vec<u8>>,
    scrubber: Arc<Scrubber>,
}

impl Answer {
    /// Parses the body; an invalid body is an error that names the call.
    pub(crate) fn read<'a, T>(
        &'a self,
        read: impl FnOnce(&'a [u8]) -> Result<T, FieldError>,
    ) -> Result<T, FabricError> {
        read(&self.body).map_err(|what| FabricError::Unintelligible { call: self.call.clone(), what })
    }

    /// The service's own error text, without secrets.
    pub(crate) fn words(&self) -> String {
        self.scrubber.scrub(&answer::error_text(&self.body))
    }

    /// Converts the answer to an error.
    pub(crate) fn refused(self, status: u16) -> FabricError {
        FabricError::Refused { text: self.words(), call: self.call, status }
    }
}

impl Client {
    /// Removes a secret of the service from its error texts from now on.
    pub(crate) fn learn(&self, secret: &Secret) {
        self.scrubber.learn(secret);
    }

    /// Description of a call before its first try.
    pub(crate) fn call_to(&self, method: Method, path: &str) -> Call {
        Call { service: self.base.clone(), method: method.name(), path: path.to_owned(), tries: 0 }
    }

    /// Retries until an answer is final; [`retry::classify`] decides that.
    pub(crate) fn call(
        &self,
        method: Method,
        path: &str,
        idempotency_key: Option<&str>,
        body: Option<&Body>,
        deadline: Instant,
    ) -> Result<Outcome, FabricError> {
        let mut may_be_done = false;
        let outcome = self.tries(method, path, idempotency_key, body, deadline, &mut may_be_done);
        outcome.map_err(|error| if may_be_done { error.in_doubt() } else { error })
    }

    /// Sets `may_be_done` if a changing request may have been carried out without an answer.
    fn tries(
        &self,
        method: Method,
        path: &str,
        idempotency_key: Option<&str>,
        body: Option<&Body>,
        deadline: Instant,
        may_be_done: &mut bool,
    ) -> Result<Outcome, FabricError> {
        let url = format!("{}{path}", self.base);
        let mut call = self.call_to(method, path);
        let mut last = Trouble::NotAsked;
        let mut refreshed = false;
        loop {
            let now = self.clock.now();
            let Some(left) = deadline.checked_duration_since(now).filter(|left| !left.is_zero()) else {
                return Err(FabricError::OutOfTime { call, last });
            };
            let authorization = self.authoriser.header(now, deadline, &self.scrubber)?;
            let request = Request { method, url: &url, authorization, idempotency_key, body };
            call.tries += 1;
            let timeout = self.try_timeout.min(left);
            let trouble = match self.wire.send(&request, timeout) {
                Ok(response) => match retry::classify(method, response.status) {
                    Disposition::Done => return Ok(Outcome::Done(self.answer(call, response))),
                    Disposition::Absent => return Ok(Outcome::Absent(self.answer(call, response))),
                    Disposition::Conflict => return Ok(Outcome::Conflict(self.answer(call, response))),
                    Disposition::Unauthorised if !refreshed && self.refresh(&request, deadline) => {
                        refreshed = true;
                        tracing::debug!(%call, status = response.status, "the token was refused; a new one is tried");
                        continue;
                    }
                    Disposition::Unauthorised => {
                        return Err(FabricError::Unauthorised {
                            call,
                            status: response.status,
                            text: self.words(&response),
                        });
                    }
                    Disposition::Permanent => {
                        return Err(FabricError::Refused {
                            call,
                            status: response.status,
                            text: self.words(&response),
                        });
                    }
                    Disposition::Retry => self.busy(&response),
                },
                Err(Failure::Unreachable(reason)) => Trouble::Unreachable(reason),
                Err(Failure::Slow) => Trouble::Slow(timeout),
                Err(Failure::Broken(reason)) => Trouble::Broken(reason),
            };
            *may_be_done |= method != Method::Get && trouble.may_be_done();
            // The failure of the try before explains more than a try that the deadline has cut short.
            let is_cut_short = timeout < self.try_timeout && matches!(trouble, Trouble::Slow(_));
            if !is_cut_short || matches!(last, Trouble::NotAsked) {
                last = trouble;
            }
            if !self.pause(&call, &last, deadline) {
                return Err(FabricError::OutOfTime { call, last });
            }
        }
    }

    fn refresh(&self, refused: &Request<'_>, deadline: Instant) -> bool {
        let header = refused.authorization.as_ref().map(|header| header.as_str());
        self.authoriser.refresh(header, self.clock.now(), deadline)
    }

    /// Pauses before the next try. If the deadline comes first, returns false at once: the launch must get the error now, not after a pause
    /// without a further try.
    fn pause(&self, call: &Call, last: &Trouble, deadline: Instant) -> bool {
        let asked = if let Trouble::Busy { retry_after, .. } = last { *retry_after } else { None };
        let pause = self.backoff.pause(call.tries, asked, &mut self.random.lock());
        if self.clock.now().checked_add(pause).is_none_or(|next| next >= deadline) {
            return false;
        }
        tracing::info!(%call, trouble = %last, pause_ms = pause.as_millis(), "the fabric manager is asked again");
        self.clock.sleep(pause);
        true
    }

    fn answer(&self, call: Call, response: Response) -> Answer {
        Answer { call, body: response.body, scrubber: self.scrubber.clone() }
    }

    fn busy(&self, response: &Response) -> Trouble {
        Trouble::Busy { status: response.status, text: self.words(response), retry_after: response.retry_after }
    }

    fn words(&self, response: &Response) -> String {
        self.scrubber.scrub(&answer::error_text(&response.body))
    }
}

#[cfg(test)]
pub(crate) mod tests;
