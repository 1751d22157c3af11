//! PMI-1: `cmd=name key=value ...` and a line feed, in both directions. Each request has one reply, at once except for barriers of
//! groups.
//!
//! Fields end at a space, except that `value`, `val` or `port` of a reply extends to the end of the line. Nevertheless Hydra appends
//! further fields: 4.1 after a value, 3 and 4.0 after a port.

mod barriers;
mod spawn;

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use rustix::fd::BorrowedFd;

use self::barriers::{GroupBarriers, group_text, tag_number};
use self::spawn::spawn_blocks;
use crate::client::RankGroup;
use crate::connection::{Connection, Extent, MESSAGE_MAX};
use crate::error::{ClientError, Defect};
use crate::extensions::{self, EXTENSIONS_KEY};
use crate::limits::{KeySigns, Limits, check_line};
use crate::membership::{IndexedPair, Membership};
use crate::reply::{Fields, Reply};
use crate::resources::{self, ResourceCall};
use crate::shared::{MemoryOf, SharedPairs};
use crate::spawn::SpawnRequest;

/// The version that this client requests, as MPICH's does. A server that replies with 1.2 has barriers of groups.
const VERSION: u32 = 1;

/// Extension of a Lattice that serves barriers of groups to clients of any version.
const GROUP_BARRIERS: &str = "barrier_group";

/// A PMI-1 connection after `init`.
#[derive(Debug)]
pub(crate) struct Pmi1 {
    connection: Connection,
    pub(crate) membership: Membership,
    pub(crate) limits: Limits,
    /// Requests of this server beyond the common ones. They are requested at the first need.
    extensions: Option<Vec<u8>>,
    /// Minor version of the server's protocol.
    subversion: u32,
    barriers: GroupBarriers,
}

/// Claims the rank `id` on a TCP connection. Returns the rank and the size that the server sets.
pub(crate) fn claim(connection: &mut Connection, id: u32) -> Result<(u32, u32), ClientError> {
    let command = "initack";
    connection.send(command, format!("cmd=initack pmiid={id}\n").as_bytes())?;
    receive(connection, command, "initack")?.accepted()?;
    // three lines: size, rank, and a debug flag that is ignored
    let size = receive(connection, command, "set")?.number("size")?;
    let reply = receive(connection, command, "set")?;
    let rank = reply.number("rank")?;
    receive(connection, command, "set")?;
    if rank < size { Ok((rank, size)) } else { Err(reply.malformed(Defect::NoSuchRank { rank, size })) }
}

/// Opens the connection in either protocol. The first line is in PMI-1 even if `version` is 2. Returns the subversion of the server.
pub(crate) fn open(connection: &mut Connection, version: u32, subversion: u32) -> Result<u32, ClientError> {
    let command = "init";
    let line = format!("cmd=init pmi_version={version} pmi_subversion={subversion}\n");
    connection.send(command, line.as_bytes())?;
    let reply = receive(connection, command, "response_to_init")?;
    // before `rc`: a server that does not support this version returns its own version
    if let Ok(offered) = reply.number("pmi_version")
        && offered != version
    {
        return Err(ClientError::Version { wanted: version, offered });
    }
    let reply = reply.accepted()?;
    reply.number::<u32>("pmi_version")?;
    Ok(reply.number("pmi_subversion").unwrap_or(subversion))
}

