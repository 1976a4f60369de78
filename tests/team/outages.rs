//! The database goes away, in every way that a test can make: nothing is lost, nothing runs twice at once, every supervisor
//! lives on, and none of them floods its log.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::mount::MntFlags;
use nix::mount::MsFlags;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use support::netns::Network;
use support::postgres::Cluster;
use support::proxy::Proxy;
use support::proxy::Upstream;
use support::skip;
use support::team::Setup;
use support::team::Team;
use support::team::now;
use support::wait_until;
use support::world::Lane;
use support::world::SOON;
use support::world::Supervisor;
use support::world::World;

use crate::LEASE;
use crate::complaints;
use crate::ms;
use crate::seconds;
use crate::start;
use crate::until_stands;

/// Lets the time pass that an outage is to last.
fn last(span: Duration) {
    let until = now() + u64::try_from(span.as_millis()).expect("short");
    wait_until("the outage has lasted", span * 2, || if now() >= until { Ok(()) } else { Err(String::new()) });
}

/// One line in ten seconds for each piece that works with the database; nine of them, and as many that tell of its return.
fn assert_not_flooded(supervisor: &Supervisor, away: Duration) {
    let lines = complaints(supervisor);
    let mut pieces: BTreeMap<String, u64> = BTreeMap::new();
    for line in &lines {
        // Without its time, and without numbers.
        let text = line.split_once("jobvisor").map_or(line.as_str(), |(_, text)| text);
        let text: String = text.chars().filter(|char| !char.is_ascii_digit()).take(60).collect();
        *pieces.entry(text).or_insert(0) += 1;
    }
    let most = 2 + away.as_secs() / 10;
    let all = format!("{} lines while it was away for {away:?}: {pieces:#?}", lines.len());
    assert!(pieces.values().all(|count| *count <= 2 * most) && lines.len() as u64 <= 9 * most, "{all}");
}

fn stop(supervisors: impl IntoIterator<Item = Supervisor>) {
    for supervisor in supervisors {
        supervisor.signal(Signal::SIGTERM);
        let mut supervisor = supervisor;
        assert!(supervisor.wait(SOON).success(), "{}", supervisor.log());
    }
}

#[test]
fn i10_a_database_that_is_away_at_the_start_is_waited_for() {
    let cluster = Cluster::start(&[]);
    let team = Team::of(&cluster);
    cluster.stop("fast");
    let a = team.world(&Setup::named("a"));
    let mut supervisor = a.start(&["run"]);
    wait_until("it says what it waits for", SOON, || {
        assert!(!supervisor.has_ended(), "{}", supervisor.log());
        let log = supervisor.log();
        if log.contains("WARN") || log.contains("ERROR") { Ok(()) } else { Err(log) }
    });
    last(seconds(2));
    assert!(!supervisor.has_ended(), "{}", supervisor.log());
    cluster.resume();
    until_stands(&supervisor);
    let job = team.enqueue("work", ms(100), ms(100));
    team.until_state(job, "succeeded", SOON);
    assert_eq!(team.faults("succeeded"), [""; 0]);
    stop([supervisor]);
}

#[test]
fn g3_i2_i10_an_outage_at_each_step_of_an_attempt_that_ends_within_the_lease_delays_and_costs_nothing() {
    let cluster = Cluster::start(&[]);
    let team = Team::of(&cluster);
    let a = team.world(&Setup::named("a").lease("60s"));
    let supervisor = start(&[&a]).remove(0);
    // Due while it is away.
    team.enqueue_many(2, ms(300), &["--in", "1s"]);
    cluster.stop("fast");
    last(seconds(2));
    cluster.resume();
    team.until_all_ended(SOON);
    // Comes and goes while the jobs run.
    let long = team.enqueue("work", seconds(3), ms(100));
    team.until_started(long, 1, SOON);
    cluster.stop("immediate");
    cluster.resume();
    team.until_all_ended(SOON);
    // Away when they end, and for longer than it takes to fill a log.
    let jobs = team.enqueue_many(4, seconds(1), &[]);
    jobs.iter().for_each(|job| _ = team.until_started(*job, 1, SOON));
    cluster.stop("immediate");
    last(seconds(12));
    jobs.iter().for_each(|job| assert!(team.control.processes_of(*job).is_empty(), "it has ended"));
    cluster.resume();
    team.until_all_ended(SOON);
    assert_eq!(team.faults("succeeded"), [""; 0]);
    let attempts = "SELECT max(attempt), max(charged), count(*) FROM jobvisor.jobs";
    assert_eq!(team.database.psql(attempts), "1|1|7", "one attempt each");
    assert_not_flooded(&supervisor, seconds(16));
    stop([supervisor]);
}

