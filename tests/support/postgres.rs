//! Real Postgres servers for tests: one that all tests of a process share, and private ones that a test may stop, freeze or
//! break.
//!
//! A server is made in a temporary folder, listens on a unix socket there (and on loopback where a test asks for it), and runs as
//! an unprivileged user, because Postgres refuses to run as root. A small shell that waits for the end of its standard
//! input stops it and removes the folder, so it goes with the test process however that ends.
//! With `JOBVISOR_TEST_DATABASE_URL` (a role that may create databases) the shared server is that one.

use std::io::Write as _;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Output;
use std::process::Stdio;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use nix::unistd::User;
use sqlx::ConnectOptions as _;
use sqlx::Connection as _;
use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;

static NEXT: AtomicU32 = AtomicU32::new(1);

/// What every server of ours gets: small, and without waiting for the disk, which no test pulls the plug of.
const SETTINGS: [&str; 7] = [
    "fsync=off",
    "shared_buffers=64MB",
    "max_connections=200",
    "log_min_messages=warning",
    "autovacuum_naptime=5s",
    "max_wal_size=256MB",
    "unix_socket_permissions=0777",
];

/// A server of our own.
#[derive(Debug)]
pub struct Cluster {
    folder: PathBuf,
    keeper: Child,
    port: u16,
    settings: Vec<String>,
}

impl Cluster {
    /// Makes a server and starts it. `settings` are added (`listen_addresses=127.0.0.1`, …).
    ///
    /// # Panics
    /// It cannot be made.
    #[must_use]
    pub fn start(settings: &[&str]) -> Self {
        let cluster = Self::make(settings);
        let made = cluster.tool(
            "initdb",
            &["-D", &cluster.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"],
        );
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        cluster.resume();
        cluster
    }

    /// A folder and a keeper, without a server yet (whose data [`tool`](Self::tool) may bring: `pg_basebackup`).
    ///
    /// # Panics
    /// They cannot be made.
    #[must_use]
    pub fn make(settings: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("jobvisor-pg-").tempdir().expect("a folder").keep();
        if nix::unistd::geteuid().is_root() {
            let user = unprivileged();
            nix::unistd::chown(&folder, Some(user.uid), Some(user.gid)).expect("chown");
        }
        std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
        let port = free_port();
        let script = "read -r line; setsid \"$@\" >/dev/null 2>&1; rm -rf \"$JV_FOLDER\"";
        let stop = as_user(&bin("pg_ctl"), &["-D", &data_of(&folder), "-m", "immediate", "-w", "stop"]);
        #[expect(clippy::disallowed_methods, reason = "tests start their servers themselves")]
        let keeper = Command::new("sh")
            .args(["-c", script, "sh"])
            .args(stop)
            .env("JV_FOLDER", &folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh");
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        Self { folder, keeper, port, settings }
    }

    fn data(&self) -> String {
        data_of(&self.folder)
    }

    /// Where its files are, and its socket.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its port: the socket's number, and the one on loopback if it listens there.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Runs one of Postgres's own programs as the server's user.
    ///
    /// # Panics
    /// It cannot be run.
    #[must_use]
    pub fn tool(&self, program: &str, arguments: &[&str]) -> Output {
        let command = as_user(&bin(program), arguments);
        let (first, rest) = command.split_first().expect("a program");
        Command::new(first).args(rest).current_dir("/").stdin(Stdio::null()).output().expect(program)
    }

    /// Starts it (again).
    ///
    /// # Panics
    /// It does not start.
    pub fn resume(&self) {
        let socket = format!("unix_socket_directories={}", self.folder.display());
        let port = format!("port={}", self.port);
        let fixed = SETTINGS.iter().map(|setting| (*setting).to_owned());
        let options: Vec<String> = fixed
            .chain([socket, port, "listen_addresses=".to_owned()])
            .chain(self.settings.iter().cloned())
            .map(|setting| format!("-c '{setting}'"))
            .collect();
        let log = self.folder.join("log").display().to_string();
        let started = self.tool("pg_ctl", &["-D", &self.data(), "-w", "-l", &log, "-o", &options.join(" "), "start"]);
        let told = || std::fs::read_to_string(&log).unwrap_or_default();
        assert!(started.status.success(), "postgres does not start: {}", told());
    }

    /// Stops it: `smart`, `fast` or `immediate`.
    ///
    /// # Panics
    /// It does not stop.
    pub fn stop(&self, mode: &str) {
        let stopped = self.tool("pg_ctl", &["-D", &self.data(), "-m", mode, "-w", "stop"]);
        assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    }

    /// All processes of the server, the postmaster first.
    ///
    /// # Panics
    /// It does not run.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        let file = std::fs::read_to_string(self.folder.join("data/postmaster.pid")).expect("a server that runs");
        let postmaster: i32 = file.lines().next().and_then(|line| line.trim().parse().ok()).expect("a pid");
        let children = std::fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children"));
        let children = children.unwrap_or_default();
        std::iter::once(postmaster).chain(children.split_whitespace().filter_map(|pid| pid.parse().ok())).collect()
    }

    /// The URL of a database of it, by its socket.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@localhost:{}/{database}?host={}", self.port, self.folder.display())
    }

