//! Carries out removals that ranks have requested. The session runs as the ranks' user, so it has the same
//! rights.

use std::fs;
use std::path::Path;

use pmix_core::CleanUp;
use rank_spawner::empty_directory;

/// Removes files and directories. Failures are ignored: the file is already gone, or does not belong to the
/// rank.
pub(super) fn remove(clean_up: &CleanUp) {
    for file in clean_up.files.iter().filter(|file| !is_spared(file, clean_up)) {
        let _ = fs::remove_file(file);
    }
    for directory in &clean_up.directories {
        empty_directory(directory, clean_up.recursive, &|path| is_spared(path, clean_up));
        if !clean_up.leave_directory && !is_spared(directory, clean_up) {
            let _ = fs::remove_dir(directory);
        }
    }
}

fn is_spared(path: &Path, clean_up: &CleanUp) -> bool {
    clean_up.spared.iter().any(|spared| path.starts_with(spared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_named_goes() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("job/rank/deep")).unwrap();
        for file in ["alone", "kept", "job/a", "job/spared", "job/rank/deep/b"] {
            fs::write(at(file), "x").unwrap();
        }
        std::os::unix::fs::symlink(at("kept"), at("job/link")).unwrap();
        std::os::unix::fs::symlink(root.path(), at("job/up")).unwrap();
        let clean_up = CleanUp {
            files: vec![at("alone"), at("never there")],
            directories: vec![at("job")],
            spared: vec![at("job/spared")],
            recursive: true,
            leave_directory: false,
        };
        remove(&clean_up);
        assert!(!at("alone").exists() && !at("job/rank").exists() && !at("job/a").exists() && !at("job/up").exists());
        assert!(at("kept").exists() && at("job/spared").exists());
        remove(&CleanUp { spared: Vec::new(), ..clean_up });
        assert!(!at("job").exists() && at("kept").exists());
    }

    /// A directory with the files `a`, `deep/b` and a link to the directory `outside`, which holds the file `c`.
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("job/deep")).unwrap();
        fs::create_dir(at("outside")).unwrap();
        for file in ["job/a", "job/deep/b", "outside/c"] {
            fs::write(at(file), "x").unwrap();
        }
        std::os::unix::fs::symlink(at("outside"), at("job/link")).unwrap();
        root
    }

    #[test]
    fn directories_go_as_deep_as_was_asked_for_and_links_are_never_followed() {
        let check = |recursive, leave_directory, expected: &[&str]| {
            let root = tree();
            let directories = vec![root.path().join("job")];
            remove(&CleanUp { directories, recursive, leave_directory, ..CleanUp::default() });
            let paths = ["job", "job/a", "job/link", "job/deep", "job/deep/b", "outside/c"];
            let left: Vec<_> =
                paths.into_iter().filter(|path| root.path().join(path).symlink_metadata().is_ok()).collect();
            assert_eq!(left, expected, "recursive: {recursive}, leave the directory: {leave_directory}");
        };
        check(false, false, &["job", "job/deep", "job/deep/b", "outside/c"]);
        check(false, true, &["job", "job/deep", "job/deep/b", "outside/c"]);
        check(true, true, &["job", "outside/c"]);
        check(true, false, &["outside/c"]);
    }

    #[test]
    fn a_directory_that_is_a_link_is_left_with_all_that_it_leads_to() {
        let root = tree();
        let directories = vec![root.path().join("job/link")];
        remove(&CleanUp { directories, recursive: true, ..CleanUp::default() });
        assert!(root.path().join("outside/c").exists());
    }

    #[test]
    fn a_spared_directory_spares_all_below_it() {
        let root = tree();
        let (job, deep) = (root.path().join("job"), root.path().join("job/deep"));
        let clean_up = CleanUp {
            directories: vec![job.clone()],
            spared: vec![deep.clone()],
            recursive: true,
            ..CleanUp::default()
        };
        remove(&clean_up);
        assert!(deep.join("b").exists() && !job.join("a").exists());
        remove(&CleanUp { spared: vec![job.clone()], ..clean_up });
        assert!(deep.join("b").exists());
    }
}
