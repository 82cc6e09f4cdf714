//! The same random commands on SQLite, on Postgres and on the model: every answer and every row must be the
//! same after each, until every primitive has succeeded and every kind of outcome and refusal has been found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use sprag_engine::ids::{AttemptKey, EngineNo, JobId};
use sprag_engine::plan;
use sprag_engine::store::{
    Answer, AttemptError, Decide, DispatchOutcome, DispatchWrite, EndOutcome, EndWrite,
    FinishOutcome, FinishWrite, Held, NewJob, Store, StoreError, Submitted,
};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::rows::{Ending, EndingKind, Fence, LeaseId};
use sprag_kernel::{Code, JobState, Refusal, StepState};
use sprag_stores::TestClock;

use crate::model::Model;
use crate::play::{BEGIN_MS, Play, acknowledging, directive_write, facts, new_job, publishing};
use crate::world::{Postgres, Rows, Sqlite, World};

/// Every table with its columns; `#` marks bytes.
pub const TABLES: [&str; 8] = [
    "engine engine_no name joined_at beat_at dead",
    "job job_id# state version semaphore initial current_step steps attempts_total is_graph verdict events created_at \
     updated_at completed_at tenant_id request_type protocol_id dedup_key idempotency_key \
     idempotency_hash# mode doc_id lane routing_key priority correlation_id traceparent rerun_of# \
     error_code error_message schema_version input_ref output_ref payload",
    "attempt job_id# step_index branch turn attempt_no state version ledger guid ending content# \
     children closed_parked countdown delay_ms owner ready_at timer_at lease_id lease_expires_at outbox publish_attempts \
     sent_at acked_at losses excused created_at updated_at completed_at priority step_id step_type service \
     claim_id progress error_code error_message output output_ref item gate gate_max gate_gap admitted_at child_id#",
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
    TakeOver(EngineNo, EngineNo),
    Due(EngineNo),
    PutProtocol(&'static str),
    Submit(EngineNo, Vec<NewJob>),
    Claim(EngineNo, u32),
    Dispatch(EngineNo, Vec<DispatchWrite>),
    End(EngineNo, Vec<EndWrite>),
    Finish(EngineNo, Vec<FinishWrite>),
    Cancel(EngineNo, JobId, Option<u64>),
    RefuseLeg1(EngineNo, JobId),
    FailLeg1(EngineNo, JobId, LeaseId),
    Publish(EngineNo, JobId, u64),
    Ack(EngineNo, JobId, Fence),
    PoisonMessage(EngineNo, AttemptKey),
    Leave(EngineNo),
    Read(JobId),
}

/// What a command did, as far as the model needs to be told.
enum Effect {
    Nothing,
    /// Which jobs it created.
    Created(BTreeSet<JobId>),
    Claimed(Vec<AttemptKey>),
    TakenOver(Vec<AttemptKey>),
    /// Which writes of the slice were done by this very call.
    Done(Vec<bool>),
    /// Which were, and whether the next step was entered with each.
    Finished(Vec<Option<bool>>),
    /// A decision under the locks was made, or refused.
    Decided(Result<(), Refusal>),
}

/// An answer as text without what may differ.
fn told<T: Debug>(answer: &Answer<T>) -> String {
    match answer {
        Ok(value) => format!("{value:?}"),
        // The words of the database differ.
        Err(StoreError::Poison(_)) => "Err(Poison)".to_owned(),
        Err(error) => format!("Err({error:?})"),
    }
}

/// What a command answered, and what it did.
async fn run<W: World>(play: &Play<W>, command: Command) -> (String, Effect) {
    let store = play.store();
    let idle = |text: String| (text, Effect::Nothing);
    match command {
        Command::Join => idle(told(&store.join("engine").await)),
        Command::Beat(engine) => idle(told(&store.beat(engine, Some(20_000)).await)),
        Command::Leave(engine) => idle(told(&store.leave(engine).await)),
        Command::Due(engine) => idle(told(&store.due(engine, 50).await)),
        Command::PutProtocol(text) => idle(told(&store.put_protocol("other.v1", text).await)),
        Command::TakeOver(dead, heir) => {
            let answer = store.take_over(dead, heir).await;
            (told(&answer), Effect::TakenOver(keys(answer)))
        }
        Command::Submit(engine, jobs) => {
            let answer = store.submit(engine, jobs).await;
            (told(&answer), Effect::Created(created(&answer)))
        }
        Command::Claim(engine, max) => {
            let answer = play.claim_as(engine, max).await;
            (told(&answer), Effect::Claimed(keys(answer)))
        }
        Command::Dispatch(engine, writes) => {
            let answer = store.dispatch(engine, writes).await;
            let done = |outcome: &DispatchOutcome| matches!(outcome, DispatchOutcome::Done { .. });
            (told(&answer), Effect::Done(answer.iter().flatten().map(done).collect()))
        }
        Command::End(engine, writes) => {
            let answer = store.end(engine, writes).await;
            let done = |outcome: &EndOutcome| matches!(outcome, EndOutcome::Entered { .. });
            (told(&answer), Effect::Done(answer.iter().flatten().map(done).collect()))
        }
        Command::Finish(engine, writes) => {
            let answer = store.finish(engine, writes).await;
            let done = |outcome: &FinishOutcome| match outcome {
                FinishOutcome::Done { entered_next, .. } => Some(*entered_next),
                FinishOutcome::Gone => None,
            };
            (told(&answer), Effect::Finished(answer.iter().flatten().map(done).collect()))
        }
        Command::Cancel(engine, job_id, version) => {
            let decide = move |held: &Held, _| plan::cancel(held, version);
            decided(store, (engine, job_id), Box::new(decide)).await
        }
        Command::RefuseLeg1(engine, job_id) => {
            let decide = |held: &Held, _| plan::cancel_in_leg1(held);
            decided(store, (engine, job_id), Box::new(decide)).await
        }
        Command::FailLeg1(engine, job_id, lease) => {
            let decide = move |held: &Held, now| {
                plan::fail_in_leg1(held, lease, now, (Code::MessagePoison, "played"))
            };
            decided(store, (engine, job_id), Box::new(decide)).await
        }
        Command::Publish(engine, job_id, version) => {
            let decide = Box::new(publishing(&play.policy, version));
            decided(store, (engine, job_id), decide).await
        }
        Command::Ack(engine, job_id, fence) => {
            let decide = Box::new(acknowledging(&play.policy, fence));
            decided(store, (engine, job_id), decide).await
        }
        Command::PoisonMessage(engine, key) => {
            let decide = move |held: &Held, _| plan::poison_message(held, &key);
            decided(store, (engine, key.job_id), Box::new(decide)).await
        }
        Command::Read(job_id) => {
            let (job, attempts, events) =
                tokio::join!(store.job(job_id), store.attempts(job_id), store.events(job_id));
            idle(told(&job) + &told(&attempts) + &told(&events))
        }
    }
}

async fn decided<S: Store, T: Debug + Send + 'static>(
    store: &S,
    (engine, job_id): (EngineNo, JobId),
    decide: Decide<T>,
) -> (String, Effect) {
    let answer = store.amend(engine, job_id, None, decide).await;
    let text = told(&answer);
    let effect = match answer {
        Ok(Some(decided)) => Effect::Decided(decided.map(|_| ())),
        Ok(None) | Err(_) => Effect::Nothing,
    };
    (text, effect)
}

