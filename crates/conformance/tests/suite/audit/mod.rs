//! The audit, audited: each of its checks is broken by hand, past every guard of the tables, and must be the one
//! that says so, of the job in question. What else must follow from the same damage is listed with it. Each
//! damage is mended again, so that nothing hides behind it.

mod beside;

use std::collections::BTreeSet;

use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{FinishOutcome, NewJob, Store};
use sprag_engine::upkeep::Upkeep;
use sprag_kernel::JobState;
use sprag_kernel::decide::callback::Report;

use crate::on_both_stores;
use crate::play::{Play, facts, new_job};
use crate::world::{Sqlite, World};

/// The name of the tenant that all jobs belong to.
const TENANT: &str = "t1";

/// Two steps and one that waits for both.
const GRAPH: &str = "
protocol_id: graph.v1
request_types: [GRAPH]
steps:
  - {step_id: left, needs: [], service: work}
  - {step_id: right, needs: [], service: work}
  - {step_id: both, needs: [left, right], service: work}
";

/// Jobs in various states, by what they show, and a request whose run is one of them.
struct Books {
    queued: JobId,
    joining: JobId,
    running: JobId,
    retrying: JobId,
    done: JobId,
    failed: JobId,
    cancelled: JobId,
    requested: JobId,
    request: JobId,
}

async fn create<W: World>(play: &Play<W>, key: &str, steps: usize) -> JobId {
    play.submit(new_job(facts(TENANT, Some(key), key), steps)).await.unwrap().job_id
}

impl Books {
    async fn write<W: World>(play: &Play<W>) -> Self {
        play.store().limit_tenant(TENANT, Some(100)).await.unwrap();
        create(play, "old", 1).await;
        play.run_step(Report::Succeeded).await;
        play.clock.advance(10);
        let done = create(play, "done", 2).await;
        let retired = play.store().retire(play.engine, 5, None, 10).await.unwrap();
        assert_eq!(retired.deleted, 1, "a key is left of the first");
        play.run_step(Report::Succeeded).await;
        play.run_step(Report::Succeeded).await;
        let failed = create(play, "failed", 2).await;
        play.run_step(Report::NonRetryable).await;
        let cancelled = Self::cancelled(play).await;
        let retrying = create(play, "retrying", 1).await;
        play.run_step(Report::Retryable).await;
        let running = create(play, "running", 2).await;
        play.dispatch(&mut play.claim().await).await;
        let (request, requested) = Self::requested(play).await;
        let [queued, joining] = Self::waiting(play).await;
        play.expect_sound().await;
        Self { queued, joining, running, retrying, done, failed, cancelled, requested, request }
    }

    /// Two that nobody has begun. They come together, and so their keys are in one era, which has no filter yet.
    async fn waiting<W: World>(play: &Play<W>) -> [JobId; 2] {
        play.store().put_protocol("graph.v1", GRAPH).await.unwrap();
        let graph = Protocol::read(GRAPH).unwrap().graph().unwrap();
        let mut joining = facts(TENANT, Some("joining"), "joining");
        "graph.v1".clone_into(&mut joining.protocol_id);
        let joining = NewJob { steps: graph.new_steps(), is_graph: true, ..new_job(joining, 1) };
        let queued = new_job(facts(TENANT, Some("queued"), "queued"), 2);
        let submitted = play.store().submit(play.engine, vec![queued, joining]).await.unwrap();
        [0, 1].map(|n| submitted[n].as_ref().unwrap().job_id)
    }

    async fn cancelled<W: World>(play: &Play<W>) -> JobId {
        let job_id = create(play, "cancelled", 2).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        play.cancel(job_id).await.unwrap();
        play.report(&mut held, Report::Retryable).await;
        let outcome = play.finish(&held).await;
        assert!(matches!(outcome, FinishOutcome::Done { job: JobState::Cancelled, .. }));
        job_id
    }

