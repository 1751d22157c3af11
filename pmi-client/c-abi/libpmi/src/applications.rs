//! Programs of a job that runs several programs ("applications" in Cray's `pmi.h`). Their numbers are those of `PMI_Get_appnum`.

use alloc::vec::Vec;
use core::ffi::c_int;

use pmi_c_abi::arguments::{ArrayOut, Out};
use pmi_c_abi::code::{Code, Failure};
use pmi_client::Client;

use crate::job::put_ranks;
use crate::{call, number};

/// Number of programs.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_num_apps(count: Out<'_, c_int>) -> c_int {
    number(count, |client| Ok(programs(client)?.iter().max().map_or(0, |last| last.cast_signed() + 1)))
}

/// Number of ranks of a program.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_app_size(program: c_int, size: Out<'_, c_int>) -> c_int {
    number(size, |client| match ranks_of(client, Some(program), Where::Anywhere)?.len() {
        0 => Err(Code::ARGUMENT.into()),
        ranks => Ok(ranks as c_int),
    })
}

/// Position of this rank among the ranks of its program.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_rank_in_app(position: Out<'_, c_int>) -> c_int {
    number(position, |client| {
        let own = ranks_of(client, None, Where::Anywhere)?;
        Ok(own.partition_point(|&rank| rank < client.rank()) as c_int)
    })
}

/// First rank of this rank's program.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_base_rank_in_app(first: Out<'_, c_int>) -> c_int {
    number(first, |client| {
        let own = ranks_of(client, None, Where::Anywhere)?;
        Ok(own.first().ok_or(Code::FAIL)?.cast_signed())
    })
}

/// Number of ranks of this rank's program on this node.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_numpes_in_app_on_smp(count: Out<'_, c_int>) -> c_int {
    number(count, |client| Ok(ranks_of(client, None, Where::Here)?.len() as c_int))
}

/// The ranks of this rank's program on this node.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_pes_in_app_on_smp(ranks: ArrayOut<'_, c_int>, length: c_int) -> c_int {
    call(|| put_ranks(ranks, length, |client| ranks_of(client, None, Where::Here)))
}

/// Program of each rank.
#[inline(never)]
fn programs(client: &Client) -> Result<Vec<u32>, Failure> {
    Ok(client.programs().ok_or(Code::UNSUPPORTED)?)
}

/// Nodes on which ranks are considered.
#[derive(Clone, Copy)]
enum Where {
    Anywhere,
    Here,
}

/// Ranks of a program, or of this rank's own program.
#[inline(never)]
fn ranks_of(client: &mut Client, program: Option<c_int>, place: Where) -> Result<Vec<u32>, Failure> {
    let programs = programs(client)?;
    let of = |rank: u32| programs.get(rank as usize).map(|number| number.cast_signed());
    let program = program.or(of(client.rank()));
    let mut ranks = match place {
        Where::Anywhere => (0..client.size()).collect(),
        Where::Here => client.local_ranks()?,
    };
    ranks.retain(|&rank| of(rank) == program);
    Ok(ranks)
}
