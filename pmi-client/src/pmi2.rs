//! PMI-2: six bytes of decimal length, then `cmd=name;key=value;...;`, in both directions.
//!
//! A `;` within a value is doubled. Servers align the length left or right. This client sends it right-aligned and reads both. Hydra's server
//! neither doubles nor halves, so that a value with `;` is damaged there.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use rustix::fd::BorrowedFd;

use crate::connection::{Connection, Extent, MESSAGE_MAX};
use crate::error::{ClientError, Defect};
use crate::extensions::{self, EXTENSIONS_KEY};
use crate::limits::{KeySigns, Limits, check_length, check_line};
use crate::membership::{Membership, RingNeighbours};
use crate::pmi1;
use crate::reply::{Fields, Reply};
use crate::resources::{self, ResourceCall};
use crate::spawn::SpawnRequest;

/// The fixed limits of the protocol, for which no command exists. `PMI2_MAX_KEYLEN` and `PMI2_MAX_VALLEN` are the sizes of readers' buffers, 64
/// and 1024 bytes, including a NUL.
pub(crate) const LIMITS: Limits =
    Limits { job_id_max: 255, key_max: 63, value_max: 1023, key_signs: KeySigns::OneLine };

/// Number of bytes before a message that contain its length.
const PREFIX: usize = 6;

/// A key that no rank puts; see [`Pmi2::fence`].
const NONEXISTENT_KEY: &str = "-NONEXIST-KEY";

/// Behaviour of a server for a request for an absent attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Absent {
    /// The server reports at once that it is absent.
    Say,
    /// The server replies once a rank has put it.
    Wait,
}

/// A PMI-2 connection after `fullinit`.
#[derive(Debug)]
pub(crate) struct Pmi2 {
    connection: Connection,
    pub(crate) membership: Membership,
    /// Requests of this server beyond the common ones. They are requested at the first need.
    extensions: Option<Vec<u8>>,
}

impl Pmi2 {
    /// The descriptor of the connection.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    /// Sends the rank, and the name of its job if the launcher has provided it. The server returns the number of ranks. Slurm's server requires
    /// the job, and `threaded` (measured with 22.05); other servers do not.
    pub(crate) fn init(mut connection: Connection, rank: u32, job: Option<&str>) -> Result<Self, ClientError> {
        pmi1::open(&mut connection, 2, 0)?;
        let ours = rank.to_string();
        let mut ask = |command, fields: &[_], answer| request(&mut connection, command, fields, answer)?.accepted();
        let job = job.map(|job| ("pmijobid", job.as_bytes()));
        let rank = [("pmirank", ours.as_bytes()), ("threaded", b"FALSE")];
        let introduction: Vec<_> = job.into_iter().chain(rank).collect();
        let full = ask("fullinit", &introduction, "fullinit-response")?;
        let (rank, size) = (full.number("rank")?, full.number("size")?);
        if rank >= size {
            return Err(full.malformed(Defect::NoSuchRank { rank, size }));
        }
        let appnum: i64 = full.number("appnum")?;
        let job_id = ask("job-getid", &[], "job-getid-response")?.text("jobid")?;
        let spawned = full.field("spawner-jobid").is_some();
        let membership = Membership { rank, size, appnum: u64::try_from(appnum).ok(), spawned, job_id };
        Ok(Self { connection, membership, extensions: None })
    }

    pub(crate) fn put(&mut self, key: &str, value: &[u8]) -> Result<(), ClientError> {
        self.set("kvs-put", key, value, "kvs-put-response")
    }

    pub(crate) fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>, ClientError> {
        LIMITS.check_key(key)?;
        self.get_pair(key)?.value_if_found()
    }

    /// Slurm's and Lattice's servers reply to the fence when all ranks have arrived. Hydra replies at once. It delays the reply to a get of an
    /// absent key until every rank has fenced as often as the caller. Therefore this function gets an absent key, as MPICH 4.1 and later do.
    /// Without the get this would be no barrier under Hydra (measured with 4.0.2).
    pub(crate) fn fence(&mut self) -> Result<(), ClientError> {
        request(&mut self.connection, "kvs-fence", &[], "kvs-fence-response")?.accepted()?;
        // servers report in different ways that the key is absent, and here all of them are equivalent
        self.get_pair(NONEXISTENT_KEY).map(drop)
    }

