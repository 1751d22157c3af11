//! Values and infos: the directives of requests, and the elements of job information.

use super::reader::{DEPTH_MAX, Proc, Reader};
use super::writer::Writer;
use super::{Encoding, WireError, types};

/// A value of an info. Types that this crate does not inspect stay encoded.
#[derive(Clone, PartialEq, Debug)]
pub enum Value<'a> {
    /// A boolean.
    Bool(bool),
    /// A text.
    Text(&'a [u8]),
    /// A `size_t`.
    Size(u64),
    /// An `int`.
    Int(i32),
    /// 16 bits.
    U16(u16),
    /// 32 bits.
    U32(u32),
    /// 64 bits.
    U64(u64),
    /// A status.
    Status(i32),
    /// Lifetime of a published value.
    Persistence(u8),
    /// Range of a published value.
    Range(u8),
    /// A rank of the job.
    Rank(u32),
    /// A rank of any job.
    Proc(Proc<'a>),
    /// Bytes.
    Bytes(&'a [u8]),
    /// An array of infos.
    Infos(Vec<Info<'a>>),
    /// A variable: its name, its value.
    Variable(&'a [u8], &'a [u8]),
    /// An array of processes.
    Procs(Vec<Proc<'a>>),
    /// A value of any other type.
    Other {
        /// The type code.
        code: u16,
        /// Encoding of the payload.
        encoding: Encoding,
        /// The payload; checked once before, so it is complete.
        payload: &'a [u8],
    },
}

/// A key and its value: a directive of a request, or an element of an array.
#[derive(Clone, PartialEq, Debug)]
pub struct Info<'a> {
    /// The key.
    pub key: &'a [u8],
    /// See [`types::INFO_REQUIRED`] and [`types::INFO_QUALIFIER`]; the other bits are ignored here.
    pub flags: u32,
    /// The value.
    pub value: Value<'a>,
}

impl<'a> Info<'a> {
    /// An info without flags.
    pub fn new(key: &'a str, value: Value<'a>) -> Self {
        Self { key: key.as_bytes(), flags: 0, value }
    }

    /// Returns true if a server that does not support the directive must refuse the request.
    pub fn is_required(&self) -> bool {
        self.flags & types::INFO_REQUIRED != 0
    }
}

impl Value<'_> {
    /// The code of its type.
    pub fn code(&self) -> u16 {
        match self {
            Self::Bool(_) => types::BOOL,
            Self::Text(_) => types::STRING,
            Self::Size(_) => types::SIZE,
            Self::Int(_) => types::INT,
            Self::U16(_) => types::UINT16,
            Self::U32(_) => types::UINT32,
            Self::U64(_) => types::UINT64,
            Self::Status(_) => types::STATUS,
            Self::Persistence(_) => types::PERSISTENCE,
            Self::Range(_) => types::DATA_RANGE,
            Self::Rank(_) => types::PROC_RANK,
            Self::Proc(_) => types::PROC,
            Self::Bytes(_) => types::BYTE_OBJECT,
            Self::Infos(_) | Self::Procs(_) => types::DATA_ARRAY,
            Self::Variable(..) => types::ENVAR,
            Self::Other { code, .. } => *code,
        }
    }

    /// Returns the value as a directive that is on or off; an absent value means on.
    pub fn is_true(&self) -> bool {
        match self {
            Self::Bool(on) => *on,
            Self::Other { code, .. } => *code == types::UNDEFINED,
            _ => true,
        }
    }

    /// Returns the value as a number, if it is a non-negative one.
    pub fn number(&self) -> Option<u64> {
        match *self {
            Self::Size(number) | Self::U64(number) => Some(number),
            Self::Int(number) => number.try_into().ok(),
            Self::Persistence(number) | Self::Range(number) => Some(number.into()),
            Self::U16(number) => Some(number.into()),
            Self::U32(number) | Self::Rank(number) => Some(number.into()),
            _ => None,
        }
    }
}

impl<'a> Reader<'a> {
    /// A value after the code of its type.
    pub fn value(&mut self) -> Result<Value<'a>, WireError> {
        self.value_at(0)
    }

    fn value_at(&mut self, depth: usize) -> Result<Value<'a>, WireError> {
        if depth > DEPTH_MAX {
            return Err(WireError::TooDeep);
        }
        let code = self.u16()?;
        let before = *self;
        Ok(match code {
            types::BOOL => Value::Bool(self.byte()? != 0),
            types::STRING => Value::Text(self.text()?.unwrap_or_default()),
            types::SIZE => Value::Size(self.size()?),
            types::INT => {
                let found = self.int()?;
                Value::Int(found.try_into().map_err(|_| WireError::Range { what: "an int", found })?)
            }
            types::UINT16 => Value::U16(self.u16()?),
            types::UINT32 => Value::U32(self.u32()?),
            types::UINT64 => Value::U64(self.u64()?),
            types::STATUS => Value::Status(self.i32()?),
            types::PERSISTENCE => Value::Persistence(self.byte()?),
            types::DATA_RANGE => Value::Range(self.byte()?),
            types::PROC_RANK => Value::Rank(self.u32()?),
            types::PROC => Value::Proc(self.proc()?),
            types::BYTE_OBJECT => Value::Bytes(self.byte_object()?),
            types::ENVAR => {
                let (name, value) = (self.text()?.unwrap_or_default(), self.text()?.unwrap_or_default());
                self.byte()?;
                Value::Variable(name, value)
            }
            types::DATA_ARRAY => match self.u16()? {
                types::INFO => {
                    let count = self.size()?;
                    let count = self.checked_count(i64::try_from(count).unwrap_or(i64::MAX))?;
                    Value::Infos(self.infos_at(count, depth + 1)?)
                }
                types::PROC => {
                    let count = self.size()?;
                    let count = self.checked_count(i64::try_from(count).unwrap_or(i64::MAX))?;
                    Value::Procs((0..count).map(|_| self.proc()).collect::<Result<_, _>>()?)
                }
                _ => {
                    *self = before;
                    self.other(code)?
                }
            },
            code => self.other(code)?,
        })
    }

    fn other(&mut self, code: u16) -> Result<Value<'a>, WireError> {
        Ok(Value::Other { code, encoding: self.encoding(), payload: self.skip(code)? })
    }

    /// A key, flags and a value.
    pub fn info(&mut self) -> Result<Info<'a>, WireError> {
        self.info_at(0)
    }

    fn info_at(&mut self, depth: usize) -> Result<Info<'a>, WireError> {
        Ok(Info { key: self.required_text("a key")?, flags: self.u32()?, value: self.value_at(depth)? })
    }

    fn infos_at(&mut self, count: usize, depth: usize) -> Result<Vec<Info<'a>>, WireError> {
        (0..count).map(|_| self.info_at(depth)).collect()
    }

    /// A count, and a group of that many infos.
    pub fn counted_infos(&mut self) -> Result<Vec<Info<'a>>, WireError> {
        let count = self.count()?;
        self.group_of(count)?;
        self.infos_at(count, 0)
    }

    /// A count, and a group of that many processes.
    pub fn counted_procs(&mut self) -> Result<Vec<Proc<'a>>, WireError> {
        let count = self.count()?;
        self.group_of(count)?;
        (0..count).map(|_| self.proc()).collect()
    }
}

