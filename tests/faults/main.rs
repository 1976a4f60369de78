//! Real faults against the real program: each test takes one kind of fault that bit another system, makes it happen,
//! and reads what was recorded. The start log that the jobs write themselves is the oracle for how often they ran.
//!
//! `JOBVISOR_TEST_SCALE=N` repeats the counted ones N times as often (the campaign does); a lane that asks for patience
//! repeats them so much less.

mod causes;
mod life;
mod memory;
mod outage;
mod process;
#[cfg(feature = "failpoints")]
mod steps;
mod words;

/// `few` in an ordinary run, `N` times as many in a campaign, at least one on a slow lane.
fn scaled(few: usize) -> usize {
    let scale = std::env::var("JOBVISOR_TEST_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    (few * scale / support::patience() as usize).max(1)
}
