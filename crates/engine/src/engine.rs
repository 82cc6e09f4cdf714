//! The engine as its user sees it: build it, submit to it, stop it.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sprag_kernel::retry::{Backoff, RetryPolicy};
use sprag_kernel::{Code, JobState, Refusal};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::batch::{BatchHandler, Item, ItemContext, ItemFailure, ItemOutcome, OutputRun};
use crate::bus::{Bus, listen};
use crate::callback::{Alive, Callback, Claim, Completion, Fence, Heard};
use crate::closings::Closings;
use crate::control;
use crate::directive::Directive;
use crate::envelope::Envelope;
use crate::graph::{EXEC, Graph, HTTP};
use crate::heart::{Body, Calling, Heart, Op, Service};
use crate::hints::{Hears, Listener};
use crate::hooks::{Deliverer, Hook, task_of};
use crate::ids::{EngineNo, JobId, Place};
use crate::limits::MAX_BYTES;
use crate::outbound::Caller;
use crate::protocol::Protocol;
use crate::ran::{Ran, Watch};
use crate::registry::Registry;
use crate::retention::Sweeper;
use crate::schedules::Scheduler;
use crate::store::{JobFacts, NewJob, NewStep, Store, StoreError, Submitted};
use crate::worker::Runner;

/// How many batches of one service run at a time: a short one need not wait for a long one.
pub const BATCHES: usize = 4;

/// How an engine behaves.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// What it calls itself.
    pub name: String,
    /// The largest envelope it accepts.
    pub max_envelope_bytes: usize,
    /// The largest output of a step that it keeps.
    pub max_output_bytes: usize,
    /// How long the work of a transactional handler may hold its transaction.
    pub work_limit: Duration,
    /// How often it shows a sign of life.
    pub beat: Duration,
    /// How long another engine may be silent before its work is taken over.
    pub takeover: Duration,
    /// How often it looks at timers and for work of others, while there is something to do.
    pub poll: Duration,
    /// An engine with nothing to do looks less and less often, down to this, while its store tells it of work
    /// that others leave. It wakes up for timers.
    pub idle: Duration,
    /// What workspaces begin with; opaque to the engine, which never opens them.
    pub workspace_root: String,
    /// Where batch steps find files of items and put files of output; without it they have neither.
    pub files: Option<PathBuf>,
    /// How many commands of `exec` steps it runs at a time. None are allowed if nothing is said: a protocol
    /// that has one could run whatever it likes on this machine.
    pub exec: Option<usize>,
    /// How long a finished job is kept; for ever if nothing is said.
    pub retention: Option<Duration>,
    /// How long the dedup key of a deleted job is kept; for ever if nothing is said.
    pub dedup_retention: Option<Duration>,
    /// How often it looks for what was kept long enough.
    pub sweep: Duration,
    /// Waits before a hook that failed is called again; the last one repeats.
    pub hook_backoff: Vec<Duration>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            name: "engine".to_owned(),
            max_envelope_bytes: MAX_BYTES,
            max_output_bytes: MAX_BYTES,
            work_limit: Duration::from_secs(5),
            beat: Duration::from_secs(2),
            takeover: Duration::from_secs(10),
            poll: Duration::from_millis(500),
            idle: Duration::from_secs(20),
            workspace_root: "workspace".to_owned(),
            files: None,
            exec: None,
            retention: None,
            dedup_retention: None,
            sweep: Duration::from_secs(30),
            hook_backoff: [30, 120, 600].map(Duration::from_secs).to_vec(),
        }
    }
}

/// An engine to be started.
pub struct EngineBuilder<S: Store> {
    store: S,
    config: EngineConfig,
    protocols: Vec<Protocol>,
    services: HashMap<String, Service<S::Work>>,
    hooks: HashMap<String, Hook>,
    every_end: Vec<String>,
    buses: Vec<Arc<dyn Bus>>,
    caller: Option<Caller>,
}

impl<S: Store> EngineBuilder<S> {
    /// An engine on this store.
    pub fn new(store: S) -> Self {
        Self {
            store,
            config: EngineConfig::default(),
            protocols: Vec::new(),
            services: HashMap::new(),
            hooks: HashMap::new(),
            every_end: Vec::new(),
            buses: Vec::new(),
            caller: None,
        }
    }