    /// The same by loopback; the server must listen there.
    #[must_use]
    pub fn tcp_url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// A new, empty database.
    #[must_use]
    pub fn database(&self) -> Database {
        Database::make(&self.url("postgres"))
    }

    /// A database that it has already, as the copy of another server has.
    #[must_use]
    pub fn existing(&self, name: &str) -> Database {
        Database { admin: self.url("postgres"), name: name.to_owned(), url: self.url(name) }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The end of its input is what the keeper waits for.
        if let Some(mut stdin) = self.keeper.stdin.take() {
            stdin.write_all(b"\n").ok();
        }
        self.keeper.wait().ok();
    }
}

fn data_of(folder: &Path) -> String {
    folder.join("data").display().to_string()
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("an address").port()
}

fn unprivileged() -> User {
    let named = |name| User::from_name(name).ok().flatten();
    named("postgres").or_else(|| named("nobody")).expect("an unprivileged user")
}

/// A command line that runs a program as a user that Postgres accepts.
fn as_user(program: &Path, arguments: &[&str]) -> Vec<String> {
    let mut line = Vec::new();
    if nix::unistd::geteuid().is_root() {
        let user = unprivileged();
        line.extend(["setpriv".to_owned(), format!("--reuid={}", user.uid), format!("--regid={}", user.gid)]);
        line.extend(["--clear-groups".to_owned(), "--".to_owned()]);
    }
    line.push(program.display().to_string());
    line.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    line
}

/// One of Postgres's programs: of the newest version in Debian's place, else from `PATH`.
#[must_use]
pub fn bin(program: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max();
    newest.map_or_else(
        || PathBuf::from(program),
        |version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin/{program}")),
    )
}

/// The server that the tests of this process share: the URL of its database `postgres`.
///
/// # Panics
/// There is none, and none can be made.
#[must_use]
pub fn shared() -> &'static str {
    static SHARED: OnceLock<(Option<Cluster>, String)> = OnceLock::new();
    let (_, url) = SHARED.get_or_init(|| match std::env::var("JOBVISOR_TEST_DATABASE_URL") {
        Ok(url) => (None, url),
        Err(_) => {
            let cluster = Cluster::start(&[]);
            let url = cluster.url("postgres");
            (Some(cluster), url)
        }
    });
    url
}

/// An empty database, removed when it is dropped.
#[derive(Debug)]
pub struct Database {
    admin: String,
    name: String,
    /// Its URL.
    pub url: String,
}

impl Database {
    /// A new one on the shared server.
    #[must_use]
    pub fn new() -> Self {
        Self::make(shared())
    }

    fn make(admin: &str) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("jv_{}_{number}", std::process::id());
        execute(admin, &format!("CREATE DATABASE {name}"));
        let mut url = admin.to_owned();
        let options: PgConnectOptions = admin.parse().expect("a URL");
        let old = format!("/{}", options.get_database().unwrap_or("postgres"));
        let at = url.find('?').unwrap_or(url.len());
        let start = url.get(..at).and_then(|front| front.rfind(&old)).expect("a URL that names a database");
        url.replace_range(start..start + old.len(), &format!("/{name}"));
        Self { admin: admin.to_owned(), name, url }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs statements in it.
    ///
    /// # Panics
    /// They fail.
    pub fn execute(&self, sql: &str) {
        execute(&self.url, sql);
    }

    /// What `psql -qAtX` prints.
    ///
    /// # Panics
    /// It fails.
    #[must_use]
    pub fn psql(&self, sql: &str) -> String {
        let told = self.try_psql(sql);
        assert!(told.status.success(), "{sql}: {}", String::from_utf8_lossy(&told.stderr));
        String::from_utf8_lossy(&told.stdout).trim_end().to_owned()
    }

    /// The same, whatever comes of it.
    ///
    /// # Panics
    /// There is no `psql`.
    #[must_use]
    pub fn try_psql(&self, sql: &str) -> Output {
        psql(&self.url, sql)
    }
}

impl Default for Database {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Its server may be gone by now, and the database with it.
        try_execute(&self.admin, &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)).ok();
    }
}

/// What `psql -qAtX` makes of statements.
///
/// # Panics
/// There is no `psql`.
#[must_use]
pub fn psql(url: &str, sql: &str) -> Output {
    Command::new(bin("psql"))
        .args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql])
        .stdin(Stdio::null())
        .output()
        .expect("psql")
}

/// Runs statements, from inside or outside of an asynchronous test.
///
/// # Panics
/// They fail.
pub fn execute(url: &str, sql: &str) {
    if let Err(error) = try_execute(url, sql) {
        panic!("{sql}: {error}");
    }
}

fn try_execute(url: &str, sql: &str) -> Result<(), sqlx::Error> {
    let options: PgConnectOptions = url.parse()?;
    let sql = sqlx::AssertSqlSafe(sql.to_owned());
    let work = async move {
        let mut conn: PgConnection = options.disable_statement_logging().connect().await?;
        sqlx::raw_sql(sql).execute(&mut conn).await?;
        conn.close().await
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || runtime.block_on(work)).join().expect("no panic")
}
