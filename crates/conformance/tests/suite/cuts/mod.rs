//! COMMIT with unknown outcome: the connection to the server is cut at every request of every primitive that
//! writes, before the server hears of it, after the server has done it, and while the server is still at it. The call
//! says that the store is unavailable, its caller makes it again as the engine does, and the rows are what they would
//! have been without the cut: nothing is lost, nothing is done twice.

mod beside;
mod engines;
mod held;
mod legs;
mod schedules;
mod workers;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Mutex;
use std::time::Duration;

use sprag_conformance::cluster::Cluster;
use sprag_conformance::cutter::{Cutter, Side};
use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::store::{Answer, Held, NewJob, NewStep, Pick, Store, StoreError, Wish};
use sprag_kernel::decide::callback::Report;
use sprag_stores::postgres::{PostgresOptions, PostgresStore};

use crate::play::{Play, facts, new_job};
use crate::seam;
use crate::world::{Postgres, World};

/// The most requests of one call; whoever makes more is not looked at to its end.
const MOST: u32 = 60;
const LIMIT: Duration = Duration::from_secs(30);

/// Primitives that write nothing, and so have nothing to lose.
const READS: &[&str] = &[
    "attempts",
    "attempts_by",
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
    "events_after",
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
    "next_schedules",
    "now",
    "open_jobs",
    "protocol",
    "protocols",
    "request",
    "request_events",
    "requests",
    "schedule",
    "schedules",
    "services",
    "signal_of",
    "signals",
    "tasks",
    "tenants",
    "token",
    "tokens",
    "undelivered",
];

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
        let stage = Self { play, cutter, cut, covered: Mutex::default() };
        stage.build_gates().await;
        stage
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
        self.survives_itself(name, &prepare, &act, (&rows, &expected)).await;
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
    legs::legs(&stage).await;
    legs::family(&stage).await;
    workers::workers(&stage).await;
    workers::signals(&stage).await;
    workers::gates(&stage).await;
    engines::engines(&stage).await;
    engines::upkeep(&stage).await;
    schedules::schedules(&stage).await;
    beside::beside(&stage).await;
    stage.play.expect_sound().await;

    let covered = stage.covered.into_inner().unwrap();
    let reads: BTreeSet<String> = READS.iter().map(ToString::to_string).collect();
    assert!(covered.is_disjoint(&reads), "what writes is no read");
    let known: BTreeSet<String> = covered.union(&reads).cloned().collect();
    assert_eq!(known, seam::declared(), "every primitive of the seam is cut here or is a read");
}
