//! A fabric manager that is not one: a real HTTP server with a script of faults, for tests and demonstrations.
//!
//! Serves the three endpoints of `openapi.json` and the list, a part of vnid's jobs, and an authorisation server at `/token`.
//! Services live in memory. What it was asked can be looked at, and is written as JSON lines without secrets. What goes wrong can
//! be changed at any time, by `POST /faults`.

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

pub use script::{Asked, Fault, Rule};
pub use state::{Access, Exchange};

use state::State;

/// Greatest number of connections at once; further ones are closed.
const CONNECTIONS: usize = 256;

/// Behaviour of the fake manager.
pub struct Options {
    /// Address that it listens at; port 0 is any free one.
    pub address: SocketAddr,
    /// Faults, in order.
    pub script: Vec<Rule>,
    /// Access control.
    pub access: Access,
    /// Least time that an answer takes.
    pub delay: Duration,
    /// True for a manager that offers `GET /fabric/cxi/services`.
    pub offers_list: bool,
    /// True for a manager that answers a second POST of one name with 409, in place of the service that exists.
    pub conflicts: bool,
    /// The key of every service, in hexadecimal digits; each gets a random one without it.
    pub auth_key: Option<String>,
    /// Log of the calls.
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

/// A running fake; dropping it stops it.
pub struct FakeFabric {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Open connections by number, so that the end of the fake ends them.
    connections: Mutex<Vec<(u64, TcpStream)>>,
    stopped: AtomicBool,
    delay: Duration,
}

impl FakeFabric {
    /// Listens and serves, on threads of its own.
    ///
    /// # Errors
    /// If the address cannot be listened on.
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

    /// Adds to what goes wrong.
    pub fn script(&self, rules: impl IntoIterator<Item = Rule>) {
        self.shared.state.lock().script.extend(rules);
    }

    /// Nothing goes wrong any more.
    pub fn clear_script(&self) {
        self.shared.state.lock().script.clear();
    }

    /// Calls so far, with their answers.
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.shared.state.lock().exchanges.clone()
    }

    /// Kinds of the calls so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.state.lock().exchanges.iter().map(|exchange| exchange.asked).collect()
    }

    /// The names of the services that exist.
    pub fn services(&self) -> Vec<String> {
        self.shared.state.lock().names()
    }

    /// Makes a service as if another had asked for it.
    pub fn add_service(&self, name: &str, vni: u16) {
        self.shared.state.lock().add(name, vni.into(), None);
    }

    /// Makes a service vanish.
    pub fn remove_service(&self, name: &str) {
        self.shared.state.lock().remove(name);
    }

    /// No token that it gave out is good any more.
    pub fn expire_tokens(&self) {
        self.shared.state.lock().expire_tokens();
    }

    /// Serves one connection that came another way, such as through TLS, until its end.
    pub fn serve(&self, stream: impl Read + Write) {
        connection::serve(stream, &self.shared);
    }

    /// Serves until the process ends.
    pub fn run(mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            // It panics on no input; if it did, the server is over as well.
            let _ = acceptor.join();
        }
    }
}

impl Drop for FakeFabric {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // Wakes up the acceptor, if there still is one.
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
