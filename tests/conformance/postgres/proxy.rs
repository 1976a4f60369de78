//! A wire between a store and its server that can go dead without a word.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A proxy on loopback. It knows connections that listen by what they say.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    /// Listening connections made so far.
    pub(crate) listeners: Arc<AtomicUsize>,
    /// Listening connections up to this number are dead: open, and nothing passes.
    dead: watch::Sender<usize>,
    task: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(server: u16) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let listeners = Arc::new(AtomicUsize::new(0));
        let dead = watch::Sender::new(0);
        let (count, dying) = (Arc::clone(&listeners), dead.clone());
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = socket.accept().await {
                let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                tokio::spawn(serve(client, server, Arc::clone(&count), dying.subscribe()));
            }
        });
        Self { port, listeners, dead, task }
    }

    /// Cuts all listening connections that there are, without a word to either side.
    pub(crate) fn black_hole(&self) {
        self.dead.send_replace(self.listeners.load(Ordering::SeqCst));
    }

    /// The same for those that are still to come.
    pub(crate) fn black_hole_all(&self) {
        self.dead.send_replace(usize::MAX);
    }

    /// Lets new ones live.
    pub(crate) fn heal(&self) {
        self.black_hole();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(client: TcpStream, server: TcpStream, count: Arc<AtomicUsize>, dead: watch::Receiver<usize>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let number = Arc::new(AtomicUsize::new(usize::MAX));
    let is_dead = {
        let number = Arc::clone(&number);
        let was_dead = AtomicBool::new(false);
        move || {
            let number = number.load(Ordering::SeqCst);
            if number != usize::MAX && number <= *dead.borrow() {
                was_dead.store(true, Ordering::SeqCst);
            }
            was_dead.load(Ordering::SeqCst)
        }
    };
    let up = async {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            match from_client.read(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(n)
                    if bytes[..n].windows(6).any(|word| word == b"LISTEN")
                        && number.load(Ordering::SeqCst) == usize::MAX =>
                {
                    number.store(count.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    if !is_dead() {
                        to_server.write_all(&bytes[..n]).await.ok();
                    }
                }
                Ok(n) if !is_dead() => {
                    to_server.write_all(&bytes[..n]).await.ok();
                }
                Ok(_) => {}
            }
        }
    };
    let down = async {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            match from_server.read(&mut bytes).await {
                // The end of a dead wire is not told either.
                Ok(0) | Err(_) if is_dead() => std::future::pending().await,
                Ok(0) | Err(_) => return,
                Ok(n) if !is_dead() => {
                    to_client.write_all(&bytes[..n]).await.ok();
                }
                Ok(_) => {}
            }
        }
    };
    tokio::select! { () = up => {} () = down => {} }
}
