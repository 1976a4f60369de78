//! Leases: who holds one, who loses it, and which of the two the server lets happen.

use std::time::Duration;

use jobvisor::domain::clock;
use jobvisor::domain::ids::Term;
use jobvisor::store::{LossProof, NewTerm, Renewed, Retention, Store};

use crate::fixture::{Fixture, Postgres};
use crate::support::{NOW, add, begin, claim, new_job, new_term, running};

fn run_out(fixture: &Postgres, term: Term) {
    fixture.database.execute(&format!(
        "UPDATE jobvisor.supervisors SET expires_at = now() - interval '1 second' WHERE term = '{term}'"
    ));
}

async fn is_expired(store: &dyn Store, term: Term) -> bool {
    store.terms().await.unwrap().iter().find(|row| row.term == term).unwrap().expired
}

#[tokio::test]
async fn i4_a_term_whose_lease_ran_out_claims_nothing_until_it_is_renewed() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let term = begin(store).await;
    add(store, new_job("k")).await;
    assert!(!is_expired(store, term).await);
    run_out(&fixture, term);
    assert!(is_expired(store, term).await);
    assert_eq!(claim(store, term, "k", 1).await, []);
    assert_eq!(store.renewer().renew(term, None).await.unwrap(), Renewed::Held);
    assert!(!is_expired(store, term).await);
    assert_eq!(claim(store, term, "k", 1).await.len(), 1);
}

#[tokio::test]
async fn i4_silence_is_no_proof_while_the_lease_runs_and_a_gone_process_is() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let (silent, gone) = (begin(store).await, begin(store).await);
    assert!(!store.declare_lost(silent, 0, LossProof::Silence).await.unwrap());
    assert!(store.declare_lost(gone, 0, LossProof::ProcessGone).await.unwrap());
    run_out(&fixture, silent);
    assert!(store.declare_lost(silent, 0, LossProof::Silence).await.unwrap());
    assert!(store.declare_lost(silent, 7, LossProof::Silence).await.unwrap(), "it is lost, by whomever");
    assert!(!store.declare_lost(Term::new(), 0, LossProof::ProcessGone).await.unwrap());
    add(store, new_job("k")).await;
    for term in [silent, gone] {
        assert_eq!(store.renewer().renew(term, None).await.unwrap(), Renewed::Lost);
        assert_eq!(claim(store, term, "k", 1).await, []);
        store.end_term(term).await.unwrap();
    }
    assert!(store.terms().await.unwrap().iter().all(|row| row.lost_at.is_some() && row.ended_at.is_none()));
}

#[tokio::test]
async fn i4_of_a_renewal_and_a_declaration_only_one_happens() {
    let fixture = Postgres::new().await;
    let store = fixture.shared();
    let (mut held, mut lost) = (0, 0);
    for _ in 0..40 {
        let term = begin(&*store).await;
        run_out(&fixture, term);
        let (other, mut renewer) = (fixture.shared(), store.renewer());
        let declare = tokio::spawn(async move { other.declare_lost(term, 0, LossProof::Silence).await.unwrap() });
        let renewed = renewer.renew(term, Some("{\"a\":1}")).await.unwrap();
        let is_lost = declare.await.unwrap();
        assert_eq!(renewed == Renewed::Lost, is_lost, "{renewed:?}, lost: {is_lost}");
        if is_lost { lost += 1 } else { held += 1 }
    }
    assert_eq!(held + lost, 40);
}

#[tokio::test]
async fn a_renewal_stays_on_its_page_and_tells_what_runs() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let term = begin(store).await;
    let mut renewer = store.renewer();
    for n in 1..=20_u64 {
        let snapshot = format!("{{\"beat\":{n}}}");
        assert_eq!(renewer.renew(term, Some(&snapshot)).await.unwrap(), Renewed::Held);
        let row = store.terms().await.unwrap().remove(0);
        assert_eq!((row.beat, row.snapshot), (n, Some(snapshot)));
    }
    assert_eq!(renewer.renew(term, Some("no json")).await.unwrap(), Renewed::Held, "word of what runs costs no lease");
    assert_eq!(store.terms().await.unwrap()[0].snapshot, None);
    drop(renewer);
    // A backend tells its numbers when it goes, at the latest.
    let hot = "SELECT n_tup_hot_upd >= 20 FROM pg_stat_user_tables WHERE relname = 'supervisors'";
    let began = clock::monotonic();
    while fixture.database.psql(hot) != "t" {
        assert!(began.elapsed() < Duration::from_secs(30), "renewals are not HOT");
    }
}

#[tokio::test]
async fn i13_a_renewal_that_hangs_is_given_up_and_the_next_one_has_a_connection_of_its_own() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let new = NewTerm { lease: Duration::from_secs(2), ..new_term() };
    let mut renewer = store.renewer();
    renewer.begin_term(&new).await.unwrap();
    renewer.begin_term(&new).await.unwrap();
    let mut other = <sqlx::PgConnection as sqlx::Connection>::connect(&fixture.database.url).await.unwrap();
    sqlx::Executor::execute(&mut other, "BEGIN; SELECT 1 FROM jobvisor.supervisors FOR UPDATE").await.unwrap();
    let began = clock::monotonic();
    assert!(renewer.renew(new.term, None).await.unwrap_err().is_unavailable());
    assert!(began.elapsed() < Duration::from_secs(5), "given up after a fifth of the lease, at least a second");
    sqlx::Executor::execute(&mut other, "ROLLBACK").await.unwrap();
    assert_eq!(renewer.renew(new.term, None).await.unwrap(), Renewed::Held);
}

#[tokio::test]
async fn a_term_is_kept_while_it_is_open_or_something_runs_under_it() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let (open, busy, over) = (begin(store).await, begin(store).await, begin(store).await);
    running(store, busy).await;
    run_out(&fixture, open);
    assert!(store.declare_lost(busy, 0, LossProof::ProcessGone).await.unwrap());
    store.end_term(over).await.unwrap();
    let ended = store.now().await.unwrap();
    while store.now().await.unwrap() <= ended {}
    let nothing_kept = Retention { succeeded: NOW, cancelled: NOW, dead: NOW };
    store.prune(&nothing_kept, 10).await.unwrap();
    let kept: Vec<Term> = store.terms().await.unwrap().iter().map(|row| row.term).collect();
    assert_eq!(kept, [busy, open]);
}

#[tokio::test]
async fn rows_of_terms_that_are_lost_ended_or_unknown_are_rescuable() {
    let fixture = Postgres::new().await;
    let store = fixture.store();
    let mut rows = Vec::new();
    for _ in 0..5 {
        let term = begin(store).await;
        rows.push(running(store, term).await);
    }
    run_out(&fixture, rows[3].term);
    assert!(store.declare_lost(rows[0].term, 0, LossProof::ProcessGone).await.unwrap());
    store.end_term(rows[1].term).await.unwrap();
    fixture.database.execute(&format!("DELETE FROM jobvisor.supervisors WHERE term = '{}'", rows[2].term));
    let mut found = store.rescuable(&[]).await.unwrap();
    found.sort_by_key(|row| row.fence.job);
    assert_eq!(found.iter().map(|row| row.fence).collect::<Vec<_>>(), rows[..3]);
    assert_eq!(found.iter().map(|row| row.term.is_some()).collect::<Vec<_>>(), [true, true, false]);
    let spared = store.rescuable(&[rows[0].term, rows[2].term]).await.unwrap();
    assert_eq!(spared.iter().map(|row| row.fence).collect::<Vec<_>>(), [rows[1]]);
}