/// A job ends while its supervisor is cut off, another supervisor runs it again, and the first outcome comes too late.
fn outlives_the_lease(cut: &dyn Fn(), heal: &dyn Fn(), team: &Team, a: &World) -> Supervisor {
    let lonely = start(&[a]).remove(0);
    let held = team.enqueue("work", seconds(1), ms(300));
    let frozen = team.enqueue("work", seconds(40), ms(300));
    team.until_started(held, 1, SOON);
    team.until_started(frozen, 1, SOON);
    cut();
    let b = team.world(&Setup::named("b"));
    let other = start(&[&b]).remove(0);
    team.until_all_ended(SOON);
    last(seconds(2));
    heal();
    let late = format!("SELECT late_outcome IS NOT NULL FROM jobvisor.attempts WHERE job_id = {held} AND attempt = 1");
    team.until(&late, "t", SOON);
    wait_until("the frozen child is killed", SOON, || {
        let left = team.control.processes_of(frozen);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}: {}", lonely.log())) }
    });
    for job in [held, frozen] {
        assert_eq!(team.outcomes(job), ["supervisor_lost", "succeeded"]);
        assert_eq!(team.starts_of(job), 2);
    }
    let shown = &team.control.inspect(held)["attempts"];
    assert!(!shown[0]["late_outcome"].is_null() && shown[1]["late_outcome"].is_null(), "{shown:#}");
    assert_not_flooded(&lonely, seconds(8));
    stop([other]);
    // It has a new term, and works under it.
    let job = team.enqueue("work", ms(100), ms(100));
    team.until_state(job, "succeeded", SOON);
    assert_eq!(team.lost_terms("a"), 1);
    assert_eq!(team.faults("succeeded"), [""; 0]);
    lonely
}

#[test]
fn g3_i4_i5_an_outage_longer_than_the_lease_lets_another_run_the_job_and_keeps_the_late_outcome() {
    let team = Team::new();
    let proxy = Proxy::before(&team.database.url);
    let a = team.world_at(&proxy.url(&team.database.url), &Setup::named("a"));
    let lonely = outlives_the_lease(&|| proxy.black_hole(), &|| proxy.heal(), &team, &a);
    stop([lonely]);
}

#[test]
fn g3_i4_i5_the_same_over_a_real_network_whose_packets_vanish() {
    let network = match Network::lay("hole") {
        Ok(network) => network,
        Err(why) => return skip("g3_real_network", &why),
    };
    let team = Team::new();
    let proxy = Proxy::on(network.listen(), Upstream::of(&team.database.url));
    let prefix = network.prefix();
    let prefix: Vec<&str> = prefix.iter().map(String::as_str).collect();
    let url = proxy.url_at(network.address(), &team.database.url);
    let a = team.world_at(&url, &Setup::named("a")).through(&prefix);
    let lonely = outlives_the_lease(&|| network.black_hole(), &|| network.heal(), &team, &a);
    stop([lonely]);
}

#[test]
fn i4_a_pulled_cable_that_is_back_within_the_lease_costs_nothing() {
    let network = match Network::lay("pull") {
        Ok(network) => network,
        Err(why) => return skip("i4_pulled_cable", &why),
    };
    let team = Team::new();
    let proxy = Proxy::on(network.listen(), Upstream::of(&team.database.url));
    let prefix = network.prefix();
    let prefix: Vec<&str> = prefix.iter().map(String::as_str).collect();
    let url = proxy.url_at(network.address(), &team.database.url);
    let a = team.world_at(&url, &Setup::named("a").lease("20s")).through(&prefix);
    let b = team.world(&Setup::named("b").lease("20s").slots(1));
    let supervisors = start(&[&a, &b]);
    let jobs = team.enqueue_many(5, seconds(2), &[]);
    jobs.iter().for_each(|job| _ = team.until_started(*job, 1, SOON));
    network.unplug();
    last(seconds(4));
    network.plug();
    team.until_all_ended(seconds(40));
    assert_eq!(team.faults("succeeded"), [""; 0]);
    assert!(jobs.iter().all(|job| team.starts_of(*job) == 1));
    assert_eq!(team.lost_terms("a") + team.lost_terms("b"), 0);
    stop(supervisors);
}

