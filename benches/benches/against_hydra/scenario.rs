//! Measurements of one run of a launcher.

use std::ffi::OsString;
use std::time::Instant;

use lattice_benches::launcher::Launcher;
use lattice_benches::sample::median;

/// One kind of run, with its amounts.
pub(crate) struct Scenario {
    pub(crate) ranks: usize,
    pub(crate) program: Program,
}

pub(crate) enum Program {
    /// `true`; the bench measures the time of the whole launch.
    True,
    /// The raw PMI-1 client, which measures the time of its own requests.
    Raw { barriers: usize, puts: usize, gets: usize },
}

/// One figure of one run.
pub(crate) struct Figure {
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
}

impl Scenario {
    /// Returns true if `launcher` can run this scenario.
    pub(crate) fn suits(&self, launcher: &Launcher) -> bool {
        matches!(self.program, Program::True) || launcher.has_pmi()
    }

    /// Performs one run. Returns its figures, which are the same for every run.
    pub(crate) fn measure(&self, launcher: &Launcher) -> Result<Vec<Figure>, String> {
        match self.program {
            Program::True => self.measure_true(launcher).map(|figure| vec![figure]),
            Program::Raw { barriers, puts, gets } => {
                let mut command = vec![OsString::from(env!("CARGO_BIN_EXE_pmi_raw"))];
                command.extend([barriers, puts, gets].map(|count| count.to_string().into()));
                let report = Report { printed: launcher.run(self.ranks, &command)?, ranks: self.ranks };
                report.figures(gets).map_err(|why| format!("{}: {why}", launcher.name))
            }
        }
    }

    fn measure_true(&self, launcher: &Launcher) -> Result<Figure, String> {
        let start = Instant::now();
        launcher.run(self.ranks, &["true".into()])?;
        Ok(Figure { what: "true, from start to end", unit: "ms", value: start.elapsed().as_secs_f64() * 1e3 })
    }
}

/// The output lines of the ranks in one run of the raw client.
struct Report {
    printed: String,
    ranks: usize,
}

impl Report {
    fn figures(&self, gets: usize) -> Result<Vec<Figure>, String> {
        let typical =
            |what, name| Ok::<_, String>(Figure { what, unit: "us", value: median(&self.column(name)?) / 1e3 });
        if self.ranks == 1 {
            return Ok(vec![typical("handshake of 5 requests", "handshake")?]);
        }
        let slowest = self.column("all_gets")?.into_iter().fold(0.0, f64::max);
        Ok(vec![
            typical("barrier without data", "barrier")?,
            typical("put, all ranks at once", "put")?,
            typical("get, all ranks at once", "get")?,
            Figure { what: "gets of all ranks", unit: "1/s", value: (self.ranks * gets) as f64 / slowest * 1e9 },
        ])
    }

    /// Returns the figure `name` of every rank.
    fn column(&self, name: &str) -> Result<Vec<f64>, String> {
        let figures: Vec<f64> = self.printed.lines().filter_map(|line| figure(line, name)).collect();
        if figures.len() != self.ranks {
            return Err(format!("{} of {} ranks reported {name:?}", figures.len(), self.ranks));
        }
        Ok(figures)
    }
}

fn figure(line: &str, name: &str) -> Option<f64> {
    let (_, value) = line.split(' ').filter_map(|word| word.split_once('=')).find(|(key, _)| *key == name)?;
    value.parse().ok()
}
