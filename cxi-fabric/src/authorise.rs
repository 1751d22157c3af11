//! Authorisation of requests: none, a password, or a token that an authorisation server issues for a client secret. A client
//! certificate is part of TLS, and works with each of them.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode};
use zeroize::Zeroizing;

use crate::answer::Fields;
use crate::client::{Authorise, Client, Outcome};
use crate::error::{FabricError, Trouble};
use crate::scrubber::Scrubber;
use crate::secret::Secret;
use crate::wire::{Body, Method};

/// A token is replaced this long before its end, so that it does not expire during a request.
const MARGIN: Duration = Duration::from_secs(30);

/// Authorisation method of requests.
pub(crate) enum Authoriser {
    None,
    Basic { user: String, password: Secret },
    OAuth(Box<OAuth>),
}

/// The client-credentials grant of OAuth 2.0 (RFC 6749, 4.4).
pub(crate) struct OAuth {
    /// Client of the authorisation server; its own requests are not authorised.
    pub(crate) client: Client,
    pub(crate) path: String,
    pub(crate) client_id: String,
    pub(crate) client_secret: Secret,
    pub(crate) scope: Option<String>,
    pub(crate) token: Mutex<Option<Token>>,
}

/// Token with its end. Without an end it is valid until a server rejects it.
pub(crate) struct Token {
    value: Secret,
    ends: Option<Instant>,
}

impl Authorise for Authoriser {
    fn header(
        &self,
        now: Instant,
        deadline: Instant,
        scrubber: &Scrubber,
    ) -> Result<Option<Zeroizing<String>>, FabricError> {
        match self {
            Self::None => Ok(None),
            Self::Basic { user, password } => Ok(Some(basic(user, password))),
            Self::OAuth(oauth) => {
                let token = oauth.token(now, deadline)?;
                scrubber.learn(&token);
                Ok(Some(bearer(&token)))
            }
        }
    }

    fn refresh(&self, refused: Option<&str>, now: Instant, deadline: Instant) -> bool {
        match self {
            Self::None | Self::Basic { .. } => false,
            Self::OAuth(oauth) => {
                // Without the lock the deadline has passed, which the next try detects.
                if let Some(mut token) = oauth.token.try_lock_for(deadline.saturating_duration_since(now)) {
                    // Another call may have fetched a new token meanwhile.
                    let is_refused = |token: &mut Token| refused.is_none_or(|refused| *bearer(&token.value) == refused);
                    token.take_if(is_refused);
                }
                true
            }
        }
    }
}

impl Authoriser {
    /// Registers the secrets with a scrubber.
    pub(crate) fn teach(&self, scrubber: &Scrubber) {
        match self {
            Self::None => {}
            Self::Basic { user, password } => {
                scrubber.learn(password);
                if let Some((_, encoded)) = basic(user, password).split_once(' ') {
                    scrubber.learn(&Secret::new(encoded));
                }
            }
            Self::OAuth(oauth) => scrubber.learn(&oauth.client_secret),
        }
    }
}

impl OAuth {
    /// Returns the present token, or fetches a new one. The lock is held during the fetch, so that concurrent calls request one
    /// token. Each waiting call waits until its own deadline.
    fn token(&self, now: Instant, deadline: Instant) -> Result<Secret, FabricError> {
        let Some(mut token) = self.token.try_lock_for(deadline.saturating_duration_since(now)) else {
            let call = self.client.call_to(Method::Post, &self.path);
            return Err(FabricError::OutOfTime { call, last: Trouble::NotAsked });
        };
        if let Some(Token { value, ends }) = token.as_ref()
            && ends.is_none_or(|ends| now + MARGIN < ends)
        {
            return Ok(value.clone());
        }
        let fresh = self.fetch(now, deadline)?;
        let value = fresh.value.clone();
        *token = Some(fresh);
        Ok(value)
    }

    fn fetch(&self, now: Instant, deadline: Instant) -> Result<Token, FabricError> {
        let body = Body { content_type: "application/x-www-form-urlencoded", bytes: self.form() };
        let answer = match self.client.call(Method::Post, &self.path, None, Some(&body), deadline)? {
            Outcome::Done(answer) => answer,
            // A POST is never classified as absent, and no authorisation server reports conflicts.
            Outcome::Absent(answer) | Outcome::Conflict(answer) => return Err(answer.refused(409)),
        };
        let (value, seconds) = answer.read(|body| {
            let fields = Fields::read(body)?;
            Ok((fields.secret("access_token")?, fields.optional("expires_in", Fields::number)?))
        })?;
        tracing::debug!(token = %value.fingerprint(), "took a new token for the fabric manager");
        Ok(Token { value, ends: seconds.map(|seconds| now + Duration::from_secs(seconds.into())) })
    }

