//! How fast a job starts, what an idle supervisor costs the database, and how long it takes until a lost attempt is on record.

use std::time::Duration;
use std::time::Instant;

use serde_json::json;
use support::postgres::Database;
use support::wait_until;
use support::world::Lane;
use support::world::SOON;
use support::world::World;

use crate::Scale;
use crate::report::Report;
use crate::report::quantiles;

const KIND: &str = r#"
[supervisor]
name = "one"
lease = "3s"

[kind.fault]
command = ["{fault}", "{payload.mode}", "{payload.a}", "{payload.b}", "{payload.c}"]
slots = 4
memory = "16MiB"
backoff = { first = "100ms", factor = 1.0, max = "100ms", jitter = 0.0 }
"#;

fn asleep(database: &Database) {
    wait_until("the supervisor sleeps", SOON, || {
        let told = database.psql("SELECT bool_or(sleeping) FROM jobvisor.supervisors WHERE ended_at IS NULL");
        if told == "t" { Ok(()) } else { Err(told) }
    });
}

/// From the commit of an enqueue to the first thing that the job does, while the supervisor sleeps and nothing else runs.
pub(crate) fn first_byte(scale: Scale, report: &mut Report) {
    let world = World::on_postgres(Lane::Auto, KIND);
    let supervisor = world.supervisor();
    let file = world.path("stamps");
    let payload = json!({ "mode": "stamp", "a": file.display().to_string(), "b": 0, "c": "exit" });
    let mut taken = Vec::new();
    for n in 1..=scale.of(200, 5) {
        asleep(world.postgres());
        let told = world.postgres().psql(&format!(
            "BEGIN; SELECT jobvisor.enqueue('fault', '{payload}'); COMMIT; SELECT (extract(epoch FROM clock_timestamp()) * 1e6)::bigint"
        ));
        let committed: i64 = told.lines().last().and_then(|line| line.parse().ok()).expect("a time");
        let line = wait_until("the job has started", SOON, || {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            text.lines().nth(n - 1).map(str::to_owned).ok_or_else(|| "not".to_owned())
        });
        let began: i64 = line.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a time");
        taken.push(Duration::from_micros(u64::try_from(began - committed).unwrap_or(0)));
    }
    report.say(&format!(
        "commit of an enqueue to the first line of the job's program, asleep: {}",
        quantiles(&mut taken)
    ));
    assert!(supervisor.stop(SOON).success(), "it stops");
}

/// Statements a minute of a supervisor that has nothing to do, at the default lease.
pub(crate) fn idle(scale: Scale, report: &mut Report) {
    let world = World::on_postgres(Lane::Auto, &KIND.replace("lease = \"3s\"", ""));
    let supervisor = world.supervisor();
    asleep(world.postgres());
    // The horizon must have passed, after which it sleeps soundly.
    std::thread::sleep(Duration::from_secs(3));
    let seconds = scale.of(60, 3);
    let commits = || -> u64 {
        let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
        world.postgres().psql(sql).parse().expect("a number")
    };
    let before = commits();
    std::thread::sleep(Duration::from_secs(seconds as u64));
    // Sessions tell what they did when they have been idle for a while; the question itself is one.
    std::thread::sleep(Duration::from_secs(11));
    let spent = commits().saturating_sub(before + 1);
    let window = seconds as u64 + 11;
    report.say(&format!("asleep, lease 30 s: {spent} statements in {window} s, {} a minute", spent * 60 / window));
    assert!(supervisor.stop(SOON).success(), "it stops");
}

/// From SIGKILL of a supervisor to the record of its attempt: by its own successor on this host, and by another one.
pub(crate) fn rescue(scale: Scale, report: &mut Report) {
    for other_host in [false, true] {
        let mut taken: Vec<Duration> = (0..scale.of(20, 2)).map(|_| one_rescue(other_host)).collect();
        let by =
            if other_host { "another supervisor, lease 3 s" } else { "its successor on this host, started at once" };
        report.say(&format!("SIGKILL of the supervisor to the record, by {by}: {}", quantiles(&mut taken)));
    }
}

#[expect(clippy::disallowed_methods, reason = "a measuring program reads the clock")]
fn one_rescue(other_host: bool) -> Duration {
    let world = World::on_postgres(Lane::Auto, KIND);
    let victim = world.supervisor();
    let beside = world.beside(&KIND.replace("\"one\"", "\"two\"").replace("kind.fault", "kind.other"));
    let other = other_host.then(|| beside.supervisor());
    let id = world.enqueue("fault", &json!({ "mode": "hang", "a": "", "b": "", "c": "" }));
    wait_until("the job runs", SOON, || if world.starts().is_empty() { Err(world.state(id)) } else { Ok(()) });
    if other_host {
        // It must have seen the victim's lease renewed at least once; rescue counts from its own observation.
        std::thread::sleep(Duration::from_secs(2));
    }
    victim.kill();
    let start = Instant::now();
    let successor = (!other_host).then(|| world.start(&["run"]));
    let sql = format!("SELECT count(*) FROM jobvisor.attempts WHERE job_id = {id} AND attempt = 1");
    wait_until("the loss is on record", Duration::from_secs(30), || {
        let told = world.postgres().psql(&sql);
        if told == "1" { Ok(()) } else { Err(told) }
    });
    let took = start.elapsed();
    let causes = world.inspect(id)["attempts"][0]["cause"].clone();
    assert_eq!(causes, "supervisor_lost");
    drop((other, successor));
    took
}