    async fn requested<W: World>(play: &Play<W>) -> (JobId, JobId) {
        let request = JobId::new();
        let mut facts = facts(TENANT, None, "requested");
        facts.dedup_key = format!("r:{request}:1");
        let job_id = play.submit(new_job(facts, 1)).await.unwrap().job_id;
        let (id, job) = (W::id(request), W::id(job_id));
        let sql = format!(
            "INSERT INTO request (request_id, status, version, run_no, job_id, events, created_at,
                 updated_at, tenant_id, request_type, request_key, content_hash, plan_revision,
                 requirement, inputs, envelope, protocol_id)
             VALUES ({id}, 2, 5, 1, {job}, 5, 1, 1, '{TENANT}', 'TEST', {id}, {id}, '1', 'x', '{{}}',
                 '{{}}', 'test.v1');
             INSERT INTO request_event (request_id, n, at, changes)
             VALUES ({id}, 1, 1, 'created'), ({id}, 2, 1, 'R0>1'), ({id}, 3, 1, 'edited'),
                 ({id}, 4, 1, 'R1>2'), ({id}, 5, 1, 'R2>3')"
        );
        play.world.execute(&sql).await.unwrap();
        (request, job_id)
    }
}

/// A statement that breaks an invariant, the one that mends it, the check that must tell, of whom, and
/// which others cannot but tell too.
struct Damage {
    check: &'static str,
    of: Option<JobId>,
    breaks: String,
    mends: String,
    follows: &'static [&'static str],
}

/// Adds to or takes from a column, and back.
fn shift(
    check: &'static str,
    of: JobId,
    (table, column, by): (&str, &str, i64),
    row: &str,
) -> Damage {
    let set = |by: i64| format!("UPDATE {table} SET {column} = {column} + ({by}) WHERE {row}");
    Damage { check, of: Some(of), breaks: set(by), mends: set(-by), follows: &[] }
}

/// Sets a column, and sets it back.
fn set(
    check: &'static str,
    of: JobId,
    (table, column): (&str, &str),
    to: [&str; 2],
    row: &str,
) -> Damage {
    let set = |to: &str| format!("UPDATE {table} SET {column} = {to} WHERE {row}");
    Damage { check, of: Some(of), breaks: set(to[0]), mends: set(to[1]), follows: &[] }
}

/// The same with jobs counted anew: by triggers on Postgres, but on SQLite by whoever writes a state.
fn recounted(damage: Damage) -> Damage {
    let with_counts = |sql: String| {
        format!(
            "{sql}; DELETE FROM job_count;
             INSERT INTO job_count (shard, state, jobs)
             SELECT 0, state, count(*) FROM job GROUP BY state"
        )
    };
    Damage { breaks: with_counts(damage.breaks), mends: with_counts(damage.mends), ..damage }
}

const OBLIGATIONS: &str = "01_terminal_job_with_open_obligations";
const LIVE: &str = "02_semaphore_is_not_the_number_of_live_obligations";
const DELTAS: &str = "03_initial_plus_deltas_is_not_the_semaphore";
const CLOSERS: &str = "04_not_exactly_one_closing_message";
const TASKS: &str = "05_closing_message_without_completion_tasks";
const CHILDREN: &str = "06_children_before_work";
const EARLY_TASKS: &str = "07_completion_tasks_without_closing";
const MARKERS: &str = "08_marker_above_one";
const OUTBOX: &str = "09_outbox_row_without_its_digit";
const MESSAGE: &str = "10_terminal_step_without_its_message";
const CANCELLED: &str = "11_cancelled_job_with_an_open_step";
const STORED: &str = "12_result_stored_but_attempt_goes_on";
const ABANDONED: &str = "13_obligation_that_nothing_will_touch";
const TWO_STEPS: &str = "14_two_steps_in_progress";
const DIRECTIVES: &str = "15_attempts_total_is_not_the_number_of_directives";
const GAPS: &str = "16_event_numbers_with_gaps";
const REPLAY: &str = "17_events_do_not_replay_to_the_row";
const RUN: &str = "18_request_without_its_run";
const REQUEST_GAPS: &str = "19_request_events_with_gaps";
const SLOTS: &str = "20_tenant_slots_are_not_its_open_jobs";
const COUNTS: &str = "21_counts_are_not_the_jobs";
const OPEN_TASK: &str = "22_completion_task_of_an_open_job";
const TWICE: &str = "23_key_of_two_jobs";
const PARKED: &str = "24_parked_but_claimable";
const CURSOR: &str = "25_batch_cursor_is_not_its_journal";
const JOURNAL: &str = "26_batch_journal_with_gaps";
const REQUEST_REPLAY: &str = "27_request_events_do_not_replay_to_the_row";
const MISSED: &str = "29_signal_and_wait_that_miss_each_other";
const NOWHERE: &str = "30_signal_that_went_nowhere";
const COUNTDOWN: &str = "28_countdown_is_not_the_unfinished_predecessors";
const ADMITTED: &str = "31_more_admitted_than_the_limit";
const KEPT_SLOT: &str = "32_slot_of_an_attempt_that_is_over";
const UNADMITTED: &str = "33_begun_without_being_admitted";
const CHILD_OVER: &str = "34_waits_for_a_child_that_is_over";
const INBOX: &str = "35_inbox_row_and_what_became_of_it";
const OTHER_JOB: &str = "36_tick_that_became_another_job";
const AHEAD: &str = "37_tick_that_its_schedule_has_not_come_to";
const CHAIN: &str = "38_events_are_not_a_chain";
const NO_ERA: &str = "39_key_of_no_era";
const DENIED: &str = "40_key_that_its_filter_denies";
const ALL_WAITS: &str = "41_ending_job_of_which_all_waits";
const ENDS: &str = "42_end_that_its_steps_do_not_bear_out";

