//! The key exchange of `ssh`. Of those that OpenSSH offers by itself, sntrup761 costs the client many times what the rest of a connection
//! costs, and a launch has one connection for each node. It is for traffic that somebody records today to read it in decades. Here that is
//! a key whose authority is gone when the command ends. So `ssh` leaves it out, unless somebody has set which key exchanges it offers.

use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

/// Time for an answer; a program that takes longer is not OpenSSH.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Words for `ssh` that leave it out.
const WITHOUT: &[&str] = &["-o", "KexAlgorithms=-sntrup761*"];

/// Asks `ssh` what it does for this host, and what it would do without settings. The answer is words for its command line.
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

/// What `ssh` prints when it is called so; nothing if it does not answer.
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

/// Words for `ssh`, of its settings for a host and of those that it has by itself.
fn words(set: &str, unset: &str) -> &'static [&'static str] {
    match (key_exchanges(set), key_exchanges(unset)) {
        (Some(set), Some(unset)) if set == unset && set.starts_with("sntrup761") && set.contains(',') => WITHOUT,
        _ => &[],
    }
}

/// The list, the first one of which that the server knows is used.
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
        // A host that it does not look up.
        let words = ask("n1.invalid").await;
        let settings = settings(&[words, &["-F", "none", "-G", "--", "n1.invalid"]].concat()).await.unwrap();
        let first = key_exchanges(&settings).unwrap();
        assert!(!first.starts_with("sntrup761") && first.contains("curve25519-sha256"), "{first}");
    }
}
