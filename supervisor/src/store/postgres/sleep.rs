//! The flag that makes others send notices, and the end of the race for it.
//!
//! A notice for every job costs enqueuers half of their rate and more, so one is sent only if a supervisor's row says that it sleeps
//! (`jobvisor.supervisors.sleeping`). Told what each claim found ([`Wake::after_claim`](super::listen::Wake::after_claim)), one task of the
//! store keeps that flag:
//!
//! - **A short claim** (nothing, or less than there was room for) means that more is wanted: the flag goes up, once.
//! - **A full claim** means that work is waiting anyway: the flag goes down, after [`SETTLED`] of nothing but full claims. So a
//!   supervisor with a single slot does not write its row twice a job.
//! - The flag goes up only while the listener is proven to hear; until then it is of no use and callers poll.
//! - A listener of another number has the flag written again: the server may be another one by now, that lost it.
//!
//! **The race.** Somebody adds a job in a transaction and reads "nobody sleeps"; we claim nothing and raise the flag; they commit. No
//! notice. Whoever read the flag as down had written its row, and so had a transaction number, before the flag was
//! committed: below x0, the next number after that. So from then on we look again ever more slowly ([`pause`]), each look
//! followed by a claim, until no transaction below x0 runs any more; then comes one last claim, and we sleep soundly. Measured
//! (commit to claim): 3 to 90 ms however long the transaction takes, against 3 to 5 s by polling alone. What remains is an enqueuer under
//! REPEATABLE READ whose snapshot is older than the flag: the slow poll finds its job.
//!
//! Whether there is work is not decided here, and nobody is made to wait: without this task, or with the database away, callers poll.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::conn::Connections;
use super::listen::Shared;
use crate::domain::clock;
use crate::domain::ids::Term;
use crate::store::error::StoreError;

/// How long claims must come back full before the flag goes down.
const SETTLED: Duration = Duration::from_millis(100);

/// Pause after an error.
const RETRY: Duration = Duration::from_secs(1);

const STEP: &str = "say whether the supervisor sleeps";

/// What a claim found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing.
    Empty,
    /// Less than there was room for.
    Partial,
    /// As much as there was room for.
    Full,
}

/// What follows from the last claim.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    /// Whose claim it was.
    pub(super) term: Term,
    /// Whether notices are wanted.
    pub(super) is_short: bool,
    /// When claims began to come back like this.
    since: Instant,
}

impl Wish {
    pub(super) fn new(term: Term, outcome: Outcome) -> Self {
        let is_short = match outcome {
            Outcome::Empty | Outcome::Partial => true,
            Outcome::Full => false,
        };
        Self { term, is_short, since: now() }
    }

    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.term == other.term && self.is_short == other.is_short
    }
}

/// A flag that is up.
#[derive(Debug, Clone, Copy)]
struct Flag {
    term: Term,
    /// The listener for which it was raised; `None`: whether it is up is not known for sure.
    listener: Option<u64>,
    /// Looks until everybody is known to have seen it; `None`: they have.
    looks: Option<Looks>,
}

