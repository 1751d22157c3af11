//! Links of a member: opened at their first use, closed when idle, dead when the other end is silent. A neighbour with unanswered requests
//! receives an echo request from time to time.
//!
//! ```text
//!            ┌──opened──> open ──idle for 60 s──> (removed)
//! opening ───┤              │ lost, or no echo for 3 s (then opened once more, if a call may be there)
//!            └──refused──> dead ──3 s──> (removed)
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::passed::Passed;
use super::{Neighbour, Opener};
use crate::address::Uid;
use crate::frame::{Frame, Kind};
use crate::method::LinkInfo;

/// Maximum links that are open or being opened.
const LINKS_MAX: usize = 256;
/// Maximum known neighbours, including dead ones.
const KNOWN_MAX: usize = 4 * LINKS_MAX;
/// Maximum requests that are queued at a link or not yet written.
const REQUESTS_MAX: u32 = 256;
/// Additional queue space that is reserved for answers.
const ANSWERS_MAX: u32 = 256;
/// Time without a frame after which a link is closed.
const IDLE: Duration = Duration::from_secs(60);
/// Time without a frame from the other end after which an echo is requested.
const DOUBT: Duration = Duration::from_secs(1);
/// Time without a frame after which an echo is requested from a neighbour with open requests.
const WATCH: Duration = Duration::from_secs(5);
/// Time without a frame after which the other end is dead; also the time until it is tried again.
const DEAD: Duration = Duration::from_secs(3);

/// Links of a member.
#[derive(Debug, Default)]
pub(super) struct Links(BTreeMap<Neighbour, Link>);

/// Link of a member.
#[derive(Debug)]
pub(super) struct Link {
    phase: Phase,
    opener: Opener,
    /// Time of the last frame in either direction.
    used: Instant,
    /// Time of the first frame sent since the last received one.
    unanswered: Option<Instant>,
    /// True if an echo was requested since then.
    is_doubted: bool,
    sent: u64,
    received: u64,
}

#[derive(Debug)]
enum Phase {
    Opening(VecDeque<Queued>),
    /// Number of frames that were not written to the network yet.
    Open(u32),
    /// There is no link. The reason, if it was refused.
    Dead(Option<String>),
}

/// Frame that waits for a link.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) frame: Frame,
    /// Link that it arrived over.
    pub(super) from: Option<Neighbour>,
    /// Time of its arrival.
    pub(super) since: Instant,
}

/// Usability of a link for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// The link is open, and accepts the frame.
    Open,
    /// The link is being opened, and the frame can wait.
    Opening,
    /// There is no link.
    Closed,
    /// The neighbour does not answer.
    Dead,
    /// Too many frames wait.
    Full,
}

impl Neighbour {
    /// Returns true if the link lasts as long as both processes: a rank may be slow to answer, and its session detects its end.
    pub(super) fn is_lasting(self) -> bool {
        matches!(self, Self::Rank(_) | Self::Session)
    }
}

impl Link {
    fn new(phase: Phase, opener: Opener, now: Instant) -> Self {
        Self { phase, opener, used: now, unanswered: None, is_doubted: false, sent: 0, received: 0 }
    }

    /// Returns true if it may be closed in favour of another link. Runners report written frames in batches, so the last few may count as
    /// unwritten for a long time.
    fn is_unused(&self, now: Instant) -> bool {
        match self.phase {
            Phase::Open(unwritten) => unwritten == 0 || now >= self.used + DEAD,
            Phase::Opening(_) | Phase::Dead(_) => false,
        }
    }

    /// Description for users.
    pub(super) fn info(&self, to: Uid, kind: &str) -> LinkInfo {
        let opened = self.opener == Opener::Us;
        LinkInfo { to: to.to_string(), kind: kind.to_owned(), opened, sent: self.sent, received: self.received }
    }

    /// Time of the next action for this link. `is_waited_for` is true if the neighbour has open requests.
    fn next_wake(&self, neighbour: Neighbour, is_waited_for: bool) -> Option<Instant> {
        match (&self.phase, self.unanswered) {
            (Phase::Open(_), _) if neighbour.is_lasting() => None,
            (Phase::Dead(_), _) => Some(self.used + DEAD),
            (Phase::Opening(_), _) => None,
            (Phase::Open(_), None) => Some(self.used + if is_waited_for { WATCH } else { IDLE }),
            (Phase::Open(_), Some(since)) if self.is_doubted => Some(since + DEAD),
            (Phase::Open(_), Some(since)) => Some(since + DOUBT),
        }
    }
}

