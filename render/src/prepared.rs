//! A placed launch and the requested form of its output.

use std::collections::HashSet;
use std::path::PathBuf;

use lattice_session::event::Stream;
use lattice_session::placed::{PlacedLaunch, RankPlace};
use lattice_session::template::{Place, Template};
use nix::unistd::Pid;
use rank_spawner::{CpuBind, CpuSet};

/// Destinations and form of the output of ranks, and other parts of a launch that are shown.
#[derive(Clone, Debug, Default)]
pub struct OutputRequest {
    /// Files for standard output; `None` for the launcher's own.
    pub stdout: Option<Template>,
    /// Files for standard error; `None` for the launcher's own.
    pub stderr: Option<Template>,
    /// Keep the previous contents of these files.
    pub append: bool,
    /// Show output for these files on the launcher's own streams as well.
    pub tee: bool,
    /// Show equal lines of several ranks once, with the rank numbers.
    pub collapse: bool,
    /// Label at the start of each line.
    pub label: LineLabel,
    /// Start each line with the time.
    pub timestamp: bool,
    /// Print events as JSON instead of unchanged output.
    pub json: bool,
    /// File for a trace of all PMI messages.
    pub pmi_trace: Option<PathBuf>,
    /// Print the place of each rank.
    pub show_map: bool,
    /// Print a summary at the end of the launch.
    pub summary: bool,
    /// Ignore ranks that a signal kills while other ranks end well.
    pub recovers: bool,
    /// Messages about the ends of ranks.
    pub exit_messages: ExitMessages,
}

/// Label for the origin of a line of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineLabel {
    /// None.
    #[default]
    None,
    /// Number of the rank: `[3] `.
    Rank,
    /// Name of its node: `node1: `.
    Node,
}

/// Messages about ranks that end with a status or by a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExitMessages {
    /// The launcher reports a failure at the end of the launch.
    #[default]
    Reported,
    /// The exit code reports the failure, and the parent process prints its own message. After the end of the parent process, the launcher
    /// reports no cause at all.
    LeftToCaller(Pid),
}

/// A placed launch, and its presentation.
#[derive(Clone, Debug)]
pub struct PreparedLaunch {
    /// The launch.
    pub placed: PlacedLaunch,
    /// Its ranks, in order.
    pub ranks: Vec<RankRow>,
    /// Destinations of the ranks' output, and the parts of the launch that are shown.
    pub output: OutputRequest,
    /// Lines of node pictures with bound ranks. They are printed below the map.
    pub pictures: Vec<String>,
}

/// A rank as shown in maps and plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankRow {
    /// Its place.
    pub place: RankPlace,
    /// CPUs of the rank; `None` if it is not bound, or if only its node has this information.
    pub cpus: Option<CpuSet>,
    /// True if the rank is known to be unbound.
    pub is_free: bool,
    /// File to execute; the program as given, if only the node can find it.
    pub program: PathBuf,
}

impl PreparedLaunch {
    /// A launch whose ranks are not bound yet. `programs` has the file of each program.
    pub fn new(placed: PlacedLaunch, programs: &[PathBuf], output: OutputRequest) -> Self {
        let row = |place: RankPlace| {
            let program = programs.get(place.app).cloned().unwrap_or_default();
            RankRow { place, cpus: None, is_free: placed.settings.cpu_bind == CpuBind::None, program }
        };
        let ranks = placed.rank_places().into_iter().map(row).collect();
        Self { placed, ranks, output, pictures: Vec::new() }
    }

    /// A launch that the API server has placed.
    pub fn on_cluster(placed: PlacedLaunch, output: OutputRequest) -> Self {
        let programs: Vec<PathBuf> = placed.apps.iter().map(|app| PathBuf::from(&app.program)).collect();
        Self::new(placed, &programs, output)
    }

    /// File for a stream of a rank; `None` for the launcher's own stream.
    pub fn output_file(&self, row: &RankRow, stream: Stream) -> Option<PathBuf> {
        self.template(stream).map(|template| self.fill(template, row))
    }

    /// Files for the output of all ranks.
    pub fn output_files(&self) -> HashSet<PathBuf> {
        let streams = [Stream::Stdout, Stream::Stderr];
        self.ranks.iter().flat_map(|row| streams.map(|stream| self.output_file(row, stream))).flatten().collect()
    }

    /// File name of a template for a rank.
    pub fn fill(&self, template: &Template, row: &RankRow) -> PathBuf {
        let RankPlace { rank, node, local_rank, .. } = row.place;
        let host = self.placed.host(node);
        let ranks = self.placed.job.size();
        template.expand(Place { rank, ranks, local_rank, node, host, launch_id: &self.placed.launch_id })
    }

    /// True if the directory of a stream's files has fields in its name. The user cannot create such directories in advance.
    pub(crate) fn makes_directory(&self, stream: Stream) -> bool {
        self.template(stream).is_some_and(Template::has_field_in_directory)
    }

    fn template(&self, stream: Stream) -> Option<&Template> {
        match stream {
            Stream::Stdout => self.output.stdout.as_ref(),
            Stream::Stderr => self.output.stderr.as_ref(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use lattice_session::spec::AppSpec;
    use pmi_core::ids::JobId;
    use pmi_core::job::{App, Job, Placement};

    use super::*;

    /// A launch on one node, with numbers of ranks, programs and arguments.
    pub(crate) fn prepared(programs: &[(u32, &str, &[&str])]) -> PreparedLaunch {
        let app = |&(_, program, args): &(u32, &str, &[&str])| AppSpec {
            program: program.into(),
            args: args.iter().map(Into::into).collect(),
            directory: "/".into(),
            set: Vec::new(),
            remove: Vec::new(),
            process_set: None,
        };
        let job = Job {
            id: JobId::new("k3jq").unwrap(),
            placement: Placement::one_node(programs.iter().map(|(ranks, ..)| ranks).sum()),
            apps: (0..).zip(programs).map(|(appnum, &(ranks, ..))| App { ranks, appnum }).collect(),
            universe_size: None,
            spawner: None,
            preput: Vec::new(),
        };
        let placed = PlacedLaunch {
            launch_id: "k3jq".to_owned(),
            allocation_id: None,
            job,
            hosts: vec!["node3".to_owned()],
            apps: programs.iter().map(app).collect(),
            settings: lattice_session::settings::LaunchSettings::default(),
        };
        PreparedLaunch::on_cluster(placed, OutputRequest::default())
    }
}
