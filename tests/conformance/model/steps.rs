//! What may happen in a life, and how often.

use proptest::prelude::*;

use super::plain::{KINDS, PRIORITIES};

pub(super) const SUPERVISORS: usize = 3;

/// `which` is taken modulo what there is at that moment.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Enqueue(NewJob),
    /// Free slots of each kind; `lost`: the reply is.
    Claim {
        sup: usize,
        free: [usize; KINDS.len()],
        lost: bool,
    },
    /// A claim under a term that is over, by one that has not noticed.
    Haunt(usize),
    /// Outcomes of attempts that run and of which their supervisor knows, in one batch; `lost`: the reply is, so they are sent again.
    Finish {
        which: Vec<(usize, End)>,
        lost: bool,
    },
    /// An outcome of any attempt that there ever was.
    Late(usize, End),
    /// An outcome under a fence that never was.
    Forged {
        which: usize,
        how: usize,
    },
    GiveBack(usize),
    Renew(usize),
    EndTerm(usize),
    DeclareLost {
        sup: usize,
        old_beat: bool,
        gone: bool,
    },
    /// At most so many.
    Sweep(usize),
    /// Its process is proven gone, and all that it ran is ended.
    TakeOver(usize),
    Cancel(usize),
    Retry(usize),
    Pause(usize),
    Resume(usize),
    /// At most so many.
    Promote(u32),
    /// By so many minutes.
    Elapse(i64),
}

#[derive(Debug, Clone)]
pub(super) struct NewJob {
    pub(super) kind: usize,
    pub(super) priority: i32,
    pub(super) key: Option<u8>,
    pub(super) later: bool,
    pub(super) after: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Success,
    Snoozed,
    Fails,
    /// Put back without a delay.
    FailsAndIsDue,
    FailsForGood,
    Drained,
    /// An interruption, put back without a delay.
    Foreign,
    Cancelled,
}

fn ending() -> impl Strategy<Value = End> {
    prop_oneof![
        3 => Just(End::Success),
        1 => Just(End::Snoozed),
        4 => Just(End::Fails),
        3 => Just(End::FailsAndIsDue),
        1 => Just(End::FailsForGood),
        2 => Just(End::Drained),
        3 => Just(End::Foreign),
        1 => Just(End::Cancelled),
    ]
}

/// Rather one that gives a charge back.
fn late_ending() -> impl Strategy<Value = End> {
    prop_oneof![2 => Just(End::Foreign), 1 => Just(End::Drained), 1 => ending()]
}

fn new_job() -> impl Strategy<Value = NewJob> {
    let priority = prop::sample::select(vec![0, 0, 0, PRIORITIES.start, PRIORITIES.end - 1]);
    let key = prop::option::weighted(0.3, 0..1_u8);
    let after = prop_oneof![3 => Just(Vec::new()), 2 => prop::collection::vec(0..64_usize, 1..3)];
    (0..KINDS.len(), priority, key, prop::bool::weighted(0.2), after)
        .prop_map(|(kind, priority, key, later, after)| NewJob { kind, priority, key, later, after })
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let (which, sup, kind) = (0..64_usize, 0..SUPERVISORS, 0..KINDS.len());
    let often = prop::bool::weighted;
    // No sum of these is a lease or a delay, so nothing is due at the very moment.
    let minutes = prop::sample::select(vec![25, 185]);
    prop_oneof![
        8 => new_job().prop_map(Step::Enqueue),
        12 => (sup.clone(), 0..4_usize, 0..4_usize, often(0.15))
            .prop_map(|(sup, a, b, lost)| Step::Claim { sup, free: [a, b], lost }),
        1 => which.clone().prop_map(Step::Haunt),
        12 => (prop::collection::vec((which.clone(), ending()), 1..4), often(0.2))
            .prop_map(|(which, lost)| Step::Finish { which, lost }),
        8 => (0..256_usize, late_ending()).prop_map(|(which, ending)| Step::Late(which, ending)),
        1 => (which.clone(), 0..4_usize).prop_map(|(which, how)| Step::Forged { which, how }),
        2 => sup.clone().prop_map(Step::GiveBack),
        3 => sup.clone().prop_map(Step::Renew),
        2 => sup.clone().prop_map(Step::EndTerm),
        3 => sup.clone().prop_map(Step::TakeOver),
        4 => (sup, often(0.2), any::<bool>())
            .prop_map(|(sup, old_beat, gone)| Step::DeclareLost { sup, old_beat, gone }),
        6 => (1..4_usize).prop_map(Step::Sweep),
        3 => which.clone().prop_map(Step::Cancel),
        5 => which.prop_map(Step::Retry),
        1 => kind.clone().prop_map(Step::Pause),
        3 => kind.prop_map(Step::Resume),
        6 => prop::sample::select(vec![1, 1, 2, 9]).prop_map(Step::Promote),
        6 => minutes.prop_map(Step::Elapse),
    ]
}
