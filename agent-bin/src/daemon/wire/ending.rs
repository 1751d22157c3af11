//! Orders to end a launch, as commands to its session and as remote calls.

use nix::libc::SIGKILL;
use pmi_transport::proto::v1 as proto;
use proto::node_command::What;

use super::super::ending::Ending;

/// The command that ends a session.
pub(in super::super) fn encode(how: Ending) -> proto::NodeCommand {
    let what = match how {
        Ending::GiveUp => What::GiveUp(proto::Nothing {}),
        Ending::Signal(signal) => What::End(signal),
        Ending::Kill(signal) => What::Kill(signal),
    };
    proto::NodeCommand { what: Some(what), ..proto::NodeCommand::default() }
}

/// The order for the signal in a call to end a launch.
pub(in super::super) fn decode_signal(signal: i32) -> Ending {
    match signal {
        0 => Ending::GiveUp,
        SIGKILL => Ending::Kill(SIGKILL),
        signal => Ending::Signal(signal),
    }
}

#[cfg(test)]
mod tests {
    use lattice_session::session_io::Control;
    use lattice_session::wire::command::{Command, decode};

    use super::*;

    #[test]
    fn a_session_understands_every_order_to_end() {
        let decoded = |how| decode(encode(how), 1).unwrap();
        assert!(matches!(decoded(Ending::GiveUp), Command::Control(Control::GiveUp)));
        assert!(matches!(decoded(Ending::Signal(2)), Command::Control(Control::End(2))));
        assert!(matches!(decoded(Ending::Kill(15)), Command::Control(Control::Kill(15))));
    }

    #[test]
    fn no_signal_gives_a_launch_up_and_sigkill_kills_it() {
        for (signal, how) in [(0, Ending::GiveUp), (9, Ending::Kill(9)), (15, Ending::Signal(15))] {
            assert_eq!(decode_signal(signal), how, "{signal}");
        }
    }
}