/// What can be done to the row of a job and to its ledgers.
fn to_jobs<W: World>(books: &Books) -> Vec<Damage> {
    let job = |id| format!("job_id = {}", W::id(id));
    let at = |id, step: u32, attempt: u32| {
        format!("job_id = {} AND step_index = {step} AND attempt_no = {attempt}", W::id(id))
    };
    let (done, running, retrying) = (books.done, books.running, books.retrying);
    let first = at(done, 0, 1);
    let last = at(done, 1, 1);
    let runs = at(running, 0, 1);
    let guid = |by| ("attempt", "guid", by);
    vec![
        Damage {
            follows: &[LIVE, DELTAS],
            ..shift(OBLIGATIONS, done, ("job", "semaphore", 1), &job(done))
        },
        Damage {
            follows: &[LIVE, DELTAS],
            ..shift(OBLIGATIONS, running, ("job", "semaphore", -1), &job(running))
        },
        set(LIVE, books.queued, ("attempt", "ready_at"), ["NULL", "1"], &at(books.queued, 0, 1)),
        set(LIVE, retrying, ("attempt", "timer_at"), ["NULL", "1"], &at(retrying, 0, 2)),
        set(CHILD_OVER, running, ("attempt", "child_id"), [&W::id(done), "NULL"], &runs),
        shift(DELTAS, books.queued, ("job", "initial", 1), &job(books.queued)),
        shift(CLOSERS, done, guid(100_100_000_000), &first),
        shift(CLOSERS, done, guid(-100_100_000_000), &last),
        shift(TASKS, done, guid(-100_000_000), &last),
        // Nor does an engine help that is not there.
        Damage {
            breaks: format!(
                "UPDATE attempt SET guid = guid - 100000000, owner = 1000 WHERE {last}"
            ),
            mends: format!("UPDATE attempt SET guid = guid + 100000000, owner = NULL WHERE {last}"),
            ..shift(TASKS, done, guid(-100_000_000), &last)
        },
        shift(CHILDREN, retrying, guid(-10_000_000_000), &at(retrying, 0, 1)),
        shift(EARLY_TASKS, done, guid(100_000_000), &first),
        shift(MARKERS, done, ("attempt", "ledger", 100_000_000), &last),
        shift(MARKERS, done, guid(10_000_000_000), &last),
        shift(OUTBOX, running, ("attempt", "ledger", -100_000_000_000), &runs),
        Damage {
            follows: &[DIRECTIVES, REPLAY],
            ..set(OUTBOX, running, ("attempt", "outbox"), ["NULL", "1"], &runs)
        },
        Damage { follows: &[CHILDREN], ..shift(MESSAGE, done, guid(-10_000_000_000), &first) },
        Damage {
            follows: &[CHILDREN],
            ..shift(MESSAGE, books.cancelled, guid(-10_000_000_000), &at(books.cancelled, 0, 1))
        },
        Damage {
            follows: &[REPLAY],
            ..set(
                CANCELLED,
                books.cancelled,
                ("attempt", "state"),
                ["0", "7"],
                &at(books.cancelled, 1, 1),
            )
        },
        set(STORED, done, ("attempt", "timer_at"), ["1", "NULL"], &first),
        set(STORED, done, ("attempt", "ready_at"), ["1", "NULL"], &first),
        set(ABANDONED, running, ("attempt", "owner"), ["owner + 1000", "owner - 1000"], &runs),
        Damage {
            follows: &[REPLAY],
            ..set(TWO_STEPS, running, ("attempt", "state"), ["3", "0"], &at(running, 1, 1))
        },
        shift(DIRECTIVES, running, ("job", "attempts_total", 1), &job(running)),
        shift(ENDS, done, ("job", "steps", 1), &job(done)),
        Damage { follows: &[REPLAY], ..set(ENDS, done, ("attempt", "state"), ["6", "4"], &first) },
        Damage {
            follows: &[REPLAY],
            ..set(ENDS, books.failed, ("attempt", "state"), ["4", "6"], &at(books.failed, 0, 1))
        },
    ]
}

