//! A failure at each step of an attempt, again and again; a table of how the attempts ended.

use std::collections::BTreeMap;
use std::time::Duration;

use support::steps;
use support::steps::Found;
use support::world::Lane;
use support::world::World;

use crate::Scale;
use crate::report::Report;

pub(crate) fn each(scale: Scale, report: &mut Report) {
    let times = scale.of(20, 1);
    let bases = [("SQLite", World::new as fn(Lane, &str) -> World), ("Postgres", World::on_postgres)];
    for (base, world) in bases {
        for lane in Lane::all() {
            report.say(&format!(
                "{lane:?}, {base}: {times} times each; how the attempts ended, and how soon all was gone"
            ));
            for (name, case) in steps::ALL {
                let found = (0..times).map(|_| {
                    let run = std::panic::AssertUnwindSafe(|| steps::run(&world(lane, steps::KIND), case));
                    std::panic::catch_unwind(run).ok()
                });
                tell(name, found, report);
            }
        }
    }
}

fn tell(name: &str, all: impl Iterator<Item = Option<Found>>, report: &mut Report) {
    let mut endings: BTreeMap<String, usize> = BTreeMap::new();
    let mut gone = Duration::ZERO;
    let mut wrong = Vec::new();
    for found in all {
        let Some(found) = found else {
            wrong.push("it did not come to its end; see above".to_owned());
            continue;
        };
        *endings.entry(found.endings).or_default() += 1;
        gone = gone.max(found.gone);
        wrong.extend(found.wrong);
    }
    let endings: Vec<String> = endings.iter().map(|(ending, count)| format!("{count} × {ending}")).collect();
    let milliseconds = gone.as_secs_f64() * 1e3;
    let line = format!("{name:52} {:42} {milliseconds:5.0} ms", endings.join(", "));
    wrong.truncate(10);
    report.check(&line, wrong.is_empty(), &wrong.join("; "));
}
