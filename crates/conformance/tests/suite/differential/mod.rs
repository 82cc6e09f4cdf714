//! The same random commands on SQLite, on Postgres and on the model: every answer and every row must be the
//! same after each, until every primitive has succeeded and every kind of outcome and refusal has been found.
//!
//! A world is small, so that all of its rows can be compared after each command; a seed goes through several.

mod asked;
mod beside;
mod command;
mod graphs;
mod look;
mod model;
mod moves;
pub mod rows;
mod seen;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sprag_conformance::cluster::Cluster;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId, RequestId};
use sprag_engine::store::{EndWrite, FinishWrite, NewJob, Store};
use sprag_kernel::JobState;
use sprag_kernel::decide::rows::Ending;
use sprag_kernel::machine::State;
use sprag_stores::TestClock;

use command::{After, Command, Effect, Spot};
use graphs::Pinned;
use model::{Decided, Model};
use rows::{NEXT, VIEWS, everything};
use seen::SEEN;

use crate::play::{BEGIN_MS, Play};
use crate::world::{Postgres, Rows, Sqlite, World};

/// How many commands a world sees.
const STEPS: usize = 500;
/// After how many of them the audit looks.
const AUDIT: usize = 50;
/// How many worlds a seed has at least, and at most.
const WORLDS: std::ops::Range<u64> = 2..20;

/// So many cases that are not found yet are looked for in earnest.
const FEW: usize = 5;

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

/// Both stores, with what a test needs to think of the next command.
struct Both {
    sqlite: Play<Sqlite>,
    postgres: Play<Postgres>,
    clock: TestClock,
    dice: Dice,
    pinned: BTreeMap<String, Arc<Pinned>>,
    engines: Vec<EngineNo>,
    /// Those that were taken over.
    dead: Vec<EngineNo>,
    jobs: Vec<JobId>,
    /// Sequences whose steps have a gate.
    gated: BTreeSet<JobId>,
    /// Waits that have their signal, or whose time is over.
    running_waits: BTreeSet<AttemptKey>,
    requests: Vec<RequestId>,
    paused: BTreeSet<&'static str>,
    /// A directive that a bus has refused: it is likely to do so again.
    refused: Option<Spot>,
    /// Writes of the past, to be repeated when nobody expects them.
    old: Vec<Command>,
    leases: u64,
    model: Model,
    /// The ledgers of every attempt as they were last seen.
    ledgers: BTreeMap<Vec<String>, (u64, u64)>,
    /// What was stored after the last command, line by line.
    stored: Vec<String>,
    reader: rusqlite::Connection,
    look: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l49_the_same_commands_leave_the_same_rows_on_both_stores() {
    // One server for all worlds.
    let _cluster = Cluster::shared();
    let given = std::env::var("SPRAG_SEED").ok().map(|seed| vec![seed.parse().unwrap()]);
    let count: u64 = std::env::var("SPRAG_SEEDS").map_or(1, |count| count.parse().unwrap());
    for seed in given.unwrap_or_else(|| (42..42 + count).collect()) {
        let mut found: BTreeSet<&(&str, &str)> = BTreeSet::new();
        for world in 0..WORLDS.end {
            if found.len() == SEEN.len() && world >= WORLDS.start {
                break;
            }
            Both::begin(seed, world).await.run(&mut found).await;
        }
        let missing: Vec<_> = SEEN.iter().filter(|case| !found.contains(case)).collect();
        assert!(missing.is_empty(), "seed {seed}: never found {missing:?}");
    }
}

impl Both {
    async fn begin(seed: u64, world: u64) -> Self {
        let clock = TestClock::at(BEGIN_MS);
        let sqlite = Play::<Sqlite>::begin_at(clock.clone()).await;
        let postgres = Play::<Postgres>::begin_at(clock.clone()).await;
        let both = Self {
            reader: sqlite.world.connect(),
            look: everything::<Sqlite>(),
            stored: Vec::new(),
            sqlite,
            postgres,
            clock,
            dice: Dice((seed * 1_000 + world) * 2 + 1),
            pinned: graphs::all(),
            engines: vec![EngineNo(1)],
            dead: Vec::new(),
            refused: None,
            jobs: Vec::new(),
            gated: BTreeSet::new(),
            running_waits: BTreeSet::new(),
            requests: Vec::new(),
            paused: BTreeSet::new(),
            old: Vec::new(),
            leases: 0,
            model: Model::default(),
            ledgers: BTreeMap::new(),
        };
        both.sqlite.world.execute(Sqlite::TABLES).await.unwrap();
        both.postgres.world.execute(Postgres::TABLES).await.unwrap();
        let prepare = format!("PREPARE everything AS {}", everything::<Postgres>());
        both.postgres.world.execute(&prepare).await.unwrap();
        for (id, pinned) in &both.pinned {
            both.sqlite.store().put_protocol(id, &pinned.definition).await.unwrap();
            both.postgres.store().put_protocol(id, &pinned.definition).await.unwrap();
        }
        both
    }

