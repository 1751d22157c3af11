//! New jobs over PMIx.

use std::env;
use std::os::unix::ffi::OsStrExt;

use pmix_core::wire::request::command;
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::writer::Writer;

use super::{PmixClient, PmixError, answers};
use crate::spawn::{SpawnApp, SpawnRequest};

/// Name of the request in errors.
const REQUEST: &str = "spawn";

impl PmixClient {
    /// Starts a new job. Returns its namespace once its ranks are starting.
    ///
    /// The names of hints are those of PMIx, such as `pmix.wdir`. Without this hint programs start in the current directory of this
    /// process.
    ///
    /// # Errors
    /// [`PmixError::Refused`] if the launcher cannot start it; the caller's job continues. [`PmixError::NotInSpawn`] for parts that a
    /// request of PMIx cannot carry: no program, a NUL, and pairs for the new job, which its parent must publish instead.
    pub fn spawn(&mut self, request: &SpawnRequest) -> Result<String, PmixError> {
        check(request)?;
        // Servers of libpmix do not select a directory themselves.
        let directory = env::current_dir().ok();
        let directory = directory.as_deref().map(|path| path.as_os_str().as_bytes());
        let answer = self.connection.ask(REQUEST, command::SPAWN, |out| write(out, request, directory))?;
        answers::success(REQUEST, &answer)?;
        answers::spawned(&answer).map_err(|source| PmixError::malformed(REQUEST, source))
    }
}

fn check(request: &SpawnRequest) -> Result<(), PmixError> {
    let refuse = |what| Err(PmixError::NotInSpawn { what });
    if request.apps.is_empty() {
        return refuse("an empty list of programs");
    }
    if !request.preput.is_empty() {
        return refuse("pairs for the new job");
    }
    if request.texts().any(|(_, text)| text.contains('\0')) {
        return refuse("a text with a NUL");
    }
    if request.apps.iter().any(|app| i32::try_from(app.ranks).is_err()) {
        return refuse("more than 2147483647 ranks of a program");
    }
    Ok(())
}

/// Writes an empty list of directives for the job, and its programs.
fn write(out: &mut Writer, request: &SpawnRequest, directory: Option<&[u8]>) {
    out.count(0);
    out.count(request.apps.len());
    out.group(request.apps.len());
    request.apps.iter().for_each(|app| write_app(out, app, directory));
}

/// Writes a `pmix_app_t`: program, arguments with its name first, variables, directory, number of ranks, hints.
fn write_app(out: &mut Writer, app: &SpawnApp, directory: Option<&[u8]>) {
    out.text(Some(app.program.as_bytes()));
    out.int(app.args.len() as i32 + 1);
    for word in [&app.program].into_iter().chain(&app.args) {
        out.text(Some(word.as_bytes()));
    }
    out.i32(0);
    out.text(directory);
    out.int(app.ranks as i32);
    out.size(app.info.len() as u64);
    for (key, value) in &app.info {
        out.info(&Info::new(key, Value::Text(value.as_bytes())));
    }
}

#[cfg(test)]
mod tests {
    use pmix_core::wire::Encoding;
    use pmix_core::wire::request::Request;

    use super::*;

    fn request() -> SpawnRequest {
        let info = vec![("pmix.host".to_owned(), "a,b".to_owned())];
        let app = SpawnApp { program: "./child".into(), args: vec!["-v".into(), String::new()], ranks: 3, info };
        SpawnRequest {
            apps: vec![app, SpawnApp { program: "b".into(), ranks: 1, ..SpawnApp::default() }],
            preput: vec![],
        }
    }

    #[test]
    fn a_server_reads_what_was_asked_for_in_either_encoding() {
        for encoding in [Encoding::Flex, Encoding::Fixed] {
            let mut out = Writer::new(encoding);
            out.one();
            out.byte(command::SPAWN);
            write(&mut out, &request(), Some(b"/home"));
            let Ok(Request::Spawn { infos, apps }) = Request::decode(encoding, out.as_bytes()) else {
                panic!("{:?}", Request::decode(encoding, out.as_bytes()));
            };
            assert!(infos.is_empty());
            assert_eq!(apps.len(), 2);
            assert_eq!((apps[0].program, apps[0].ranks, apps[0].directory), (&b"./child"[..], 3, Some(&b"/home"[..])));
            assert_eq!(apps[0].arguments, [&b"./child"[..], b"-v", b""]);
            assert_eq!(apps[0].infos, [Info::new("pmix.host", Value::Text(b"a,b"))]);
            assert_eq!((&apps[1].arguments[..], apps[1].ranks), (&[&b"b"[..]][..], 1));
        }
    }

    #[test]
    fn a_request_that_pmix_has_no_place_for_is_named() {
        let refused = |change: fn(&mut SpawnRequest)| {
            let mut request = request();
            change(&mut request);
            check(&request).map_err(|error| error.to_string())
        };
        assert_eq!(refused(|_| {}), Ok(()));
        let cannot = |what| Err(format!("a spawn over PMIx cannot carry {what}"));
        assert_eq!(refused(|request| request.apps.clear()), cannot("an empty list of programs"));
        assert_eq!(refused(|request| request.preput.push(Default::default())), cannot("pairs for the new job"));
        assert_eq!(refused(|request| request.apps[0].args[0].push('\0')), cannot("a text with a NUL"));
        assert_eq!(
            refused(|request| request.apps[1].ranks = u32::MAX),
            cannot("more than 2147483647 ranks of a program")
        );
    }
}
