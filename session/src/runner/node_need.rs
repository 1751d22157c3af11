//! The need of other nodes for this node, which can outlast its ranks. Servers of other nodes may ask its PMIx server for keys that
//! ranks here have committed. Results of fences may wait for links to them that are still being opened.

use pmix_core::server::Need;
use tokio::sync::watch;

/// How long other nodes need this node.
#[derive(Clone, Debug)]
pub(super) struct NodeNeed {
    /// Need that the PMIx server reports, if there is one.
    server: Option<watch::Receiver<Need>>,
    /// Number of links that are being opened, if there are links to other nodes.
    opening: Option<watch::Receiver<usize>>,
}

impl NodeNeed {
    pub(super) fn new(opening: Option<watch::Receiver<usize>>) -> Self {
        Self { server: None, opening }
    }

    /// Follows the need of the PMIx server.
    pub(super) fn follow(&mut self, server: watch::Receiver<Need>) {
        self.server = Some(server);
    }

    pub(super) fn now(&self) -> Need {
        let is_opening = self.opening.as_ref().is_some_and(|opening| *opening.borrow() > 0);
        match self.server.as_ref().map_or(Need::Over, |server| *server.borrow()) {
            // The receiver of a message waits for it with its ranks.
            Need::Over if is_opening => Need::WhileRanksRun,
            need => need,
        }
    }

    /// Waits until [`Self::now`] differs from `known`; indefinitely if it never will. Cancel-safe.
    pub(super) fn other_than(&self, known: Need) -> impl Future<Output = ()> + use<> {
        let mut need = self.clone();
        async move {
            while need.now() == known {
                tokio::select! {
                    () = changed(&mut need.server) => {}
                    () = changed(&mut need.opening) => {}
                }
            }
        }
    }
}

/// Waits for a change; indefinitely if there will be none.
async fn changed<T>(receiver: &mut Option<watch::Receiver<T>>) {
    if let Some(receiver) = receiver
        && receiver.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_known(need: &NodeNeed, known: Need) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(need.other_than(known)).poll(&mut context).is_pending()
    }

    #[test]
    fn a_node_is_needed_while_it_opens_links_and_as_long_as_its_server_says() {
        let opening = watch::Sender::new(0);
        let mut need = NodeNeed::new(Some(opening.subscribe()));
        assert!(need.now() == Need::Over && is_known(&need, Need::Over));
        opening.send_replace(2);
        assert!(
            need.now() == Need::WhileRanksRun && is_known(&need, Need::WhileRanksRun) && !is_known(&need, Need::Over)
        );
        let server = watch::Sender::new(Need::UntilTold);
        need.follow(server.subscribe());
        assert!(need.now() == Need::UntilTold && !is_known(&need, Need::WhileRanksRun));
        server.send_replace(Need::Over);
        assert_eq!(need.now(), Need::WhileRanksRun);
        opening.send_replace(0);
        assert!(need.now() == Need::Over && is_known(&need, Need::Over) && !is_known(&need, Need::WhileRanksRun));
    }
}