    /// With this configuration.
    #[must_use]
    pub fn config(mut self, config: EngineConfig) -> Self {
        self.config = config;
        self
    }

    /// With this protocol, registered at the start.
    #[must_use]
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocols.push(protocol);
        self
    }

    /// With a handler for a service, at most `slots` at a time: a [`Handler`](crate::worker::Handler) or a
    /// [`TransactionalHandler`](crate::worker::TransactionalHandler).
    #[must_use]
    pub fn service(
        mut self,
        name: &str,
        slots: usize,
        handler: impl Into<Runner<S::Work>>,
    ) -> Self {
        self.services.insert(name.to_owned(), Service::new(handler.into(), slots));
        self
    }

    /// With what computes the items of batch steps of a service, on so many threads for each of at most
    /// [`BATCHES`] batches at a time.
    #[must_use]
    pub fn batch_service(
        mut self,
        name: &str,
        threads: usize,
        handler: impl Fn(Item, &ItemContext<'_>) -> Result<ItemOutcome, ItemFailure>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let handler = BatchHandler::new(threads, handler);
        self.services.insert(name.to_owned(), Service::of_batches(handler, None, BATCHES));
        self
    }

    /// The same, with what the ordered output of those of its batches goes to whose `out` is `handler`: it makes
    /// work for the transaction that commits a run of outcomes, so that what it writes stands exactly once and
    /// in order.
    #[must_use]
    pub fn transactional_batch_service(
        mut self,
        name: &str,
        threads: usize,
        handler: impl Fn(Item, &ItemContext<'_>) -> Result<ItemOutcome, ItemFailure>
        + Send
        + Sync
        + 'static,
        output: impl Fn(OutputRun) -> S::Work + Send + Sync + 'static,
    ) -> Self {
        let (handler, output) = (BatchHandler::new(threads, handler), Arc::new(output));
        let service = Service::of_batches(handler, Some(output), BATCHES);
        self.services.insert(name.to_owned(), service);
        self
    }

    /// With what is called when a job has ended whose protocol names this hook in `on_end`.
    #[must_use]
    pub fn hook(mut self, name: &str, hook: Hook) -> Self {
        self.hooks.insert(name.to_owned(), hook);
        self
    }

    /// With what is called when any job has ended that this engine closes.
    #[must_use]
    pub fn hook_for_all(mut self, name: &str, hook: Hook) -> Self {
        self.every_end.push(task_of(name));
        self.hook(name, hook)
    }

    /// With what makes the calls of `http` steps; without it this engine runs none.
    #[must_use]
    pub fn http(mut self, caller: Caller) -> Self {
        self.caller = Some(caller);
        self
    }

    /// With workers behind a bus for these services: this engine publishes their directives, and listens.
    #[must_use]
    pub fn bus(mut self, services: &[&str], bus: Arc<dyn Bus>) -> Self {
        for name in services {
            self.services.insert((*name).to_owned(), Service::bus(bus.clone()));
        }
        self.buses.push(bus);
        self
    }

    /// Registers the protocols, takes up what a dead engine has left, and starts.
    pub async fn start(mut self) -> Result<Engine<S>, StoreError> {
        let abilities = Abilities { exec: self.config.exec.is_some(), http: self.caller.is_some() };
        if let Some(slots) = self.config.exec {
            self.services.insert(EXEC.to_owned(), Service::commands(slots));
        }
        if let Some(caller) = self.caller.take() {
            self.services.insert(HTTP.to_owned(), Service::calls(caller));
        }
        for protocol in &self.protocols {
            abilities.expect(protocol)?;
            self.store.put_protocol(&protocol.protocol_id, &protocol.to_json()).await?;
        }
        let number = self.store.join(&self.config.name).await?;
        let protocols: Vec<Arc<Pinned>> =
            self.protocols.into_iter().map(|protocol| Arc::new(Pinned::new(protocol))).collect();
        let (ops, queue) = mpsc::unbounded_channel();
        let store = Arc::new(self.store);
        let max_envelope_bytes = self.config.max_envelope_bytes;
        let (ended, closings) = (Arc::new(Notify::new()), Arc::<Closings>::default());
        let (is_told, watch) = (Hears::default(), Watch::default());
        let hooks = self.hooks.keys().cloned().collect();
        let mut beside = Beside::start(&store, number, &self.config, (self.hooks, ended.clone()));
        beside.listen(store.clone(), ops.clone(), is_told.clone());
        let (rhythm, heart) = (Arc::new(Notify::new()), ops.clone());
        beside.schedule(Scheduler {
            store: store.clone(),
            rhythm: rhythm.clone(),
            // If the heart is gone, another engine takes it in.
            laid: Box::new(move || drop(heart.send(Op::Hint))),
            stop: beside.stop.subscribe(),
        });
        let heart = Heart::new(Body {
            store: store.clone(),
            engine: number,
            config: self.config,
            services: self.services,
            protocols: protocols.clone(),
            ops: ops.clone(),
            queue,
            every_end: self.every_end,
            ended,
            closings: closings.clone(),
            hears: is_told,
            watch: watch.clone(),
        });
        let task = tokio::spawn(heart.run());
        let mut listeners = JoinSet::new();
        for bus in self.buses {
            listeners.spawn(listen(bus, ops.clone()));
        }
        let registry = Registry::default();
        Ok(Engine {
            store,
            number,
            ops,
            task,
            beside,
            listeners,
            protocols,
            registry,
            closings,
            rhythm,
            abilities,
            hooks,
            max_envelope_bytes,
            watch,
        })
    }
}

/// The tasks beside the heart, and what tells them to stop.
struct Beside {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Beside {
    /// Starts those that have something to do.
    fn start<S: Store>(
        store: &Arc<S>,
        engine: EngineNo,
        config: &EngineConfig,
        (hooks, ended): (HashMap<String, Hook>, Arc<Notify>),
    ) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        if !hooks.is_empty() {
            let millis = |wait: &Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            let waits = config.hook_backoff.iter().map(millis).collect();
            let backoff = Backoff::new(waits).unwrap_or(RetryPolicy::default().dispatch);
            let (store, stop) = (store.clone(), stopped.clone());
            tasks.spawn(Deliverer { store, engine, hooks, backoff, ended, stop }.run());
        }
        if config.retention.is_some() || config.dedup_retention.is_some() {
            let (keep, keep_keys) = (config.retention, config.dedup_retention);
            let (store, rest, stop) = (store.clone(), config.sweep, stopped);
            tasks.spawn(Sweeper { store, engine, keep, keep_keys, rest, stop }.run());
        }
        Self { stop, tasks }
    }

    /// Starts the one that hands on the hints of the store.
    fn listen<S: Store>(
        &mut self,
        store: Arc<S>,
        ops: mpsc::UnboundedSender<Op<S::Work>>,
        hears: Hears,
    ) {
        let stop = self.stop.subscribe();
        self.tasks.spawn(Listener { store, ops, hears, stop }.run());
    }

    /// Starts the one that submits by the clock.
    fn schedule<S: Store>(&mut self, scheduler: Scheduler<S>) {
        self.tasks.spawn(scheduler.run());
    }

    /// Tells them to stop and waits; what has not stopped at the deadline is dropped.
    async fn end(mut self, deadline: Duration) {
        // Those that have ended do not listen.
        let _ = self.stop.send(true);
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(deadline, all).await;
    }
}

/// What this engine may do beside handing out work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    exec: bool,
    http: bool,
}

