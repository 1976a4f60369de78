//! A cable to a database that a test can make slow, cut or pull: a proxy on loopback (or on any listener) in front of a server.
//!
//! It relays bytes and knows nothing of what they mean, but for one thing: which connections have sent a given text, so that a
//! test can break the one that listens and leave the others alone. While a direction is held nothing is read from it, as if the
//! packets vanished and were sent again later: what was held arrives when it is let go. A cut closes both sides with RST.

use std::io::Read as _;
use std::io::Write as _;
use std::net::TcpListener;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::poll::PollFd;
use nix::poll::PollFlags;
use nix::poll::PollTimeout;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Linger;
use sqlx::postgres::PgConnectOptions;

/// How soon a change of mind is noticed.
const TICK: Duration = Duration::from_millis(20);

/// How much of what a client sends is remembered.
const SAID: usize = 16 * 1024;

/// Where a server is.
#[derive(Debug, Clone)]
pub enum Upstream {
    /// A unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String, u16),
}

impl Upstream {
    /// The server that a URL names.
    ///
    /// # Panics
    /// It is no URL of a Postgres server.
    #[must_use]
    pub fn of(url: &str) -> Self {
        let options: PgConnectOptions = url.parse().expect("a URL");
        let port = options.get_port();
        options.get_socket().map_or_else(
            || Self::Tcp(options.get_host().to_owned(), port),
            |folder| Self::Unix(folder.join(format!(".s.PGSQL.{port}"))),
        )
    }

    fn connect(&self) -> std::io::Result<Socket> {
        match self {
            Self::Unix(path) => UnixStream::connect(path).map(Socket::Unix),
            Self::Tcp(host, port) => TcpStream::connect((host.as_str(), *port)).map(Socket::Tcp),
        }
    }
}

/// What the cable does with what is sent through it.
#[derive(Debug, Clone, Copy, Default)]
struct Cable {
    hold_requests: bool,
    hold_replies: bool,
    refuse: bool,
    delay: Duration,
}

#[derive(Debug)]
struct State {
    upstream: Upstream,
    cable: Cable,
    /// Connections that have sent this text are held in both directions.
    held: Option<Vec<u8>>,
    links: Vec<Arc<Link>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    ended: AtomicBool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread of the proxy panics")
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

impl Proxy {
    /// A proxy on loopback in front of the server that `url` names.
    ///
    /// # Panics
    /// There is no port.
    #[must_use]
    pub fn before(url: &str) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").expect("loopback"), Upstream::of(url))
    }

    /// The same on a listener of the caller's.
    ///
    /// # Panics
    /// The listener has no address.
    #[must_use]
    pub fn on(listener: TcpListener, upstream: Upstream) -> Self {
        let port = listener.local_addr().expect("an address").port();
        let state = State { upstream, cable: Cable::default(), held: None, links: Vec::new() };
        let shared = Arc::new(Shared { state: Mutex::new(state), ended: AtomicBool::new(false) });
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || accept(&listener, &of_thread));
        Self { port, shared }
    }

    /// The URL that leads to the same database as `url`, through this proxy on loopback.
    #[must_use]
    pub fn url(&self, url: &str) -> String {
        self.url_at("127.0.0.1", url)
    }

    /// The same, where the proxy has another address.
    ///
    /// # Panics
    /// `url` names no database.
    #[must_use]
    pub fn url_at(&self, host: &str, url: &str) -> String {
        let options: PgConnectOptions = url.parse().expect("a URL");
        let (user, database) = (options.get_username(), options.get_database().expect("a database"));
        format!("postgres://{user}@{host}:{}/{database}", self.port)
    }

    /// Lets everything through again, what was held first.
    pub fn heal(&self) {
        let mut state = self.shared.state();
        state.cable = Cable::default();
        state.held = None;
    }

    /// Every reply comes so much later.
    pub fn delay(&self, by: Duration) {
        self.shared.state().cable.delay = by;
    }

    /// Nothing passes in either direction, and nobody is told.
    pub fn black_hole(&self) {
        let cable = &mut self.shared.state().cable;
        (cable.hold_requests, cable.hold_replies) = (true, true);
    }

    /// Requests arrive, replies do not.
    pub fn hold_replies(&self) {
        self.shared.state().cable.hold_replies = true;
    }

    /// Requests do not arrive; what the server says by itself does.
    pub fn hold_requests(&self) {
        self.shared.state().cable.hold_requests = true;
    }

    /// A black hole for the connections only that have sent `text` or will.
    pub fn black_hole_those_that_said(&self, text: &str) {
        self.shared.state().held = Some(text.as_bytes().to_vec());
    }

    /// Resets every connection, once.
    pub fn reset(&self) {
        for link in self.shared.state().links.drain(..) {
            link.cut.store(true, Ordering::Relaxed);
        }
    }

    /// Resets every connection and each new one, until it is healed.
    pub fn refuse(&self) {
        self.shared.state().cable.refuse = true;
        self.reset();
    }

    /// Resets every connection; new ones go to another server.
    pub fn lead_to(&self, url: &str) {
        self.shared.state().upstream = Upstream::of(url);
        self.reset();
    }

    /// How many connections there are.
    #[must_use]
    pub fn connections(&self) -> usize {
        let mut state = self.shared.state();
        state.links.retain(|link| !link.cut.load(Ordering::Relaxed));
        state.links.len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.reset();
    }
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn prepare(&self) -> std::io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                // Closing then sends RST, not FIN.
                setsockopt(stream, Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TICK))
            }
            Self::Unix(stream) => stream.set_read_timeout(Some(TICK)),
        }
    }

    fn read(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).read(buffer),
            Self::Unix(stream) => (&*stream).read(buffer),
        }
    }

    fn write(&self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Tcp(stream) => (&*stream).write_all(bytes),
            Self::Unix(stream) => (&*stream).write_all(bytes),
        }
    }
}

