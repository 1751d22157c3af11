//! Reports of nodes about themselves: the checks on arrival, and the stored form.

use bytes::Bytes;
use lattice_inventory::{CpuSet, CpuSetParseError, Devices, Signature, Template};

/// The most memory of a node, in GiB: more than any processor can address, and small enough to be counted in bytes.
const MEMORY_GIB_MAX: u64 = 1 << 33;

/// The longest template and the longest list of addresses, in bytes.
pub(super) const TEMPLATE_MAX: usize = 1 << 20;
pub(super) const DEVICES_MAX: usize = 64 << 10;

/// The most CPUs of a node. Linux supports at most 8,192. A set of more CPUs can be written in a few bytes.
const CPUS_MAX: usize = 8192;

/// The longest list of CPUs in bytes. A list of every second CPU is shorter.
const USABLE_MAX: usize = 24 << 10;

/// The most problems of a node, and the longest one in bytes. Further problems are left out.
const TROUBLES_MAX: usize = 16;
const TROUBLE_MAX: usize = 512;

/// Report of one node, as stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StoredReport {
    pub(super) signature: Signature,
    /// JSON takes a fraction of the memory of the parsed form.
    pub(super) devices: Bytes,
    pub(super) trouble: Vec<String>,
    /// CPUs that ranks may use; `None` for all online CPUs.
    pub(super) usable: Option<CpuSet>,
    /// The day of its record in the store, counted from 1970; `None` if the record differs or does not exist.
    pub(super) kept: Option<u64>,
}

impl StoredReport {
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        let Self { signature, devices, trouble, usable, kept: _ } = self;
        (*signature, devices, trouble, usable) == (other.signature, &other.devices, &other.trouble, &other.usable)
    }
}

/// Report of a node, as received.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedReport {
    pub signature: Bytes,
    pub devices: Bytes,
    pub trouble: Vec<String>,
    /// Empty unless it was requested.
    pub template: Bytes,
    /// As a list; empty for all online CPUs.
    pub usable_cpus: String,
}

/// Reason to refuse a report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TellingError {
    #[error("a signature of {length} bytes; it has {}", Signature::LEN)]
    Signature { length: usize },
    #[error("{what} of {length} bytes; there can be {max}")]
    TooLong { what: &'static str, length: usize, max: usize },
    #[error("the {what} cannot be read: {source}")]
    Unreadable { what: &'static str, source: serde_json::Error },
    #[error("{what} of {count} CPUs; there can be {CPUS_MAX}")]
    TooManyCpus { what: &'static str, count: usize },
    #[error("the CPUs that ranks may use cannot be read: {0}")]
    Cpus(#[from] CpuSetParseError),
    #[error("a template of more than {MEMORY_GIB_MAX} GiB of memory")]
    TooMuchMemory,
    #[error("the template has the signature {seen}, and {told} was sent")]
    OtherTemplate { told: Signature, seen: Signature },
}

impl ReceivedReport {
    /// Checks the report, which takes milliseconds for a template.
    pub(super) fn check(self) -> Result<(StoredReport, Option<Template>), TellingError> {
        let Self { signature, devices, mut trouble, template, usable_cpus } = self;
        let length = signature.len();
        let signature = Signature(signature[..].try_into().map_err(|_| TellingError::Signature { length })?);
        let _: Devices = read("addresses", within("addresses", &devices, DEVICES_MAX)?)?;
        trouble.truncate(TROUBLES_MAX);
        trouble.iter_mut().for_each(|text| text.truncate(text.floor_char_boundary(TROUBLE_MAX)));
        // A copy, because these bytes may be part of a message that is much longer.
        let devices = Bytes::copy_from_slice(&devices);
        let told = StoredReport { signature, devices, trouble, usable: usable(&usable_cpus)?, kept: None };
        if template.is_empty() {
            return Ok((told, None));
        }
        let template: Template = read("template", within("a template", &template, TEMPLATE_MAX)?)?;
        within_cpus("a template", &template.cpus)?;
        if template.memory_gib() > MEMORY_GIB_MAX {
            return Err(TellingError::TooMuchMemory);
        }
        let seen = template.signature();
        if seen != signature {
            return Err(TellingError::OtherTemplate { told: signature, seen });
        }
        Ok((told, Some(template)))
    }
}

/// The CPUs of a list; `None` if the list is empty.
fn usable(list: &str) -> Result<Option<CpuSet>, TellingError> {
    within(USABLE, list.as_bytes(), USABLE_MAX)?;
    let cpus: CpuSet = list.parse()?;
    within_cpus(USABLE, &cpus)?;
    Ok(Some(cpus).filter(|cpus| !cpus.is_empty()))
}

const USABLE: &str = "a list of usable CPUs";

fn within_cpus(what: &'static str, cpus: &CpuSet) -> Result<(), TellingError> {
    let count = cpus.len();
    if count <= CPUS_MAX { Ok(()) } else { Err(TellingError::TooManyCpus { what, count }) }
}

fn within<'a>(what: &'static str, bytes: &'a [u8], max: usize) -> Result<&'a [u8], TellingError> {
    let length = bytes.len();
    if length <= max { Ok(bytes) } else { Err(TellingError::TooLong { what, length, max }) }
}

fn read<T: serde::de::DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, TellingError> {
    serde_json::from_slice(bytes).map_err(|source| TellingError::Unreadable { what, source })
}