impl Pmi1 {
    /// Sends the first requests in the order of MPI libraries. If `memory` may have the other facts, requests only the name of the job
    /// first.
    pub(crate) fn init(
        mut connection: Connection,
        (rank, size): (u32, u32),
        memory: Option<MemoryOf>,
    ) -> Result<(Self, SharedPairs), ClientError> {
        let subversion = open(&mut connection, VERSION, 1)?;
        let mut ask = |command, answer| request(&mut connection, command, &[], answer)?.accepted();
        let (named, shared) = match memory {
            Some(memory) => {
                let name = ask("get_my_kvsname", "my_kvsname")?.text("kvsname")?;
                let shared = memory(&name);
                (Some(name), shared)
            }
            None => (None, SharedPairs::default()),
        };
        let (announced, appnum) = match shared.introduction(rank) {
            Some(known) => known,
            None => {
                let maxes = ask("get_maxes", "maxes")?;
                let announced =
                    [maxes.number("kvsname_max")?, maxes.number("keylen_max")?, maxes.number("vallen_max")?];
                (announced, ask("get_appnum", "appnum")?.number("appnum")?)
            }
        };
        let job_id = named.map_or_else(|| ask("get_my_kvsname", "my_kvsname")?.text("kvsname"), Ok)?;
        // all counts include the NUL of a C string; a value that could not be read back is not put
        let [name, key_max, value_max] = announced.map(|most| most.saturating_sub(1).min(MESSAGE_MAX / 2));
        let limits = Limits { job_id_max: name.max(job_id.len()), key_max, value_max, key_signs: KeySigns::OneWord };
        let membership = Membership { rank, size, appnum: u64::try_from(appnum).ok(), spawned: false, job_id };
        let barriers = GroupBarriers::default();
        Ok((Self { connection, membership, limits, extensions: None, subversion, barriers }, shared))
    }

    pub(crate) fn put(&mut self, space: Option<&str>, key: &str, value: &[u8]) -> Result<(), ClientError> {
        self.limits.check_key(key)?;
        self.limits.check_value(value)?;
        let space = self.space_name(space)?;
        let fields = [("kvsname", space.as_bytes()), ("key", key.as_bytes()), ("value", value)];
        self.request("put", &fields, "put_result")?.accepted().map(drop)
    }

    pub(crate) fn get(&mut self, space: Option<&str>, key: &str) -> Result<Option<Vec<u8>>, ClientError> {
        self.limits.check_key(key)?;
        let space = self.space_name(space)?;
        let fields = [("kvsname", space.as_bytes()), ("key", key.as_bytes())];
        self.request("get", &fields, "get_result")?.value_if_found()
    }

    /// Returns the pair with this index, in the job's space or in another one.
    pub(crate) fn pair_at(&mut self, space: Option<&str>, index: u64) -> Result<Option<IndexedPair>, ClientError> {
        let command = "getbyidx";
        self.need_extension(command, "pair_at")?;
        let text = index.to_string();
        let space = self.space_name(space)?;
        let fields = [("kvsname", space.as_bytes()), ("idx", text.as_bytes())];
        let reply = self.request(command, &fields, "getbyidx_results")?;
        if reply.field("reason") == Some(b"no_more_keyvals") {
            return Ok(None);
        }
        let reply = reply.accepted()?;
        let next = reply.number("nextidx")?;
        Ok(Some(IndexedPair { key: reply.text("key")?, value: reply.needed("val")?.to_vec(), next }))
    }

    pub(crate) fn create_space(&mut self) -> Result<String, ClientError> {
        self.need_extension("create_kvs", "create_space")?;
        self.request("create_kvs", &[], "newkvs")?.accepted()?.text("kvsname")
    }

    pub(crate) fn destroy_space(&mut self, name: &str) -> Result<(), ClientError> {
        self.need_extension("create_kvs", "destroy_space")?;
        let name = self.space_name(Some(name))?;
        let fields = [("kvsname", name.as_bytes())];
        self.request("destroy_kvs", &fields, "kvs_destroyed")?.accepted().map(drop)
    }

    pub(crate) fn resource(&mut self, call: ResourceCall, name: &str) -> Result<(), ClientError> {
        self.need_extension(resources::EXTENSION, call.name())?;
        let (command, answer, timeout) = match call {
            ResourceCall::Intend | ResourceCall::Register => {
                ("resource_register", "resource_register_result", String::new())
            }
            ResourceCall::BeginRelease { seconds } => {
                ("resource_release_begin", "resource_release_begin_result", seconds.to_string())
            }
            ResourceCall::EndRelease => ("resource_release_end", "resource_release_end_result", String::new()),
        };
        let mut fields: Vec<(&str, &[u8])> = Vec::new();
        fields.extend(call.phase().map(|phase| ("phase", phase.as_bytes())));
        fields.extend((!timeout.is_empty()).then_some(("timeout", timeout.as_bytes())));
        // Last, because it may contain spaces.
        fields.push(("name", name.as_bytes()));
        self.request(command, &fields, answer)?.accepted().map(drop)
    }

