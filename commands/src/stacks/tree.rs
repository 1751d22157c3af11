//! Call stacks merged into a tree of callers. Common frames of ranks are shown once. The tree branches where ranks differ.
//!
//! ```text
//! ranks 0     #0 solve () #1 main ()                        0-3  main
//! ranks 1-3   #0 poll (...) #1 PMPI_Barrier () #2 main ()   0      solve
//!                                                           1-3    PMPI_Barrier
//!                                                                  poll
//! ```

use lattice_daemon::printable;
use lattice_session::call_stacks::RankStack;
use lattice_session::cause::RankNumbers;
use pmi_core::ids::Rank;
use serde::Serialize;

/// Maximum depth at which a branch is indented further.
const INDENT_MAX: usize = 40;

/// A function without a name.
const UNKNOWN: &str = "??";

/// A function, the ranks with a thread in it, and the functions that it calls.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct CallTree {
    function: String,
    #[cfg_attr(test, schemars(with = "Vec<u32>"))]
    ranks: Vec<Rank>,
    calls: Vec<Self>,
}

impl CallTree {
    /// Outermost callers of all threads. The stacks have the format of `rank_spawner::call_stacks`.
    pub(super) fn of(stacks: &[RankStack]) -> Vec<Self> {
        let mut roots = Vec::new();
        for stack in stacks {
            threads(&stack.text).iter().for_each(|functions| add(&mut roots, functions, &stack.ranks));
        }
        sort(&mut roots);
        roots
    }
}

/// Adds a thread's functions, the outermost first.
fn add(mut level: &mut Vec<CallTree>, functions: &[&str], ranks: &[Rank]) {
    for function in functions {
        let known = level.iter().position(|node| node.function == *function).unwrap_or_else(|| {
            level.push(CallTree { function: (*function).to_owned(), ranks: Vec::new(), calls: Vec::new() });
            level.len() - 1
        });
        let node = &mut level[known];
        node.ranks.extend(ranks);
        level = &mut node.calls;
    }
}

/// Sorts branches by their number of ranks, greatest first.
fn sort(level: &mut [CallTree]) {
    for node in level.iter_mut() {
        node.ranks.sort_unstable();
        node.ranks.dedup();
        sort(&mut node.calls);
    }
    level.sort_by(|one, other| (other.ranks.len(), one.ranks.first()).cmp(&(one.ranks.len(), other.ranks.first())));
}

/// Functions of each thread, the outermost first. A thread without functions is shown by its state; a text without threads is shown by its
/// first line.
fn threads(text: &str) -> Vec<Vec<&str>> {
    let mut threads: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        if line.starts_with("thread ") || line.starts_with("threads ") {
            // thread 1 (app) sleeps in the kernel's do_epoll_wait, system call 232
            let state = line.find('(').map_or(line, |start| &line[start..]);
            threads.push((state, Vec::new()));
        } else if let (Some(frame), Some((_, frames))) = (line.strip_prefix("  #"), threads.last_mut()) {
            let function = function(frame);
            // One frame of a library without symbols is as informative as twenty.
            if (function, frames.last()) != (UNKNOWN, Some(&UNKNOWN)) {
                frames.push(function);
            }
        }
    }
    if threads.is_empty() {
        return text.lines().next().map(|line| vec![line]).into_iter().collect();
    }
    let shown = |(state, mut frames): (_, Vec<_>)| {
        frames.reverse();
        if frames.is_empty() { vec![state] } else { frames }
    };
    threads.into_iter().map(shown).collect()
}

/// Name of the function of a frame. gdb prints `1 ns::f(int) (...) at f.cc:7` and `1 ns::f(int) (...) from libf.so`, eu-stack prints `1 f`.
fn function(frame: &str) -> &str {
    let name = frame.split_once(' ').map_or(frame, |(_, name)| name);
    let mut depth = 0;
    for (index, letter) in name.char_indices() {
        match letter {
            // The arguments follow, or `const` and the arguments. A blank within brackets belongs to a type.
            ' ' if depth == 0 => return &name[..index],
            '(' | '<' => depth += 1,
            ')' | '>' => depth -= 1,
            _ => {}
        }
    }
    name
}

