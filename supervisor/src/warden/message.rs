//! The frames between a supervisor and its warden, in bincode's wire format, one a datagram.
//!
//! Variants and fields are appended, never moved or removed: a supervisor may one day speak to the warden of an
//! older build. What is large travels beside the frame as a descriptor: argv and environment in a sealed memory
//! file, evidence as JSON in another when it does not fit (the kernel refuses a datagram of over about 200 KB).

use wincode::{SchemaRead, SchemaWrite};

/// The warden's own name for an attempt: unique within the life of one warden.
pub type Key = u64;

/// Supervisor to warden.
#[derive(Debug, Clone, PartialEq, SchemaWrite, SchemaRead)]
pub enum Down {
    /// Start a child. With it come four descriptors: the child's stdin, stdout, stderr, and a sealed memory file that
    /// holds a [`StartSpec`](crate::warden::StartSpec) as JSON.
    Start {
        /// Name of the attempt from now on.
        key: Key,
    },
    /// End a child: SIGTERM now, SIGKILL of everything after `grace_ms` (0: at once). The reason is noted first; a second
    /// `Stop` keeps the first reason and can only shorten the grace.
    Stop {
        /// Which.
        key: Key,
        /// Why.
        reason: StopReason,
        /// From the first signal to SIGKILL.
        grace_ms: u64,
    },
    /// How long the supervisor may be trusted to hold its lease (I4). Past it every child is frozen and `Start` is refused, until
    /// a `Trust` that lies in the future comes. Before the first one there is no such deadline.
    Trust {
        /// [`BootInstant`](crate::domain::clock::BootInstant) in nanoseconds.
        until: u64,
    },
}

/// Why the supervisor wants a child ended. (Timeouts and the watchdog are the warden's own.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub enum StopReason {
    /// The job was cancelled.
    Cancelled,
    /// The supervisor is stopping.
    Drained,
    /// Too much output under `output = "strict"`.
    OutputLimit,
    /// The term was lost.
    Fenced,
    /// The child broke the protocol.
    ProtocolError,
    /// It has delivered its outcome and does not end.
    Linger,
}

/// Warden to supervisor.
#[derive(Debug, Clone, PartialEq, SchemaWrite, SchemaRead)]
pub enum Up {
    /// The first frame: the warden stands, and this is what it can enforce. JSON of
    /// [`Capabilities`](super::Capabilities).
    Hello {
        /// JSON.
        capabilities: Vec<u8>,
    },
    /// The program runs: `exec` succeeded and the process is alive. A pidfd comes with it.
    Started {
        /// Which.
        key: Key,
        /// Its pid.
        pid: i32,
    },
    /// The attempt's processes are gone (or proven unkillable). The last frame about this key. Holds
    /// [`ProcessEvidence`](crate::domain::evidence::ProcessEvidence) as JSON, or, when `in_file`, a sealed memory file comes with it.
    Ended {
        /// Which.
        key: Key,
        /// JSON; empty when `in_file`.
        evidence: Vec<u8>,
        /// The evidence is in the descriptor that comes with the frame.
        in_file: bool,
    },
    /// What the processes of a running attempt hold, at most once a second. Not sent at all when the socket is full.
    Sample {
        /// Which.
        key: Key,
        /// Bytes: what its leaf is charged with, or the resident size of its tree.
        bytes: u64,
    },
}
