//! COMMIT with unknown outcome: the connection to the server is cut at every request of every primitive that
//! writes, before the server hears of it and after the server has done it. The call says that the store is
//! unavailable, its caller makes it again as the engine does, and the rows are what they would have been
//! without the cut: nothing is lost, nothing is done twice.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use sprag_conformance::cluster::Cluster;
use sprag_conformance::cutter::{Cutter, Side};
use sprag_engine::batch::store::{BatchOutcome, BatchWorked, BatchWrite, Batches};
use sprag_engine::gate::Gates;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId, RequestId};
use sprag_engine::inbox::TakeIn;
use sprag_engine::plan;
use sprag_engine::requests::{NewRequest, RequestFacts, RequestStore, RequestWrite};
use sprag_engine::signals::{Signal, Signals, WaitOutcome, WaitWrite};
use sprag_engine::store::{
    Answer, DispatchOutcome, DispatchWrite, EndOutcome, FinishOutcome, HandOff, Held, NewChild,
    NewJob, NewStep, Pick, Pulse, StaleCallback, Store, StoreError, Tells, Wish, Worked,
};
use sprag_engine::tokens::{NewToken, Scope, TokenStore};
use sprag_engine::upkeep::{Delivery, Task, Upkeep};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::gate::Limit;
use sprag_kernel::decide::rows::LeaseId;
use sprag_kernel::keys::Hash;
use sprag_kernel::{Code, RequestStatus};
use sprag_stores::postgres::{PostgresOptions, PostgresStore};

use crate::batch::committed;
use crate::deeds::Then;
use crate::gates::gated;
use crate::play::{Play, facts, new_job};
use crate::world::{Postgres, World};

/// The most requests of one call; whoever makes more is not looked at to its end.
const MOST: u32 = 60;
const LIMIT: Duration = Duration::from_secs(30);

/// Primitives that write nothing, and so have nothing to lose.
const READS: &[&str] = &[
    "attempts",
    "audit",
    "backlog",
    "batch",
    "batch_journal",
    "cancelling",
    "children",
    "claimed",
    "counts",
    "ends",
    "events",
    "feed",
    "find",
    "gate",
    "held_by",
    "inbox",
    "inbox_waiting",
    "is_exclusive",
    "job",
    "jobs",
    "lines",
    "listen",
    "now",
    "open_jobs",
    "protocol",
    "protocols",
    "request",
    "request_events",
    "requests",
    "services",
    "signal_of",
    "signals",
    "tenants",
    "token",
    "tokens",
    "undelivered",
];

/// The files that the seam is declared in.
const SEAM: &[&str] = &[
    "store.rs",
    "upkeep.rs",
    "signals.rs",
    "gate.rs",
    "batch/store.rs",
    "requests/store.rs",
    "tokens.rs",
];

/// Every function of the seam, from its source.
fn declared() -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("engine/src");
    let mut names = BTreeSet::new();
    for file in SEAM {
        let text = fs::read_to_string(source.join(file)).unwrap();
        let traits = text.split("\npub trait ").skip(1);
        let bodies = traits.map(|rest| rest.split("\n}\n").next().unwrap_or(rest));
        for line in bodies.flat_map(str::lines).filter_map(|line| line.strip_prefix("    fn ")) {
            names.extend(line.split(['(', '<']).next().map(ToOwned::to_owned));
        }
    }
    names
}

/// A store with a straight way to it, for the test, and one that is cut.
struct Stage {
    play: Play<Postgres>,
    cutter: Cutter,
    cut: PostgresStore,
    covered: Mutex<BTreeSet<String>>,
}

