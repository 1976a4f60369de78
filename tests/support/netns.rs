//! A real network between a supervisor and its database, with a cable that can be pulled: two private network namespaces joined
//! by a veth pair. Nothing of the host's own network is touched.
//!
//! The supervisor is started in one of them ([`Network::prefix`]); in the other one a test listens ([`Network::listen`]) and
//! relays to the server's unix socket with a [`Proxy`](crate::proxy::Proxy): unix sockets know no network namespaces.

use std::net::TcpListener;
use std::process::Command;

use nix::sched::CloneFlags;
use nix::sched::setns;

const DATABASE: &str = "10.78.0.1";
const SUPERVISOR: &str = "10.78.0.2";

/// See the module's head. Removed when it is dropped.
#[derive(Debug)]
pub struct Network {
    database: String,
    supervisor: String,
}

impl Network {
    /// Lays the cable; `Err` says what is missing on this host.
    ///
    /// # Errors
    /// Not root, or a program or a part of the kernel is missing.
    pub fn lay(name: &str) -> Result<Self, String> {
        if !nix::unistd::geteuid().is_root() {
            return Err("network namespaces need root".to_owned());
        }
        let own = std::process::id();
        let network = Self { database: format!("jvdb-{name}-{own}"), supervisor: format!("jvsv-{name}-{own}") };
        let (db, sv) = (network.database.as_str(), network.supervisor.as_str());
        let steps = [
            vec!["netns", "add", db],
            vec!["netns", "add", sv],
            vec!["link", "add", "db", "netns", db, "type", "veth", "peer", "name", "sv", "netns", sv],
            vec!["-n", db, "addr", "add", "10.78.0.1/30", "dev", "db"],
            vec!["-n", sv, "addr", "add", "10.78.0.2/30", "dev", "sv"],
            vec!["-n", db, "link", "set", "lo", "up"],
            vec!["-n", sv, "link", "set", "lo", "up"],
            vec!["-n", db, "link", "set", "db", "up"],
            vec!["-n", sv, "link", "set", "sv", "up"],
        ];
        for step in steps {
            ip(&step)?;
        }
        Ok(network)
    }

    /// A listener on the database's side.
    ///
    /// # Panics
    /// The namespace cannot be entered.
    #[must_use]
    pub fn listen(&self) -> TcpListener {
        let path = format!("/run/netns/{}", self.database);
        // A namespace is a thread's own; a socket stays in the one that it was made in.
        let made = std::thread::spawn(move || {
            let namespace = std::fs::File::open(&path).expect("the namespace");
            setns(namespace, CloneFlags::CLONE_NEWNET).expect("it can be entered");
            TcpListener::bind((DATABASE, 0)).expect("its address")
        });
        made.join().expect("no panic")
    }

    /// The address of the database's side.
    #[must_use]
    pub const fn address(&self) -> &'static str {
        DATABASE
    }

    /// Starts a program on the supervisor's side. (`ip netns exec` would hide the cgroups from it.)
    #[must_use]
    pub fn prefix(&self) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net=/run/netns/{}", self.supervisor), "--".to_owned()]
    }

    /// Packets to the supervisor vanish; both links look up.
    ///
    /// # Panics
    /// `ip` refuses.
    pub fn black_hole(&self) {
        ip(&["-n", &self.database, "route", "add", "blackhole", &format!("{SUPERVISOR}/32")]).expect("a route");
    }

    /// Undoes [`black_hole`](Self::black_hole).
    ///
    /// # Panics
    /// `ip` refuses.
    pub fn heal(&self) {
        ip(&["-n", &self.database, "route", "del", "blackhole", &format!("{SUPERVISOR}/32")]).expect("a route");
    }

    /// Pulls the cable.
    ///
    /// # Panics
    /// `ip` refuses.
    pub fn unplug(&self) {
        ip(&["-n", &self.database, "link", "set", "db", "down"]).expect("a link");
    }

    /// Puts it back.
    ///
    /// # Panics
    /// `ip` refuses.
    pub fn plug(&self) {
        ip(&["-n", &self.database, "link", "set", "db", "up"]).expect("a link");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in [&self.supervisor, &self.database] {
            // It may not have been made.
            ip(&["netns", "del", name]).ok();
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let told = Command::new("ip").args(arguments).output().map_err(|error| format!("no `ip`: {error}"))?;
    if told.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&told.stderr).trim()))
}