impl Links {
    /// Open links.
    pub(super) fn open(&self) -> impl Iterator<Item = (Neighbour, &Link)> {
        self.0
            .iter()
            .filter(|(_, link)| matches!(link.phase, Phase::Open(_)))
            .map(|(&neighbour, link)| (neighbour, link))
    }

    /// Returns true if there is an open link to this neighbour.
    pub(super) fn is_open(&self, neighbour: Neighbour) -> bool {
        self.0.get(&neighbour).is_some_and(|link| matches!(link.phase, Phase::Open(_)))
    }

    /// Returns true if the link has carried no frame for a while, so that the other end may have closed it as idle.
    pub(super) fn is_idle(&self, neighbour: Neighbour, now: Instant) -> bool {
        self.0.get(&neighbour).is_some_and(|link| now >= link.used + DEAD)
    }

    /// Returns the usability of a neighbour for a frame of this kind.
    pub(super) fn room(&self, neighbour: Neighbour, kind: Kind) -> Room {
        let most = if kind == Kind::Request { REQUESTS_MAX } else { REQUESTS_MAX + ANSWERS_MAX };
        match self.0.get(&neighbour).map(|link| &link.phase) {
            None => Room::Closed,
            Some(Phase::Dead(_)) => Room::Dead,
            Some(Phase::Opening(queue)) if queue.len() < most as usize => Room::Opening,
            Some(Phase::Open(unwritten)) if *unwritten < most => Room::Open,
            Some(Phase::Opening(_) | Phase::Open(_)) => Room::Full,
        }
    }

    /// Starts to open a link. Also returns the link that is closed for it, if there are too many; returns false if no link can be opened.
    pub(super) fn begin(&mut self, neighbour: Neighbour, passed: &Passed, now: Instant) -> (bool, Option<Neighbour>) {
        let live = self.0.values().filter(|link| !matches!(link.phase, Phase::Dead(_))).count();
        let mut closed = None;
        if live >= LINKS_MAX {
            let unused = self.0.iter().filter(|(neighbour, link)| link.is_unused(now) && !neighbour.is_lasting());
            let order = |(neighbour, link): &(&Neighbour, &Link)| (passed.is_waited_for(**neighbour), link.used);
            closed = unused.min_by_key(order).map(|(&neighbour, _)| neighbour);
            match closed {
                None => return (false, None),
                Some(unused) => self.0.remove(&unused),
            };
        }
        self.0.insert(neighbour, Link::new(Phase::Opening(VecDeque::new()), Opener::Us, now));
        (true, closed)
    }

    /// Queues a frame for a link that is being opened.
    pub(super) fn wait(&mut self, neighbour: Neighbour, queued: Queued) {
        if let Some(Link { phase: Phase::Opening(queue), .. }) = self.0.get_mut(&neighbour) {
            queue.push_back(queued);
        }
    }

    /// Records that a frame is sent.
    pub(super) fn sent(&mut self, neighbour: Neighbour, now: Instant) {
        let Some(link) = self.0.get_mut(&neighbour) else { return };
        if let Phase::Open(unwritten) = &mut link.phase {
            *unwritten += 1;
        }
        link.sent += 1;
        link.used = now;
        link.unanswered.get_or_insert(now);
    }

    /// Records that an echo frame is sent.
    pub(super) fn echoed(&mut self, neighbour: Neighbour) {
        if let Some(Link { phase: Phase::Open(unwritten), .. }) = self.0.get_mut(&neighbour) {
            *unwritten += 1;
        }
    }

    /// Records that this many frames were written to the network.
    pub(super) fn written(&mut self, neighbour: Neighbour, frames: u32) {
        if let Some(Link { phase: Phase::Open(unwritten), .. }) = self.0.get_mut(&neighbour) {
            *unwritten = unwritten.saturating_sub(frames);
        }
    }

    /// Records that a frame has arrived.
    pub(super) fn heard(&mut self, neighbour: Neighbour, now: Instant) {
        if let Some(link) = self.0.get_mut(&neighbour) {
            link.received += 1;
            link.used = now;
            link.unanswered = None;
            link.is_doubted = false;
        }
    }