    async fn run(&mut self, found: &mut BTreeSet<&'static (&'static str, &'static str)>) {
        let seed = self.dice.0 / 2;
        let mut steps = 0;
        while steps < STEPS {
            let Some(mut command) = self.choose(found).await else { continue };
            if self.dice.roll(8) == 0 {
                let is_older = self.dice.roll(2) == 0;
                command.twice(is_older);
            }
            steps += 1;
            let answer = self.compare(seed, command.clone()).await;
            let name = command.name();
            found.extend(SEEN.iter().filter(|(c, case)| name == *c && seen::shows(&answer, case)));
            self.learn(&command, &answer);
            if steps.is_multiple_of(AUDIT) {
                self.sqlite.expect_sound().await;
                self.postgres.expect_sound().await;
            }
        }
        for view in VIEWS {
            let here = rows::rows(&self.sqlite.world, view).await;
            assert!(!here.is_empty(), "{view}");
            assert_eq!(here, rows::rows(&self.postgres.world, view).await, "{seed}: {view}");
        }
    }

    /// The next command: rather one that has something left to be found, and rather by a dead engine if that is left.
    async fn choose(
        &mut self,
        found: &BTreeSet<&'static (&'static str, &'static str)>,
    ) -> Option<Command> {
        let mut missing = SEEN.iter().filter(|case| !found.contains(case)).peekable();
        if missing.peek().is_none() {
            return self.think().await;
        }
        let missing: Vec<_> = missing.collect();
        let mut command = self.think().await?;
        // What is left at last may be rare: a seed had twenty worlds without ever coming to it.
        let tries = if missing.len() <= FEW { 30 } else { 3 };
        for _ in 0..tries {
            if missing.iter().any(|(name, _)| *name == command.name()) {
                break;
            }
            command = self.think().await.unwrap_or(command);
        }
        let is_awaited = missing.contains(&&(command.name().as_str(), "Err(Fenced)"));
        let dead = self.dice.pick(&self.dead).filter(|_| is_awaited && self.dice.roll(2) == 0);
        if let (Some(engine), Some(dead)) = (command.engine(), dead) {
            *engine = dead;
        }
        Some(command)
    }

    async fn compare(&mut self, seed: u64, command: Command) -> String {
        let after = &After(seed, &command);
        let ((sqlite, effect), (postgres, _)) = tokio::join!(
            command::run(&self.sqlite, command.clone()),
            command::run(&self.postgres, command.clone())
        );
        assert_eq!(sqlite, postgres, "the answers to {after}");
        let there = lines(self.postgres.world.query("EXECUTE everything").await.unwrap());
        let here = self.lines();
        let only = |these: &[String], those: &[String]| {
            let only = these.iter().filter(|line| those.binary_search(line).is_err());
            only.map(|line| line.replace(NEXT, " ")).collect::<Vec<_>>().join("\n  ")
        };
        assert!(
            here == there,
            "after {after}\nonly SQLite has\n  {}\nonly Postgres has\n  {}",
            only(&here, &there),
            only(&there, &here)
        );
        self.expect_rising_ledgers(&here, after);
        self.stored = here;
        for job_id in self.follow(&command, effect).await {
            self.model.expect(self.sqlite.store(), job_id, after).await;
        }
        sqlite
    }

    fn lines(&self) -> Vec<String> {
        let mut look = self.reader.prepare_cached(&self.look).unwrap();
        let lines = look.query_map([], |row| row.get(0)).unwrap();
        let mut lines: Vec<String> = lines.collect::<Result<_, _>>().unwrap();
        lines.sort_unstable();
        lines
    }

    /// L38: no ledger ever shrinks.
    fn expect_rising_ledgers(&mut self, lines: &[String], after: &After<'_>) {
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);
        let is_new = |line: &&String| self.stored.binary_search(line).is_err();
        for columns in lines.iter().filter(is_new).filter_map(|line| rows::columns(line, "attempt"))
        {
            let now = (number(columns[7]), number(columns[8]));
            let key = columns[..5].iter().map(|&column| column.to_owned()).collect();
            let before = self.ledgers.insert(key, now).unwrap_or_default();
            assert!(before.0 <= now.0 && before.1 <= now.1, "{before:?} to {now:?} after {after}");
        }
    }

    fn sqlite_rows(&self, sql: &str) -> Rows {
        let mut statement = self.reader.prepare_cached(sql).unwrap();
        let width = statement.column_count();
        let row = |row: &rusqlite::Row<'_>| (0..width).map(|column| row.get(column)).collect();
        statement.query_map([], row).unwrap().collect::<Result<_, _>>().unwrap()
    }

