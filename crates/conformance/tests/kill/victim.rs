//! The victim: an engine on the store in a folder, or in the database that `SPRAG_PG` names. Under load it
//! submits sequences and graphs for as long as it lives and says on stdout which ones were accepted; each handler
//! appends a line to a log, and a transactional one also writes an effect to a table beside the engine's.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sprag_conformance::bus::{Faults, TestBus};
use sprag_engine::batch::ItemOutcome;
use sprag_engine::batch::keys::Batch;
use sprag_engine::callback::{AckMode, Claim, Completion, Fence};
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::hooks::{Ended, Hook};
use sprag_engine::ids::JobId;
use sprag_engine::outbound::{Answer, Call};
use sprag_engine::protocol::{Protocol, Step};
use sprag_engine::schedules::{Rest, Schedule, ScheduleView};
use sprag_engine::signals::Signal;
use sprag_engine::store::{AttemptView, JobFilter, Store, StoreError};
use sprag_engine::tokens::{NewToken, Scope};
use sprag_engine::upkeep::Upkeep;
use sprag_engine::worker::{Handler, TransactionalHandler};
use sprag_kernel::decide::rows::LeaseId;
use sprag_kernel::decide::schedule::Missed;
use sprag_kernel::keys::Hash;
use sprag_kernel::{Refusal, State};
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use sprag_stores::sqlite::{Durability, SqliteStore};

use super::batches;
use super::effects::{self, Effects};
use super::left;
use super::old;
use super::poison;
use super::requests;
use super::seam::Seam;

const STEPS: [&str; 3] = ["fetch", "convert", "store"];
/// The step whose handler is transactional.
pub(crate) const LAST_STEP: usize = 2;

/// The service of the steps of a graph; its handler is transactional.
pub(crate) const WORK: &str = "work";
/// The service of its batch.
pub(crate) const ITEMS: &str = "items";
/// How many submits under load there are for one that is a graph.
const GRAPH_EVERY: usize = 8;
/// Set for a load without graphs.
pub(crate) const NO_GRAPHS: &str = "SPRAG_NO_GRAPHS";

/// How a victim exits that its store has turned away.
pub(crate) const GONE: i32 = 3;
/// How long the script may take; a job that does not end is found here.
const LIMIT: Duration = Duration::from_secs(180);

/// What a victim does, as `SPRAG_ROLE` names it.
pub(crate) const LOAD: &str = "load";
/// Only what others have submitted, for ever.
pub(crate) const SERVE: &str = "serve";
/// The same, until every job has ended.
pub(crate) const DRAIN: &str = "drain";
/// The script; the life is in `SPRAG_LIFE`.
pub(crate) const SCRIPT: &str = "script";

pub(crate) fn run(folder: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let role = std::env::var("SPRAG_ROLE").unwrap();
    runtime.block_on(async {
        match std::env::var("SPRAG_PG") {
            Ok(url) => play(postgres(&url, &role).await, folder, &role).await,
            Err(_) => play(sqlite(folder, &role), folder, &role).await,
        }
    });
}

async fn play<S: Effects>(store: S, folder: &Path, role: &str) {
    match role {
        SCRIPT => script(store, folder, &std::env::var("SPRAG_LIFE").unwrap()).await,
        poison::SUBMIT => poison::submit(store).await,
        poison::WORK => poison::work(store).await,
        batches::BATCH => batches::work(store, folder).await,
        LOAD | SERVE | DRAIN => live(store, folder, role).await,
        other => panic!("no victim does {other}"),
    }
}

async fn postgres(url: &str, role: &str) -> PostgresStore {
    effects::prepare_postgres(url).await;
    let mut options = PostgresOptions::new(url);
    if role == SCRIPT {
        // Each connection plans every statement for itself, which in a life this short is most of what it does.
        (options.engine_connections, options.plain_connections) = (2, 1);
        options.work_connections = 1;
    }
    PostgresStore::open(&options).await.unwrap()
}

fn sqlite(folder: &Path, role: &str) -> SqliteStore {
    let file = folder.join("store.db");
    effects::prepare_sqlite(&file);
    let durability = match role {
        // As the default has it: what is killed then is met in its syncs, too.
        LOAD | SERVE | DRAIN => Durability::Full,
        // The other lives are many, or end where they are told to: they need not wait for the disk.
        _ => Durability::Process,
    };
    SqliteStore::open_in_short_eras(&file, durability).unwrap_or_else(|e| gone(&e))
}

/// Says why this process cannot go on, and ends it.
fn gone(error: &StoreError) -> ! {
    eprintln!("{error}");
    std::process::exit(GONE)
}