impl Stage {
    async fn open() -> Self {
        let play = Play::<Postgres>::begin().await;
        play.world.execute(Postgres::TABLES).await.unwrap();
        let database = play.world.query("SELECT current_database()::text").await.unwrap();
        let cutter = Cutter::before(&Cluster::shared());
        let url = cutter.url(database[0][0].as_ref().unwrap());
        // Few connections, so that a cut is felt by the next call.
        let options = PostgresOptions {
            engine_connections: 1,
            plain_connections: 1,
            work_connections: 1,
            ..PostgresOptions::new(&url)
        };
        let cut = PostgresStore::open_with_clock(&options, play.clock.clone()).await.unwrap();
        Self { play, cutter, cut, covered: Mutex::default() }
    }

    fn engine(&self) -> EngineNo {
        self.play.engine
    }

    async fn rows(&self, sql: &str) -> Vec<String> {
        let rows = self.play.world.query(sql).await.unwrap();
        rows.into_iter().map(|mut row| row.remove(0).unwrap_or_default()).collect()
    }

    /// Makes a call on a fresh scene, uncut and then cut at each of its requests on either side. `act` is
    /// told whether it repeats a call whose outcome was lost. `rows` asks for what the call has written.
    async fn survives<C, T: Debug>(
        &self,
        name: &str,
        prepare: impl AsyncFn() -> C,
        act: impl AsyncFn(&C, bool) -> Answer<T>,
        rows: impl Fn(&C) -> String,
    ) {
        self.covered.lock().unwrap().insert(name.to_owned());
        let scene = prepare().await;
        act(&scene, false).await.unwrap();
        let expected = self.rows(&rows(&scene)).await;
        assert!(!expected.is_empty(), "{name}: there is something to see");
        for side in [Side::There, Side::Back] {
            let mut requests = 0;
            loop {
                requests += 1;
                assert!(requests < MOST, "{name} makes too many requests");
                let scene = prepare().await;
                self.cutter.arm(requests, side);
                let first = act(&scene, false).await;
                let is_cut = self.cutter.disarm();
                match first {
                    Ok(_) => {}
                    // Perhaps of a cut that came after the answer of the call before.
                    Err(StoreError::Unavailable(_)) => self.insist(&scene, &act).await,
                    Err(error) => panic!("{name}, request {requests}, {side:?}: {error}"),
                }
                let found = self.rows(&rows(&scene)).await;
                assert_eq!(found, expected, "{name}, cut at request {requests}, {side:?}");
                if !is_cut {
                    break;
                }
            }
            assert!(requests > 1, "{name} was never cut");
        }
    }

    /// The call again; each connection that was cut is found out by one more.
    async fn insist<C, T: Debug>(&self, scene: &C, act: &impl AsyncFn(&C, bool) -> Answer<T>) {
        self.locks_are_gone().await;
        for _ in 0..4 {
            match act(scene, true).await {
                Err(StoreError::Unavailable(_)) => {}
                answer => return drop(answer.unwrap()),
            }
        }
        panic!("the store does not come back");
    }

    /// Until the server has noticed that a connection is cut it keeps what that has locked, which calls that
    /// pass over locked rows leave to a later look of the engine. Here that look is now.
    async fn locks_are_gone(&self) {
        let open = "SELECT pid::text FROM pg_stat_activity WHERE datname = current_database()
            AND pid <> pg_backend_pid() AND xact_start IS NOT NULL AND backend_type = 'client backend'";
        while !self.rows(open).await.is_empty() {
            tokio::task::yield_now().await;
        }
    }

    // Scenes.

    fn job(tenant: &str) -> NewJob {
        let name = JobId::new().to_string();
        let job = new_job(facts(tenant, None, &name), 2);
        let step = |step: &NewStep| NewStep { service: name.clone(), ..step.clone() };
        NewJob { steps: job.steps.iter().map(step).collect(), ..job }
    }

    /// A job that waits; its services are its own.
    async fn queued(&self) -> (JobId, String) {
        let job = Self::job("t1");
        self.play.submit(job.clone()).await.unwrap();
        (job.facts.job_id, job.steps[0].service.clone())
    }

