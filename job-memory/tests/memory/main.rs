//! A job's memory, tested at both ends and against processes that try to change it.

mod facts;
mod hostile;
mod pairs;

use std::fs::File;

use job_memory::{JobFacts, JobReader, JobWriter};

/// Name of the job in these tests.
const JOB: &str = "kvs_4711_0";

/// Memory of a job without ranks, and a reader that has requested pairs.
fn memory(capacity: usize) -> (JobWriter, JobReader) {
    let facts = JobFacts { job_id: JOB.to_owned(), ..JobFacts::default() };
    let (writer, descriptor) = JobWriter::with_capacity(&facts, capacity).unwrap();
    let reader = JobReader::of(File::from(descriptor), JOB).unwrap();
    reader.ask_for_pairs().unwrap();
    (writer, reader)
}
