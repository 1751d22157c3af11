//! Record of a launch that is over. It suffices to list the launch, to report the end of each rank, and to send the end to a client that
//! connects late. Its size is bounded for every launch: users choose arguments, environments and placements, and causes name ranks.

use std::cmp::Reverse;

use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::cause::Kind;

use super::spec::shown;
use crate::allocations::allocation::LaunchFailure;
use crate::store::{EndedLaunch, ExitRun, LaunchRecord};

/// Longest text of a cause, in bytes.
const WORDS_MAX: usize = 4 << 10;
/// Longest list of nodes in a summary, in bytes.
const NODES_MAX: usize = 16 << 10;
/// Most ranks that a cause names one by one.
const NAMED_MAX: usize = 1024;
/// Most runs of ranks that ended alike. The ends of further ranks are not stored.
const RUNS_MAX: usize = 4096;
/// Longest description of the placement of ranks, in bytes. A longer one is not stored.
const SPEC_MAX: usize = 128 << 10;

impl EndedLaunch {
    /// The record of a launch that has ended.
    pub(crate) fn of(record: &LaunchRecord) -> Self {
        let mut summary = record.summary.clone().unwrap_or_default();
        cut(&mut summary.cause, WORDS_MAX);
        cut(&mut summary.nodes, NODES_MAX);
        let mut complete = record.complete.clone().unwrap_or_default();
        // After the end no client asks which ranks wait for each other.
        complete.ranks.iter_mut().for_each(|end| end.fences = 0);
        let exits = runs(std::mem::take(&mut complete.ranks));
        cut(&mut complete.error_message, WORDS_MAX);
        complete.cause.as_mut().and_then(|cause| cause.kind.as_mut()).into_iter().for_each(shorten);
        let spec = record.spec.as_ref().map(placement_of).filter(|spec| spec.encoded_len() <= SPEC_MAX);
        Self {
            summary: Some(summary),
            spec,
            complete: Some(complete),
            exits,
            last_event: record.last_event,
            course: record.course,
        }
    }

    /// The stored ends of its ranks, in rank order.
    pub(crate) fn ends(&self) -> impl Iterator<Item = proto::RankExitStatus> {
        self.exits.iter().flat_map(|run| {
            let first = run.first.unwrap_or_default();
            (0..run.count).map(move |more| proto::RankExitStatus { rank: first.rank.saturating_add(more), ..first })
        })
    }

    /// The exit code of its first rank, as in a shell; `None` if it is unknown.
    pub(crate) fn first_exit_code(&self) -> Option<u32> {
        let first = self.ends().next().filter(|end| end.rank == 0)?;
        u32::try_from(if first.signaled { 128 + first.signal } else { first.exit_code }).ok()
    }

    /// The failure that the launch was for its allocation; `None` if it succeeded.
    pub(crate) fn failure(&self, id: &str) -> Option<LaunchFailure> {
        let complete = self.complete.as_ref()?;
        let kind = complete.cause.as_ref()?.kind.as_ref();
        let is_loss = matches!(kind, Some(Kind::NodeLost(_) | Kind::LostNodes(_)));
        Some(LaunchFailure::new(id, &complete.error_message, is_loss && self.course().has_lost_a_node()))
    }

    /// The message that reports its end to a client.
    pub(crate) fn completion(&self) -> proto::LaunchCompleteNotification {
        proto::LaunchCompleteNotification { ranks: self.ends().collect(), ..self.complete.clone().unwrap_or_default() }
    }
}

impl ExitRun {
    /// Returns true if `end` belongs to the next rank, and is like the ends of the run.
    fn is_followed_by(&self, end: &proto::RankExitStatus) -> bool {
        let next = |first: proto::RankExitStatus| proto::RankExitStatus {
            rank: first.rank.saturating_add(self.count),
            ..first
        };
        self.first.is_some_and(|first| next(first) == *end)
    }
}

/// A spec with the placement of ranks and their programs, without the arguments and variables of the programs.
fn placement_of(spec: &proto::LaunchSpec) -> proto::LaunchSpec {
    let mut spec = shown(spec);
    spec.addresses.clear();
    spec.job.iter_mut().for_each(|job| job.preput.clear());
    for app in &mut spec.apps {
        (app.args, app.set, app.remove, app.process_set) = Default::default();
    }
    spec
}

/// Ends of ranks, as runs of consecutive ranks that ended alike.
fn runs(mut ends: Vec<proto::RankExitStatus>) -> Vec<ExitRun> {
    sort_by_rank(&mut ends);
    let mut runs: Vec<ExitRun> = Vec::new();
    for end in ends {
        if let Some(last) = runs.last_mut().filter(|run| run.is_followed_by(&end)) {
            last.count += 1;
        } else if runs.len() < RUNS_MAX {
            runs.push(ExitRun { first: Some(end), count: 1 });
        } else {
            break;
        }
    }
    runs
}

/// Shortens the texts of a cause, and its lists of ranks.
fn shorten(kind: &mut Kind) {
    match kind {
        Kind::LeftBeforeInit(left) => left.others.truncate(NAMED_MAX),
        Kind::LeftFence(left) => left.waiting.truncate(NAMED_MAX),
        Kind::FenceTimeout(timeout) => timeout.missing.truncate(NAMED_MAX),
        Kind::FailedRanks(failed) => shorten_exits(&mut failed.exits),
        Kind::LostNodes(lost) => {
            lost.nodes.truncate(NAMED_MAX);
            lost.nodes.iter_mut().for_each(|node| cut(&mut node.reason, WORDS_MAX));
            shorten_exits(&mut lost.exits);
        }
        Kind::Aborted(aborted) => cut(&mut aborted.message, WORDS_MAX),
        Kind::Offence(offence) | Kind::NotServed(offence) => cut(&mut offence.text, WORDS_MAX),
        Kind::Fence(words) | Kind::NodeLost(words) => cut(words, WORDS_MAX),
        Kind::NotStarted(start) => cut(&mut start.reason, WORDS_MAX),
        Kind::Ended(ended) => cut(&mut ended.reason, WORDS_MAX),
        Kind::Failed(_)
        | Kind::LeftWithoutFinalize(_)
        | Kind::InterruptedBy(_)
        | Kind::TimedOutMs(_)
        | Kind::FirstExit(_) => {}
    }
}