    /// A job whose first activation this engine has entered.
    async fn entered_as(&self, engine: EngineNo) -> Held {
        let job = NewJob { enter: true, ..Self::job("t1") };
        self.play.store().submit(engine, vec![job.clone()]).await.unwrap();
        self.play.held(job.facts.job_id).await
    }

    async fn entered(&self) -> Held {
        self.entered_as(self.engine()).await
    }

    async fn running(&self) -> Held {
        let mut held = self.entered().await;
        self.play.dispatch(&mut held).await;
        held
    }

    async fn ended(&self) -> Held {
        let mut held = self.running().await;
        self.play.report(&mut held, Report::Succeeded).await;
        held
    }

    /// A job that has ended, with a task to deliver.
    async fn closed(&self, task: &str) -> JobId {
        let mut held = self.running().await;
        self.play.report(&mut held, Report::NonRetryable).await;
        let mut write = self.play.finish_write(&held, false).unwrap();
        write.tasks = [task.to_owned()].into();
        self.play.finish_as(self.engine(), write).await.unwrap();
        held.key.job_id
    }

    fn request() -> NewRequest {
        let request_id = RequestId::new();
        let name = request_id.to_string();
        let facts = RequestFacts {
            request_id,
            tenant_id: "t1".to_owned(),
            request_type: "TEST".to_owned(),
            key: Hash::of(name.as_bytes()),
            content: Hash::of(name.as_bytes()),
            inputs: "{}".to_owned(),
            requirement: String::new(),
            plan_revision: String::new(),
        };
        NewRequest { facts, envelope: "{}".to_owned() }
    }
}

/// All that is kept of a job, without what is new with every scene.
fn of_job(job_id: &JobId) -> String {
    let row = |columns: &str, table: &str| {
        format!("SELECT '{table} ' || ROW({columns})::text FROM {table} WHERE job_id = '{job_id}'")
    };
    [
        row(
            "state, version, semaphore, attempts_total, events, verdict, current_step, error_code",
            "job",
        ),
        row(
            "step_index, attempt_no, state, version, ledger, guid, ending, content, outbox,
                lease_id IS NULL, owner, ready_at IS NULL, admitted_at, timer_at, lease_expires_at, losses, output,
                error_code, progress",
            "attempt",
        ),
        row("n, changes", "event"),
        row("n, signal_id, name, step_index", "signal"),
        row("callback, code", "stale"),
        row("deliveries, due_at, delivered_at", "completion"),
        row("cursor, success, out_bytes, attempt_no", "batch"),
        row("first_seq, seqs, outputs", "batch_journal"),
    ]
    .join(" UNION ALL ")
        + " ORDER BY 1"
}

