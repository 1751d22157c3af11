//! Fake fabric manager: a real HTTP server with a script of faults, for tests and demonstrations.
//!
//! Serves the three endpoints of `openapi.json` and the list, a part of vnid's jobs, and an authorisation server at `/token`.
//! Services are in memory. The requests can be inspected, and are written as JSON lines without secrets. `POST /faults` changes
//! the script at any time.

mod connection;
mod script;
mod state;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

pub use script::{CallKind, Fault, Rule};
pub use state::{Access, Exchange};

use state::State;

/// Limit on simultaneous connections; further ones are closed.
const CONNECTIONS: usize = 256;

/// Behaviour of the fake manager.
pub struct Options {
    /// Listen address; port 0 selects any free port.
    pub address: SocketAddr,
    /// Faults, in order.
    pub script: Vec<Rule>,
    /// Access control.
    pub access: Access,
    /// Minimum time of an answer.
    pub delay: Duration,
    /// True if the manager supports `GET /fabric/cxi/services`.
    pub offers_list: bool,
    /// True if the manager answers a second POST of a name with 409, false if it returns the existing service.
    pub conflicts: bool,
    /// Key of every service, in hexadecimal digits; `None` for random keys.
    pub auth_key: Option<String>,
    /// Log of the requests.
    pub log: Option<Box<dyn Write + Send>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            script: Vec::new(),
            access: Access::Anybody,
            delay: Duration::ZERO,
            offers_list: true,
            conflicts: false,
            auth_key: None,
            log: None,
        }
    }
}

/// Running fake manager; dropping it stops it.
pub struct FakeFabric {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Open connections by number, which are closed when the fake stops.
    connections: Mutex<Vec<(u64, TcpStream)>>,
    stopped: AtomicBool,
    delay: Duration,
}

impl FakeFabric {
    /// Listens and serves, on its own threads.
    ///
    /// # Errors
    /// Fails if the address is not available.
    pub fn start(options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind(options.address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            delay: options.delay,
            state: Mutex::new(State::new(options)),
            connections: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let acceptor = std::thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared)
        });
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// Base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds faults.
    pub fn script(&self, rules: impl IntoIterator<Item = Rule>) {
        self.shared.state.lock().script.extend(rules);
    }

    /// Removes all faults.
    pub fn clear_script(&self) {
        self.shared.state.lock().script.clear();
    }

    /// Requests so far, with their answers.
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.shared.state.lock().exchanges.clone()
    }

    /// Kinds of the requests so far.
    pub fn asked(&self) -> Vec<CallKind> {
        self.shared.state.lock().exchanges.iter().map(|exchange| exchange.asked).collect()
    }

    /// Names of the existing services.
    pub fn services(&self) -> Vec<String> {
        self.shared.state.lock().names()
    }

    /// Makes a service as if another client had requested it.
    pub fn add_service(&self, name: &str, vni: u16) {
        self.shared.state.lock().add(name, vni.into(), None);
    }

    /// Removes a service.
    pub fn remove_service(&self, name: &str) {
        self.shared.state.lock().remove(name);
    }

    /// Invalidates all issued tokens.
    pub fn expire_tokens(&self) {
        self.shared.state.lock().expire_tokens();
    }

    /// Serves one connection from another source, such as TLS, until it ends.
    pub fn serve(&self, stream: impl Read + Write) {
        connection::serve(stream, &self.shared);
    }

    /// Serves until the process ends.
    pub fn run(mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            // The acceptor does not panic; if it did, the server would be over as well.
            let _ = acceptor.join();
        }
    }
}

impl Drop for FakeFabric {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // Wakes the acceptor, if it still runs.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for (_, connection) in self.shared.connections.lock().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for (number, stream) in (0..).zip(listener.incoming()) {
        if shared.stopped.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let Ok(copy) = stream.try_clone() else { continue };
        let mut connections = shared.connections.lock();
        if connections.len() >= CONNECTIONS || stream.set_nodelay(true).is_err() {
            continue;
        }
        connections.push((number, copy));
        drop(connections);
        let shared = shared.clone();
        std::thread::spawn(move || {
            connection::serve(&stream, &shared);
            // The copy in the list would keep the connection open.
            let _ = stream.shutdown(Shutdown::Both);
            shared.connections.lock().retain(|(other, _)| *other != number);
        });
    }
}