#[test]
fn i2_i4_replies_that_are_lost_for_less_than_a_lease_cost_no_second_start() {
    let team = Team::new();
    let proxy = Proxy::before(&team.database.url);
    let a = team.world_at(&proxy.url(&team.database.url), &Setup::named("a").lease("20s"));
    let supervisor = start(&[&a]).remove(0);
    for round in 0..4 {
        let jobs = team.enqueue_many(3, ms(100), &[]);
        if round % 2 == 0 {
            proxy.hold_replies()
        } else {
            proxy.hold_requests()
        }
        last(ms(700));
        // What is held never arrives.
        proxy.reset();
        proxy.heal();
        jobs.iter().for_each(|job| team.until_state(*job, "succeeded", SOON));
    }
    assert_eq!(team.faults("succeeded"), [""; 0]);
    assert_eq!(team.database.psql("SELECT max(charged) FROM jobvisor.jobs"), "1", "a lost reply is not charged");
    assert!((1..=12).all(|job| team.starts_of(job) == 1), "{:?}", team.control.starts());
    stop([supervisor]);
}

/// Sixty short jobs for two supervisors, while `fault` does what it does.
fn under_load(team: &Team, worlds: &[&World], fault: impl FnOnce()) {
    let supervisors = start(worlds);
    team.enqueue_many(60, ms(250), &[]);
    fault();
    team.until_all_ended(seconds(60));
    assert_eq!(team.faults("succeeded"), [""; 0]);
    assert_eq!(team.database.psql("SELECT max(charged) FROM jobvisor.jobs"), "1", "no attempt was charged for it");
    stop(supervisors);
}

#[test]
fn i2_i10_a_server_that_is_restarted_in_immediate_mode_under_load_costs_nothing() {
    let cluster = Cluster::start(&[]);
    let team = Team::of(&cluster);
    let worlds = [team.world(&Setup::named("a").lease("20s")), team.world(&Setup::named("b").lease("20s"))];
    under_load(&team, &[&worlds[0], &worlds[1]], || {
        for round in 1..=3 {
            wait_until("work is under way", SOON, || {
                let starts = team.control.starts().len();
                if starts >= round * 10 { Ok(()) } else { Err(format!("{starts} starts")) }
            });
            cluster.stop("immediate");
            cluster.resume();
        }
    });
}

#[test]
fn i2_i10_connections_that_are_terminated_one_by_one_under_load_cost_nothing() {
    let team = Team::new();
    let worlds = [team.world(&Setup::named("a")), team.world(&Setup::named("b"))];
    under_load(&team, &[&worlds[0], &worlds[1]], || {
        let all = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
        for _ in 0..3 {
            for pid in team.database.psql(all).lines() {
                team.act(&format!("SELECT pg_terminate_backend({pid})"));
            }
        }
    });
    assert_eq!(team.lost_terms("a") + team.lost_terms("b"), 0);
}

#[test]
fn i4_i10_a_lock_on_the_jobs_holds_up_claims_and_outcomes_but_no_lease() {
    let team = Team::new();
    let worlds = [team.world(&Setup::named("a")), team.world(&Setup::named("b"))];
    let long = team.enqueue("work", seconds(9), ms(100));
    under_load(&team, &[&worlds[0], &worlds[1]], || {
        team.until_started(long, 1, SOON);
        team.act("BEGIN; LOCK TABLE jobvisor.jobs IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(8); COMMIT");
    });
    assert_eq!(team.lost_terms("a") + team.lost_terms("b"), 0);
    assert_eq!(team.starts_of(long), 1);
    let flags = team.control.inspect(long)["attempts"][0]["flags"].to_string();
    assert!(!flags.contains("frozen"), "a lease that is renewed is trusted: {flags}");
}