/// The jobs of the script. Each life submits them again, which changes nothing for those that are there.
pub(crate) const JOBS: usize = 6;

/// How often its engine looks.
const POLL: Duration = Duration::from_millis(8);

/// The first of those that are graphs: one whose steps fail once, and one that is cancelled.
const GRAPHS: usize = 4;

/// A fan-out of which not all branches are open at a time, nor may run at a time, and each is a cycle and another
/// fan-out, a step that is skipped, one over the bus, a join with a rate, a cycle over a fan-out, a sleep, a wait whose
/// signal comes early, one whose signal comes when it is parked, and a child job.
const GRAPH: &str = "
  - {step_id: parked, needs: [], wait: {signal: late}}
  - step_id: each
    for_each: '[1, 2, 3]'
    max_parallel: 2
    steps:
      - step_id: spin
        repeat: {while: turn + 1 < item, max: 3}
        service: work
        limit: {max: 1, key: tenant}
      - {step_id: nested, for_each: '[1, 2]', service: work}
  - {step_id: never, needs: [], when: 'false', service: work}
  - {step_id: letter, needs: [], service: published}
  - {step_id: both, needs: [each, never, letter], service: work, limit: {max: 3, rate: {max: 500, per: 1s}}}
  - step_id: rounds
    repeat: {while: turn < 1, max: 2, delay: 1ms}
    steps:
      - {step_id: pair, for_each: '[1, 2]', service: work}
  - {step_id: rest, sleep: 1ms}
  - {step_id: told, wait: {signal: early}}
  - {step_id: child, job: {request_type: CHILD, input: '{\"n\": input.n}'}}
";

/// What the graph has as its child.
const CHILD: &str = "
  - {step_id: one, service: work}
  - {step_id: two, service: items, batch: {items: '[0, 1, 2]', out: handler}}
";

/// What becomes of job `n` of the script: the third of each three is cancelled, the second fails once.
pub(crate) fn is_cancelled(n: usize) -> bool {
    n % 3 == 2
}

/// A bounded load that passes every crash point: submits, retries, cancels, and waits for the end. Each
/// life has a protocol of its own, so that it must learn that of the life before to go on with its jobs.
async fn script<S: Effects>(store: S, folder: &Path, life: &str) {
    let protocol_id = format!("script.v{life}");
    let mut protocol = Protocol::new(&protocol_id, "SCRIPT")
        .step("first", "work")
        .step("outside", "outside")
        .step("published", "published")
        .step("items", "items")
        .step("last", "work");
    protocol.steps.iter_mut().for_each(soon);
    let [graph, child] = graphs(life);
    protocol.steps[3].batch = Some(Batch::of("[0, 1, 2, 3, 4, 5, 6, 7]"));
    let handler =
        TransactionalHandler::new(|input: serde_json::Value, directive, context| async move {
            let n = input["n"].as_u64().unwrap_or_default();
            if n % 3 == 1 && directive.attempt_no == 1 {
                return Err(Failure::retryable("FLAKY", "the first attempt fails"));
            }
            // Long enough for some that the engine looks after them while they run.
            context.heartbeat(n)?;
            tokio::time::sleep(if n.is_multiple_of(3) { 3 * POLL } else { POLL / 8 }).await;
            Ok((directive.attempt_no, S::effect(directive.effect_key)))
        });
    // Nobody else is alive, so silence can be short.
    let config = EngineConfig {
        poll: POLL,
        beat: Duration::from_millis(50),
        takeover: Duration::from_millis(100),
        // Nothing is that old but what `old.rs` says is.
        retention: Some(LIMIT),
        dedup_retention: Some(LIMIT),
        sweep: Duration::from_millis(50),
        exec: Some(2),
        hook_backoff: vec![Duration::from_millis(1)],
        ..EngineConfig::default()
    };
    let hook = Hook::new(|_: Ended| async { Ok::<_, String>(()) });
    let store = Seam(store);
    tick_soon(&store, life).await;
    set_up(&store, life).await;
    let builder = EngineBuilder::new(store)
        .config(config)
        .http(Arc::new(|_: &Call| Ok(Answer { status: 200, body: b"{}".to_vec() })))
        .protocol(protocol)
        .protocol(graph)
        .protocol(child)
        .protocol(old::protocol())
        .protocol(left::protocol())
        .protocol(requests::protocol());
    let builder = builder.hook_for_all("told", hook);
    // Fewer slots than jobs, so that some are entered at once and others claimed.
    let builder = with_batches_and_bus(builder.service("work", 2, handler));
    let engine = Arc::new(builder.start().await.unwrap());
    let worker = tokio::spawn(work_outside(engine.clone()));
    engine.limit_tenant("t", Some(1_000)).await.unwrap();
    // Each life limits somebody for the first time, too, which is done in another way.
    let stranger = format!("life-{}", std::process::id());
    engine.limit_tenant(&stranger, Some(1)).await.unwrap();
    // The first one comes between two claims and finds a slot, so that it is entered and dispatched at once: if not the first
    // time, then one of the next.
    for wait in [POLL / 2, POLL / 8, POLL / 8, POLL / 8] {
        tokio::time::sleep(wait).await;
        engine.submit(scripted(0).as_bytes()).await.unwrap();
    }
    write_to_inbox(folder, &scripted(0)).await;
    old::submit(&engine).await;
    left::give_back(&engine).await;
    for n in 0..JOBS {
        let submitted = engine.submit(scripted(n).as_bytes()).await.unwrap();
        if is_cancelled(n) {
            engine.cancel(submitted.job_id, None).await.unwrap();
        } else if n >= GRAPHS {
            say_early_and_late(&engine, submitted.job_id).await.unwrap();
        }
    }
    requests::ask(&engine, folder).await;
    let all_closed = async {
        let store = engine.store();
        // In the order in which one becomes the other: a tick is mail, mail a job, and a job's end a task. Asked for the other
        // way round, what becomes the next between two questions would be seen by neither.
        while has_tick(store).await
            || !store.inbox_waiting(1, usize::MAX).await.unwrap().is_empty()
            || store.open_jobs().await.unwrap() > 0
            || store.undelivered().await.unwrap() > 0
            || old::is_any_left(store, folder).await
        {
            tokio::time::sleep(POLL).await;
        }
    };
    if tokio::time::timeout(LIMIT, all_closed).await.is_err() {
        show_open(engine.store()).await;
        panic!("every job ends and is told");
    }
    worker.abort();
    assert!(worker.await.unwrap_err().is_cancelled(), "it works until it is stopped");
    let engine = Arc::into_inner(engine).expect("the worker has let go");
    engine.shutdown(Duration::from_secs(5)).await.unwrap();
}