    pub(crate) fn job_attribute(&mut self, key: &str) -> Result<Option<Vec<u8>>, ClientError> {
        LIMITS.check_key(key)?;
        let fields = [("key", key.as_bytes())];
        request(&mut self.connection, "info-getjobattr", &fields, "info-getjobattr-response")?.value_if_found()
    }

    pub(crate) fn universe_size(&mut self) -> Result<Option<u32>, ClientError> {
        let fields = [("key", b"universeSize".as_slice())];
        let reply = request(&mut self.connection, "info-getjobattr", &fields, "info-getjobattr-response")?;
        let size = reply.if_found()?.map(|reply| reply.number::<i64>("value")).transpose()?;
        // -1 means "not set" too
        Ok(size.and_then(|size| u32::try_from(size).ok()))
    }

    pub(crate) fn put_node_attribute(&mut self, key: &str, value: &[u8]) -> Result<(), ClientError> {
        self.set("info-putnodeattr", key, value, "info-putnodeattr-response")
    }

    pub(crate) fn node_attribute(&mut self, key: &str, absent: Absent) -> Result<Option<Vec<u8>>, ClientError> {
        LIMITS.check_key(key)?;
        let wait = match absent {
            Absent::Wait => b"TRUE".as_slice(),
            Absent::Say => b"FALSE",
        };
        let fields = [("key", key.as_bytes()), ("wait", wait)];
        request(&mut self.connection, "info-getnodeattr", &fields, "info-getnodeattr-response")?.value_if_found()
    }

    /// Returns true if the server is Lattice's, and has this extension.
    pub(crate) fn has_extension(&mut self, name: &str) -> Result<bool, ClientError> {
        self.ask_for_extensions()?;
        Ok(extensions::is_named(self.extensions.as_deref(), name))
    }

    fn ask_for_extensions(&mut self) -> Result<(), ClientError> {
        if self.extensions.is_none() {
            self.extensions = Some(match self.job_attribute(EXTENSIONS_KEY) {
                Ok(served) => served.unwrap_or_default(),
                // The reply of a server that does not have the key.
                Err(ClientError::Refused { .. }) => Vec::new(),
                Err(error) => return Err(error),
            });
        }
        Ok(())
    }

    pub(crate) fn resource(&mut self, call: ResourceCall, name: &str) -> Result<(), ClientError> {
        self.ask_for_extensions()?;
        extensions::need(self.extensions.as_deref(), resources::EXTENSION, call.name())?;
        let seconds;
        let (command, answer) = match call {
            ResourceCall::Intend | ResourceCall::Register => ("resource-register", "resource-register-response"),
            ResourceCall::BeginRelease { .. } => ("resource-release-begin", "resource-release-begin-response"),
            ResourceCall::EndRelease => ("resource-release-end", "resource-release-end-response"),
        };
        let mut fields = vec![("name", name.as_bytes())];
        fields.extend(call.phase().map(|phase| ("phase", phase.as_bytes())));
        if let ResourceCall::BeginRelease { seconds: timeout } = call {
            seconds = timeout.to_string();
            fields.push(("timeout", seconds.as_bytes()));
        }
        request(&mut self.connection, command, &fields, answer)?.accepted().map(drop)
    }

    pub(crate) fn publish(&mut self, service: &str, port: &[u8]) -> Result<(), ClientError> {
        check_line("service name", service.as_bytes())?;
        check_line("port", port)?;
        let fields = [("name", service.as_bytes()), ("port", port)];
        request(&mut self.connection, "name-publish", &fields, "name-publish-response")?.accepted().map(drop)
    }

    pub(crate) fn lookup(&mut self, service: &str) -> Result<Option<Vec<u8>>, ClientError> {
        check_line("service name", service.as_bytes())?;
        let fields = [("name", service.as_bytes())];
        let reply = request(&mut self.connection, "name-lookup", &fields, "name-lookup-response")?;
        // Slurm's server sends `value`, Hydra's `port`
        let Some(reply) = reply.if_found()? else { return Ok(None) };
        reply.field("port").map_or_else(|| reply.needed("value"), Ok).map(|port| Some(port.to_vec()))
    }

