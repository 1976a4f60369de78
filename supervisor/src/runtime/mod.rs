//! The supervisor at work: one owner of state, and tasks around it that bring it events and carry out its actions.
//!
//! ```text
//!   signals ──┐                                  ┌─ claim (one at a time) ── store
//!   watcher ──┤ poll, changes, cancels           │
//!   keeper  ──┤ own rows          Event          ├─ child task ── pipes of one child
//!   promoter ─┼──────────────► dispatcher ─Action┤      ▲ evidence
//!   child ────┤ over             (no I/O)        ├─ warden ── every process
//!   finisher ─┘ recorded                         └─ finish writer ── store
//! ```
//!
//! Called by `cli::run`; calls `store`, `warden`, `kernel`. [`service`] wires it, [`drive`] is the loop.
//!
//! What happens on each failure: a child's death is evidence, judged and recorded ([`record`]); the warden's death ends its
//! attempts as `warden_lost` and another warden is started; a store that is away delays claims and records, nothing is dropped
//! ([`finisher`]); the supervisor's own death is found by its successor ([`recover`]). The supervisor
//! holds no kernel code: limits, signals and waiting for processes are the warden's.

pub mod child;
pub mod dispatcher;
pub mod drive;
pub mod event;
pub mod finisher;
pub mod reconcile;
pub mod record;
pub mod recover;
pub mod service;
pub mod spec;