    /// Records that a link is open; returns its queued frames. Links that other members open are not refused: members with too many links
    /// close some.
    pub(super) fn opened(&mut self, neighbour: Neighbour, opener: Opener, now: Instant) -> VecDeque<Queued> {
        let link = Link::new(Phase::Open(0), opener, now);
        match self.0.insert(neighbour, link).map(|former| former.phase) {
            Some(Phase::Opening(queue)) => queue,
            Some(Phase::Open(_) | Phase::Dead(_)) | None => VecDeque::new(),
        }
    }

    /// Records that a neighbour does not answer, or refuses the link; returns the queued frames, or `None` if there was no link.
    pub(super) fn lost(&mut self, neighbour: Neighbour, why: Option<String>, now: Instant) -> Option<VecDeque<Queued>> {
        let former = self.0.remove(&neighbour)?;
        if self.0.len() < KNOWN_MAX {
            self.0.insert(neighbour, Link::new(Phase::Dead(why), Opener::Us, now));
        }
        Some(match former.phase {
            Phase::Opening(queue) => queue,
            Phase::Open(_) | Phase::Dead(_) => VecDeque::new(),
        })
    }

    /// Reason for the refusal of a link to a neighbour, if one was received.
    pub(super) fn refusal(&self, neighbour: Neighbour) -> Option<&str> {
        match &self.0.get(&neighbour)?.phase {
            Phase::Dead(why) => why.as_deref(),
            Phase::Opening(_) | Phase::Open(_) => None,
        }
    }

    /// Neighbours that have been silent for too long.
    pub(super) fn silent(&self, now: Instant) -> Vec<Neighbour> {
        let is_silent = |link: &Link| link.is_doubted && link.unanswered.is_some_and(|since| now >= since + DEAD);
        self.open().filter(|(_, link)| is_silent(link)).map(|(neighbour, _)| neighbour).collect()
    }

    /// Neighbours that must receive an echo request; each once.
    pub(super) fn doubtful(&mut self, passed: &Passed, now: Instant) -> Vec<Neighbour> {
        let mut doubtful = Vec::new();
        for (&neighbour, link) in &mut self.0 {
            let is_due = match link.unanswered {
                Some(since) => now >= since + DOUBT,
                None => now >= link.used + WATCH && passed.is_waited_for(neighbour),
            };
            if matches!(link.phase, Phase::Open(_)) && is_due && !link.is_doubted && !neighbour.is_lasting() {
                link.is_doubted = true;
                link.unanswered.get_or_insert(now);
                doubtful.push(neighbour);
            }
        }
        doubtful
    }

    /// Removes idle links, and dead neighbours that may be tried again; returns the links to close.
    pub(super) fn take_idle(&mut self, passed: &Passed, now: Instant) -> Vec<Neighbour> {
        self.0.retain(|_, link| !(matches!(link.phase, Phase::Dead(_)) && now >= link.used + DEAD));
        let is_idle = |neighbour: Neighbour, link: &Link| {
            let is_used = neighbour.is_lasting() || link.unanswered.is_some() || passed.is_waited_for(neighbour);
            !is_used && now >= link.used + IDLE
        };
        let idle: Vec<Neighbour> =
            self.open().filter(|&(neighbour, link)| is_idle(neighbour, link)).map(|(neighbour, _)| neighbour).collect();
        idle.iter().for_each(|neighbour| drop(self.0.remove(neighbour)));
        idle
    }

    pub(super) fn next_wake(&self, passed: &Passed) -> Option<Instant> {
        let wake = |(&neighbour, link): (&Neighbour, &Link)| link.next_wake(neighbour, passed.is_waited_for(neighbour));
        self.0.iter().filter_map(wake).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runners report written frames in batches, and never report the last ones of an unused link.
    #[test]
    fn a_link_that_rests_makes_room_whether_its_last_frames_were_told_of_or_not() {
        let (mut links, passed, begun) = (Links::default(), Passed::default(), Instant::now());
        for index in 0..LINKS_MAX as u32 {
            let now = begun + Duration::from_millis(index.into());
            links.opened(Neighbour::Member(index), Opener::Us, now);
            links.sent(Neighbour::Member(index), now);
        }
        let another = Neighbour::Member(LINKS_MAX as u32);
        let just_used = begun + Duration::from_secs(1);
        assert_eq!(links.begin(another, &passed, just_used), (false, None), "frames may be on their way");
        let later = begun + DEAD;
        assert_eq!(links.begin(another, &passed, later), (true, Some(Neighbour::Member(0))));
    }
}
