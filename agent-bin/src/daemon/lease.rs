//! The lease: the time during which this node may assume that the API server does not regard it as lost.
//!
//! When an agent loses its connection, the API server declares the node lost and its launches failed. Users may have started them again on other
//! nodes, and no message reaches the agent. So the agent ends its launches when the lease expires. This includes launches of this node alone,
//! which were reported as failed too. A lease starts with each message that the API server accepts, and when a starting agent adopts launches.

use std::time::Duration;

use lattice_session::timeouts;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Lease that the API server has granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    length: Duration,
    until: Instant,
}

/// Sender of renewals; `None` for an API server that grants no leases.
pub(super) type Renewals = watch::Sender<Option<Lease>>;

impl Lease {
    /// A lease from the time of the request to the API server. The server counts it from the receipt of the request, a little later.
    pub(super) fn from(asked: Instant, length: Duration) -> Self {
        // A lease that exceeds the range of the clock is practically unlimited.
        let until = asked.checked_add(length).unwrap_or_else(|| asked + Duration::from_secs(u32::MAX.into()));
        Self { length, until }
    }
}

/// Creates the channel for renewals, with the `first` lease, if any.
pub(super) fn begin(first: Option<Lease>) -> (Renewals, watch::Receiver<Option<Lease>>) {
    watch::channel(first)
}

/// Calls `cut_off` with the reason as text when a lease expires, and repeats that until there is a new lease: other nodes may forward launches
/// meanwhile. Ends when leases cannot be renewed any more.
pub(super) async fn watch(mut lease: watch::Receiver<Option<Lease>>, cut_off: impl Fn(&str)) {
    let mut not_before = Instant::now();
    loop {
        let current = *lease.borrow_and_update();
        let is_over = async {
            match current {
                Some(Lease { length, until }) => {
                    sleep_until(until.max(not_before)).await;
                    length
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            renewed = lease.changed() => if renewed.is_err() { return },
            length = is_over => {
                cut_off(&format!("nothing has come from the API server for {length:?}"));
                not_before = Instant::now() + timeouts::HEARTBEAT;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    const LENGTH: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn ranks_end_when_the_lease_is_over_and_not_before() {
        let (renewals, lease) = begin(None);
        let (told, mut cut_off) = mpsc::unbounded_channel();
        let begun = Instant::now();
        tokio::spawn(watch(lease, move |reason| told.send((begun.elapsed(), reason.to_owned())).unwrap()));
        tokio::time::sleep(2 * LENGTH).await;
        assert!(cut_off.is_empty(), "nothing is over that has not begun");
        for _ in 0..3 {
            renewals.send_replace(Some(Lease::from(Instant::now(), LENGTH)));
            tokio::time::sleep(LENGTH - Duration::from_millis(10)).await;
        }
        assert!(cut_off.is_empty(), "it was renewed each time");
        let (first, reason) = cut_off.recv().await.unwrap();
        assert!(first >= 5 * LENGTH - 3 * Duration::from_millis(10), "{first:?}");
        assert_eq!(reason, "nothing has come from the API server for 30s");
        let (again, _) = cut_off.recv().await.unwrap();
        assert!(again >= first + timeouts::HEARTBEAT, "launches that came meanwhile end as well");
        renewals.send_replace(Some(Lease::from(Instant::now(), Duration::MAX)));
        drop(renewals);
        while cut_off.recv().await.is_some() {}
    }
}
