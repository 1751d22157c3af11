//! Key exchange of `ssh`. Of the methods that OpenSSH offers by default, sntrup761 costs the client many times as much as the rest of a
//! connection. A launch has one connection for each node. The method protects against an attacker that records traffic today to decrypt it
//! in decades. The secret here is a key, and its authority no longer exists after the command. So `ssh` omits the method, unless the user
//! has configured key exchanges.

use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

/// Time limit for an answer. A program that takes longer is not OpenSSH.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Arguments of `ssh` that omit it.
const WITHOUT: &[&str] = &["-o", "KexAlgorithms=-sntrup761*"];

/// Queries the settings of `ssh` for this host, and its default settings. Returns arguments for its command line.
///
/// Must be called within a tokio runtime.
pub(super) fn ask(host: &str) -> impl Future<Output = &'static [&'static str]> + use<> {
    let (set, unset) = (settings(&["-G", "--", host]), settings(&["-F", "none", "-G", "--", host]));
    async move {
        match tokio::join!(set, unset) {
            (Some(set), Some(unset)) => words(&set, &unset),
            _ => &[],
        }
    }
}

/// Output of `ssh` with these arguments; `None` if `ssh` fails or does not answer in time.
fn settings(words: &[&str]) -> impl Future<Output = Option<String>> + use<> {
    let mut ssh = Command::new("ssh");
    ssh.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let child = ssh.spawn();
    async move {
        match timeout(ANSWER_WITHIN, child.ok()?.wait_with_output()).await {
            Ok(Ok(Output { status, stdout, .. })) if status.success() => String::from_utf8(stdout).ok(),
            _ => None,
        }
    }
}

/// Arguments for `ssh`, derived from its settings for a host and from its default settings.
fn words(set: &str, unset: &str) -> &'static [&'static str] {
    match (key_exchanges(set), key_exchanges(unset)) {
        (Some(set), Some(unset)) if set == unset && set.starts_with("sntrup761") && set.contains(',') => WITHOUT,
        _ => &[],
    }
}

/// List of key exchanges. `ssh` uses the first one that the server supports.
fn key_exchanges(settings: &str) -> Option<&str> {
    settings.lines().find_map(|line| line.strip_prefix("kexalgorithms "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "host n1\nkexalgorithms sntrup761x25519-sha512@openssh.com,curve25519-sha256\nport 22\n";

    #[test]
    fn the_costly_key_exchange_is_left_out_where_nobody_has_set_any() {
        assert_eq!(words(PLAIN, PLAIN), WITHOUT);
        let fast = PLAIN.replace("sntrup761x25519-sha512@openssh.com", "mlkem768x25519-sha256");
        let alone = PLAIN.replace(",curve25519-sha256", "");
        for (set, unset) in
            [(&*fast, &*fast), (&alone, PLAIN), (&alone, &alone), (PLAIN, &fast), ("", PLAIN), (PLAIN, "")]
        {
            assert!(words(set, unset).is_empty(), "{set} {unset}");
        }
    }

    #[tokio::test]
    async fn openssh_is_asked_and_understands_the_words() {
        // `ssh` does not resolve this host name.
        let words = ask("n1.invalid").await;
        let settings = settings(&[words, &["-F", "none", "-G", "--", "n1.invalid"]].concat()).await.unwrap();
        let first = key_exchanges(&settings).unwrap();
        assert!(!first.starts_with("sntrup761") && first.contains("curve25519-sha256"), "{first}");
    }
}