    /// Returns an error for a call that the server does not serve. The request goes only to Lattice's servers: other servers end the job
    /// when they receive an unknown request.
    fn need_extension(&mut self, command: &str, call: &'static str) -> Result<(), ClientError> {
        match self.has_extension(command)? {
            true => Ok(()),
            false => Err(ClientError::Unsupported { call, place: "under this launcher" }),
        }
    }

    /// Returns true if the server is Lattice's, and has this extension.
    pub(crate) fn has_extension(&mut self, name: &str) -> Result<bool, ClientError> {
        if self.extensions.is_none() {
            self.extensions = Some(self.get(None, EXTENSIONS_KEY)?.unwrap_or_default());
        }
        Ok(extensions::is_named(self.extensions.as_deref(), name))
    }

    /// Returns the name of a space, which is one word like a key; the job's own name if there is none.
    fn space_name(&self, space: Option<&str>) -> Result<String, ClientError> {
        let signs = Limits { key_max: self.limits.job_id_max, ..self.limits };
        match space {
            Some(name) => signs.check_key(name).map(|()| name.to_owned()),
            None => Ok(self.membership.job_id.clone()),
        }
    }

    pub(crate) fn fence(&mut self) -> Result<(), ClientError> {
        self.request("barrier_in", &[], "barrier_out")?.accepted().map(drop)
    }

    /// Begins a barrier of a group, and returns the number of its tag; `None` if there are no other ranks.
    pub(crate) fn begin_barrier(
        &mut self,
        group: RankGroup<'_>,
        tag: Option<&str>,
    ) -> Result<Option<u32>, ClientError> {
        self.need_group_barriers()?;
        let tag = tag.map_or(0, tag_number);
        let membership = (self.membership.rank, self.membership.size);
        let Some(group) = group_text(group, membership, tag)? else { return Ok(None) };
        if !self.barriers.open(tag) {
            return Err(ClientError::GroupBarrier { needed: "a tag that no other open barrier of this process has" });
        }
        send(&mut self.connection, "barrier_in", &[("group", group.as_bytes())])?;
        Ok(Some(tag))
    }

    pub(crate) fn need_group_barriers(&mut self) -> Result<(), ClientError> {
        if self.subversion >= 2 { Ok(()) } else { self.need_extension(GROUP_BARRIERS, "group_barrier") }
    }

    /// Returns true if the barrier with this tag has ended, and removes it.
    pub(crate) fn test_barrier(&mut self, tag: u32) -> Result<bool, ClientError> {
        loop {
            match self.barriers.take(tag) {
                Some(end) => return end.map(|()| true),
                None if !self.connection.has_more()? => return Ok(false),
                None => self.receive_end()?,
            }
        }
    }

    /// Waits until the barrier with this tag has ended.
    pub(crate) fn wait_for_barrier(&mut self, tag: u32) -> Result<(), ClientError> {
        loop {
            match self.barriers.take(tag) {
                Some(end) => return end,
                None => self.receive_end()?,
            }
        }
    }

    /// Waits for the end of any barrier of a group. No other message can arrive.
    fn receive_end(&mut self) -> Result<(), ClientError> {
        let (command, answer) = ("barrier_in", "barrier_out");
        let message = self.connection.receive(command, line_extent)?;
        if self.barriers.keep(&message) {
            return Ok(());
        }
        self.connection.lose_step();
        let reply = Reply::new(command, answer, message, parse)?;
        Err(reply.malformed(Defect::WrongReply { expected: answer }))
    }