#[derive(Debug, Clone, Copy)]
struct Looks {
    /// The first transaction number that cannot have read the flag as down.
    horizon: i64,
    done: u32,
    next: Instant,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Move {
    Rest,
    RestUntil(Instant),
    Raise(Term, u64),
    Lower(Term),
    Look(i64),
}

/// Keeps the flag for ever.
pub(super) async fn keep(shared: Arc<Shared>, conns: Arc<Connections>) {
    let (mut wish, mut proven) = (shared.wish.subscribe(), shared.proven.subscribe());
    let mut flag = None;
    loop {
        let (wanted, listener) = (*wish.borrow_and_update(), *proven.borrow_and_update());
        let done = match next(wanted, listener, flag, now()) {
            Move::Rest => {
                // Both senders live as long as `shared`.
                tokio::select! { _ = wish.changed() => {} _ = proven.changed() => {} }
                Ok(())
            }
            Move::RestUntil(time) => {
                tokio::select! { _ = wish.changed() => {} _ = proven.changed() => {} () = sleep_until(time) => {} }
                Ok(())
            }
            Move::Raise(term, listener) => {
                flag = Some(Flag { term, listener: None, looks: None });
                raise(&conns, term).await.map(|horizon| {
                    let looks = Looks { horizon, done: 0, next: now() + pause(0) };
                    flag = Some(Flag { term, listener: Some(listener), looks: Some(looks) });
                    shared.asleep.send_replace(Some((term, listener)));
                })
            }
            Move::Lower(term) => {
                // Before it is down: whoever asks meanwhile must not be told that others know.
                shared.asleep.send_replace(None);
                flag = Some(Flag { term, listener: None, looks: None });
                write(&conns, term, false).await.map(|()| flag = None)
            }
            Move::Look(horizon) => has_passed(&conns, horizon).await.map(|has_passed| {
                if let Some(flag) = &mut flag {
                    flag.looks = flag.looks.filter(|_| !has_passed).map(Looks::later);
                }
                shared.ring();
            }),
        };
        if let Err(error) = done {
            tracing::debug!(?error, "the supervisor polls for jobs, for it could not tell that it sleeps");
            tokio::time::sleep(RETRY).await;
            // Whoever waits must know that we do not hear.
            shared.ring();
        }
    }
}

fn next(wish: Option<Wish>, listener: Option<u64>, flag: Option<Flag>, now: Instant) -> Move {
    let Some(wish) = wish else { return Move::Rest };
    let flag = flag.filter(|flag| flag.term == wish.term);
    match (wish.is_short, listener, flag) {
        (true, Some(listener), Some(flag)) if flag.listener == Some(listener) => match flag.looks {
            None => Move::Rest,
            Some(looks) if now < looks.next => Move::RestUntil(looks.next),
            Some(looks) => Move::Look(looks.horizon),
        },
        (true, Some(listener), _) => Move::Raise(wish.term, listener),
        (true, None, _) | (false, _, None) => Move::Rest,
        (false, _, Some(_)) if now < wish.since + SETTLED => Move::RestUntil(wish.since + SETTLED),
        (false, _, Some(flag)) => Move::Lower(flag.term),
    }
}

impl Looks {
    fn later(self) -> Self {
        let done = self.done.saturating_add(1);
        Self { done, next: now() + pause(done), ..self }
    }
}

/// Rest before the look of this number: quick at first, since most transactions are short; slow for one that lasts.
const fn pause(look: u32) -> Duration {
    Duration::from_millis(match look {
        0 => 5,
        1 => 20,
        2 => 80,
        3..=11 => 320,
        _ => 1_000,
    })
}

/// Raises the flag. Answers the horizon. Two calls: the second must see the first one committed.
async fn raise(conns: &Connections, term: Term) -> Result<i64, StoreError> {
    write(conns, term, true).await?;
    conns
        .run(STEP, |conn| {
            Box::pin(async move {
                sqlx::query_scalar("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
                    .fetch_one(conn)
                    .await
                    .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

async fn write(conns: &Connections, term: Term, sleeping: bool) -> Result<(), StoreError> {
    conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query(
                    "UPDATE jobvisor.supervisors SET sleeping = $2
                     WHERE term = $1 AND lost_at IS NULL AND ended_at IS NULL AND sleeping <> $2",
                )
                .bind(term.0)
                .bind(sleeping)
                .execute(conn)
                .await
                .map(drop)
                .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

/// Whether every transaction that may have read the flag as down is over.
async fn has_passed(conns: &Connections, horizon: i64) -> Result<bool, StoreError> {
    conns
        .run(STEP, move |conn| {
            Box::pin(async move {
                sqlx::query_scalar("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= $1")
                    .bind(horizon)
                    .fetch_one(conn)
                    .await
                    .map_err(|e| StoreError::sort(STEP, e))
            })
        })
        .await
}

/// Now, as timers count.
pub(super) fn now() -> Instant {
    Instant::from_std(clock::monotonic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(term: Term, outcome: Outcome, ago: Duration) -> Option<Wish> {
        let mut wish = Wish::new(term, outcome);
        wish.since -= ago;
        Some(wish)
    }

    fn flag(term: Term, looks: Option<Looks>) -> Option<Flag> {
        Some(Flag { term, listener: Some(7), looks })
    }

    const LONG: Duration = Duration::from_secs(1);

    #[test]
    fn a_short_claim_raises_the_flag_once_and_only_for_a_proven_listener() {
        let term = Term::new();
        for outcome in [Outcome::Empty, Outcome::Partial] {
            let wish = wish(term, outcome, LONG);
            assert_eq!(next(wish, None, None, now()), Move::Rest, "nobody would hear");
            assert_eq!(next(wish, Some(7), None, now()), Move::Raise(term, 7));
            assert_eq!(next(wish, Some(7), flag(term, None), now()), Move::Rest);
        }
    }

    #[test]
    fn another_listener_or_another_term_has_it_raised_again() {
        let (term, other) = (Term::new(), Term::new());
        let wish = wish(term, Outcome::Empty, LONG);
        assert_eq!(next(wish, Some(8), flag(term, None), now()), Move::Raise(term, 8));
        assert_eq!(next(wish, Some(7), flag(other, None), now()), Move::Raise(term, 7));
        let doubtful = flag(term, None).map(|flag| Flag { listener: None, ..flag });
        assert_eq!(next(wish, Some(7), doubtful, now()), Move::Raise(term, 7));
    }

    #[test]
    fn only_full_claims_for_a_while_lower_it() {
        let term = Term::new();
        let up = flag(term, None);
        let fresh = wish(term, Outcome::Full, Duration::ZERO);
        assert!(matches!(next(fresh, Some(7), up, now()), Move::RestUntil(_)));
        assert_eq!(next(wish(term, Outcome::Full, LONG), Some(7), up, now()), Move::Lower(term));
        assert_eq!(next(wish(term, Outcome::Full, LONG), None, up, now()), Move::Lower(term), "heard or not");
        assert_eq!(next(wish(term, Outcome::Full, LONG), Some(7), None, now()), Move::Rest, "it is down");
    }

    #[test]
    fn looks_come_until_the_horizon_has_passed() {
        let term = Term::new();
        let wish = wish(term, Outcome::Empty, LONG);
        let soon = Looks { horizon: 42, done: 0, next: now() + LONG };
        assert_eq!(next(wish, Some(7), flag(term, Some(soon)), now()), Move::RestUntil(soon.next));
        assert_eq!(next(wish, Some(7), flag(term, Some(soon)), now() + LONG), Move::Look(42));
        assert_eq!(soon.later().done, 1);
        assert_eq!((pause(0), pause(3), pause(1_000)), {
            let ms = Duration::from_millis;
            (ms(5), ms(320), ms(1_000))
        });
    }
}