/// The graph and its child, as protocols of this version.
fn graphs(version: &str) -> [Protocol; 2] {
    [("graph", GRAPH), ("child", CHILD)].map(|(name, steps)| {
        let text = format!(
            "protocol_id: {name}.v{version}\nrequest_types: [{}]\nsteps:{steps}",
            name.to_uppercase()
        );
        let mut protocol = Protocol::read(&text).unwrap();
        protocol.steps.iter_mut().for_each(soon);
        protocol
    })
}

/// With what these ask for besides work.
fn with_batches_and_bus<S: Effects>(builder: EngineBuilder<S>) -> EngineBuilder<S> {
    let bus = Arc::new(TestBus::new(1, Faults { repeat: 20, ..Faults::default() }));
    builder.bus(&["published"], bus).transactional_batch_service(
        "items",
        1,
        |item, _| Ok(ItemOutcome::Success(item.value)),
        |run| S::effect(effects::of_run(&run)),
    )
}

/// A step, and those inside of it, are tried again at once.
pub(crate) fn soon(step: &mut Step) {
    // Around a list of steps nothing is tried.
    if step.steps.is_empty() {
        step.retry.backoff = Some(vec![1]);
    }
    // The worker dies with the engine, which is none of the step's fault: its next attempt comes soon.
    if ["outside", "published"].contains(&step.service.as_str()) {
        step.retry.ack_backoff = Some(vec![1]);
        step.retry.max_attempts = Some(1_000);
        step.timeouts.ack = Some(100);
        step.timeouts.lease = Some(100);
    }
    step.steps.iter_mut().for_each(soon);
}

/// Signals to a graph, again in each life: one at once, one when the step that waits for it is parked.
async fn say_early_and_late<S: Store>(engine: &Engine<S>, job_id: JobId) -> Result<(), Refusal> {
    let say = |name: &'static str| engine.signal(job_id, Signal::new(name, name, &name.into()));
    say("early").await?;
    let is_open = |attempt: &AttemptView| {
        attempt.step_id == "parked" && attempt.waits_for.is_none() && attempt.row.ending.is_none()
    };
    while engine.store().attempts(job_id).await?.iter().any(is_open) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    say("late").await.map(|_| ())
}

