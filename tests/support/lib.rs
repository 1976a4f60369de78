//! Helps the tests: a world of its own for each, with the real program, real children and real signals in it.

use std::time::Duration;
use std::time::Instant;

pub mod kin;
pub mod netns;
pub mod postgres;
pub mod proxy;
pub mod steps;
pub mod team;
pub mod world;

/// Waits until `ready` answers `Ok`; on the way it answers what is still missing, which the panic shows. `limit` is for a
/// machine of ordinary speed; see [`patience`].
///
/// # Panics
/// The condition did not come true within `limit`.
#[expect(clippy::disallowed_methods, reason = "tests bound their waits by the clock and poll where nothing tells them")]
pub fn wait_until<T>(what: &str, limit: Duration, mut ready: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    let limit = limit * patience();
    loop {
        match ready() {
            Ok(value) => return value,
            Err(missing) => assert!(start.elapsed() < limit, "{what}: not within {limit:?}; still {missing}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether limits are the kernel's here; if not, prints why the test is skipped.
#[must_use]
pub fn has_cgroup(test: &str) -> bool {
    let kernel = world::in_force() != world::WATCHDOG;
    if !kernel {
        skip(test, "no memory cgroup can be made here");
    }
    kernel
}

/// The checkout, or the copy of its `examples/` that a lane has made where its user may read it.
#[must_use]
pub fn checkout() -> std::path::PathBuf {
    std::env::var_os("JOBVISOR_TEST_CHECKOUT")
        .map_or_else(|| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), Into::into)
}

/// How many times longer everything may take: `JOBVISOR_TEST_PATIENCE`, which a slow lane sets.
#[must_use]
pub fn patience() -> u32 {
    std::env::var("JOBVISOR_TEST_PATIENCE").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Says that a test is skipped, in the form that `tests/run` counts.
#[expect(clippy::print_stdout, reason = "the test runner shows what a test prints")]
pub fn skip(test: &str, why: &str) {
    println!("skipped: {test}: {why}");
}
