//! `lattice scontrol show`: expands and folds hostlists. No server is involved.

use lattice_console::print;

use super::error::CommandError;
use crate::args::{ScontrolArgs, ScontrolCommand, Shown};

/// Variables that may hold the nodes of a job, by precedence.
const LISTS: [&str; 3] = ["SLURM_JOB_NODELIST", "SLURM_NODELIST", "LATTICE_NODELIST"];

/// Prints the requested list; returns the exit code.
///
/// # Errors
/// Fails for a text that is not a hostlist, and if there is no list.
pub fn scontrol(args: &ScontrolArgs) -> Result<u8, CommandError> {
    let ScontrolCommand::Show(shown) = &args.command;
    print(text_of(shown, |name| std::env::var(name).ok())?.as_bytes())?;
    Ok(0)
}

fn text_of(shown: &Shown, variable: impl Fn(&str) -> Option<String>) -> Result<String, CommandError> {
    match shown {
        Shown::Hostnames { list } => {
            // Scripts use this for "$SLURM_JOB_NODELIST", which may be unset.
            let mut named = list.iter().cloned().chain(LISTS.iter().filter_map(|name| variable(name)));
            let list = named.find(|list| !list.is_empty()).ok_or(CommandError::NoNodeList)?;
            let names = hostlist::expand(&list)?;
            Ok(names.iter().flat_map(|name| [name, "\n"]).collect())
        }
        Shown::Hostlist { names } => Ok(hostlist::fold(&hostlist::expand(names)?) + "\n"),
        Shown::Hostlistsorted { names } => {
            let mut names = hostlist::expand(names)?;
            names.sort_unstable_by(|one, other| hostlist::natural_order(one, other));
            names.dedup();
            Ok(hostlist::fold(&names) + "\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_taken_apart_and_put_together() {
        let check = |shown: Shown, of_job: &str, expected: &str| {
            let variable = |name: &str| (name == "SLURM_NODELIST").then(|| of_job.to_owned());
            assert_eq!(text_of(&shown, variable).unwrap(), expected, "{shown:?}");
        };
        let list = Some("b,a[08-10]".to_owned());
        check(Shown::Hostnames { list }, "c", "b\na08\na09\na10\n");
        for list in [None, Some(String::new())] {
            check(Shown::Hostnames { list }, "c[1-2]", "c1\nc2\n");
        }
        check(Shown::Hostlist { names: "a2,a1,a1,a[3-4]".to_owned() }, "", "a[2,1,1,3-4]\n");
        check(Shown::Hostlistsorted { names: "a10,b,a[9-10]".to_owned() }, "", "a[9-10],b\n");
    }

    #[test]
    fn no_list_and_bad_lists_are_refused() {
        let refusal = |list: Option<&str>| {
            let shown = Shown::Hostnames { list: list.map(str::to_owned) };
            text_of(&shown, |_| Some(String::new())).unwrap_err().to_string()
        };
        assert!(refusal(None).contains("try: a list such as node[0-3,7]"));
        assert!(refusal(Some("node[1-")).contains("without its partner"));
    }
}