impl Abilities {
    /// Checks a protocol, and refuses one that asks for more than this engine may do.
    pub(crate) fn expect(self, protocol: &Protocol) -> Result<(), Refusal> {
        let graph = protocol.graph()?;
        for (kind, service, allowed) in [("exec", EXEC, self.exec), ("http", HTTP, self.http)] {
            let step = graph.nodes().iter().find(|node| node.service == service);
            if let Some(step) = step.filter(|_| !allowed) {
                return Err(Refusal::new(Code::StepKindRefused)
                    .with("kind", kind)
                    .with("step_id", step.step_id.clone()));
            }
        }
        Ok(())
    }
}

/// A protocol as jobs are pinned to it.
pub(crate) struct Pinned {
    pub(crate) protocol: Protocol,
    /// What the closing commit records besides.
    pub(crate) tasks: Arc<[String]>,
    pub(crate) graph: Graph,
    pub(crate) steps: Arc<[NewStep]>,
    pub(crate) policies: Vec<sprag_kernel::retry::RetryPolicy>,
    /// Whether any of its steps has a limit.
    pub(crate) has_gates: bool,
    /// Where the result of a job is, which a parent is told.
    pub(crate) results: Arc<[(String, Place)]>,
}

impl Pinned {
    pub(crate) fn new(protocol: Protocol) -> Self {
        let graph = protocol.graph().expect("a protocol is checked before it is pinned");
        let policies = graph.nodes().iter().map(|node| node.policy.clone()).collect();
        let tasks = protocol.on_end.iter().map(|hook| task_of(hook)).collect();
        let has_gates = graph.nodes().iter().any(|node| node.gate.is_some());
        let results = graph.results().into();
        Self { steps: graph.new_steps(), policies, has_gates, results, graph, tasks, protocol }
    }
}