/// The tree as lines: the ranks of each branch, and its functions on one level while all its ranks share them.
pub(super) fn text(roots: &[CallTree]) -> String {
    let mut lines = Vec::new();
    roots.iter().for_each(|root| branch(root, 0, &mut lines));
    let width = lines.iter().map(|(ranks, _)| ranks.len()).max().unwrap_or(0);
    lines.iter().map(|(ranks, function)| format!("{ranks:width$}  {function}\n")).collect()
}

fn branch(first: &CallTree, depth: usize, lines: &mut Vec<(String, String)>) {
    let indent = "  ".repeat(depth.min(INDENT_MAX));
    let mut node = first;
    let mut ranks = RankNumbers(&first.ranks).to_string();
    loop {
        lines.push((std::mem::take(&mut ranks), format!("{indent}{}", printable(&node.function))));
        match &*node.calls {
            [only] if only.ranks == node.ranks => node = only,
            calls => return calls.iter().for_each(|call| branch(call, depth + 1, lines)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(ranks: &[u32], text: &str) -> RankStack {
        RankStack { ranks: ranks.iter().copied().map(Rank).collect(), text: text.to_owned() }
    }

    fn check(stacks: &[RankStack], expected: &str) {
        assert_eq!(text(&CallTree::of(stacks)), expected);
    }

    #[test]
    fn what_ranks_have_in_common_is_shown_once() {
        let solves = "1 thread of app\nthread 1 (app) runs\n  #0 solve (...) at app.c:7\n  #1 main () at app.c:20\n  #2 _start ()\n";
        let waits = "1 thread of app\nthread 1 (app) sleeps in the kernel's do_poll, system call 7\n  kernel: do_poll < x\n  \
                     #0 poll (...) from /lib/libc.so.6\n  #1 PMPI_Barrier (...)\n  #2 main () at app.c:21\n  #3 _start ()\n";
        let stacks = [stack(&[5], solves), stack(&[0, 1, 2, 4], waits)];
        check(&stacks, "0-2,4-5  _start\n         main\n0-2,4      PMPI_Barrier\n           poll\n5          solve\n");
    }

    #[test]
    fn threads_are_branches_of_the_same_ranks() {
        let two =
            "2 threads of app\nthread 1 (app) runs\n  #0 main\nthread 2 (ucx) sleeps\n  #0 epoll_wait\n  #1 clone3\n";
        check(&[stack(&[0, 1], two)], "0-1  main\n0-1  clone3\n     epoll_wait\n");
    }

    #[test]
    fn functions_without_names_are_shown_once_in_a_row() {
        let text =
            "1 thread of app\nthread 1 (app) runs\n  #0 poll ()\n  #1 ?? ()\n  #2 ?? () from libmpi.so\n  #3 main ()\n";
        check(&[stack(&[0], text)], "0  main\n   ??\n   poll\n");
    }

    #[test]
    fn threads_without_functions_are_shown_by_what_they_do() {
        let unseen =
            "1 thread of app\nthread 1 (app) sleeps, system call 7\nfunctions are not known: no debugger was found\n";
        check(&[stack(&[0], unseen), stack(&[1], "left out\n")], "0  (app) sleeps, system call 7\n1  left out\n");
    }

    #[test]
    fn functions_of_cpp_keep_their_names() {
        assert_eq!(
            function("3 ns::(anonymous namespace)::f<int (*)()> (...) at f.cc:7"),
            "ns::(anonymous namespace)::f<int (*)()>"
        );
        assert_eq!(function("1 f(int (*)(char)) () from libf.so"), "f(int (*)(char))");
        assert_eq!(function("2 main (argc=..., argv=...) at app.c:7"), "main");
        assert_eq!(function("12 ?? ()"), "??");
        assert_eq!(function("0 clock_nanosleep@@GLIBC_2.17"), "clock_nanosleep@@GLIBC_2.17");
    }

    #[test]
    fn a_recursion_without_end_stays_on_the_screen() {
        let deep = |last: &str| {
            let frames: String = (0..64).map(|level| format!("  #{level} f{level} ()\n")).collect();
            format!("1 thread of a\nthread 1 (a) runs\n  #0 {last} ()\n{frames}")
        };
        let text = text(&CallTree::of(&[stack(&[0], &deep("x")), stack(&[1], &deep("y"))]));
        assert!(text.starts_with("0-1  f63\n     f62\n") && text.ends_with("0      x\n1      y\n"), "{text}");
    }
}