#[test]
fn i10_statements_that_time_out_are_tried_again() {
    let cluster = Cluster::start(&[]);
    let team = Team::of(&cluster);
    let worlds = [team.world(&Setup::named("a").lease("20s")), team.world(&Setup::named("b").lease("20s"))];
    under_load(&team, &[&worlds[0], &worlds[1]], || {
        // The server gives up sooner than any client, as one does whose administrator has set a limit for all.
        team.until_started(1, 1, SOON);
        let holder = "BEGIN; SET LOCAL statement_timeout = 0; LOCK TABLE jobvisor.jobs IN EXCLUSIVE MODE; SELECT pg_sleep(11); COMMIT";
        team.act(holder);
    });
}

#[test]
fn i4_a_server_that_is_frozen_for_longer_than_the_lease_loses_nothing_and_runs_nothing_twice_at_once() {
    let cluster = Cluster::start(&[]);
    let team = Team::of(&cluster);
    let worlds = [team.world(&Setup::named("a")), team.world(&Setup::named("b"))];
    let supervisors = start(&[&worlds[0], &worlds[1]]);
    let jobs = team.enqueue_many(4, seconds(7), &[]);
    jobs.iter().for_each(|job| _ = team.until_started(*job, 1, SOON));
    let pids = cluster.pids();
    let all = |signal| {
        pids.iter()
            .for_each(|pid| nix::sys::signal::kill(Pid::from_raw(*pid), signal).expect("a process of the server"))
    };
    all(Signal::SIGSTOP);
    jobs.iter().for_each(|job| team.until_silent(*job, 1, SOON));
    assert!(jobs.iter().all(|job| !team.control.processes_of(*job).is_empty()), "they stand still, and have not ended");
    last(LEASE);
    all(Signal::SIGCONT);
    team.until_all_ended(SOON);
    assert_eq!(team.faults("succeeded"), [""; 0]);
    assert_eq!(team.lost_terms("a") + team.lost_terms("b"), 0, "nobody is silent whom nobody could hear");
    for supervisor in &supervisors {
        assert_not_flooded(supervisor, LEASE * 2);
    }
    stop(supervisors);
}

#[test]
fn i2_i10_a_failover_to_a_promoted_standby_under_load_costs_nothing() {
    let primary = Cluster::start(&[]);
    let team = Team::of(&primary);
    let standby = standby_of(&primary);
    let proxy = Proxy::before(&team.database.url);
    let url = proxy.url(&team.database.url);
    let worlds =
        [Setup::named("a").lease("20s"), Setup::named("b").lease("20s")].map(|setup| team.world_at(&url, &setup));
    let supervisors = start(&[&worlds[0], &worlds[1]]);
    team.enqueue_many(60, ms(250), &[]);
    wait_until("work is under way", SOON, || {
        let starts = team.control.starts().len();
        if starts >= 10 { Ok(()) } else { Err(format!("{starts} starts")) }
    });
    primary.stop("immediate");
    let promoted =
        standby.tool("pg_ctl", &["-D", &standby.folder().join("data").display().to_string(), "-w", "promote"]);
    assert!(promoted.status.success(), "{}", String::from_utf8_lossy(&promoted.stderr));
    support::postgres::execute(&standby.url("postgres"), "ALTER SYSTEM RESET synchronous_standby_names");
    support::postgres::execute(&standby.url("postgres"), "SELECT pg_reload_conf()");
    proxy.lead_to(&standby.url(team.database.name()));
    // From here on everything is asked of the server that is left.
    let team = team.moved_to(&standby);
    team.until_all_ended(seconds(60));
    assert_eq!(team.faults("succeeded"), [""; 0]);
    assert_eq!(team.database.psql("SELECT max(charged) FROM jobvisor.jobs"), "1");
    stop(supervisors);
}