    /// Does in the model what the stores say they have done. Returns the jobs that it is about.
    async fn follow(&mut self, command: &Command, effect: Effect) -> BTreeSet<JobId> {
        let mut jobs = self.follow_births(command).await;
        let model = &mut self.model;
        match (command, effect) {
            (_, Effect::Claimed(keys)) => {
                for key in &keys {
                    model.claimed(key);
                }
                jobs.extend(keys.iter().map(|key| key.job_id));
            }
            (_, Effect::TakenOver(keys)) => {
                for key in &keys {
                    model.taken_over(key);
                }
                // What is freed is not handed on, and yet has a new version.
                jobs.extend(model.open());
            }
            (Command::Dispatch(_, writes), Effect::Done(done)) => {
                // A repeat that knows itself has changed nothing now.
                let done = writes.iter().zip(done).filter(|(write, done)| *done && !write.repeats);
                for (write, _) in done {
                    model.dispatched(write);
                    jobs.insert(write.key.job_id);
                }
            }
            (Command::Begin(_, beginnings), Effect::Done(done)) => {
                for ((_, write), _) in beginnings.iter().zip(done).filter(|(_, done)| *done) {
                    let write = write.as_ref().expect("what was not asked for is not done");
                    model.dispatched(write);
                    jobs.insert(write.key.job_id);
                }
            }
            (Command::Over(_, messages), Effect::Finished(done)) => {
                let (ends, writes): (Vec<_>, Vec<_>) = messages.iter().cloned().unzip();
                let entered =
                    ends.iter().zip(&done).filter(|(end, done)| done.is_some() && !end.repeats);
                for (write, _) in entered {
                    model.ended(&write.key, write.ending.kind, write.ending.content);
                }
                self.follow_finished(&writes, done, &mut jobs).await;
            }
            (Command::Renew(_, writes), Effect::Done(done)) => {
                for (write, _) in writes.iter().zip(done).filter(|(_, done)| *done) {
                    model.renewed(write);
                    jobs.insert(write.key.job_id);
                }
            }
            (command, Effect::Done(done)) => {
                let ends = ends_of(command).into_iter().zip(done).filter(|(_, done)| *done);
                for write in ends.filter_map(|(write, _)| write).filter(|write| !write.repeats) {
                    let Ending { kind, content, .. } = write.ending;
                    model.ended(&write.key, kind, content);
                    jobs.insert(write.key.job_id);
                }
            }
            (Command::Finish(_, writes), Effect::Finished(done)) => {
                self.follow_finished(writes, done, &mut jobs).await;
            }
            (Command::Signal(_, job_id, _), Effect::Signalled) => {
                model.signalled(*job_id);
                jobs.insert(*job_id);
            }
            (command, Effect::Decided(answer)) => {
                let entered = answer.as_ref().ok().copied().flatten();
                let (job_id, decided) = decide_in(model, command, entered);
                let code = |decided: Decided| decided.map_err(|refusal| refusal.code());
                assert_eq!(code(decided), code(answer), "the kernel's answer to {command:?}");
                jobs.insert(job_id);
            }
            (Command::Due(_) | Command::Unpublished(_) | Command::Admit(..), _) => {
                jobs.extend(model.open());
            }
            (Command::Release(_, activations), _) => {
                jobs.extend(
                    activations.iter().map(|(key, _)| key.job_id).filter(|id| model.knows(*id)),
                );
            }
            (Command::Wait(_, writes), _) => {
                jobs.extend(
                    writes.iter().map(|write| write.key.job_id).filter(|id| model.knows(*id)),
                );
            }
            (Command::Retire(..), _) => self.follow_deaths().await,
            (_, Effect::Nothing | Effect::Finished(_) | Effect::Signalled) => {}
        }
        jobs
    }

    /// Steps 1 to 3, and what a parent is told.
    async fn follow_finished(
        &mut self,
        writes: &[FinishWrite],
        done: Vec<Option<(JobState, bool)>>,
        jobs: &mut BTreeSet<JobId>,
    ) {
        for (write, done) in writes.iter().zip(done).filter(|(write, _)| !write.repeats) {
            let Some((state, entered_next)) = done else { continue };
            self.model.finished(write, entered_next);
            jobs.insert(write.key.job_id);
            let told = write.tells.as_ref().filter(|_| state.is_terminal());
            if let Some(parent) = told.map(|tells| tells.parent)
                && self.model.knows(parent.job_id)
            {
                self.model.told(&parent, self.sqlite.store()).await;
                jobs.insert(parent.job_id);
            }
        }
    }