fn wish(service: &str) -> Vec<Wish> {
    vec![Wish { service: service.to_owned(), max: 1, pick: Pick::Any, tenant_id: None }]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_write_survives_a_cut_at_each_of_its_requests_on_either_side() {
    let stage = Stage::open().await;
    legs(&stage).await;
    workers(&stage).await;
    signals(&stage).await;
    gates(&stage).await;
    engines(&stage).await;
    upkeep(&stage).await;
    beside(&stage).await;
    stage.play.expect_sound().await;

    let covered = stage.covered.into_inner().unwrap();
    let reads: BTreeSet<String> = READS.iter().map(ToString::to_string).collect();
    assert!(covered.is_disjoint(&reads), "what writes is no read");
    let known: BTreeSet<String> = covered.union(&reads).cloned().collect();
    assert_eq!(known, declared(), "every primitive of the seam is cut here or is a read");
}

async fn legs(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let of_held = |held: &Held| of_job(&held.key.job_id);
    let submit = async |job: &NewJob, _| {
        let answer = cut.submit(engine, vec![job.clone()]).await?;
        assert!(answer[0].as_ref().unwrap().created, "it is this very job");
        Ok(())
    };
    let of_new = |job: &NewJob| of_job(&job.facts.job_id);
    stage.survives("submit", async || Stage::job("t1"), submit, of_new).await;
    play.store().limit_tenant("t2", Some(1_000)).await.unwrap();
    stage.survives("submit", async || Stage::job("t2"), submit, of_new).await;

    let claim = async |(_, service): &(JobId, String), _| cut.claim(engine, wish(service)).await;
    stage.survives("claim", async || stage.queued().await, claim, |(job, _)| of_job(job)).await;

    let dispatching = async || {
        let mut held = stage.entered().await;
        play.dispatch_write(&mut held).unwrap()
    };
    let dispatch = async |write: &sprag_engine::store::DispatchWrite, repeats| {
        let write = sprag_engine::store::DispatchWrite { repeats, ..write.clone() };
        let outcomes = cut.dispatch(engine, vec![write]).await?;
        assert!(matches!(outcomes[0], DispatchOutcome::Done { .. }), "{outcomes:?}");
        Ok(())
    };
    stage.survives("dispatch", dispatching, dispatch, |write| of_job(&write.key.job_id)).await;

    let end = async |held: &Held, repeats| {
        let mut write = Play::<Postgres>::result_write(held, Report::Succeeded);
        write.repeats = repeats;
        let outcomes = cut.end(engine, vec![write]).await?;
        assert!(matches!(outcomes[0], EndOutcome::Entered { .. }), "{outcomes:?}");
        Ok(())
    };
    stage.survives("end", async || stage.running().await, end, of_held).await;

    let end_with = async |held: &Held, repeats| {
        let mut write = Play::<Postgres>::result_write(held, Report::Succeeded);
        write.repeats = repeats;
        let work = Postgres::work(&held.key.job_id.to_string(), Then::Ends);
        let worked = cut.end_with(engine, write, work, LIMIT).await?;
        assert!(matches!(worked, Worked::Entered { .. }), "{worked:?}");
        Ok(())
    };
    let with_effect = |held: &Held| {
        let job_id = &held.key.job_id;
        let effect = format!("SELECT 'effect' FROM public.effect WHERE name = '{job_id}'");
        format!("{effect} UNION ALL {}", of_job(job_id))
    };
    stage.survives("end_with", async || stage.running().await, end_with, with_effect).await;

    let finish = async |held: &Held, repeats| {
        let mut write = play.finish_write(held, false).unwrap();
        write.repeats = repeats;
        let outcomes = cut.finish(engine, vec![write]).await?;
        assert!(matches!(outcomes[0], FinishOutcome::Done { .. }), "{outcomes:?}");
        Ok(())
    };
    stage.survives("finish", async || stage.ended().await, finish, of_held).await;
    family(stage).await;

    let cancel = async |held: &Held, _| {
        let decide = Box::new(|held: &Held, _| plan::cancel(held, None));
        cut.amend(engine, held.key.job_id, None, decide).await
    };
    stage.survives("amend", async || stage.running().await, cancel, of_held).await;
}

/// A directive that creates a child, and the end of a child that its parent is told of: several statements each.
async fn family(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let with_child = async || {
        let mut held = stage.entered().await;
        let write = play.dispatch_write(&mut held).unwrap();
        let mut job = Stage::job("t1");
        let mut facts = (*job.facts).clone();
        facts.dedup_key = format!("c:{}:0:0:0:1:1", held.key.job_id);
        job.facts = facts.into();
        DispatchWrite { child: Some(NewChild { job, timeout_ms: Some(5) }.into()), ..write }
    };
    let child_of = |write: &DispatchWrite| write.child.as_ref().unwrap().job.clone();
    let both = |parent: &JobId, child: &JobId| {
        let waits = format!(
            "SELECT 'waits ' || waits_until FROM attempt
             WHERE job_id = '{parent}' AND child_id = '{child}'"
        );
        let of_child = of_job(child).replace(" ORDER BY 1", "");
        let all = format!("{waits} UNION ALL {of_child} UNION ALL {}", of_job(parent));
        // What a parent is told names the child, which is another in each scene.
        all.replace("content, ", "")
    };
    let dispatch = async |write: &DispatchWrite, repeats| {
        let write = DispatchWrite { repeats, ..write.clone() };
        let outcomes = cut.dispatch(engine, vec![write]).await?;
        assert!(matches!(outcomes[0], DispatchOutcome::Done { .. }), "{outcomes:?}");
        Ok(())
    };
    let family = |write: &DispatchWrite| both(&write.key.job_id, &child_of(write).facts.job_id);
    stage.survives("dispatch", with_child, dispatch, family).await;

    let closing = async || {
        let write = with_child().await;
        play.store().dispatch(engine, vec![write.clone()]).await.unwrap();
        let wishes = wish(&child_of(&write).steps[0].service);
        let mut held = play.store().claim(engine, wishes).await.unwrap().remove(0);
        play.dispatch(&mut held).await;
        play.report(&mut held, Report::NonRetryable).await;
        (held, write.key)
    };
    let finish = async |(held, parent): &(Held, AttemptKey), repeats| {
        let mut write = play.finish_write(held, false).unwrap();
        write.tells = Some(Tells { parent: *parent, results: [].into() });
        write.repeats = repeats;
        let outcomes = cut.finish(engine, vec![write]).await?;
        assert!(matches!(outcomes[0], FinishOutcome::Done { .. }), "{outcomes:?}");
        Ok(())
    };
    let told = |(held, parent): &(Held, AttemptKey)| both(&parent.job_id, &held.key.job_id);
    stage.survives("finish", closing, finish, told).await;
}

async fn workers(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let of_held = |held: &Held| of_job(&held.key.job_id);
    let unacked = async || {
        let mut held = stage.entered().await;
        let (to, lease) = (HandOff::PulledUnacked, LeaseId(7));
        let write = plan::dispatch_to(to, &mut held, lease, &play.policy).unwrap();
        play.dispatch_as(engine, write).await.unwrap();
        play.held(held.key.job_id).await
    };
    // A worker that hears nothing says it again, and is looked at anew.
    let ack = async |held: &Held, _| {
        let held = play.held(held.key.job_id).await;
        let fence = plan::fence(&held.attempt);
        match plan::worker::ack(&held, fence, &play.policy).unwrap() {
            Some(write) => cut.renew(engine, vec![write]).await.map(drop),
            None => Ok(()),
        }
    };
    stage.survives("renew", unacked, ack, of_held).await;

    let record = async |held: &Held, _| {
        let (key, lease_id) = (held.key, LeaseId(3));
        let refused = StaleCallback { key, lease_id, callback: "ack", code: Code::StaleFence };
        cut.record_stale(engine, vec![refused]).await
    };
    stage.survives("record_stale", async || stage.running().await, record, of_held).await;

    let release =
        async |held: &Held, _| cut.release(engine, vec![(held.key, held.attempt.version)]).await;
    stage.survives("release", async || stage.entered().await, release, of_held).await;

    let unpublished = async || {
        let held = stage.entered().await;
        play.write_directive(&held).await;
        let sql = format!(
            "UPDATE attempt SET owner = NULL, timer_at = {} WHERE job_id = '{}' AND step_index = 0",
            play.clock.now(),
            held.key.job_id
        );
        play.world.execute(&sql).await.unwrap();
        held
    };
    let publish = async |held: &Held, _| {
        let service = play.attempts(held.key.job_id).await[0].service.clone();
        cut.unpublished(engine, vec![service], 1).await
    };
    stage.survives("unpublished", unpublished, publish, of_held).await;

    let pulse = async |held: &Held, _| {
        let lease_id = held.attempt.lease_id.unwrap();
        let progress = Some("1".to_owned());
        cut.pulse(engine, vec![Pulse { key: held.key, lease_id, lease_ms: 5, progress }]).await
    };
    stage.survives("pulse", async || stage.running().await, pulse, of_held).await;

    let open = async |held: &Held, _| {
        let opened = cut.open_batch(engine, held.key, held.attempt.lease_id.unwrap()).await?;
        assert!(opened.is_some());
        Ok(())
    };
    stage.survives("open_batch", async || stage.running().await, open, of_held).await;
    let opened = async || {
        let held = stage.running().await;
        let lease_id = held.attempt.lease_id.unwrap();
        let point = play.store().open_batch(engine, held.key, lease_id).await.unwrap().unwrap();
        committed(&held, point, 3, None)
    };
    let commit = async |write: &BatchWrite, repeats| {
        let outcome = cut.commit_batch(engine, BatchWrite { repeats, ..write.clone() }).await?;
        assert!(matches!(outcome, BatchOutcome::Committed { .. }), "{outcome:?}");
        Ok(())
    };
    stage.survives("commit_batch", opened, commit, |write| of_job(&write.key.job_id)).await;
    let commit_with = async |write: &BatchWrite, repeats| {
        let work = Postgres::work(&write.key.job_id.to_string(), Then::Ends);
        let write = BatchWrite { repeats, ..write.clone() };
        let worked = cut.commit_batch_with(engine, write, work, LIMIT).await?;
        assert!(matches!(worked, BatchWorked::Committed { .. }), "{worked:?}");
        Ok(())
    };
    let with_effect = |write: &BatchWrite| {
        let job_id = &write.key.job_id;
        let effect = format!("SELECT 'effect' FROM public.effect WHERE name = '{job_id}'");
        format!("{effect} UNION ALL {}", of_job(job_id))
    };
    stage.survives("commit_batch_with", opened, commit_with, with_effect).await;
}

async fn signals(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let said = || Signal::new("s", "go", &serde_json::Value::Null);
    let signal = async |held: &Held, _| cut.signal(engine, held.key.job_id, said()).await;
    let of_held = |held: &Held| of_job(&held.key.job_id);
    stage.survives("signal", async || stage.entered().await, signal, of_held).await;
    let told = async || {
        let held = stage.entered().await;
        play.store().signal(engine, held.key.job_id, said()).await.unwrap().unwrap().unwrap();
        WaitWrite {
            key: held.key,
            version: held.attempt.version,
            signal: "go".to_owned(),
            timeout_ms: None,
        }
    };
    let wait = async |write: &WaitWrite, _| {
        assert_eq!(cut.wait(engine, vec![write.clone()]).await?, [WaitOutcome::Runs]);
        Ok(())
    };
    stage.survives("wait", told, wait, |write| of_job(&write.key.job_id)).await;
}

async fn gates(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let in_line = async || {
        let gate = JobId::new().to_string();
        let job = gated(&gate, Limit { max: Some(1), gap_us: Some(5_000) }, 1);
        play.submit(job.clone()).await.unwrap();
        (job.facts.job_id, gate)
    };
    let admit = async |(_, gate): &(JobId, String), _| cut.admit(engine, vec![gate.clone()]).await;
    let admitted = |(job_id, gate): &(JobId, String)| {
        let next = format!("SELECT 'next ' || arrival_us FROM gate WHERE gate = '{gate}'");
        format!("{next} UNION ALL {}", of_job(job_id))
    };
    stage.survives("admit", in_line, admit, admitted).await;
}

async fn engines(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let is_there =
        |name: &String| format!("SELECT 'joined' FROM engine WHERE name = '{name}' LIMIT 1");
    // A life that nobody heard of never beats, and is taken over like any other.
    let join = async |name: &String, _| cut.join(name).await;
    stage.survives("join", async || JobId::new().to_string(), join, is_there).await;
    let newcomer = async || play.store().join("newcomer").await.unwrap();
    let life = |no: &EngineNo| {
        format!("SELECT ROW(beat_at, dead)::text FROM engine WHERE engine_no = {}", no.0)
    };
    let beat = async |no: &EngineNo, _| cut.beat(*no, None).await;
    stage.survives("beat", newcomer, beat, life).await;
    let leave = async |no: &EngineNo, _| cut.leave(*no).await;
    stage.survives("leave", newcomer, leave, life).await;

    let left_behind = async || {
        let dead = newcomer().await;
        (dead, stage.entered_as(dead).await)
    };
    let take_over = async |(dead, _): &(EngineNo, Held), _| cut.take_over(*dead, engine).await;
    let taken = |(dead, held): &(EngineNo, Held)| {
        format!(
            "SELECT 'dead ' || dead FROM engine WHERE engine_no = {} UNION ALL {}",
            dead.0,
            of_job(&held.key.job_id)
        )
    };
    stage.survives("take_over", left_behind, take_over, taken).await;

    let due = async || {
        let (job_id, service) = stage.queued().await;
        let sql = format!(
            "UPDATE attempt SET ready_at = NULL, timer_at = {} WHERE job_id = '{job_id}' AND step_index = 0",
            play.clock.now(),
        );
        play.world.execute(&sql).await.unwrap();
        (job_id, service)
    };
    let look = async |_: &(JobId, String), _| cut.due(engine, 500).await;
    stage.survives("due", due, look, |(job, _)| of_job(job)).await;

    let put = async |name: &String, _| cut.put_protocol(name, "{}").await;
    let kept =
        |name: &String| format!("SELECT definition FROM protocol WHERE protocol_id = '{name}'");
    stage.survives("put_protocol", async || JobId::new().to_string(), put, kept).await;

    let written = async || {
        let sql = "SELECT sprag.submit('{}'::text)::text";
        let inbox_id =
            play.world.query(sql).await.unwrap()[0][0].as_ref().unwrap().parse().unwrap();
        TakeIn { inbox_id: sprag_engine::inbox::InboxId(inbox_id), job: Ok(Stage::job("t1")) }
    };
    let take_in = async |entry: &TakeIn, _| cut.take_in(engine, vec![entry.clone()]).await;
    let taken = |entry: &TakeIn| {
        format!(
            "SELECT ROW(taken_at, error_code, job_id IS NULL)::text FROM inbox WHERE inbox_id = {}
             UNION ALL {}",
            entry.inbox_id,
            of_job(&entry.job.as_ref().unwrap().facts.job_id)
        )
    };
    stage.survives("take_in", written, take_in, taken).await;
}

async fn upkeep(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let name = async || JobId::new().to_string();
    let of_service =
        |name: &String| format!("SELECT count(*)::text FROM service WHERE service = '{name}'");
    let paused = async || {
        let name = name().await;
        play.store().pause(&name).await.unwrap();
        name
    };
    stage.survives("pause", name, async |name, _| cut.pause(name).await, of_service).await;
    stage.survives("resume", paused, async |name, _| cut.resume(name).await, of_service).await;
    play.world.execute("DELETE FROM service").await.unwrap();
    let serve = async |name: &String, _| cut.serve(vec![name.clone()]).await;
    let seen = |name: &String| format!("SELECT seen_at::text FROM served WHERE service = '{name}'");
    stage.survives("serve", name, serve, seen).await;
    let limit = async |name: &String, _| cut.limit_tenant(name, Some(3)).await;
    let of_tenant = |name: &String| {
        format!("SELECT ROW(max_open, open_jobs)::text FROM tenant WHERE tenant_id = '{name}'")
    };
    stage.survives("limit_tenant", name, limit, of_tenant).await;

    let task = async || {
        let task = format!("hook:{}", JobId::new());
        (stage.closed(&task).await, task)
    };
    let claim = async |(_, task): &(JobId, String), _| {
        cut.claim_tasks(engine, vec![task.clone()], 1, 1_000).await
    };
    stage.survives("claim_tasks", task, claim, |(job, _)| of_job(job)).await;
    let delivered = async || {
        let (_, task) = task().await;
        let mut tasks = play.store().claim_tasks(engine, vec![task], 1, 1_000).await.unwrap();
        tasks.remove(0)
    };
    let settle =
        async |task: &Task, _| cut.settle_tasks(engine, vec![(task.clone(), Delivery::Done)]).await;
    stage.survives("settle_tasks", delivered, settle, |task| of_job(&task.job_id)).await;

    let over = async || {
        let settled = delivered().await;
        let delivery = vec![(settled.clone(), Delivery::Done)];
        play.store().settle_tasks(engine, delivery).await.unwrap();
        // The job of the newest event stays.
        stage.queued().await;
        settled.job_id
    };
    let gone = |job_id: &JobId| {
        format!("SELECT 'key' FROM retired WHERE job_id = '{job_id}' UNION ALL {}", of_job(job_id))
    };
    let retire = async |_: &JobId, _| cut.retire(engine, 0, None, 10_000).await;
    stage.survives("retire", over, retire, gone).await;
    let retired = async || {
        let job_id = over().await;
        play.store().retire(engine, 0, None, 10_000).await.unwrap();
        job_id
    };
    let forget = async |_: &JobId, _| cut.forget(engine, 0, 10_000).await;
    let left =
        |job_id: &JobId| format!("SELECT count(*)::text FROM retired WHERE job_id = '{job_id}'");
    stage.survives("forget", retired, forget, left).await;
}

/// Requests and tokens.
async fn beside(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let of_request = |request: &NewRequest| {
        let id = request.facts.request_id;
        format!(
            "SELECT ROW(status, version, run_no, events, job_id IS NULL)::text FROM request
             WHERE request_id = '{id}'
             UNION ALL SELECT ROW(n, changes)::text FROM request_event WHERE request_id = '{id}'
             UNION ALL SELECT ROW(state, version, semaphore)::text FROM job
             WHERE job_id = (SELECT job_id FROM request WHERE request_id = '{id}') ORDER BY 1"
        )
    };
    let create = async |request: &NewRequest, _| cut.create_request(request.clone()).await;
    stage.survives("create_request", async || Stage::request(), create, of_request).await;
    let created = async || {
        let request = Stage::request();
        play.store().create_request(request.clone()).await.unwrap();
        request
    };
    // The first run of a request that stands ready; once it has begun there is nothing more to do.
    let run = async |request: &NewRequest, _| {
        let mut job = Stage::job("t1");
        let mut facts = (*job.facts).clone();
        facts.dedup_key = format!("r:{}:1", request.facts.request_id);
        job.facts = facts.into();
        let decide = Box::new(move |view: &sprag_engine::requests::RequestView| {
            let write = RequestWrite {
                stored: RequestStatus::Confirmed,
                version: view.version + 1,
                run_no: 1,
                draft: None,
                changes: vec!["R0>1 R1>2 R2>3 ".to_owned()],
                job: Some(job.clone()),
            };
            Ok(((view.run_no == 0).then_some(write), ()))
        });
        cut.amend_request(engine, request.facts.request_id, decide).await
    };
    stage.survives("amend_request", created, run, of_request).await;

    let token = async || {
        let token_id = JobId::new().to_string();
        let hash = Hash::of(token_id.as_bytes());
        let (scopes, label) = ([Scope::Work].into_iter().collect(), "test".to_owned());
        NewToken { token_id, hash, scopes, tenant_id: None, label, lifetime_ms: None }
    };
    let of_token = |token: &NewToken| {
        format!(
            "SELECT ROW(scopes, label, created_at, revoked_at)::text FROM token WHERE token_id = '{}'",
            token.token_id
        )
    };
    let put = async |token: &NewToken, _| cut.put_token(token.clone()).await;
    stage.survives("put_token", token, put, of_token).await;
    let kept = async || {
        let token = token().await;
        play.store().put_token(token.clone()).await.unwrap();
        token
    };
    let revoke = async |token: &NewToken, _| cut.revoke_token(&token.token_id).await;
    stage.survives("revoke_token", kept, revoke, of_token).await;
}
