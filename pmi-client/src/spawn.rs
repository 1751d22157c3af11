//! Request of a rank for more ranks, as in `MPI_Comm_spawn_multiple`.
use alloc::string::String;
use alloc::vec::Vec;

/// A request to start a new job: one block of ranks per program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpawnRequest {
    /// The programs, at least one. Their order determines the new ranks' `MPI_APPNUM`.
    pub apps: Vec<SpawnApp>,
    /// Pairs that the new job's ranks can get from their start, such as `PARENT_ROOT_PORT_NAME`.
    pub preput: Vec<(String, String)>,
}

/// One program of a [`SpawnRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpawnApp {
    /// The program: a path, or a name to search in `PATH`.
    pub program: String,
    /// The arguments after the program's name.
    pub args: Vec<String>,
    /// Number of ranks.
    pub ranks: u32,
    /// Hints for the launcher, such as `wdir` or `host`. It ignores unknown hints.
    pub info: Vec<(String, String)>,
}

impl SpawnRequest {
    /// Every text of the request with its kind, so that a protocol can refuse texts that it cannot carry.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let preput = self.preput.iter().flat_map(|(key, value)| [("preput key", &**key), ("preput value", &**value)]);
        preput.chain(self.apps.iter().flat_map(SpawnApp::texts))
    }
}

impl SpawnApp {
    fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let args = self.args.iter().map(|arg| ("program argument", &**arg));
        let info = self.info.iter().flat_map(|(key, value)| [("info key", &**key), ("info value", &**value)]);
        [("program name", &*self.program)].into_iter().chain(args).chain(info)
    }
}
