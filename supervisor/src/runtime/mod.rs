//! The supervisor at work: one owner of state, and tasks around it that bring it events and carry out its actions.
//!
//! ```text
//!   signals ──┐                                  ┌─ claim (one at a time) ── store
//!   watcher ──┤ poll, changes, cancels           │
//!   own rows ─┤ rows not held     Event          ├─ child task ── pipes of one child
//!   promoter ─┼──────────────► dispatcher ─Action┤      ▲ evidence
//!   child ────┤ over             (no I/O)        ├─ warden ── every process
//!   finisher ─┤ recorded, held     │ tick        └─ finish writer ── store, journal
//!   lease  ───┘ renewed, lost ◄────┘
//!   (own thread, own connection)          rescuer ── store (what other supervisors left)
//! ```
//!
//! Called by `cli::run`; calls `store`, `warden`, `kernel`. [`service`] wires it, [`drive`] is the loop.
//!
//! | what fails | what happens |
//! |---|---|
//! | a child | its death is evidence, judged and recorded ([`record`]) |
//! | the warden | its attempts end as `warden_lost`, another one is started, and told the trust deadline first ([`drive`]) |
//! | the store, at start | it is waited for ([`await_store`]) |
//! | the store, later | outcomes are held and journaled, after 3 s nothing is started ([`finisher`], [`journal`]) |
//! | renewal of the lease | past the trust deadline nothing is claimed or started, and the warden freezes what runs ([`lease`]) |
//! | the lease, to others | what ran under it is killed, its outcomes are sent all the same, and a new term begins ([`lease`]) |
//! | the dispatcher (it hangs) | the lease is not renewed, so that others take its jobs ([`lease`]) |
//! | this supervisor | its successor records what is in the journal and in `ends/`, then the rest ([`recover`]) |
//! | another supervisor | its term is declared lost, its attempts are ended ([`rescue`], [`observe`]) |
//!
//! The supervisor holds no kernel code: limits, signals and waiting for processes are the warden's.

pub mod await_store;
pub mod child;
pub mod control;
pub mod dispatcher;
pub mod drive;
pub mod event;
#[cfg(test)]
mod fake;
pub mod finisher;
pub mod here;
pub mod journal;
pub mod lease;
pub mod observe;
pub mod quiet;
pub mod reconcile;
pub mod record;
pub mod recover;
pub mod rescue;
pub mod service;
pub mod snapshot;
pub mod spec;
pub mod vitals;