fn keys(answer: Answer<Vec<Held>>) -> Vec<AttemptKey> {
    answer.into_iter().flatten().map(|held| held.key).collect()
}

fn created(answer: &Answer<Vec<Result<Submitted, Refusal>>>) -> BTreeSet<JobId> {
    let submitted = answer.iter().flatten().flatten();
    submitted.filter(|submitted| submitted.created).map(|submitted| submitted.job_id).collect()
}

/// What must have been found before the test may end: the name of a command and a part of its answer.
const SEEN: &[(&str, &str)] = &[
    ("Join", "EngineNo"),
    ("Beat", "has_mail: false"),
    ("Beat", "silent: [EngineNo"),
    ("Beat", "Fenced"),
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
    ("Dispatch", "Ending"),
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
    ("Finish", "job: InProgress"),
    ("Cancel", "Cancelling"),
    ("Cancel", "Succeeded"),
    ("Cancel", "JobVersionConflict"),
    ("Cancel", "Fenced"),
    ("RefuseLeg1", "Cancel"),
    ("FailLeg1", "MessagePoison"),
    ("Publish", "Ok(())"),
    ("Publish", "JobVersionConflict"),
    ("Publish", "OutboxIllegalTransition"),
    ("Publish", "NotYet"),
    ("Ack", "Ok(())"),
    ("Ack", "StaleFence"),
    ("Ack", "NotYet"),
    ("PoisonMessage", "NonRetryable"),
    ("PoisonMessage", "Ok(None)"),
    ("Leave", "()"),
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
    model: Model,
    /// The ledgers of every attempt as they were last seen.
    ledgers: BTreeMap<Vec<Option<String>>, (u64, u64)>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l49_the_same_commands_leave_the_same_rows_on_both_stores() {
    let given = std::env::var("SPRAG_SEED").ok().map(|seed| vec![seed.parse().unwrap()]);
    let count: u64 = std::env::var("SPRAG_SEEDS").map_or(2, |count| count.parse().unwrap());
    for seed in given.unwrap_or_else(|| (42..42 + count).collect()) {
        Both::begin(seed).await.run_until_all_is_found(seed).await;
    }
}

impl Both {
    async fn begin(seed: u64) -> Self {
        let clock = TestClock::at(BEGIN_MS);
        Self {
            sqlite: Play::begin_at(clock.clone()).await,
            postgres: Play::begin_at(clock.clone()).await,
            clock,
            dice: Dice(seed * 2 + 1),
            engines: vec![EngineNo(1)],
            jobs: Vec::new(),
            old: Vec::new(),
            leases: 0,
            model: Model::default(),
            ledgers: BTreeMap::new(),
        }
    }

    async fn run_until_all_is_found(&mut self, seed: u64) {
        let mut found: BTreeSet<&(&str, &str)> = BTreeSet::new();
        let mut steps = 0;
        while found.len() < SEEN.len() || steps < 400 {
            steps += 1;
            let missing: Vec<_> = SEEN.iter().filter(|case| !found.contains(case)).collect();
            assert!(steps < 5_000, "seed {seed}: never found {missing:?}");
            let Some(command) = self.think().await else { continue };
            let answer = self.compare(seed, command.clone()).await;
            let name = format!("{command:?}");
            found.extend(SEEN.iter().filter(|(c, a)| name.starts_with(c) && answer.contains(a)));
            self.learn(&command, &answer);
        }
        for view in VIEWS {
            let (here, there) =
                (rows(&self.sqlite.world, view).await, rows(&self.postgres.world, view).await);
            assert!(!here.is_empty(), "{view}");
            assert_eq!(here, there, "seed {seed}: {view}");
        }
        self.sqlite.expect_sound().await;
        self.postgres.expect_sound().await;
    }

    async fn compare(&mut self, seed: u64, command: Command) -> String {
        let (sqlite, effect) = run(&self.sqlite, command.clone()).await;
        let (postgres, _) = run(&self.postgres, command.clone()).await;
        let after = format!("seed {seed}: {command:?}");
        assert_eq!(sqlite, postgres, "the answers to {after}");
        for table in TABLES {
            let (here, there) =
                (rows(&self.sqlite.world, table).await, rows(&self.postgres.world, table).await);
            assert_eq!(here, there, "{table} after {after}");
            if table.starts_with("attempt ") {
                self.expect_rising_ledgers(&here, &after);
            }
        }
        for job_id in self.follow(&command, effect) {
            self.model.expect(self.sqlite.store(), job_id, &after).await;
        }
        sqlite
    }

    /// L38: no ledger ever shrinks.
    fn expect_rising_ledgers(&mut self, attempts: &Rows, after: &str) {
        let number = |text: &Option<String>| text.as_ref().map_or(0, |text| text.parse().unwrap());
        for row in attempts {
            let now: (u64, u64) = (number(&row[7]), number(&row[8]));
            let before = self.ledgers.insert(row[..5].to_vec(), now).unwrap_or_default();
            assert!(before.0 <= now.0 && before.1 <= now.1, "{before:?} to {now:?} after {after}");
        }
    }

    /// Does in the model what the stores say they have done. Returns the jobs that it is about.
    fn follow(&mut self, command: &Command, effect: Effect) -> BTreeSet<JobId> {
        let model = &mut self.model;
        match (command, effect) {
            (Command::Submit(_, jobs), Effect::Created(created)) => {
                let now = self.clock.now().cast_unsigned();
                for job in jobs.iter().filter(|job| created.contains(&job.facts.job_id)) {
                    let is_due = job.not_before.is_none_or(|at| at <= now);
                    model.created(job, job.enter && is_due);
                }
                created
            }
            (_, Effect::Claimed(keys)) => {
                keys.iter().inspect(|key| model.claimed(key)).map(|key| key.job_id).collect()
            }
            (_, Effect::TakenOver(keys)) => {
                for key in &keys {
                    model.taken_over(key);
                }
                // A directive that is freed to be published is not handed on, and yet has a new version.
                let jobs = keys.iter().map(|key| key.job_id);
                jobs.chain(model.unpublished()).collect()
            }
            (Command::Dispatch(_, writes), Effect::Done(done)) => {
                // A repeat that knows itself has changed nothing now.
                let done = writes.iter().zip(done).filter(|(write, done)| *done && !write.repeats);
                done.map(|(write, _)| write)
                    .inspect(|write| model.dispatched(write))
                    .map(|w| w.key.job_id)
                    .collect()
            }
            (Command::End(_, writes), Effect::Done(done)) => {
                let done = writes.iter().zip(done).filter(|(write, done)| *done && !write.repeats);
                done.map(|(write, _)| {
                    let Ending { kind, content, .. } = write.ending;
                    model.ended(&write.key, kind, content);
                    write.key.job_id
                })
                .collect()
            }
            (Command::Finish(_, writes), Effect::Finished(done)) => {
                let done = writes.iter().zip(done).filter(|(write, _)| !write.repeats);
                done.filter_map(|(write, done)| {
                    model.finished(&write.key, done?);
                    Some(write.key.job_id)
                })
                .collect()
            }
            (command, Effect::Decided(answer)) => {
                let (job_id, decided) = decide_in(model, command);
                let code = |decided: Result<(), Refusal>| decided.map_err(|refusal| refusal.code());
                assert_eq!(code(decided), code(answer), "the kernel's answer to {command:?}");
                BTreeSet::from([job_id])
            }
            (_, Effect::Nothing | Effect::Created(_) | Effect::Done(_) | Effect::Finished(_)) => {
                BTreeSet::new()
            }
        }
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
            | Command::TakeOver(..)
            | Command::Due(_)
            | Command::PutProtocol(_)
            | Command::Claim(..)
            | Command::Cancel(..)
            | Command::RefuseLeg1(..)
            | Command::FailLeg1(..)
            | Command::Publish(..)
            | Command::Ack(..)
            | Command::PoisonMessage(..)
            | Command::Leave(_)
            | Command::Read(_) => {}
        }
    }

    /// Mostly the newest engine acts, sometimes one that is dead.
    fn engine(&mut self) -> EngineNo {
        let newest = self.engines[self.engines.len() - 1];
        if self.dice.roll(12) > 0 { newest } else { self.dice.pick(&self.engines).unwrap() }
    }

    /// Mostly one of the youngest jobs: the others are over.
    fn job(&mut self) -> Option<JobId> {
        let from = if self.dice.roll(4) == 0 { 0 } else { self.jobs.len().saturating_sub(12) };
        self.dice.pick(&self.jobs[from..])
    }

    async fn think(&mut self) -> Option<Command> {
        let engine = self.engine();
        match self.dice.roll(40) {
            0 => Some(Command::Join),
            1 => {
                self.clock.advance([1, 700, 30_000, 120_000][self.dice.roll(4)]);
                Some(Command::Due(engine))
            }
            2 | 3 => Some(Command::Beat(engine)),
            4 => {
                let dead = self.dice.pick(&self.engines)?;
                (dead != engine).then_some(Command::TakeOver(dead, engine))
            }
            5 => Some(Command::PutProtocol(["one", "one", "two"][self.dice.roll(3)])),
            6..=9 => Some(Command::Submit(engine, self.new_jobs())),
            10..=15 => Some(Command::Claim(engine, 1 + u32::try_from(self.dice.roll(3)).unwrap())),
            16 | 17 => {
                let version = [None, None, None, Some(99)][self.dice.roll(4)];
                let anybody = self.dice.pick(&self.engines)?;
                let engine = if self.dice.roll(3) == 0 { anybody } else { engine };
                self.job().map(|job_id| Command::Cancel(engine, job_id, version))
            }
            18 => self.dice.pick(&self.jobs).map(Command::Read),
            19 => self.think_of_a_callback(engine).await,
            20 | 21 => self.repeat(),
            22 if self.dice.roll(8) == 0 && self.engines.len() > 1 => {
                Some(Command::Leave(self.engines[0]))
            }
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

    /// A write of the past again: as it was, or as one whose outcome was lost.
    fn repeat(&mut self) -> Option<Command> {
        let mut old = self.dice.pick(&self.old)?;
        let lost = self.dice.roll(2) == 0;
        match &mut old {
            Command::Dispatch(_, writes) => writes.iter_mut().for_each(|w| w.repeats = lost),
            Command::End(_, writes) => writes.iter_mut().for_each(|w| w.repeats = lost),
            Command::Finish(_, writes) => writes.iter_mut().for_each(|w| w.repeats = lost),
            other => panic!("{other:?} is not kept"),
        }
        Some(old)
    }

    /// A callback, a publication or a poison that may come too early, too late or from somebody else.
    async fn think_of_a_callback(&mut self, engine: EngineNo) -> Option<Command> {
        let job_id = self.job()?;
        let held = self.sqlite.held(job_id).await;
        let attempt_no = held.key.attempt_no;
        let lease_id =
            [held.attempt.lease_id.unwrap_or(LeaseId(1)), LeaseId(4_711)][self.dice.roll(2)];
        Some(match self.dice.roll(4) {
            0 | 1 => Command::Ack(engine, job_id, Fence { attempt_no, lease_id }),
            2 => {
                let version = held.attempt.version + self.dice.roll(2) as u64;
                Command::Publish(engine, job_id, version)
            }
            _ => Command::PoisonMessage(engine, held.key),
        })
    }

    /// The next move of a job that is under way, as its rows say.
    async fn move_on(&mut self, engine: EngineNo) -> Option<Command> {
        let job_id = self.job()?;
        let mut held = self.sqlite.held(job_id).await;
        let row = held.attempt;
        let finished = row.ending.is_some_and(|ending| ending.guid.children_spawned());
        if finished || row.ledger.leg1_entries() == 0 {
            return None;
        }
        if row.ending.is_some() && self.dice.roll(8) == 0 {
            return Some(Command::PoisonMessage(engine, held.key));
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
        match row.state {
            StepState::Dispatching if self.dice.roll(4) == 0 => {
                return Some(Command::Ack(engine, job_id, plan::fence(&row)));
            }
            StepState::Dispatching => {
                return Some(Command::Publish(engine, job_id, row.version));
            }
            StepState::AwaitingAck if self.dice.roll(4) > 0 => {
                return Some(Command::Ack(engine, job_id, plan::fence(&row)));
            }
            StepState::AwaitingAck => {
                let error = AttemptError { code: "LATE".to_owned(), message: String::new() };
                let write = plan::ended_by(&held, EndingKind::AckTimeout, error).ok()?;
                return Some(Command::End(engine, vec![write]));
            }
            StepState::InProgress
            | StepState::Pending
            | StepState::Succeeded
            | StepState::FailedRetry
            | StepState::FailedFinal
            | StepState::Cancelled
            | StepState::Skipped => assert_eq!(row.state, StepState::InProgress),
        }
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
        let (policy, lease) = (&self.sqlite.policy, LeaseId(self.leases));
        let write = match self.dice.roll(12) {
            0 => return Some(Command::FailLeg1(engine, held.key.job_id, lease)),
            1..=3 => directive_write(held, lease, policy).ok()?,
            _ => plan::dispatch(held, lease, policy).ok()?,
        };
        Some(Command::Dispatch(engine, vec![write]))
    }
}

/// What the kernel makes of a decision under the locks, in the model.
fn decide_in(model: &mut Model, command: &Command) -> (JobId, Result<(), Refusal>) {
    match command {
        Command::Cancel(_, job_id, version) => (*job_id, model.cancel(*job_id, *version)),
        Command::RefuseLeg1(_, job_id) => (*job_id, model.refuse_leg1(*job_id)),
        Command::FailLeg1(_, job_id, lease) => (*job_id, model.fail_leg1(*job_id, *lease)),
        Command::Publish(_, job_id, version) => (*job_id, model.publish(*job_id, *version)),
        Command::Ack(_, job_id, fence) => (*job_id, model.ack(*job_id, *fence)),
        Command::PoisonMessage(_, key) => {
            model.poison(key);
            (key.job_id, Ok(()))
        }
        Command::Join
        | Command::Beat(_)
        | Command::TakeOver(..)
        | Command::Due(_)
        | Command::PutProtocol(_)
        | Command::Submit(..)
        | Command::Claim(..)
        | Command::Dispatch(..)
        | Command::End(..)
        | Command::Finish(..)
        | Command::Leave(_)
        | Command::Read(_) => panic!("{command:?} decides nothing under locks"),
    }
}