    pub(crate) fn unpublish(&mut self, service: &str) -> Result<(), ClientError> {
        check_line("service name", service.as_bytes())?;
        let fields = [("name", service.as_bytes())];
        request(&mut self.connection, "name-unpublish", &fields, "name-unpublish-response")?.accepted().map(drop)
    }

    pub(crate) fn ring(&mut self, value: &[u8]) -> Result<RingNeighbours, ClientError> {
        LIMITS.check_value(value)?;
        let fields = [("ring-count", b"1".as_slice()), ("ring-left", value), ("ring-right", value)];
        let reply = request(&mut self.connection, "ring", &fields, "ring-response")?.accepted()?;
        let (left, right) = (reply.needed("ring-left")?.to_vec(), reply.needed("ring-right")?.to_vec());
        Ok(RingNeighbours { position: reply.number("ring-count")?, left, right })
    }

    pub(crate) fn spawn(&mut self, wanted: &SpawnRequest) -> Result<Option<String>, ClientError> {
        wanted.texts().try_for_each(|(what, text)| check_line(what, text.as_bytes()))?;
        let fields = spawn_fields(wanted);
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        request(&mut self.connection, "spawn", &fields, "spawn-response")?.spawned_job()
    }

    /// Sends `isworld`, which Slurm's server reads, and `exitcode`, which Hydra's and Lattice's servers read.
    pub(crate) fn abort(&mut self, code: Option<i32>, message: &str) -> Result<(), ClientError> {
        let message = message.replace(['\n', '\0'], " ");
        let code = code.map(|code| code.to_string());
        let mut fields = vec![("isworld", b"TRUE".as_slice()), ("message", message.as_bytes())];
        fields.extend(code.as_ref().map(|code| ("exitcode", code.as_bytes())));
        self.connection.send("abort", &encode("abort", &fields)?)
    }

    pub(crate) fn finalize(&mut self) -> Result<(), ClientError> {
        request(&mut self.connection, "finalize", &[], "finalize-response")?.accepted().map(drop)
    }

    fn set(&mut self, command: &'static str, key: &str, value: &[u8], answer: &'static str) -> Result<(), ClientError> {
        LIMITS.check_key(key)?;
        LIMITS.check_value(value)?;
        let fields = [("key", key.as_bytes()), ("value", value)];
        request(&mut self.connection, command, &fields, answer)?.accepted().map(drop)
    }

    fn get_pair(&mut self, key: &str) -> Result<Reply, ClientError> {
        let fields = [("jobid", self.membership.job_id.as_bytes()), ("key", key.as_bytes())];
        request(&mut self.connection, "kvs-get", &fields, "kvs-get-response")
    }
}

/// Sends `command` and waits for the reply `answer`.
fn request(
    connection: &mut Connection,
    command: &'static str,
    fields: &[(&str, &[u8])],
    answer: &'static str,
) -> Result<Reply, ClientError> {
    connection.send(command, &encode(command, fields)?)?;
    let reply = Reply::new(command, answer, connection.receive(command, frame_extent)?, parse);
    reply.inspect_err(|_| connection.lose_step())
}

fn encode(command: &str, fields: &[(&str, &[u8])]) -> Result<Vec<u8>, ClientError> {
    let mut message = vec![b' '; PREFIX];
    message.extend_from_slice(format!("cmd={command};").as_bytes());
    for (name, value) in fields {
        message.extend_from_slice(name.as_bytes());
        message.push(b'=');
        for &byte in *value {
            message.extend_from_slice(if byte == b';' { b";;" } else { core::slice::from_ref(&byte) });
        }
        message.push(b';');
    }
    let len = message.len() - PREFIX;
    check_length("PMI-2 request", len, 1, MESSAGE_MAX)?;
    message[..PREFIX].copy_from_slice(format!("{len:PREFIX$}").as_bytes());
    Ok(message)
}

