//! News for a host that comes once, such as the end of a job.

use tokio::sync::oneshot;

/// News that a protocol has for its host at most once.
#[derive(Debug)]
pub struct Announcement<T>(Option<oneshot::Sender<T>>);

impl<T> Announcement<T> {
    /// An announcement that was not made yet, and its receiver.
    pub fn new() -> (Self, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Some(sender)), receiver)
    }

    /// Makes the announcement, unless it was made before. Nobody need listen any more: the host may be ending everything already.
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