    /// The descriptor of the connection.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    pub(crate) fn universe_size(&mut self) -> Result<Option<u32>, ClientError> {
        let reply = self.request("get_universe_size", &[], "universe_size")?.accepted()?;
        Ok(u32::try_from(reply.number::<i64>("size")?).ok())
    }

    pub(crate) fn publish(&mut self, service: &str, port: &[u8]) -> Result<(), ClientError> {
        check_line("service name", service.as_bytes())?;
        check_line("port", port)?;
        let fields = [("service", service.as_bytes()), ("port", port)];
        self.request("publish_name", &fields, "publish_result")?.accepted().map(drop)
    }

    pub(crate) fn lookup(&mut self, service: &str) -> Result<Option<Vec<u8>>, ClientError> {
        check_line("service name", service.as_bytes())?;
        let fields = [("service", service.as_bytes())];
        let found = self.request("lookup_name", &fields, "lookup_result")?.if_found()?;
        found.map(|reply| reply.needed("port").map(<[u8]>::to_vec)).transpose()
    }

    pub(crate) fn unpublish(&mut self, service: &str) -> Result<(), ClientError> {
        check_line("service name", service.as_bytes())?;
        let fields = [("service", service.as_bytes())];
        self.request("unpublish_name", &fields, "unpublish_result")?.accepted().map(drop)
    }

    pub(crate) fn spawn(&mut self, wanted: &SpawnRequest) -> Result<Option<String>, ClientError> {
        wanted.texts().try_for_each(|(what, text)| check_line(what, text.as_bytes()))?;
        self.connection.send("spawn", spawn_blocks(wanted).as_bytes())?;
        self.receive("spawn", "spawn_result")?.spawned_job()
    }

    pub(crate) fn abort(&mut self, code: Option<i32>, message: &str) -> Result<(), ClientError> {
        let code = code.unwrap_or(1);
        let message = message.replace(['\n', '\0'], " ");
        self.connection.send("abort", format!("cmd=abort exitcode={code} message={message}\n").as_bytes())
    }

    pub(crate) fn finalize(&mut self) -> Result<(), ClientError> {
        self.request("finalize", &[], "finalize_ack")?.accepted().map(drop)
    }

    /// Sends `command` and waits for the reply `answer`.
    fn request(
        &mut self,
        command: &'static str,
        fields: &[(&str, &[u8])],
        answer: &'static str,
    ) -> Result<Reply, ClientError> {
        send(&mut self.connection, command, fields)?;
        self.receive(command, answer)
    }

    /// Waits for the reply `answer`, and stores ends of barriers of groups that arrive before it.
    fn receive(&mut self, command: &'static str, answer: &'static str) -> Result<Reply, ClientError> {
        loop {
            let message = self.connection.receive(command, line_extent)?;
            if !self.barriers.keep(&message) {
                let reply = Reply::new(command, answer, message, parse);
                return reply.inspect_err(|_| self.connection.lose_step());
            }
        }
    }
}

/// Sends `command` and waits for the reply `answer`, at a time when no other message can arrive.
fn request(
    connection: &mut Connection,
    command: &'static str,
    fields: &[(&str, &[u8])],
    answer: &'static str,
) -> Result<Reply, ClientError> {
    send(connection, command, fields)?;
    receive(connection, command, answer)
}

fn send(connection: &mut Connection, command: &'static str, fields: &[(&str, &[u8])]) -> Result<(), ClientError> {
    let mut line = format!("cmd={command}").into_bytes();
    for (name, value) in fields {
        line.extend_from_slice(format!(" {name}=").as_bytes());
        line.extend_from_slice(value);
    }
    line.push(b'\n');
    connection.send(command, &line)
}

fn receive(connection: &mut Connection, command: &'static str, answer: &'static str) -> Result<Reply, ClientError> {
    let reply = Reply::new(command, answer, connection.receive(command, line_extent)?, parse);
    reply.inspect_err(|_| connection.lose_step())
}