    fn form(&self) -> Zeroizing<Vec<u8>> {
        let (id, secret) = (self.client_id.as_bytes(), self.client_secret.expose());
        let mut fields: Vec<(&str, &[u8])> =
            vec![("grant_type=client_credentials&client_id=", id), ("&client_secret=", secret)];
        fields.extend(self.scope.as_ref().map(|scope| ("&scope=", scope.as_bytes())));
        // Exactly the needed capacity: a vector that grows leaves copies in freed memory.
        let length = fields.iter().map(|(name, value)| name.len() + encoded(value).map(str::len).sum::<usize>()).sum();
        let mut form = Zeroizing::new(Vec::with_capacity(length));
        for (name, value) in fields {
            form.extend_from_slice(name.as_bytes());
            encoded(value).for_each(|piece| form.extend_from_slice(piece.as_bytes()));
        }
        form
    }
}

/// Bytes to encode in a path or a form: all but letters, digits, `-`, `.`, `_` and `~` (RFC 3986, 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes text from another source for a path or a form.
pub(crate) fn percent_encode(text: &str) -> String {
    encoded(text.as_bytes()).collect()
}

/// Encodes in pieces, without copies.
fn encoded(bytes: &[u8]) -> PercentEncode<'_> {
    percent_encoding::percent_encode(bytes, RESERVED)
}

const BEARER: &str = "Bearer ";

/// Header for a token (RFC 6750, 2.1).
fn bearer(token: &Secret) -> Zeroizing<String> {
    // Tokens come from JSON and are UTF-8, so this makes no copy.
    let text = String::from_utf8_lossy(token.expose());
    let mut header = Zeroizing::new(String::with_capacity(BEARER.len() + text.len()));
    header.push_str(BEARER);
    header.push_str(&text);
    header
}

fn basic(user: &str, password: &Secret) -> Zeroizing<String> {
    let mut pair = Zeroizing::new(Vec::with_capacity(user.len() + 1 + password.expose().len()));
    pair.extend_from_slice(user.as_bytes());
    pair.push(b':');
    pair.extend_from_slice(password.expose());
    // Exactly the needed length, and written in place: a string that grows leaves copies in freed memory.
    let mut encoded = Zeroizing::new(vec![0; pair.len().div_ceil(3) * 4]);
    let written = BASE64_STANDARD.encode_slice(&*pair, &mut encoded).expect("base64 takes four bytes for three");
    let mut header = Zeroizing::new(String::with_capacity(6 + written));
    header.push_str("Basic ");
    header.extend(encoded[..written].iter().copied().map(char::from));
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_goes_in_base64_as_in_rfc_7617() {
        for (user, password, encoded) in
            [("", "", "Og=="), ("f", "", "Zjo="), ("f", "o", "Zjpv"), ("fo", "bar", "Zm86YmFy")]
        {
            assert_eq!(basic(user, &Secret::new(password)).as_str(), format!("Basic {encoded}"));
        }
        assert_eq!(basic("Aladdin", &Secret::new("open sesame")).as_str(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    }

    /// A buffer that grows leaves a copy of its content.
    #[test]
    fn buffers_of_secrets_do_not_grow() {
        let secret = Secret::new("p&=\u{e4}/".repeat(400));
        let oauth = crate::client::tests::without_a_token(secret.clone());
        let form = oauth.form();
        let encoded = "p%26%3D%C3%A4%2F".repeat(400);
        let expected = format!("grant_type=client_credentials&client_id=lattice&client_secret={encoded}&scope=openid");
        assert_eq!(std::str::from_utf8(&form), Ok(expected.as_str()));
        assert_eq!(form.capacity(), form.len());
        let header = bearer(&secret);
        assert_eq!((header.capacity(), header.len()), (7 + secret.expose().len(), 7 + secret.expose().len()));
    }

    #[test]
    fn what_is_not_ours_cannot_leave_its_place_in_a_path() {
        assert_eq!(percent_encode("a/../b?c=ä"), "a%2F..%2Fb%3Fc%3D%C3%A4");
    }
}