/// What has not ended, for whoever wants to know why.
async fn show_open<S: Store>(store: &S) {
    eprintln!("{:?} tasks are not delivered", store.undelivered().await);
    let filter = JobFilter { limit: 1_000, ..JobFilter::default() };
    for job in store.jobs(filter).await.unwrap() {
        if job.row.state.is_terminal() {
            continue;
        }
        eprintln!("{}: {:?}", job.facts.job_id, job.row);
        for attempt in store.attempts(job.facts.job_id).await.unwrap() {
            eprintln!("  {attempt:?}");
        }
    }
}

/// A worker that pulls: it acknowledges, shows that it is alive, reports twice, and says something stale.
async fn work_outside<S: Store>(engine: Arc<Engine<S>>) {
    for n in 0.. {
        let claim = Claim {
            claim_id: format!("claim {n}"),
            services: vec!["outside".to_owned()],
            tenant_id: None,
            max: 3,
            wait: Duration::from_millis(50),
            ack: if n % 2 == 0 { AckMode::Explicit } else { AckMode::Auto },
        };
        for directive in engine.claim(claim).await.unwrap_or_default() {
            let fence = directive.fence();
            let stale = Fence { lease_id: LeaseId(1), ..fence.clone() };
            // Each may come too late, when another attempt has the step.
            let _ = engine.ack(fence.clone()).await;
            let _ = engine.heartbeat(stale, None).await;
            let _ = engine.heartbeat(fence.clone(), None).await;
            for _ in 0..2 {
                let done = Completion::succeeded(directive.attempt_no.into());
                let _ = engine.result(fence.clone(), done).await;
            }
        }
    }
}

/// The envelope of a job of the script.
fn scripted(n: usize) -> String {
    let request_type = if n < GRAPHS { "SCRIPT" } else { "GRAPH" };
    format!(
        r#"{{"tenant_id":"t","request_type":"{request_type}","input_ref":"i","output_ref":"o",
            "payload":{{"n":{n}}},"schema_version":"1","idempotency_key":"{n}"}}"#
    )
}

/// A schedule of each life with one tick that is long due: it comes up once, in this life or a later one. Its job
/// is one of the script's, but for its key.
async fn tick_soon<S: Store>(store: &S, life: &str) {
    store.put_schedule(yearly(life), Some(1)).await.unwrap();
}

fn yearly(life: &str) -> Schedule {
    Schedule {
        tenant_id: "t".to_owned(),
        schedule_id: format!("yearly-{life}"),
        cron: "0 0 1 1 *".to_owned(),
        zone: "UTC".to_owned(),
        missed: Missed::Once,
        envelope: scripted(0),
    }
}

/// Whether a schedule has not had its tick; one that never ticks has none to wait for.
async fn has_tick<S: Store>(store: &S) -> bool {
    let waits = |view: &ScheduleView| view.last_tick.is_none() && view.next_at.is_some();
    store.schedules(None).await.unwrap().iter().any(waits)
}

/// What somebody sets up beside jobs, again in each life: a pause that ends, a schedule that goes, a token that is
/// taken back.
async fn set_up<S: Effects>(store: &S, life: &str) {
    store.pause("nobody").await.unwrap();
    store.resume("nobody").await.unwrap();
    let resting = Schedule { schedule_id: format!("resting-{life}"), ..yearly(life) };
    let name = resting.schedule_id.clone();
    store.put_schedule(resting, None).await.unwrap();
    store.rest_schedule("t", &name, Rest::Paused).await.unwrap();
    store.remove_schedule("t", &name).await.unwrap();
    let token = NewToken {
        token_id: "token".to_owned(),
        hash: Hash::of(b"token"),
        scopes: [Scope::Work].into_iter().collect(),
        tenant_id: None,
        label: "script".to_owned(),
        lifetime_ms: None,
    };
    store.put_token(token).await.unwrap();
    store.revoke_token("token").await.unwrap();
}

/// Submits in a transaction of a user: the same job once more, on another way in.
async fn write_to_inbox(folder: &Path, envelope: &str) {
    if let Ok(url) = std::env::var("SPRAG_PG") {
        let (client, connection) =
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.execute("SELECT sprag.submit($1::text)", &[&envelope]).await.unwrap();
    } else {
        let user = rusqlite::Connection::open(folder.join("store.db")).unwrap();
        user.busy_timeout(LIMIT).unwrap();
        sprag_stores::sqlite::submit_in(&user, envelope).unwrap();
    }
}