/// A running engine.
pub struct Engine<S: Store> {
    store: Arc<S>,
    number: EngineNo,
    ops: mpsc::UnboundedSender<Op<S::Work>>,
    task: JoinHandle<Result<(), StoreError>>,
    beside: Beside,
    /// One for each bus; they end with the engine.
    listeners: JoinSet<()>,
    pub(crate) protocols: Vec<Arc<Pinned>>,
    pub(crate) registry: Registry,
    pub(crate) closings: Arc<Closings>,
    /// Tells the scheduler of a new tick.
    pub(crate) rhythm: Arc<Notify>,
    pub(crate) abilities: Abilities,
    /// The hooks that it can call.
    pub(crate) hooks: HashSet<String>,
    pub(crate) max_envelope_bytes: usize,
    watch: Watch,
}

impl<S: Store> Engine<S> {
    /// Has somebody told of every attempt that this engine has run itself. It is called between the engine's own
    /// doings, so it has to be quick. There is one; whoever comes later is not told, and hears that.
    pub fn watch(&self, watcher: impl Fn(&Ran<'_>) + Send + Sync + 'static) -> bool {
        self.watch.set(watcher)
    }

    /// Submits an envelope. The same content, or the same idempotency key, is the same job.
    pub async fn submit(&self, envelope: &[u8]) -> Result<Submitted, Refusal> {
        self.submit_traced(envelope, None).await
    }

    /// Submits an envelope whose job belongs to this trace, unless it names one itself.
    pub async fn submit_traced(
        &self,
        envelope: &[u8],
        traceparent: Option<&str>,
    ) -> Result<Submitted, Refusal> {
        let mut envelope = Envelope::read(envelope, self.max_envelope_bytes)?;
        if envelope.traceparent.is_none() {
            envelope.traceparent = traceparent.map(str::to_owned);
        }
        let pinned = self.serving(&envelope.request_type).await?;
        let dedup_key = envelope.dedup_key();
        let job = new_job(envelope, dedup_key, &pinned)?;
        let (reply, answer) = oneshot::channel();
        self.ops.send(Op::Submit { job, reply }).map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Asks a job to stop, and its children with it. Answers with its state: CANCELLING, CANCELLED, or how it had ended.
    pub async fn cancel(&self, job_id: JobId, version: Option<u64>) -> Result<JobState, Refusal> {
        let (state, all) = control::cancel(&*self.store, self.number, job_id, version).await?;
        for (job_id, entered) in all {
            self.tell(match entered {
                Some(held) => Op::Entered { held: Box::new(held) },
                None => Op::Cancelling { job_id },
            });
        }
        Ok(state)
    }

    /// Which life of which engine this is.
    pub(crate) fn number(&self) -> EngineNo {
        self.number
    }

    /// Tells the heart. If it is gone, another engine goes on from what is stored.
    pub(crate) fn tell(&self, op: Op<S::Work>) {
        let _ = self.ops.send(op);
    }

    /// Something may be claimable.
    pub(crate) fn wake(&self) {
        self.tell(Op::Wake);
    }

    /// Hands out work to a worker outside, and waits for it if there is none. The same claim again gets the
    /// same directives while their leases hold.
    pub async fn claim(&self, claim: Claim) -> Result<Vec<Directive>, Refusal> {
        claim.check()?;
        let (reply, answer) = oneshot::channel();
        self.ops.send(Op::Claim { claim, reply }).map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// A worker has the directive: its lease begins. Again is a no-op.
    pub async fn ack(&self, fence: Fence) -> Result<(), Refusal> {
        self.call(fence, Callback::Ack).await.map(|_| ())
    }

    /// A worker is alive, and may say how far it is: its lease begins anew.
    pub async fn heartbeat(&self, fence: Fence, progress: Option<Value>) -> Result<Alive, Refusal> {
        match self.call(fence, Callback::Heartbeat(progress)).await? {
            Heard::Alive(alive) => Ok(alive),
            Heard::Done => unreachable!("a heartbeat is answered with the end of the lease"),
        }
    }

    /// A worker reports how its attempt went. It is stored when this returns; the same again is a no-op.
    pub async fn result(&self, fence: Fence, completion: Completion) -> Result<(), Refusal> {
        self.call(fence, Callback::Result(completion)).await.map(|_| ())
    }

    /// Compares what the store says that this engine holds with what it knows of, as it does by itself
    /// after every answer of the store that got lost.
    pub fn reconcile(&self) {
        self.tell(Op::Reconcile);
    }

    /// Any callback, as transports deliver them.
    pub async fn call(&self, fence: Fence, callback: Callback) -> Result<Heard, Refusal> {
        let (reply, answer) = oneshot::channel();
        let calling = Calling { fence, callback, reply, tries: 0 };
        self.ops.send(Op::Callback(calling)).map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Whether it still works: it has neither been declared dead nor outlived its version.
    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }

    /// The store that this engine works on, for looking at jobs.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Stops: nothing new starts, running handlers are told to end and waited for until `deadline`.
    pub async fn shutdown(mut self, deadline: Duration) -> Result<(), StoreError> {
        // If the heart is gone already, its own result says why.
        let _ = self.ops.send(Op::Shutdown { deadline });
        self.beside.end(deadline).await;
        let ended = joined(self.task).await;
        self.listeners.shutdown().await;
        ended
    }

    /// Waits until the engine ends by itself: because it was declared dead, or because the store has moved on
    /// to a version that this binary does not understand.
    pub async fn ended(mut self) -> Result<(), StoreError> {
        let ended = joined(self.task).await;
        // None of them may have anything to do any more, but each has the store.
        self.beside.tasks.shutdown().await;
        self.listeners.shutdown().await;
        ended
    }
}

/// How the heart has ended.
async fn joined(task: JoinHandle<Result<(), StoreError>>) -> Result<(), StoreError> {
    task.await.unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string())))
}

