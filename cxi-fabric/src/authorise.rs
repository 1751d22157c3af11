//! How we prove who we are: nothing, a password, or a token that an authorisation server gives for a client's secret. (A client
//! certificate is a matter of TLS, and goes with any of them.)

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::answer::Fields;
use crate::client::{Client, Outcome};
use crate::error::{FabricError, Trouble};
use crate::secret::{Scrubber, Secret};
use crate::wire::{Body, Method};

/// A token is asked for anew this long before its end, so that it does not end on the way.
const MARGIN: Duration = Duration::from_secs(30);

/// What a request is authorised with.
pub(crate) enum Authoriser {
    None,
    Basic { user: String, password: Secret },
    OAuth(Box<OAuth>),
}

/// The client-credentials grant of OAuth 2.0 (RFC 6749, 4.4).
pub(crate) struct OAuth {
    /// Speaks to the authorisation server; unauthorised itself.
    pub(crate) client: Client,
    pub(crate) path: String,
    pub(crate) client_id: String,
    pub(crate) client_secret: Secret,
    pub(crate) scope: Option<String>,
    pub(crate) token: Mutex<Option<Token>>,
}

/// A token, and when it is too old. Without an end it lasts until somebody refuses it.
pub(crate) struct Token {
    value: Secret,
    ends: Option<Instant>,
}

impl Authoriser {
    /// The value of the `Authorization` header.
    pub(crate) fn header(
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
                let text = String::from_utf8_lossy(token.expose());
                Ok(Some(Zeroizing::new(format!("Bearer {text}"))))
            }
        }
    }

    /// Forgets what was refused. Whether something else can be had instead.
    pub(crate) fn refresh(&self) -> bool {
        match self {
            Self::None | Self::Basic { .. } => false,
            Self::OAuth(oauth) => {
                *oauth.token.lock() = None;
                true
            }
        }
    }

    /// Tells a scrubber what must not be seen.
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
    /// The token at hand, or a new one. The lock is held while one is fetched, so that many calls at once ask for one token; who
    /// waits for it does so until its own deadline.
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
            // A POST is never judged absent, and no authorisation server speaks of conflicts.
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
        let secret = String::from_utf8_lossy(self.client_secret.expose());
        let secret = Zeroizing::new(percent_encode(&secret));
        let mut form = Zeroizing::new(Vec::with_capacity(1024));
        form.extend_from_slice(b"grant_type=client_credentials&client_id=");
        form.extend_from_slice(percent_encode(&self.client_id).as_bytes());
        form.extend_from_slice(b"&client_secret=");
        form.extend_from_slice(secret.as_bytes());
        if let Some(scope) = &self.scope {
            form.extend_from_slice(b"&scope=");
            form.extend_from_slice(percent_encode(scope).as_bytes());
        }
        form
    }
}

/// What a path or a form may hold of a text that is not ours (RFC 3986, 2.3).
pub(crate) fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            _ => {
                let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or('0').to_ascii_uppercase();
                encoded.extend(['%', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
    encoded
}

fn basic(user: &str, password: &Secret) -> Zeroizing<String> {
    let mut pair = Zeroizing::new(Vec::with_capacity(user.len() + 1 + password.expose().len()));
    pair.extend_from_slice(user.as_bytes());
    pair.push(b':');
    pair.extend_from_slice(password.expose());
    let mut header = Zeroizing::new(String::with_capacity(6 + pair.len().div_ceil(3) * 4));
    header.push_str("Basic ");
    base64(&pair, &mut header);
    header
}

/// RFC 4648, 4.
fn base64(bytes: &[u8], into: &mut String) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for group in bytes.chunks(3) {
        let at = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            into.push(if place > group.len() { '=' } else { char::from(digit) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (plain, encoded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            let mut text = String::new();
            base64(plain.as_bytes(), &mut text);
            assert_eq!(text, encoded);
        }
        assert_eq!(basic("Aladdin", &Secret::new("open sesame")).as_str(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    }

    #[test]
    fn what_is_not_ours_cannot_leave_its_place_in_a_path() {
        assert_eq!(percent_encode("a/../b?c=ä"), "a%2F..%2Fb%3Fc%3D%C3%A4");
    }
}