async fn live<S: Effects>(store: S, folder: &Path, role: &str) {
    let mut protocol = Protocol::new("kill.v1", "KILL");
    for step in STEPS {
        protocol = protocol.step(step, step);
    }
    let [mut graph, mut child] = graphs("1");
    for protocol in [&mut protocol, &mut graph, &mut child] {
        protocol.steps.iter_mut().for_each(bear_kills);
    }
    let config = EngineConfig {
        name: std::env::var("SPRAG_ROUND").unwrap_or_default(),
        poll: Duration::from_millis(5),
        beat: Duration::from_millis(50),
        takeover: Duration::from_millis(400),
        ..EngineConfig::default()
    };
    let mut builder = EngineBuilder::new(store).config(config);
    for protocol in [protocol, graph, child] {
        builder = builder.protocol(protocol);
    }
    let log = folder.join("effects.log");
    for step in &STEPS[..LAST_STEP] {
        builder = builder.service(step, 8, handler(log.clone()));
    }
    for service in [STEPS[LAST_STEP], WORK] {
        builder = builder.service(service, 8, transactional::<S>(log.clone()));
    }
    let engine = Arc::new(with_batches_and_bus(builder).start().await.unwrap());
    match role {
        LOAD => load(&engine).await,
        SERVE => std::future::pending().await,
        _ => {
            say_what_nobody_said(&engine).await;
            while engine.store().open_jobs().await.unwrap() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    let engine = Arc::into_inner(engine).expect("nobody submits any more");
    if let Err(error) = engine.shutdown(Duration::from_secs(5)).await {
        gone(&error);
    }
}

/// A kill is never the fault of a step or of those inside of it, however often it comes.
fn bear_kills(step: &mut Step) {
    step.retry.max_losses = Some(1_000_000);
    step.steps.iter_mut().for_each(bear_kills);
}

/// Says to the graphs what those who submitted them may not have lived to say.
async fn say_what_nobody_said<S: Store>(engine: &Engine<S>) {
    let request_type = Some("GRAPH".to_owned());
    let filter = JobFilter { request_type, limit: 1_000_000, ..JobFilter::default() };
    for job in engine.store().jobs(filter).await.unwrap() {
        if !job.row.state.is_terminal() {
            let job_id = job.facts.job_id;
            if let Err(refusal) = say_early_and_late(engine, job_id).await {
                let signals = engine.store().signals(job_id).await;
                let events = engine.store().events(job_id).await;
                panic!("{refusal}: {job:?} {signals:?} {events:?}");
            }
        }
    }
}

/// Submits until it is refused, and says what was accepted: sequences, and a graph now and then.
async fn load<S: Store>(engine: &Arc<Engine<S>>) {
    let round = std::env::var("SPRAG_ROUND").unwrap();
    let has_graphs = std::env::var(NO_GRAPHS).is_err();
    let mut submits = tokio::task::JoinSet::new();
    for n in 0.. {
        // The second is the first of them, so that short lives have one too.
        let is_graph = has_graphs && n % GRAPH_EVERY == 1;
        let request_type = if is_graph { "GRAPH" } else { "KILL" };
        let envelope = format!(
            r#"{{"tenant_id":"t","request_type":"{request_type}","input_ref":"i","output_ref":"o",
                "payload":{{"n":{n}}},"schema_version":"1","idempotency_key":"{round}-{n}"}}"#
        );
        let engine = engine.clone();
        submits.spawn(async move {
            let job_id = engine.submit(envelope.as_bytes()).await?.job_id;
            println!("{job_id}");
            if is_graph {
                // If the store is away, the last life says it.
                let _ = say_early_and_late(&engine, job_id).await;
            }
            Ok::<_, Refusal>(())
        });
        while submits.len() >= 4 {
            if submits.join_next().await.unwrap().unwrap().is_err() {
                submits.join_all().await;
                return;
            }
        }
    }
}

fn handler(log: PathBuf) -> Handler {
    Handler::new(move |_: serde_json::Value, directive, _| {
        let logged = append(&log, &directive);
        async move { logged.map(|()| directive.attempt_no) }
    })
}

fn transactional<S: Effects>(log: PathBuf) -> TransactionalHandler<S::Work> {
    TransactionalHandler::new(move |_: serde_json::Value, directive, _| {
        let logged = append(&log, &directive);
        async move {
            logged?;
            Ok((directive.attempt_no, S::effect(directive.effect_key)))
        }
    })
}

fn append(log: &Path, directive: &Directive) -> Result<(), Failure> {
    let mut log = OpenOptions::new().create(true).append(true).open(log).unwrap();
    let line = format!("{} {}\n", directive.effect_key, directive.attempt_no);
    log.write_all(line.as_bytes()).map_err(|error| Failure::retryable("LOG", error))
}
