//! The database away at start: wait, say so, and be as easy to stop as ever.
//!
//! A supervisor that exits because its database is not there yet is started again by its service manager until that gives up.
//! So it waits, with pauses of up to 5 s, and counts as ready meanwhile: `READY=1` says that the process stands, its `STATUS`
//! what it waits for. (Waiting unready would be ended by `TimeoutStartSec`.) Signs of life for the manager's watchdog are given, too.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::domain::clock;
use crate::domain::report::chain;
use crate::runtime::drive::notify;
use crate::runtime::event::Event;
use crate::runtime::quiet::Quiet;
use crate::store::StoreError;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What a wait came to.
#[derive(Debug)]
pub enum Waited<T> {
    /// It is done.
    Done(T),
    /// A stop signal came first.
    Stopped,
}

/// The wait, with what arrives during it.
#[derive(Debug)]
pub struct Patience<'a> {
    inbox: &'a mut UnboundedReceiver<Event>,
    /// Events that are for the dispatcher, once it is there.
    pub kept: Vec<Event>,
    trouble: Quiet,
    ready: bool,
}

impl<'a> Patience<'a> {
    /// A wait that hears signals on `inbox`.
    pub fn new(inbox: &'a mut UnboundedReceiver<Event>) -> Self {
        Self { inbox, kept: Vec::new(), trouble: Quiet::default(), ready: false }
    }

    /// Takes a step until the database lets it. A step may be dropped at any point and begun anew.
    ///
    /// # Errors
    /// One that will not pass.
    pub async fn until_done<T>(
        &mut self,
        mut step: impl AsyncFnMut() -> Result<T, StoreError>,
    ) -> Result<Waited<T>, StoreError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let error = tokio::select! {
                done = step() => match done {
                    Ok(done) => return Ok(Waited::Done(done)),
                    Err(error) if error.is_unavailable() => error,
                    Err(error) => return Err(error),
                },
                () = stop_signal(self.inbox, &mut self.kept) => return Ok(Waited::Stopped),
            };
            self.complain(&error);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop_signal(self.inbox, &mut self.kept) => return Ok(Waited::Stopped),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn complain(&mut self, error: &StoreError) {
        if self.trouble.speak(clock::monotonic()).is_some() {
            tracing::warn!(error = %chain(error), "the database is away; waiting for it");
        }
        if !std::mem::replace(&mut self.ready, true) {
            notify(&[NotifyState::Ready, NotifyState::Status("waiting for the database")]);
        }
    }
}

/// Returns at a stop signal; what else comes is kept. Gives the manager's watchdog its signs of life.
async fn stop_signal(inbox: &mut UnboundedReceiver<Event>, kept: &mut Vec<Event>) {
    let every = sd_notify::watchdog_enabled().map_or(Duration::from_secs(3600), |most| most / 2);
    let mut signs_of_life = tokio::time::interval(every);
    loop {
        tokio::select! {
            event = inbox.recv() => match event {
                Some(Event::StopSignal { from, .. }) => {
                    tracing::info!(%from, "asked to stop before any job was taken");
                    return;
                }
                Some(Event::Report) => tracing::info!("waiting for the database"),
                Some(other) => kept.push(other),
                None => std::future::pending().await,
            },
            _ = signs_of_life.tick() => notify(&[NotifyState::Watchdog]),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    fn away() -> StoreError {
        StoreError::Unavailable { step: "open it", source: sqlx::Error::PoolTimedOut }
    }

    #[tokio::test]
    async fn a_database_that_comes_late_is_waited_for_and_one_that_refuses_is_not() {
        let (_events, mut inbox) = mpsc::unbounded_channel();
        let mut patience = Patience::new(&mut inbox);
        let mut left = 3;
        let done = patience.until_done(async || {
            left -= 1;
            if left == 0 { Ok(7) } else { Err(away()) }
        });
        assert!(matches!(done.await, Ok(Waited::Done(7))));
        let refused = patience.until_done(async || Err::<(), _>(StoreError::corrupt("x")));
        assert!(matches!(refused.await, Err(StoreError::Corrupt { .. })));
    }

    #[tokio::test]
    async fn a_stop_signal_ends_the_wait_also_within_a_step_that_hangs_and_other_events_are_kept() {
        for hangs in [false, true] {
            let (events, mut inbox) = mpsc::unbounded_channel();
            let mut patience = Patience::new(&mut inbox);
            events.send(Event::Wake).unwrap();
            events.send(Event::StopSignal { from: "SIGTERM".to_owned(), at: clock::now() }).unwrap();
            let stopped = patience.until_done(async || {
                if hangs {
                    std::future::pending::<()>().await;
                }
                Err::<(), _>(away())
            });
            assert!(matches!(stopped.await, Ok(Waited::Stopped)));
            assert!(matches!(patience.kept[..], [Event::Wake]));
        }
    }
}
