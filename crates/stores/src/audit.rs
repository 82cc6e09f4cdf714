//! The audit: every invariant as a query that must return nothing, and what is read by a query and judged here: the
//! histories, which are folded, and what needs the graph of a job. The SQL is the same on both stores, but for what only
//! SQLite has. The first column is the id of a job, or of a request if it is called so.

use sprag_engine::ids::JobId;
use sprag_engine::store::Violation;

use crate::replay;

/// What the id in the first column of a request's check is called.
const REQUEST: &str = "request_id";

/// What a check has found, of whom the first column of its query, which is called so, names.
pub(crate) fn violation(column: &str, id: Option<JobId>, detail: String) -> Violation {
    let (job_id, request_id) = if column == REQUEST { (None, id) } else { (id, None) };
    Violation { job_id, request_id, detail }
}

macro_rules! checks {
    ($($name:literal),+ $(,)?) => {
        /// Name and query of every check that is a query.
        pub(crate) const CHECKS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../sql/audit/", $name, ".sql")))),+];
    };
}

checks! {
    "01_terminal_job_with_open_obligations",
    "02_semaphore_is_not_the_number_of_live_obligations",
    "03_initial_plus_deltas_is_not_the_semaphore",
    "04_not_exactly_one_closing_message",
    "05_closing_message_without_completion_tasks",
    "06_children_before_work",
    "07_completion_tasks_without_closing",
    "08_marker_above_one",
    "09_outbox_row_without_its_digit",
    "10_terminal_step_without_its_message",
    "11_cancelled_job_with_an_open_step",
    "12_result_stored_but_attempt_goes_on",
    "13_obligation_that_nothing_will_touch",
    "14_two_steps_in_progress",
    "15_attempts_total_is_not_the_number_of_directives",
    "16_event_numbers_with_gaps",
    "18_request_without_its_run",
    "19_request_events_with_gaps",
    "20_tenant_slots_are_not_its_open_jobs",
    "21_counts_are_not_the_jobs",
    "22_completion_task_of_an_open_job",
    "23_key_of_two_jobs",
    "24_parked_but_claimable",
    "25_batch_cursor_is_not_its_journal",
    "26_batch_journal_with_gaps",
    "29_signal_and_wait_that_miss_each_other",
    "30_signal_that_went_nowhere",
    "31_more_admitted_than_the_limit",
    "32_slot_of_an_attempt_that_is_over",
    "33_begun_without_being_admitted",
    "34_waits_for_a_child_that_is_over",
    "35_inbox_row_and_what_became_of_it",
    "36_tick_that_became_another_job",
    "37_tick_that_its_schedule_has_not_come_to",
    "41_ending_job_of_which_all_waits",
}

/// The same, of what only SQLite has.
pub(crate) const SQLITE_CHECKS: &[(&str, &str)] = &[
    ("38_events_are_not_a_chain", include_str!("../sql/audit/38_events_are_not_a_chain.sql")),
    ("39_key_of_no_era", include_str!("../sql/audit/39_key_of_no_era.sql")),
];

/// A check that is too much for a query: its name, the query that reads what was found and what was told of each
/// job or request, and what compares the two.
pub(crate) type Fold = (&'static str, &'static str, fn(&str, &str) -> Result<(), String>);

/// The checks that fold events.
pub(crate) const FOLDS: &[Fold] = &[
    (
        "17_events_do_not_replay_to_the_row",
        include_str!("../sql/audit/17_events_do_not_replay_to_the_row.sql"),
        replay::job,
    ),
    (
        "27_request_events_do_not_replay_to_the_row",
        include_str!("../sql/audit/27_request_events_do_not_replay_to_the_row.sql"),
        replay::request,
    ),
];
