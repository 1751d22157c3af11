//! Flags of `srun` about GPUs, translated to flags of `lattice launch`.

use std::ffi::OsStr;
use std::num::NonZeroU32;

use super::super::flag::Refusal;
use super::super::line::Line;
use crate::idle::{self, Notice};

/// `TYPE:N` or `N`, such as `a100:2`. The type is ignored.
pub(super) fn gpus_per_task(line: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    let text = value.to_string_lossy();
    let number = text.rsplit(':').next().unwrap_or_default();
    if number != "0" {
        line.add_to_launch("--gpus-per-task", Some(number.as_ref()));
    }
    Ok(())
}

/// `[verbose,|quiet,]HOW`, such as `verbose,closest` or `quiet,single:2`.
pub(super) fn gpu_bind(line: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    let text = value.to_string_lossy();
    let bind = ["verbose", "quiet", "v", "q"].iter().find_map(|word| text.strip_prefix(word)?.strip_prefix(','));
    line.add_to_launch("--gpu-bind", Some(bind.unwrap_or(&text).as_ref()));
    Ok(())
}

/// Checks the number of tasks for each GPU. Its meaning depends on other flags.
pub(super) fn ntasks_per_gpu(_: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    number("--ntasks-per-gpu", value).map(drop)
}

/// Checks the number of CPUs for each GPU. Its meaning depends on other flags.
pub(super) fn cpus_per_gpu(_: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    number("--cpus-per-gpu", value).map(drop)
}

/// `[verbose,]gres/gpu:HOW`.
pub(super) fn tres_bind(line: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    let text = value.to_string_lossy();
    let bind = text.strip_prefix("verbose,").unwrap_or(&text);
    match bind.strip_prefix("gres/gpu:").filter(|how| !how.contains('+')) {
        Some(how) => gpu_bind(line, how.as_ref()),
        None => Err(refused("--tres-bind", &text, "gres/gpu:HOW is, where HOW is one of --gpu-bind")),
    }
}

/// `cpu=N,gres/gpu=N`; `:` may replace `=`.
pub(super) fn tres_per_task(line: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    let text = value.to_string_lossy();
    for part in text.split(',') {
        let split = part.rsplit_once(['=', ':']);
        match split.map(|(resource, number)| (resource.split([':', '=']).next().unwrap_or_default(), number)) {
            Some(("cpu", number)) => line.add_to_launch("--cpus-per-task", Some(number.as_ref())),
            Some(("gres/gpu", number)) => gpus_per_task(line, number.as_ref())?,
            _ => return Err(refused("--tres-per-task", &text, "cpu=N and gres/gpu=N are")),
        }
    }
    Ok(())
}

/// Letters for kinds of devices next to the CPUs of a task; `g` means GPUs.
pub(super) fn accel_bind(line: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    for letter in value.to_string_lossy().chars().filter(|letter| *letter != 'v') {
        match letter {
            'g' if line.has("--gpu-bind") => {}
            'g' => line.add_to_launch("--gpu-bind", Some("closest".as_ref())),
            _ => {
                let note = idle::note(&format!("--accel-bind={letter}"), "of devices only GPUs are bound");
                line.ignore(Notice::Always, None, note);
            }
        }
    }
    Ok(())
}

/// Adds the flags for numbers of tasks and CPUs for each GPU, in combination with the other flags of the line (srun(1), --ntasks-per-gpu and
/// --cpus-per-gpu).
pub(super) fn settle(line: &mut Line) -> Result<(), Refusal> {
    let tasks = typed(line, "ntasks-per-gpu", "--ntasks-per-gpu")?;
    if let Some(tasks) = tasks {
        if !line.has("--gpu-bind") && !line.has("--gpus-per-task") {
            line.add_to_launch("--gpu-bind", Some(format!("single:{tasks}").as_ref()));
        }
        if !["--tasks-per-core", "--tasks-per-socket"].iter().any(|flag| line.has(flag)) {
            line.add_to_launch("--tasks-per", Some(format!("{tasks}:gpu").as_ref()));
        }
        let gpus = line.gpus.as_deref().map(|gpus| number("--gpus", gpus)).transpose()?;
        if let (Some(gpus), false) = (gpus, line.is_counted()) {
            line.add_to_every_program("--ntasks", gpus.saturating_mul(tasks).to_string().as_ref());
        }
    }
    let Some(cpus) = typed(line, "cpus-per-gpu", "--cpus-per-gpu")? else { return Ok(()) };
    let gpus = line.value("--gpus-per-task").map(|gpus| number("--gpus-per-task", &gpus)).transpose()?;
    let of_task = match (gpus, tasks) {
        (Some(gpus), _) => Some(cpus.saturating_mul(gpus)),
        (None, Some(tasks)) => NonZeroU32::new(cpus.get() / tasks.get()),
        (None, None) => None,
    };
    match of_task {
        Some(_) if line.has("--cpus-per-task") => {
            return Err(refused(
                "--cpus-per-gpu",
                &cpus.to_string(),
                "-c has another number of CPUs; type one of both",
            ));
        }
        Some(of_task) => line.add_to_launch("--cpus-per-task", Some(of_task.to_string().as_ref())),
        None => {
            let note =
                idle::note("--cpus-per-gpu", "no flag has the number of GPUs of a task; -c N gives each task CPUs");
            line.ignore(Notice::Always, None, note);
        }
    }
    Ok(())
}

fn typed(line: &Line, name: &str, flag: &'static str) -> Result<Option<NonZeroU32>, Refusal> {
    line.typed_value(name).map(|value| number(flag, value)).transpose()
}

/// The number in `TYPE:N` or `N`.
fn number(flag: &'static str, value: &OsStr) -> Result<NonZeroU32, Refusal> {
    let text = value.to_string_lossy();
    let number = text.rsplit(':').next().and_then(|number| number.parse().ok());
    number.ok_or_else(|| refused(flag, &text, "a number from 1 on is"))
}

fn refused(flag: &'static str, value: &str, reason: &str) -> Refusal {
    Refusal::Value { flag, value: value.to_owned(), reason: reason.to_owned() }
}
