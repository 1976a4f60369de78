//! What the program under test has recorded, read through its own store.

use std::collections::BTreeMap;
use std::time::Duration;

use jobvisor::domain::ids::JobId;
use jobvisor::domain::job::Job;
use jobvisor::store::AttemptRow;
use jobvisor::store::Filter;
use jobvisor::store::Store;
use jobvisor::store::sqlite::OpenMode;
use jobvisor::store::sqlite::SqliteStore;
use support::world::Supervisor;
use support::world::World;

/// A handle on a world's database.
pub(crate) struct Records {
    runtime: tokio::runtime::Runtime,
    store: SqliteStore,
}

impl Records {
    /// Opens `jobs.db` of a world; its schema must be there.
    pub(crate) fn open(world: &World) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let store = runtime.block_on(SqliteStore::open(&world.path("jobs.db"), OpenMode::Existing, false));
        Self { runtime, store: store.expect("the database") }
    }

    pub(crate) fn jobs(&self) -> Vec<Job> {
        let all = self.runtime.block_on(self.store.list(&Filter::default()));
        all.expect("jobs")
    }

    pub(crate) fn job(&self, id: JobId) -> Job {
        self.runtime.block_on(self.store.job(id)).expect("a job").expect("it is there")
    }

    pub(crate) fn attempts(&self, id: JobId) -> Vec<AttemptRow> {
        self.runtime.block_on(self.store.attempts(id)).expect("attempts")
    }

    pub(crate) fn cancel(&self, id: JobId) {
        self.runtime.block_on(self.store.cancel(&[id], "campaign")).expect("it is asked for");
    }

    /// Outcomes of all jobs, counted: the cause, or the state where there is none.
    pub(crate) fn outcomes(&self) -> BTreeMap<String, usize> {
        let mut counted = BTreeMap::new();
        for job in self.jobs() {
            let word = job.cause.map_or_else(|| job.state.to_string(), |cause| cause.code().to_owned());
            *counted.entry(word).or_insert(0) += 1;
        }
        counted
    }
}

/// Adds jobs; gives their ids.
pub(crate) fn enqueue(world: &World, kind: &str, count: usize, payload: &serde_json::Value) -> Vec<JobId> {
    let ids = world.good(&["enqueue", kind, "--count", &count.to_string(), "--payload", &payload.to_string()]);
    ids.lines().map(|line| line.parse().expect("an id")).collect()
}

/// Runs until nothing is left to do.
pub(crate) fn until_idle(world: &World, limit: Duration) {
    let output = world.start(&["run", "--until-idle"]).output(limit);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "run --until-idle ended with {}: {log}", output.status);
}

/// The warden of a supervisor.
pub(crate) fn warden(supervisor: &Supervisor) -> Option<i32> {
    let pid = supervisor.pid();
    let mut children =
        std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().flat_map(|task| {
            let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            text.split_whitespace().filter_map(|word| word.parse::<i32>().ok()).collect::<Vec<_>>()
        });
    children.find(|child| {
        std::fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name.trim() == "jv:warden")
    })
}