/// What can be done to a graph.
fn to_graphs<W: World>(books: &Books) -> Vec<Damage> {
    let of = books.joining;
    let job = format!("job_id = {}", W::id(of));
    let roots = format!("{job} AND step_index < 2");
    let join = format!("{job} AND step_index = 2");
    let join_is = |breaks: &str, mends: &str, follows: &'static [&'static str]| {
        let set = |to: &str| format!("UPDATE attempt SET {to} WHERE {join}");
        Damage { check: COUNTDOWN, of: Some(of), breaks: set(breaks), mends: set(mends), follows }
    };
    // Its end is certain, and nothing of it is in the queue.
    let ending = |parked: &str, unparked: &str| {
        let set = |verdict: &str, to: &str| {
            format!(
                "UPDATE job SET verdict = {verdict} WHERE {job}; UPDATE attempt SET {to} WHERE {roots}"
            )
        };
        let (breaks, mends) = (set("5", parked), set("NULL", unparked));
        Damage { check: ALL_WAITS, of: Some(of), breaks, mends, follows: &[] }
    };
    vec![
        shift(COUNTDOWN, of, ("attempt", "countdown", -1), &join),
        shift(COUNTDOWN, of, ("attempt", "countdown", 1), &join),
        // It began too early, or could, or nothing will ever have it begin.
        join_is("countdown = 0, ready_at = 1", "countdown = 2, ready_at = NULL", &[]),
        join_is("countdown = 0, timer_at = 1", "countdown = 2, timer_at = NULL", &[]),
        join_is("countdown = 0", "countdown = 2", &[LIVE]),
        join_is("countdown = 0, state = 4", "countdown = 2, state = 0", &[LIVE, REPLAY, MESSAGE]),
        set(COUNTDOWN, of, ("job", "protocol_id"), ["'gone'", "'graph.v1'"], &job),
        // It waits for a worker, and there may be none.
        ending("ready_at = 1", "ready_at = 1"),
        ending("ready_at = NULL, countdown = 1", "ready_at = 1, countdown = 0"),
        ending(
            "ready_at = NULL, ledger = 1000000000000, waits_for = 'go'",
            "ready_at = 1, ledger = 0, waits_for = NULL",
        ),
    ]
}

/// What can be done to histories.
fn to_events<W: World>(books: &Books) -> Vec<Damage> {
    let running = books.running;
    let job = format!("job_id = {}", W::id(running));
    let runs = format!("{job} AND step_index = 0");
    let told = |n: u32| format!("{job} AND n = {n}");
    let created = |to| {
        let row = format!("job_id = {} AND n = 1", W::id(books.queued));
        set(REPLAY, books.queued, ("event", "changes"), [to, "'created'"], &row)
    };
    let waits = format!("{job} AND step_index = 1");
    let verdict = |to: &str| format!("UPDATE job SET verdict = {to} WHERE {job}");
    let step = |to: &str, row: &str| format!("UPDATE attempt SET state = {to} WHERE {row}");
    let nowhere = ("event", "step_index");
    vec![
        Damage {
            mends: format!("UPDATE event SET n = 2 WHERE {}", told(52)),
            ..shift(GAPS, running, ("event", "n", 50), &told(2))
        },
        recounted(set(REPLAY, running, ("job", "state"), ["1", "2"], &job)),
        set(REPLAY, running, ("attempt", "state"), ["2", "3"], &runs),
        set(REPLAY, running, ("attempt", "outbox"), ["0", "1"], &runs),
        // What waits is closed in silence where the end is certain, and nowhere else; what runs never is.
        set(REPLAY, running, ("attempt", "state"), ["7", "0"], &waits),
        Damage {
            breaks: format!("{}; {}", verdict("6"), step("2", &runs)),
            mends: format!("{}; {}", verdict("NULL"), step("3", &runs)),
            ..set(REPLAY, running, ("attempt", "state"), ["2", "3"], &runs)
        },
        Damage {
            breaks: format!("{}; {}", verdict("6"), step("4", &waits)),
            mends: format!("{}; {}", verdict("NULL"), step("0", &waits)),
            follows: &[MESSAGE],
            ..set(REPLAY, running, ("attempt", "state"), ["4", "0"], &waits)
        },
        set(REPLAY, running, nowhere, ["7", "0"], &told(2)),
        created("'J0>2 '"),
        created("'O0>1 '"),
        created("'S0>1'"),
        created("'nonsense'"),
    ]
}

