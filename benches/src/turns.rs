//! Launchers take turns at the same run, so that other load on the machine affects all of them.

use crate::launcher::Launcher;

/// Results of the runs of one launcher, in order, or the reason why it cannot be measured.
pub type Taken<T> = Result<Vec<T>, String>;

/// Performs one run of each launcher per round. Skips launchers that failed before. The results are in the order of `launchers`.
pub fn take<T>(
    launchers: &[&Launcher],
    rounds: usize,
    mut measure: impl FnMut(&Launcher) -> Result<T, String>,
) -> Vec<Taken<T>> {
    let mut taken: Vec<Taken<T>> = launchers.iter().map(|_| Ok(Vec::new())).collect();
    for _ in 0..rounds {
        for (&launcher, taken) in launchers.iter().zip(&mut taken) {
            let Ok(runs) = taken else { continue };
            match measure(launcher) {
                Ok(figures) => runs.push(figures),
                Err(why) => *taken = Err(why),
            }
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_takes_no_further_turn() {
        let launchers = [Launcher::program("first", "a".into(), &[]), Launcher::program("second", "b".into(), &[])];
        let mut turns = Vec::new();
        let taken = take(&launchers.each_ref(), 3, |launcher| {
            turns.push(launcher.name);
            if launcher.name == "first" && turns.len() > 2 { Err("no more".to_owned()) } else { Ok(turns.len()) }
        });
        assert_eq!(turns, ["first", "second", "first", "second", "second"]);
        assert_eq!(taken, [Err("no more".to_owned()), Ok(vec![2, 4, 5])]);
    }
}
