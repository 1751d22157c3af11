//! A one-time notification of a host, such as the end of a job.

use tokio::sync::oneshot;

/// A notification of the host that a protocol sends at most once.
#[derive(Debug)]
pub struct Announcement<T>(Option<oneshot::Sender<T>>);

impl<T> Announcement<T> {
    /// Creates a pending announcement and its receiver.
    pub fn new() -> (Self, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Some(sender)), receiver)
    }

    /// Makes the announcement, unless it was made before. The receiver may be dropped: the host may already be ending everything.
    pub fn make(&mut self, news: T) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(news);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_news_is_announced_and_no_other() {
        let (mut announcement, mut heard) = Announcement::new();
        announcement.make("first");
        announcement.make("second");
        assert_eq!(heard.try_recv(), Ok("first"));
        let (mut unheard, receiver) = Announcement::new();
        drop(receiver);
        unheard.make("nobody listens");
    }
}