/// Keeps the exits that determine the exit code of the launch, which is the highest of theirs.
fn shorten_exits(exits: &mut Vec<proto::RankExitStatus>) {
    let code = |exit: &proto::RankExitStatus| if exit.signaled { 128 + exit.signal } else { exit.exit_code & 0xff };
    exits.sort_unstable_by_key(|exit| (Reverse(code(exit)), exit.rank));
    exits.truncate(NAMED_MAX);
    sort_by_rank(exits);
}

fn sort_by_rank(exits: &mut [proto::RankExitStatus]) {
    exits.sort_unstable_by_key(|exit| exit.rank);
}

/// Cuts a text off after `most` bytes.
fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push_str("...");
    }
}

#[cfg(test)]
mod tests {
    use proto::{
        AppSpec, FailedRanks, LaunchCompleteNotification, LaunchSpec, LaunchSummary, RankExitStatus, Variable,
    };

    use super::*;
    use crate::order::tests::order;
    use crate::wire::order::{decode_placed, encode};

    fn exit(rank: u32, exit_code: i32) -> RankExitStatus {
        RankExitStatus { rank, exit_code, ..RankExitStatus::default() }
    }

    fn ended(ranks: Vec<RankExitStatus>) -> EndedLaunch {
        let complete = Some(LaunchCompleteNotification { ranks, ..LaunchCompleteNotification::default() });
        EndedLaunch::of(&LaunchRecord { complete, ..LaunchRecord::default() })
    }

    /// All parts that a user can make large are large. Only a bounded part of them is stored.
    #[test]
    fn what_is_kept_is_small_whatever_the_launch_was() {
        let megabyte = || "x".repeat(1 << 20);
        let variable = || Variable { name: "TOKEN".into(), value: megabyte().into() };
        let app = AppSpec {
            program: "/bin/app".into(),
            args: vec![megabyte().into(); 4],
            directory: "/".into(),
            set: vec![variable()],
            remove: vec![megabyte()],
            process_set: megabyte(),
        };
        let spec = LaunchSpec { apps: vec![app], environment: vec![variable()], ..LaunchSpec::default() };
        let failed = (0..1 << 20).map(|rank| exit(rank, (rank % 200) as i32)).collect::<Vec<_>>();
        let kind = Some(Kind::FailedRanks(FailedRanks { exits: failed.clone() }));
        let complete = LaunchCompleteNotification {
            ranks: failed,
            error_message: megabyte(),
            cause: Some(proto::Cause { host: "node0".to_owned(), kind }),
            ..LaunchCompleteNotification::default()
        };
        let summary = LaunchSummary { cause: megabyte(), nodes: megabyte(), ..LaunchSummary::default() };
        let record = LaunchRecord {
            summary: Some(summary),
            spec: Some(spec),
            complete: Some(complete),
            ..LaunchRecord::default()
        };
        let kept = EndedLaunch::of(&record);
        assert!(kept.encoded_len() < 128 << 10, "{}", kept.encoded_len());
        assert_eq!(kept.spec.unwrap().apps[0].program, "/bin/app");
        let Some(Kind::FailedRanks(failed)) = kept.complete.unwrap().cause.unwrap().kind else {
            panic!("another kind")
        };
        assert_eq!((failed.exits.len(), failed.exits.iter().map(|exit| exit.exit_code).max()), (NAMED_MAX, Some(199)));
    }

    #[test]
    fn ranks_that_ended_alike_take_the_room_of_one() {
        let million: Vec<_> = (0..1 << 20).rev().map(|rank| exit(rank, 0)).collect();
        let kept = ended(million);
        assert_eq!((kept.exits.len(), kept.ends().count()), (1, 1 << 20));
        let few = vec![exit(0, 0), exit(1, 0), exit(2, 7), exit(3, 0), exit(5, 0)];
        let kept = ended(few.clone());
        assert_eq!((kept.exits.len(), kept.ends().collect::<Vec<_>>()), (4, few));
        let all_different: Vec<_> = (0..10_000).map(|rank| exit(rank, rank as i32 & 1)).collect();
        assert_eq!(ended(all_different).ends().count(), RUNS_MAX);
    }

    #[test]
    fn a_client_that_comes_late_is_told_where_ranks_were() {
        let order = order(3);
        let record = LaunchRecord { spec: Some(encode(&order)), ..LaunchRecord::default() };
        let kept = EndedLaunch::decode(&EndedLaunch::of(&record).encode_to_vec()[..]).unwrap();
        let read = decode_placed(kept.spec.as_ref()).unwrap();
        assert_eq!((read.hosts, read.job.placement), (order.launch.hosts, order.launch.job.placement));
    }

    #[test]
    fn words_are_cut_between_characters() {
        let check = |text: &str, most, expected: &str| {
            let mut text = text.to_owned();
            cut(&mut text, most);
            assert_eq!(text, expected);
        };
        check("short", 5, "short");
        check("longer", 5, "longe...");
        check("\u{e4}\u{e4}", 3, "\u{e4}...");
    }
}