impl Writer {
    /// A value after the code of its type.
    pub fn value(&mut self, value: &Value<'_>) {
        self.u16(value.code());
        match *value {
            Value::Bool(on) => self.byte(on.into()),
            Value::Text(text) => self.text(Some(text)),
            Value::Size(number) => self.size(number),
            Value::Int(number) => self.int(number),
            Value::U16(number) => self.u16(number),
            Value::U32(number) | Value::Rank(number) => self.u32(number),
            Value::U64(number) => self.u64(number),
            Value::Status(status) => self.i32(status),
            Value::Persistence(number) | Value::Range(number) => self.byte(number),
            Value::Proc(proc) => self.proc(proc),
            Value::Bytes(bytes) => self.byte_object(bytes),
            Value::Variable(name, value) => {
                self.text(Some(name));
                self.text(Some(value));
                self.byte(0);
            }
            Value::Infos(ref infos) => {
                self.u16(types::INFO);
                self.size(infos.len() as u64);
                infos.iter().for_each(|info| self.info(info));
            }
            Value::Procs(ref procs) => {
                self.u16(types::PROC);
                self.size(procs.len() as u64);
                procs.iter().for_each(|&proc| self.proc(proc));
            }
            Value::Other { encoding, payload, .. } if encoding == self.encoding() => self.raw(payload),
            Value::Other { code, encoding, payload } => {
                let copied = Reader::new(encoding, payload).copy(code, self);
                debug_assert!(copied.is_ok(), "a value that was read before cannot be read again: {copied:?}");
            }
        }
    }

    /// A key, flags and a value.
    pub fn info(&mut self, info: &Info<'_>) {
        self.text(Some(info.key));
        self.u32(info.flags);
        self.value(&info.value);
    }

    /// A group of one key with its value.
    pub fn kval(&mut self, key: &str, value: &Value<'_>) {
        self.one();
        self.text(Some(key.as_bytes()));
        self.value(value);
    }
}
