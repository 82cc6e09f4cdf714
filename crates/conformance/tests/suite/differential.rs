//! The same random commands on SQLite and Postgres: every answer and every row must be the same after
//! each, until every primitive has succeeded and every kind of outcome has been found.

use std::collections::BTreeSet;
use std::fmt::Debug;

use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::plan;
use sprag_engine::store::{
    Answer, DispatchWrite, EndWrite, FinishWrite, Held, NewJob, Store, StoreError,
};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::rows::LeaseId;
use sprag_kernel::{JobState, OutboxState, StepState};
use sprag_stores::TestClock;

use crate::play::{BEGIN_MS, Play, facts, new_job};
use crate::world::{Postgres, Rows, Sqlite, World};

/// Every table with its columns; `#` marks bytes.
pub const TABLES: [&str; 8] = [
    "engine engine_no name joined_at beat_at low# dead",
    "job job_id# state version semaphore initial current_step steps attempts_total events created_at \
     updated_at completed_at tenant_id request_type protocol_id dedup_key idempotency_key \
     idempotency_hash# mode doc_id lane routing_key priority correlation_id traceparent rerun_of# \
     error_code error_message schema_version input_ref output_ref payload",
    "attempt job_id# step_index branch turn attempt_no state version ledger guid ending content# \
     children closed_parked owner ready_at timer_at lease_id lease_expires_at outbox publish_attempts \
     sent_at acked_at losses created_at updated_at completed_at priority step_id step_type service \
     claim_id progress error_code error_message output output_ref",
    "stale job_id# step_index branch turn callback code attempt_no lease_id times at",
    "event job_id# n at step_index branch turn attempt_no changes",
    "tenant tenant_id max_open open_jobs",
    "completion job_id# task deliveries due_at owner created_at delivered_at error_message",
    "retired tenant_id dedup_key idempotency_hash# job_id# state retired_at",
];

/// What people read instead, with all columns; compared at the end.
const VIEWS: [&str; 2] = [
    "step job_id# step_index branch turn step_id step_type service state attempt_no version lease_id \
     lease_expires_at input_ref workspace_ref output_ref payload output resolved_mode lane \
     routing_key_used decision_source decision_reason last_error_code last_error_message ledger guid \
     created_at updated_at completed_at",
    "outbox job_id# step_index branch turn attempt_no step_id lease_id version state attempts not_before \
     reason topic partition_no payload resolved_mode lane routing_key_used decision_source \
     decision_reason created_at sent_at updated_at",
];

/// All rows of a table as text, in the order of its key.
pub async fn rows<W: World>(world: &W, table: &str) -> Rows {
    let (name, columns) = table.split_once(' ').unwrap();
    let shown: Vec<String> = columns
        .split_whitespace()
        .map(|column| match column.strip_suffix('#') {
            Some(bytes) => W::hex(bytes),
            None => format!("CAST({column} AS text)"),
        })
        .collect();
    let key = match name {
        "engine" => "t.engine_no",
        "job" | "retired" => "t.job_id",
        "attempt" | "outbox" => "t.job_id, t.step_index, t.branch, t.turn, t.attempt_no",
        "stale" => "t.job_id, t.step_index, t.branch, t.turn, t.callback, t.code",
        "event" => "t.job_id, t.n",
        "tenant" => "t.tenant_id",
        "completion" => "t.job_id, t.task",
        "step" => "t.job_id, t.step_index, t.branch, t.turn",
        other => panic!("{other} has no key"),
    };
    let sql = format!("SELECT {} FROM {name} AS t ORDER BY {key}", shown.join(", "));
    world.query(&sql).await.unwrap()
}

/// A small generator of numbers, so that a seed says all.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { Some(from[self.roll(from.len())].clone()) }
    }
}

