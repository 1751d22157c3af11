//! Handshakes: a client claims a rank, or connects as a tool.

use pmi_core::connections::ConnectionId;
use pmi_core::ids::Rank;
use subtle::ConstantTimeEq;

use super::{Action, Identity, Server};
use crate::namespace::{JobIndex, JobState, Seat};
use crate::wire::handshake::{self, Claim, Handshake};
use crate::wire::reader::Proc;

impl Server {
    /// Handles the handshake of a client.
    pub(super) fn greet(&mut self, connection: ConnectionId, payload: &[u8]) {
        let refusal = match Handshake::decode(payload) {
            Ok(handshake) => {
                let claimed = match handshake.claim {
                    Claim::Rank(rank) => self.claim(connection, &handshake, rank),
                    Claim::Tool(name) => self.admit_tool(connection, &handshake, name),
                };
                match claimed {
                    Ok(()) => return,
                    Err(refusal) => refusal,
                }
            }
            Err(error) => error.to_string(),
        };
        tracing::warn!("refused {refusal}");
        self.close(connection);
    }

    fn claim(&mut self, connection: ConnectionId, handshake: &Handshake<'_>, claimed: Proc<'_>) -> Result<(), String> {
        let Proc { namespace, rank } = claimed;
        let job = self.job_claimed(namespace).ok_or("a PMIx client of a namespace that is not served here")?;
        let local = self.jobs[job].local(Rank(rank));
        let local = local.ok_or_else(|| format!("a PMIx client that claims rank {rank}, which is not on this node"))?;
        if let Some(former) = self.jobs[job].ranks[local].former_connection() {
            self.handle_disconnect(former);
            self.actions.push_back(Action::Close { connection: former });
        }
        let state = &mut self.jobs[job].ranks[local];
        if state.connection.is_some() || state.exited {
            if state.connection.is_some() && state.note_second() {
                self.actions.push_back(Action::SecondProcess { job, rank: Rank(rank) });
            }
            return Err(format!("a second PMIx client that claims rank {rank}"));
        }
        let is_first_word = state.speak();
        state.connection = Some(connection);
        self.identify(connection, Seat { job, local }, handshake);
        self.push_send(connection, handshake::welcome(connection.0));
        if is_first_word {
            self.look_for_deserters();
        }
        Ok(())
    }

    /// Assigns an identity to the client.
    pub(super) fn identify(&mut self, connection: ConnectionId, seat: Seat, handshake: &Handshake<'_>) {
        let Handshake { version, encoding, module, .. } = *handshake;
        let claim = self.new_ticket();
        self.clients[connection].identity = Some(Identity { seat, claim, encoding, version, module });
    }

    /// The job of this launch with that namespace. The namespace is a secret of the job's ranks, so each name is compared completely, in
    /// constant time.
    fn job_claimed(&self, namespace: &[u8]) -> Option<JobIndex> {
        let jobs = self.jobs.indexed().filter(|(_, state)| state.is_own());
        let is_named = |state: &JobState| bool::from(state.namespace.name.as_bytes().ct_eq(namespace));
        jobs.fold(None, |found, (job, state)| if is_named(state) { found.or(Some(job)) } else { found })
    }
}