/// Finds the first line. Its body excludes the line feed.
fn line_extent(arrived: &[u8]) -> Result<Option<Extent>, Defect> {
    match arrived.iter().position(|&byte| byte == b'\n') {
        Some(end) if end > MESSAGE_MAX => Err(Defect::TooLong { max: MESSAGE_MAX }),
        end => Ok(end.map(|end| Extent { body: 0..end, next: end + 1 })),
    }
}

/// Fields that Hydra appends to a text that should be last, and the field that shows whether it has already been sent.
const TRAILERS: [(&[u8], &[u8]); 2] = [(b" found=TRUE", b"found"), (b" info=ok rc=0 msg=success", b"rc")];

fn parse(line: &[u8]) -> Fields {
    let mut fields = Fields::new();
    let mut rest = line;
    while !rest.is_empty() {
        let text = [b"value=".as_slice(), b"val=", b"port="].into_iter().find_map(|name| rest.strip_prefix(name));
        if let Some(text) = text {
            let name = &rest[..rest.len() - text.len() - 1];
            let trailer = trailer_of(text, &fields);
            fields.push((name.to_vec(), text[..text.len() - trailer.len()].to_vec()));
            rest = trailer.trim_ascii_start();
            continue;
        }
        let end = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
        let (token, tail) = rest.split_at(end);
        // a token without `=` belongs to a message with spaces; it is ignored
        if let Some(equals) = token.iter().position(|&byte| byte == b'=') {
            fields.push((token[..equals].to_vec(), token[equals + 1..].to_vec()));
        }
        rest = tail.trim_ascii_start();
    }
    fields
}

/// Returns the end of `text` that is not part of it. If the server has already sent the field in its proper place, a text that ends like
/// this is complete.
fn trailer_of<'a>(text: &'a [u8], before: &Fields) -> &'a [u8] {
    let trailer = TRAILERS
        .iter()
        .find(|(trailer, field)| text.ends_with(trailer) && !before.iter().any(|(name, _)| name == field));
    &text[text.len() - trailer.map_or(0, |(trailer, _)| trailer.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: &[(&str, &str)]) {
        let pair = |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        assert_eq!(parse(line.as_bytes()), expected.iter().map(pair).collect::<Fields>(), "{line}");
    }

    #[test]
    fn a_value_runs_to_the_end_of_the_line() {
        check("cmd=r rc=0 value=a b=c; -", &[("cmd", "r"), ("rc", "0"), ("value", "a b=c; -")]);
        check("cmd=r rc=0 value=", &[("cmd", "r"), ("rc", "0"), ("value", "")]);
        check("cmd=r rc=0 port=x rc=1", &[("cmd", "r"), ("rc", "0"), ("port", "x rc=1")]);
        check("cmd=r value= a  ", &[("cmd", "r"), ("value", " a  ")]);
    }

    #[test]
    fn hydras_fields_behind_a_text_are_not_part_of_it() {
        check("cmd=r value=a b found=TRUE", &[("cmd", "r"), ("value", "a b"), ("found", "TRUE")]);
        check("cmd=r found=TRUE value=a found=TRUE", &[("cmd", "r"), ("found", "TRUE"), ("value", "a found=TRUE")]);
        check(
            "cmd=r port=p q info=ok rc=0 msg=success",
            &[("cmd", "r"), ("port", "p q"), ("info", "ok"), ("rc", "0"), ("msg", "success")],
        );
    }

    #[test]
    fn words_without_an_equals_sign_and_spare_spaces_are_skipped() {
        check("cmd=r  rc=1 msg=all is lost ", &[("cmd", "r"), ("rc", "1"), ("msg", "all")]);
        check("", &[]);
    }

    #[test]
    fn a_line_is_found_however_it_is_cut() {
        let line = b"cmd=a rc=0\n";
        for cut in 0..line.len() {
            assert_eq!(line_extent(&line[..cut]), Ok(None));
        }
        let two = [line.as_slice(), b"cmd="].concat();
        assert_eq!(line_extent(&two), Ok(Some(Extent { body: 0..10, next: 11 })));
    }
}