/// A synchronous standby, so that what was committed is there after a failover.
fn standby_of(primary: &Cluster) -> Cluster {
    let standby = Cluster::make(&[]);
    let (data, from) = (standby.folder().join("data").display().to_string(), primary.folder().display().to_string());
    let port = primary.port().to_string();
    let copy = ["-D", &data, "-R", "-X", "stream", "-c", "fast", "-h", &from, "-p", &port, "-U", "postgres"];
    let copied = standby.tool("pg_basebackup", &copy);
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    standby.resume();
    let url = primary.url("postgres");
    support::postgres::execute(&url, "ALTER SYSTEM SET synchronous_standby_names = '*'");
    support::postgres::execute(&url, "SELECT pg_reload_conf()");
    standby
}

#[test]
fn d10_i13_a_renewal_connection_that_is_dropped_every_second_costs_no_lease() {
    let team = Team::new();
    let a = team.world(&Setup::named("a").lease("5s"));
    let supervisor = start(&[&a]).remove(0);
    let b = team.world(&Setup::named("b").lease("5s").slots(1));
    let other = start(&[&b]).remove(0);
    let jobs = [team.enqueue("work", seconds(15), ms(100)), team.enqueue("work", seconds(15), ms(100))];
    jobs.iter().for_each(|job| _ = team.until_started(*job, 1, SOON));
    let drop_it = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() \
        AND pid <> pg_backend_pid() AND query LIKE '%UPDATE jobvisor.supervisors%beat%'";
    let mut dropped = 0;
    for _ in 0..14 {
        dropped += team.database.psql(drop_it).parse::<u32>().expect("a number");
        last(seconds(1));
    }
    assert!(dropped >= 10, "only {dropped} connections were dropped");
    team.until_all_ended(SOON);
    assert_eq!(team.faults("succeeded"), [""; 0]);
    assert!(jobs.iter().all(|job| team.starts_of(*job) == 1));
    assert_eq!(team.lost_terms("a") + team.lost_terms("b"), 0);
    stop([supervisor, other]);
}

#[test]
fn g5_a_listener_whose_packets_vanish_delays_jobs_by_a_lease_at_most_until_it_is_found_out() {
    let team = Team::new();
    let proxy = Proxy::before(&team.database.url);
    let url = proxy.url(&team.database.url);
    let a = team.world_at(&url, &Setup::named("a"));
    let supervisor = start(&[&a]).remove(0);
    let first = team.enqueue("work", ms(20), ms(20));
    team.until_state(first, "succeeded", SOON);
    proxy.black_hole_those_that_said("LISTEN");
    // As long as it is believed alive nobody polls, but for one look a lease.
    let begun = now();
    let job = team.enqueue("work", ms(20), ms(20));
    team.until_state(job, "succeeded", SOON);
    let took = Duration::from_millis(now() - begun);
    assert!(took < LEASE * 2 * support::patience(), "{took:?}");
    wait_until("it is found out", seconds(20), || {
        let found = complaints(&supervisor);
        if found.is_empty() { Err(supervisor.log()) } else { Ok(()) }
    });
    let begun = now();
    let job = team.enqueue("work", ms(20), ms(20));
    team.until_state(job, "succeeded", SOON);
    let took = Duration::from_millis(now() - begun);
    assert!(took < seconds(2) * support::patience(), "the poll is 500 ms: {took:?}");
    proxy.heal();
    stop([supervisor]);
}

/// A file system of its own that a test can fill.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    fn mount(path: &Path, mib: usize) -> Result<Self, String> {
        if !nix::unistd::geteuid().is_root() {
            return Err("a file system of its own needs root".to_owned());
        }
        fs::create_dir_all(path).expect("a folder");
        let options = format!("size={mib}m,mode=1777");
        let kind = Some("tmpfs");
        nix::mount::mount(kind, path, kind, MsFlags::empty(), Some(options.as_str()))
            .map_err(|error| format!("no tmpfs can be mounted: {error}"))?;
        Ok(Self { path: path.to_owned() })
    }

    /// Takes all that is left.
    fn fill(&self) {
        let file = self.path.join("filler");
        let told = Command::new("dd").arg("if=/dev/zero").arg(format!("of={}", file.display())).arg("bs=4k").output();
        let told = told.expect("dd");
        assert!(!told.status.success(), "it is not full");
    }

    fn free(&self) {
        fs::remove_file(self.path.join("filler")).expect("the filler");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        nix::mount::umount2(&self.path, MntFlags::MNT_DETACH).ok();
    }
}