/// What can be done to the chain of events, where there is one.
fn to_chains<W: World>(books: &Books) -> Vec<Damage> {
    if W::CHAINED.is_empty() {
        return Vec::new();
    }
    let (done, running, queued) = (books.done, books.running, books.queued);
    let job = |id| format!("job_id = {}", W::id(id));
    let told = |id, n: u32| format!("{} AND n = {n}", job(id));
    let of_another = format!("(SELECT last_event FROM job WHERE {})", job(queued));
    let its_own = format!("(SELECT pos FROM event WHERE {})", told(done, 1));
    vec![
        set(CHAIN, done, ("event", "before"), ["NULL", &its_own], &told(done, 2)),
        set(CHAIN, done, ("event", "before"), [&of_another, &its_own], &told(done, 2)),
        set(CHAIN, queued, ("event", "before"), ["pos", "NULL"], &told(queued, 1)),
        shift(CHAIN, running, ("job", "last_event", -1), &job(running)),
        shift(CHAIN, running, ("job", "last_event", 1), &job(running)),
    ]
}

/// What can be done to the eras of keys, where there are any.
fn to_eras<W: World>(books: &Books) -> Vec<Damage> {
    if !W::OWN_CHECKS.contains(&NO_ERA) {
        return Vec::new();
    }
    let job = format!("job_id = {}", W::id(books.queued));
    vec![
        shift(NO_ERA, books.queued, ("job", "era", 1_000), &job),
        // An era that was full before the key came.
        shift(DENIED, books.queued, ("job", "era", -1), &job),
    ]
}

/// The checks that find something, and of whom.
async fn told<W: World>(play: &Play<W>) -> BTreeSet<(String, Option<JobId>)> {
    let checks = play.store().audit().await.unwrap();
    let told = checks.iter().flat_map(|check| {
        let is_of_requests = [RUN, REQUEST_GAPS, REQUEST_REPLAY].contains(&check.name.as_str());
        check.violations.iter().map(move |violation| {
            let (of, other) = (violation.job_id, violation.request_id);
            let (of, other) = if is_of_requests { (other, of) } else { (of, other) };
            assert_eq!(other, None, "{}", check.name);
            (check.name.clone(), of)
        })
    });
    told.collect()
}

/// The names of the files, but for those of the other store.
fn files<W: World>() -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../stores/sql/audit");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        path.file_stem().unwrap().to_str().unwrap().to_owned()
    };
    let own = Sqlite::OWN_CHECKS;
    let is_here =
        |name: &String| !own.contains(&name.as_str()) || W::OWN_CHECKS.contains(&name.as_str());
    std::fs::read_dir(folder).unwrap().map(name).filter(is_here).collect()
}

on_both_stores! {
    async fn each_damage_is_told_by_its_check_and_by_no_other<W>(play: &Play<W>) {
        let books = Books::write(play).await;
        let mut damages = to_jobs::<W>(&books);
        damages.extend(to_graphs::<W>(&books));
        damages.extend(to_events::<W>(&books));
        damages.extend(to_chains::<W>(&books));
        damages.extend(to_eras::<W>(&books));
        damages.extend(beside::to_the_rest::<W>(&books));
        damages.extend(beside::to_gates::<W>(&books));
        damages.extend(beside::to_ticks::<W>(&books));
        for damage in &damages {
            let Damage { check, of, breaks, mends, follows } = damage;
            let execute = async |sql: &str| {
                let sql = format!("{} {sql}", W::past_checks());
                play.world.execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
            };
            execute(breaks).await;
            let expected: BTreeSet<_> =
                follows.iter().chain([check]).map(|name| ((*name).to_owned(), *of)).collect();
            assert_eq!(told(play).await, expected, "{breaks}");
            execute(mends).await;
            assert_eq!(told(play).await, BTreeSet::new(), "{mends}");
        }
        let tried: BTreeSet<_> = damages.iter().map(|damage| damage.check.to_owned()).collect();
        assert_eq!(tried, files::<W>(), "every check is broken here");
        let run: BTreeSet<_> =
            play.store().audit().await.unwrap().into_iter().map(|check| check.name).collect();
        assert_eq!(run, files::<W>(), "every file is run");
    }
}