/// A command as a value: the same for both stores.
#[derive(Clone, Debug)]
enum Command {
    Join,
    Beat(EngineNo),
    Silent,
    TakeOver(EngineNo, EngineNo),
    Due(EngineNo),
    PutProtocol(&'static str),
    Submit(EngineNo, Vec<NewJob>),
    Claim(EngineNo, u32),
    Dispatch(EngineNo, Vec<DispatchWrite>),
    End(EngineNo, Vec<EndWrite>),
    Finish(EngineNo, Vec<FinishWrite>),
    Cancel(EngineNo, JobId),
    RefuseLeg1(EngineNo, JobId),
    Read(JobId),
}

/// What a command answered, as text without what may differ.
async fn run<W: World>(play: &Play<W>, command: Command) -> String {
    fn told<T: Debug>(answer: Answer<T>) -> String {
        match answer {
            Ok(value) => format!("{value:?}"),
            // The words of the database differ.
            Err(StoreError::Poison(_)) => "Err(Poison)".to_owned(),
            Err(error) => format!("Err({error:?})"),
        }
    }
    let store = play.store();
    match command {
        Command::Join => told(store.join("engine").await),
        Command::Beat(engine) => told(store.beat(engine, None).await),
        Command::Silent => told(store.silent_engines(20_000).await),
        Command::TakeOver(dead, heir) => told(store.take_over(dead, heir).await),
        Command::Due(engine) => told(store.due(engine, 50).await),
        Command::PutProtocol(text) => told(store.put_protocol("other.v1", text).await),
        Command::Submit(engine, jobs) => told(store.submit(engine, jobs).await),
        Command::Claim(engine, max) => told(play.claim_as(engine, max).await),
        Command::Dispatch(engine, writes) => told(store.dispatch(engine, writes).await),
        Command::End(engine, writes) => told(store.end(engine, writes).await),
        Command::Finish(engine, writes) => told(store.finish(engine, writes).await),
        Command::Cancel(engine, job_id) => {
            let decide = |held: &Held, _| plan::cancel(held, None);
            told(store.amend(engine, job_id, None, Box::new(decide)).await)
        }
        Command::RefuseLeg1(engine, job_id) => {
            let decide = |held: &Held, _| plan::cancel_in_leg1(held);
            told(store.amend(engine, job_id, None, Box::new(decide)).await)
        }
        Command::Read(job_id) => {
            let (job, attempts, events) =
                tokio::join!(store.job(job_id), store.attempts(job_id), store.events(job_id));
            told(job) + &told(attempts) + &told(events)
        }
    }
}

/// What must have been found before the test may end: the name of a command and a part of its answer.
const SEEN: [(&str, &str); 31] = [
    ("Join", "EngineNo"),
    ("Beat", "()"),
    ("Beat", "Fenced"),
    ("Silent", "EngineNo"),
    ("TakeOver", "Held"),
    ("TakeOver", "Fenced"),
    ("Due", "promoted: 1"),
    ("Due", "Fenced"),
    ("PutProtocol", "()"),
    ("PutProtocol", "ProtocolChanged"),
    ("Submit", "created: true"),
    ("Submit", "created: false"),
    ("Submit", "IdempotencyKeyReused"),
    ("Submit", "Poison"),
    ("Submit", "Fenced"),
    ("Claim", "Held"),
    ("Claim", "Fenced"),
    ("Dispatch", "Done"),
    ("Dispatch", "Cancelling"),
    ("Dispatch", "Gone"),
    ("Dispatch", "Fenced"),
    ("End", "Entered"),
    ("End", "Stale"),
    ("End", "Fenced"),
    ("Finish", "job: Succeeded"),
    ("Finish", "job: FailedFinal"),
    ("Finish", "job: Cancelled"),
    ("Finish", "entered_next: true"),
    ("Finish", "Gone"),
    ("Cancel", "Cancelling"),
    ("RefuseLeg1", "Cancel"),
];

/// Both stores, with what a test needs to think of the next command.
struct Both {
    sqlite: Play<Sqlite>,
    postgres: Play<Postgres>,
    clock: TestClock,
    dice: Dice,
    engines: Vec<EngineNo>,
    jobs: Vec<JobId>,
    /// Writes of the past, to be repeated when nobody expects them.
    old: Vec<Command>,
    leases: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l49_the_same_commands_leave_the_same_rows_on_both_stores() {
    let seed = std::env::var("SPRAG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(42);
    let clock = TestClock::at(BEGIN_MS);
    let mut both = Both {
        sqlite: Play::begin_at(clock.clone()).await,
        postgres: Play::begin_at(clock.clone()).await,
        clock,
        dice: Dice(seed * 2 + 1),
        engines: vec![EngineNo(1)],
        jobs: Vec::new(),
        old: Vec::new(),
        leases: 0,
    };
    let mut found: BTreeSet<&(&str, &str)> = BTreeSet::new();
    let mut steps = 0;
    while found.len() < SEEN.len() || steps < 400 {
        steps += 1;
        let missing: Vec<_> = SEEN.iter().filter(|case| !found.contains(case)).collect();
        assert!(steps < 5_000, "seed {seed}: never found {missing:?}");
        let Some(command) = both.think().await else { continue };
        let answer = both.compare(seed, command.clone()).await;
        let name = format!("{command:?}");
        found.extend(SEEN.iter().filter(|(c, a)| name.starts_with(c) && answer.contains(a)));
        both.learn(&command, &answer);
    }
    for view in VIEWS {
        let (here, there) =
            (rows(&both.sqlite.world, view).await, rows(&both.postgres.world, view).await);
        assert!(!here.is_empty(), "{view}");
        assert_eq!(here, there, "{view}");
    }
    both.sqlite.expect_sound().await;
    both.postgres.expect_sound().await;
}

impl Both {
    async fn compare(&mut self, seed: u64, command: Command) -> String {
        let sqlite = run(&self.sqlite, command.clone()).await;
        let postgres = run(&self.postgres, command.clone()).await;
        assert_eq!(sqlite, postgres, "seed {seed}: the answers to {command:?}");
        for table in TABLES {
            let (here, there) =
                (rows(&self.sqlite.world, table).await, rows(&self.postgres.world, table).await);
            assert_eq!(here, there, "seed {seed}: {table} after {command:?}");
        }
        sqlite
    }

    fn learn(&mut self, command: &Command, answer: &str) {
        match command {
            Command::Join => self.engines.push(EngineNo(self.engines.len() as i64 + 1)),
            Command::Submit(_, jobs) if answer.contains("created: true") => {
                for job in jobs {
                    if answer.contains(&job.facts.job_id.to_string()) {
                        self.jobs.push(job.facts.job_id);
                    }
                }
            }
            Command::Dispatch(..) | Command::End(..) | Command::Finish(..) => {
                self.old.push(command.clone());
            }
            Command::Submit(..)
            | Command::Beat(_)
            | Command::Silent
            | Command::TakeOver(..)
            | Command::Due(_)
            | Command::PutProtocol(_)
            | Command::Claim(..)
            | Command::Cancel(..)
            | Command::RefuseLeg1(..)
            | Command::Read(_) => {}
        }
    }

    /// Mostly the newest engine acts, sometimes one that is dead.
    fn engine(&mut self) -> EngineNo {
        let newest = self.engines[self.engines.len() - 1];
        if self.dice.roll(12) > 0 { newest } else { self.dice.pick(&self.engines).unwrap() }
    }

    async fn think(&mut self) -> Option<Command> {
        let engine = self.engine();
        match self.dice.roll(40) {
            0 => Some(Command::Join),
            1 => {
                self.clock.advance([1, 700, 30_000, 120_000][self.dice.roll(4)]);
                Some(Command::Due(engine))
            }
            2 => Some(Command::Beat(engine)),
            3 => Some(Command::Silent),
            4 => {
                let dead = self.dice.pick(&self.engines)?;
                (dead != engine).then_some(Command::TakeOver(dead, engine))
            }
            5 => Some(Command::PutProtocol(["one", "one", "two"][self.dice.roll(3)])),
            6..=9 => Some(Command::Submit(engine, self.new_jobs())),
            10..=15 => Some(Command::Claim(engine, 1 + u32::try_from(self.dice.roll(3)).unwrap())),
            16 | 17 => self.dice.pick(&self.jobs).map(|job_id| Command::Cancel(engine, job_id)),
            18 | 19 => self.dice.pick(&self.jobs).map(Command::Read),
            20 | 21 => self.dice.pick(&self.old),
            _ => self.move_on(engine).await,
        }
    }

    fn new_jobs(&mut self) -> Vec<NewJob> {
        let count = 1 + self.dice.roll(3);
        (0..count)
            .map(|_| {
                let key = format!("k{}", self.dice.roll(60));
                let content = ["a", "a", "a", "b"][self.dice.roll(4)];
                let mut facts = facts("t1", Some(&key), content);
                facts.priority = i32::try_from(self.dice.roll(3)).unwrap() - 1;
                if self.dice.roll(40) == 0 {
                    facts.protocol_id.replace_range(.., "nobody.v1");
                }
                let mut job = new_job(facts, 1 + self.dice.roll(3));
                job.enter = self.dice.roll(4) == 0;
                if self.dice.roll(5) == 0 {
                    job.not_before = Some((self.clock.now() + 10_000).cast_unsigned());
                }
                job
            })
            .collect()
    }

    /// The next move of a job that is under way, as its rows say.
    async fn move_on(&mut self, engine: EngineNo) -> Option<Command> {
        let job_id = self.dice.pick(&self.jobs)?;
        let mut held = self.sqlite.held(job_id).await;
        let row = held.attempt;
        let finished = row.ending.is_some_and(|ending| ending.guid.children_spawned());
        if finished || row.ledger.leg1_entries() == 0 {
            return None;
        }
        if row.ending.is_some() {
            let enter_next = self.dice.roll(2) == 0;
            let write = self.sqlite.finish_write(&held, enter_next).ok()?;
            return Some(Command::Finish(engine, vec![write]));
        }
        if !row.ledger.leg1_complete() {
            let is_owned = self
                .sqlite
                .attempts(job_id)
                .await
                .iter()
                .any(|attempt| attempt.key == held.key && attempt.owner.is_some());
            return if is_owned { self.leg1(engine, &mut held) } else { None };
        }
        assert_eq!((row.state, row.outbox), (StepState::InProgress, Some(OutboxState::Sent)));
        let write = match self.dice.roll(10) {
            0 => Play::<Sqlite>::lost_write(&held).ok()?,
            1 | 2 => Play::<Sqlite>::result_write(&held, Report::Retryable),
            3 => Play::<Sqlite>::result_write(&held, Report::NonRetryable),
            _ => Play::<Sqlite>::result_write(&held, Report::Succeeded),
        };
        Some(Command::End(engine, vec![write]))
    }

    fn leg1(&mut self, engine: EngineNo, held: &mut Held) -> Option<Command> {
        if held.job.state == JobState::Cancelling && self.dice.roll(2) == 0 {
            return Some(Command::RefuseLeg1(engine, held.key.job_id));
        }
        if held.job.state == JobState::Cancelling {
            // As an engine that has not heard of the cancel.
            held.job.state = JobState::Queued;
        }
        self.leases += 1;
        let policy = &self.sqlite.policy;
        let write = sprag_engine::plan::dispatch(held, LeaseId(self.leases), policy).ok()?;
        Some(Command::Dispatch(engine, vec![write]))
    }
}
