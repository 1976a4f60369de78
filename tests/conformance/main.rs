//! What every store must do, written once: each case takes a [`Fixture`](fixture::Fixture) and knows no database.
//!
//! A store joins by a fixture and one more block in [`conformance!`]. What only one database can show stands in a module
//! of its name.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod act;
mod bench;
mod claim;
mod enqueue;
mod finish;
mod fixture;
mod model;
mod postgres;
mod query;
mod sqlite;
mod support;
mod terms;

/// One test per case and store.
macro_rules! conformance {
    ($($module:ident: $($case:ident),+;)+) => {
        mod on_sqlite {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    crate::$module::$case(&crate::fixture::Sqlite::new().await).await;
                }
            )+)+
        }

        mod on_postgres {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    crate::$module::$case(&crate::fixture::Postgres::new().await).await;
                }
            )+)+
        }
    };
}

conformance! {
    claim:
        lower_priority_numbers_go_first_then_lower_ids,
        kinds_take_turns_within_one_priority,
        i1_a_claim_counts_and_charges_the_attempt,
        i4_eight_claimers_never_get_one_job_twice,
        a_kind_gets_at_most_its_free_slots,
        a_claim_is_cut_at_the_first_row_that_does_not_fit,
        a_row_above_the_whole_budget_is_passed_over,
        a_term_that_is_unknown_or_over_gets_nothing,
        the_rows_own_overrides_win_over_what_the_kind_says,
        i1_a_lowered_budget_does_not_block_the_claim,
        i2_own_rows_lie_below_the_sequence_asked_for,
        only_rows_of_terms_that_do_not_live_are_rescuable,
        what_is_due_is_promoted_and_the_next_time_is_told;
    finish:
        i2_an_outcome_sent_twice_is_known_again,
        i2_a_light_success_without_a_story_is_known_again,
        i5_a_stale_fence_changes_nothing,
        a_put_back_job_waits_and_is_promoted,
        a_job_put_back_without_delay_is_queued,
        i1_a_refund_gives_the_charge_back_and_an_interruption_counts,
        i10_an_outcome_after_a_rescue_is_kept_and_a_foreign_cause_refunds,
        i10_a_late_refund_leaves_a_fresh_budget_alone,
        i10_any_bytes_are_storable,
        i10_one_bad_outcome_does_not_spoil_its_batch,
        i10_a_row_that_cannot_be_written_in_a_batch_of_fifty_spoils_no_other,
        i2_an_outcome_twice_in_one_batch_is_recorded_once,
        two_parents_of_one_child_in_one_batch_release_it_once,
        two_parents_of_one_child_that_end_at_the_same_moment_release_it_once,
        the_story_of_an_attempt_is_read_back_as_written,
        the_largest_peak_stays_on_the_job;
    act:
        cancel_does_what_each_state_allows,
        a_job_put_back_after_a_cancel_request_is_cancelled,
        cancel_requests_are_those_of_the_term,
        retry_gives_a_fresh_budget_and_keeps_the_history,
        retry_is_refused_while_another_job_holds_the_key;
    enqueue:
        a_unique_key_is_held_by_one_of_twenty_at_once,
        a_unique_key_is_free_again_when_its_job_has_ended,
        i11_a_batch_is_added_whole_or_not_at_all,
        jobs_wait_until_all_before_them_have_succeeded,
        a_job_after_one_that_failed_is_cancelled_with_all_after_it,
        a_waiting_job_keeps_its_later_due_time,
        a_payload_of_one_mebibyte_comes_back_unchanged,
        g1_escapes_in_json_come_back_unchanged,
        ids_are_never_used_again;
    query:
        a_list_is_filtered_by_every_field,
        counts_say_how_many_stand_where,
        prune_keeps_what_is_unfinished_and_what_is_young,
        the_term_that_claims_is_never_forgotten,
        terms_are_told_newest_first_with_their_end,
        a_schedule_knows_its_unfinished_jobs;
    terms:
        a_renewal_keeps_a_term,
        i4_a_term_declared_lost_cannot_be_renewed,
        declaring_lost_needs_the_beat_that_was_seen,
        i2_a_claim_whose_reply_was_lost_is_found_and_given_back,
        i4_a_claim_under_a_term_declared_lost_gets_nothing_or_is_rescued,
        a_paused_kind_is_not_claimed_until_it_is_resumed;
}