/// The order is significant: fields after a `subcmd` belong to it.
fn spawn_fields(wanted: &SpawnRequest) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    let mut add = |name: String, value: String| fields.push((name, value));
    add("ncmds".into(), wanted.apps.len().to_string());
    add("preputcount".into(), wanted.preput.len().to_string());
    for (index, (key, value)) in wanted.preput.iter().enumerate() {
        add(format!("ppkey{index}"), key.clone());
        add(format!("ppval{index}"), value.clone());
    }
    for app in &wanted.apps {
        add("subcmd".into(), app.program.clone());
        add("maxprocs".into(), app.ranks.to_string());
        add("argc".into(), app.args.len().to_string());
        for (index, arg) in app.args.iter().enumerate() {
            add(format!("argv{index}"), arg.clone());
        }
        add("infokeycount".into(), app.info.len().to_string());
        for (index, (key, value)) in app.info.iter().enumerate() {
            add(format!("infokey{index}"), key.clone());
            add(format!("infoval{index}"), value.clone());
        }
    }
    fields
}

/// Finds the first message by its length. Its body excludes the length.
fn frame_extent(arrived: &[u8]) -> Result<Option<Extent>, Defect> {
    let Some(prefix) = arrived.get(..PREFIX) else { return Ok(None) };
    let digits = str::from_utf8(prefix).unwrap_or_default().trim_matches(' ');
    // `parse` alone would accept a sign
    let len = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
    match len {
        Some(len @ 1..=MESSAGE_MAX) => {
            let next = PREFIX + len;
            Ok((arrived.len() >= next).then_some(Extent { body: PREFIX..next, next }))
        }
        _ => Err(Defect::BadLength { max: MESSAGE_MAX }),
    }
}

fn parse(body: &[u8]) -> Fields {
    let mut fields = Fields::new();
    let mut field = Vec::new();
    let mut bytes = body.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b';' || bytes.next_if_eq(&b';').is_some() {
            field.push(byte);
        } else {
            push_field(&mut fields, &core::mem::take(&mut field));
        }
    }
    // the last `;` may be missing
    push_field(&mut fields, &field);
    fields
}

/// Splits at the first `=`. A field without `=` is the rest of a value that the server did not escape.
fn push_field(fields: &mut Fields, field: &[u8]) {
    if let Some(equals) = field.iter().position(|&byte| byte == b'=') {
        fields.push((field[..equals].to_vec(), field[equals + 1..].to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, expected: &[(&str, &str)]) {
        let pair = |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        assert_eq!(parse(body.as_bytes()), expected.iter().map(pair).collect::<Fields>(), "{body}");
    }

    #[test]
    fn doubled_semicolons_are_part_of_the_value() {
        check("cmd=r;value=a;;b;;;;c=d e-0;;;", &[("cmd", "r"), ("value", "a;b;;c=d e-0;")]);
        check("cmd=r;value=;rc=0;", &[("cmd", "r"), ("value", ""), ("rc", "0")]);
        check("cmd=r;value=a;rest;rc=0", &[("cmd", "r"), ("value", "a"), ("rc", "0")]);
        check("", &[]);
    }

    #[test]
    fn what_is_encoded_is_parsed_back() {
        let message = encode("x", &[("a", b";;=; ;"), ("b", b"")]).unwrap();
        let extent = frame_extent(&message).unwrap().unwrap();
        assert_eq!((extent.body.start, extent.next), (6, message.len()));
        check(str::from_utf8(&message[6..]).unwrap(), &[("cmd", "x"), ("a", ";;=; ;"), ("b", "")]);
    }

    #[test]
    fn lengths_are_aligned_left_or_right() {
        for message in ["     6cmd=a;", "6     cmd=a;", "000006cmd=a;"] {
            for cut in 0..message.len() {
                assert_eq!(frame_extent(&message.as_bytes()[..cut]), Ok(None), "{message} cut at {cut}");
            }
            assert_eq!(frame_extent(message.as_bytes()), Ok(Some(Extent { body: 6..12, next: 12 })));
        }
        for bad in ["     0", "      ", "    -1", "    +1", "cmd=re", "999999", " 1 2  ", "\u{661}    "] {
            assert_eq!(frame_extent(bad.as_bytes()), Err(Defect::BadLength { max: MESSAGE_MAX }), "{bad:?}");
        }
    }
}
