//! Values of `--gpu-bind`, in the words of Lattice and of srun(1).

use lattice_session::gpus::{GpuBind, GpuBindParseError};

use super::list_entries::{NoEntry, list, mask, set};

/// Error for a text that is no binding to GPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoGpuBinding {
    #[error(transparent)]
    Word(#[from] GpuBindParseError),
    #[error(transparent)]
    Entry(#[from] NoEntry),
}

/// Parses a binding to GPUs.
pub(super) fn parse(text: &str) -> Result<GpuBind, NoGpuBinding> {
    match text.split_once(':') {
        Some(("map_gpu", entries)) => Ok(GpuBind::Map(list(entries, set)?)),
        Some(("mask_gpu", entries)) => Ok(GpuBind::Map(list(entries, mask)?)),
        _ => Ok(text.parse()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_srun_mean_what_they_mean_there() {
        for (text, expected) in [
            ("map_gpu:0,1", "map:0,1"),
            ("map_gpu:0*2,0x3", "map:0,0,3"),
            ("mask_gpu:0x3,0xc*2", "map:0-1,2-3,2-3"),
            ("map:0,1+3", "map:0,1+3"),
            ("single:2", "single:2"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), expected, "{text}");
        }
        for text in ["map_gpu:", "map_gpu:0*0", "mask_gpu:0", "mask_gpu:g", "map:0*2", "mask"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