#[test]
fn h3_i10_a_full_disk_below_postgres_holds_outcomes_up_and_loses_none() {
    let cluster = Cluster::make(&[]);
    let data = cluster.folder().join("data");
    let disk = match SmallDisk::mount(&data, 160) {
        Ok(disk) => disk,
        Err(why) => return skip("h3_postgres", &why),
    };
    let owner = fs::metadata(cluster.folder()).expect("the folder");
    std::os::unix::fs::chown(&data, Some(owner.uid_of()), Some(owner.gid_of())).expect("chown");
    fs::set_permissions(&data, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("chmod");
    let place = data.display().to_string();
    let options = [
        "-D",
        &place,
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C.UTF-8",
        "--no-sync",
        "--wal-segsize=4",
    ];
    let made = cluster.tool("initdb", &options);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    cluster.resume();
    let team = Team::of(&cluster);
    let a = team.world(&Setup::named("a").lease("60s"));
    let supervisor = start(&[&a]).remove(0);
    let jobs = team.enqueue_many(4, seconds(1), &[]);
    jobs.iter().for_each(|job| _ = team.until_started(*job, 1, SOON));
    let big = "CREATE TABLE big AS SELECT repeat(md5(n::text), 100) FROM generate_series(1, 20000) n";
    disk.fill();
    assert!(!team.database.try_psql(big).status.success(), "the server has no room");
    last(seconds(5));
    disk.free();
    if !team.database.try_psql("SELECT 1").status.success() {
        // It has given up, as Postgres does when it cannot write its log.
        drop(cluster.tool("pg_ctl", &["-D", &place, "-m", "immediate", "-w", "stop"]));
        cluster.resume();
    }
    team.until_all_ended(seconds(20));
    assert_eq!(team.faults("succeeded"), [""; 0]);
    assert!(jobs.iter().all(|job| team.starts_of(*job) == 1));
    assert_not_flooded(&supervisor, seconds(6));
    stop([supervisor]);
    drop(team);
    cluster.stop("immediate");
    drop(disk);
}

trait Owner {
    fn uid_of(&self) -> u32;
    fn gid_of(&self) -> u32;
}

impl Owner for fs::Metadata {
    fn uid_of(&self) -> u32 {
        std::os::unix::fs::MetadataExt::uid(self)
    }

    fn gid_of(&self) -> u32 {
        std::os::unix::fs::MetadataExt::gid(self)
    }
}

#[test]
fn h3_i10_a_full_disk_below_sqlite_starts_nothing_that_cannot_be_recorded_and_loses_nothing() {
    let toml = "[database]\nurl = \"sqlite://disk/jobs.db\"\n[supervisor]\npoll = \"100ms\"\n[kind.work]\n\
        command = [\"{fault}\", \"exit-after\", \"{payload.ms}\"]\nslots = 4\nmemory = \"16MiB\"\n";
    let world = World::on_a_file(Lane::Auto, toml);
    let disk = match SmallDisk::mount(&world.path("disk"), 24) {
        Ok(disk) => disk,
        Err(why) => return skip("h3_sqlite", &why),
    };
    let payload = serde_json::json!({ "ms": "1000" });
    let jobs: Vec<i64> = (0..8).map(|_| world.enqueue("work", &payload)).collect();
    let supervisor = start(&[&world]).remove(0);
    wait_until("four run", SOON, || {
        let starts = world.starts().len();
        if starts == 4 { Ok(()) } else { Err(format!("{starts}")) }
    });
    disk.fill();
    last(seconds(11));
    assert!(world.starts().len() <= 8);
    let log = supervisor.log();
    assert!(log.contains("full"), "it says what is wrong: {log}");
    assert_not_flooded(&supervisor, seconds(11));
    disk.free();
    for job in jobs {
        world.until_state(job, &["succeeded"], seconds(15));
        assert_eq!(world.causes(job), ["-"]);
        assert_eq!(world.starts().iter().filter(|start| start.job == job).count(), 1);
    }
    stop([supervisor]);
    drop(disk);
}