/// One connection and its other half.
#[derive(Debug)]
struct Link {
    cut: AtomicBool,
    /// The beginning of what the client has sent.
    said: Mutex<Vec<u8>>,
}

impl Link {
    fn note(&self, bytes: &[u8]) {
        let mut said = self.said.lock().expect("no thread of the proxy panics");
        let room = SAID.saturating_sub(said.len()).min(bytes.len());
        said.extend_from_slice(&bytes[..room]);
    }

    fn has_said(&self, text: &[u8]) -> bool {
        let said = self.said.lock().expect("no thread of the proxy panics");
        said.windows(text.len()).any(|window| window == text)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Request,
    Reply,
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.has_ended() {
        let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(TICK).expect("short");
        if nix::poll::poll(&mut ready, timeout).unwrap_or(0) == 0 {
            continue;
        }
        // Whoever was there may have gone again.
        let Ok((client, _)) = listener.accept() else { continue };
        let shared = Arc::clone(shared);
        std::thread::spawn(move || link(Socket::Tcp(client), &shared));
    }
}

fn link(client: Socket, shared: &Arc<Shared>) {
    client.prepare().expect("a socket takes its options");
    // A server that is cut off is not reached either.
    if !pass(shared, None, Way::Request) {
        return;
    }
    let upstream = shared.state().upstream.clone();
    let Ok(server) = upstream.connect() else { return };
    server.prepare().expect("a socket takes its options");
    let link = Arc::new(Link { cut: AtomicBool::new(false), said: Mutex::default() });
    shared.state().links.push(Arc::clone(&link));
    let (client, server) = (Arc::new(client), Arc::new(server));
    for (from, to, way) in [(&client, &server, Way::Request), (&server, &client, Way::Reply)] {
        let (from, to) = (Arc::clone(from), Arc::clone(to));
        let (link, shared) = (Arc::clone(&link), Arc::clone(shared));
        std::thread::spawn(move || {
            pump(&from, &to, way, &link, &shared);
            link.cut.store(true, Ordering::Relaxed);
        });
    }
}

fn pump(from: &Socket, to: &Socket, way: Way, link: &Link, shared: &Shared) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        if link.cut.load(Ordering::Relaxed) || !pass(shared, Some(link), way) {
            return;
        }
        let count = match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        };
        let bytes = &buffer[..count];
        if way == Way::Request {
            link.note(bytes);
        }
        let delay = shared.state().cable.delay;
        if way == Way::Reply && !delay.is_zero() {
            std::thread::sleep(delay);
        }
        // It may have been cut off while it waited for these bytes.
        if !pass(shared, Some(link), way) || to.write(bytes).is_err() {
            return;
        }
    }
}

/// Waits as long as this way is held; answers whether it goes on.
fn pass(shared: &Shared, link: Option<&Link>, way: Way) -> bool {
    loop {
        if shared.has_ended() || link.is_some_and(|link| link.cut.load(Ordering::Relaxed)) {
            return false;
        }
        let state = shared.state();
        if state.cable.refuse {
            return false;
        }
        let held = match way {
            Way::Request => state.cable.hold_requests,
            Way::Reply => state.cable.hold_replies,
        };
        let marked = state.held.as_deref().is_some_and(|text| link.is_some_and(|link| link.has_said(text)));
        drop(state);
        if !held && !marked {
            return true;
        }
        std::thread::sleep(TICK);
    }
}