fn stopped() -> Refusal {
    Refusal::new(Code::StoreUnavailable).with("reason", "the engine has stopped")
}

/// The job of an envelope under a protocol, if its payload fits.
pub(crate) fn new_job(
    envelope: Envelope,
    dedup_key: String,
    pinned: &Pinned,
) -> Result<NewJob, Refusal> {
    pinned.graph.check_submitted(&envelope.payload)?;
    let facts = JobFacts {
        job_id: JobId::new(),
        dedup_key,
        tenant_id: envelope.tenant_id,
        request_type: envelope.request_type,
        protocol_id: pinned.protocol.protocol_id.clone(),
        input_ref: envelope.input_ref,
        output_ref: envelope.output_ref,
        payload: envelope.payload,
        schema_version: envelope.schema_version,
        idempotency_key: envelope.idempotency_key,
        hash: envelope.hash,
        doc_id: envelope.doc_id,
        mode: envelope.mode,
        route: envelope.route,
        correlation_id: envelope.correlation_id,
        traceparent: envelope.traceparent,
        priority: envelope.priority,
        rerun_of: None,
    };
    Ok(NewJob {
        gates: pinned.graph.gates(&facts),
        facts: Arc::new(facts),
        steps: pinned.steps.clone(),
        is_graph: !pinned.graph.is_sequence(),
        not_before: envelope.not_before,
        enter: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_a_dead_engine_is_taken_up_within_fifteen_seconds() {
        let EngineConfig { beat, takeover, .. } = EngineConfig::default();
        // It has just beaten when it dies, and the beat that finds it silent has just missed that.
        assert!(takeover + beat < Duration::from_secs(15));
        assert!(beat * 3 <= takeover, "a beat or two that are late make nobody dead");
    }
}