    /// Jobs that are there now.
    async fn follow_births(&mut self, command: &Command) -> BTreeSet<JobId> {
        let mut born = BTreeSet::new();
        for job in command.jobs() {
            let job_id = job.facts.job_id;
            let is_there = self.sqlite.store().job(job_id).await.unwrap().is_some();
            if self.model.knows(job_id) || !is_there {
                continue;
            }
            let now = self.clock.now().cast_unsigned();
            let is_due = job.not_before.is_none_or(|at| at <= now);
            let entered = job.enter && is_due && self.paused.is_empty();
            let graph = self.pinned.get(&job.facts.protocol_id).map(|pinned| pinned.graph.clone());
            self.model.created(&job, graph, entered);
            self.note(&job);
            born.insert(job_id);
        }
        born
    }

    fn note(&mut self, job: &NewJob) {
        self.jobs.push(job.facts.job_id);
        if !job.is_graph && !job.gates.is_empty() {
            self.gated.insert(job.facts.job_id);
        }
    }

    /// Jobs that are not there any more.
    async fn follow_deaths(&mut self) {
        let mut gone = Vec::new();
        for job_id in &self.jobs {
            if self.sqlite.store().job(*job_id).await.unwrap().is_none() {
                gone.push(*job_id);
            }
        }
        for job_id in &gone {
            self.model.retired(*job_id);
        }
        self.jobs.retain(|job_id| !gone.contains(job_id));
    }

    fn learn(&mut self, command: &Command, answer: &str) {
        match command {
            Command::Join => self.engines.push(EngineNo(self.engines.len() as i64 + 1)),
            Command::TakeOver(dead, _) if !answer.contains("Fenced") => self.dead.push(*dead),
            Command::PublishFailed(_, spot, _) if answer == "Ok(None)" => {
                self.refused = Some(*spot).filter(|_| self.dice.roll(4) > 0);
            }
            Command::Pause(service) => {
                self.paused.insert(service);
            }
            Command::Resume(service) => {
                self.paused.remove(service);
            }
            Command::Wait(_, writes) if answer.contains("Runs") => {
                self.running_waits.insert(writes[0].key);
            }
            Command::CreateRequest(request) => {
                let request_id = request.facts.request_id;
                if answer.contains(&request_id.to_string()) {
                    self.requests.push(request_id);
                }
            }
            Command::Dispatch(..)
            | Command::End(..)
            | Command::EndWith(..)
            | Command::Finish(..)
            | Command::Over(..)
            | Command::CommitBatch(..)
            | Command::CommitBatchWith(..)
            | Command::Renew(..)
            | Command::Release(..)
            | Command::Wait(..)
            | Command::TakeIn(..)
            | Command::SettleTasks(..)
            | Command::Tick(..) => self.old.push(command.clone()),
            _ => {}
        }
    }
}

fn lines(rows: Rows) -> Vec<String> {
    let mut lines: Vec<String> = rows.into_iter().flatten().flatten().collect();
    lines.sort_unstable();
    lines
}

/// The messages of a command, each beside its outcome.
fn ends_of(command: &Command) -> Vec<Option<&EndWrite>> {
    match command {
        Command::End(_, writes) => writes.iter().map(Some).collect(),
        Command::EndWith(_, write, _) => vec![Some(write)],
        Command::CommitBatch(_, write) | Command::CommitBatchWith(_, write, _) => {
            vec![write.end.as_ref().filter(|_| !write.repeats)]
        }
        other => panic!("{other:?} ends nothing"),
    }
}

/// What the kernel makes of a decision under the locks, in the model.
fn decide_in(
    model: &mut Model,
    command: &Command,
    entered: Option<AttemptKey>,
) -> (JobId, Decided) {
    match command {
        Command::Cancel(_, job_id, version) => (*job_id, model.cancel(*job_id, *version, entered)),
        Command::RefuseLeg1(_, spot) => (spot.0, model.refuse_leg1(*spot)),
        Command::SkipLeg1(_, spot, _) => (spot.0, model.skip_leg1(*spot)),
        Command::FailLeg1(_, spot, lease) => (spot.0, model.fail_leg1(*spot, *lease)),
        Command::Publish(_, spot, version) => (spot.0, model.publish(*spot, *version)),
        Command::PublishFailed(_, spot, version) => (spot.0, model.publish_failed(*spot, *version)),
        Command::CloseUnpublished(_, spot, version) => {
            (spot.0, model.close_unpublished(*spot, *version))
        }
        Command::Ack(_, spot, fence) => (spot.0, model.ack(*spot, *fence)),
        Command::PoisonMessage(_, key) => (key.job_id, Ok(model.poison(key))),
        other => panic!("{other:?} decides nothing under locks"),
    }
}
