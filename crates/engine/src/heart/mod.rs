//! The heart: one task that moves attempts along, phase by phase, in groups.
//!
//! Each phase has a queue and at most one call under way: submit, claim, dispatch, end, finish. While a
//! call is under way the next group gathers, so a lone job commits at once and a loaded engine commits
//! groups. A few are taken on to the next phase by the same call, in a commit of its own. An attempt is in
//! one place at a time: in a queue, in a call, or with its handler. Nothing leaves for a handler before its
//! dispatch is committed.
//!
//! A call that fails puts its group back. If the store was away the group waits and is tried again: the
//! guards make a repeat harmless. If the store refused a row the next group is half as large, until the
//! culprit stands alone; that one ends, the others go on.

mod batch;
mod bench;
mod callbacks;
mod children;
mod control;
mod doer;
mod done;
mod finish;
mod gates;
mod inbox;
mod intake;
mod legs;
mod life;
mod lone;
mod phase;
mod publish;
mod pull;
mod reconcile;
mod rest;
mod serving;
mod sight;
mod slots;
mod strangers;
mod waits;
mod works;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sprag_kernel::Refusal;
use sprag_kernel::decide::rows::{AttemptRow, JobRow};
use sprag_kernel::retry::Millis;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::batch::run::BatchEnd;
use crate::callback::Claim;
use crate::closings::Closings;
use crate::context::{Ends, StopReason};
use crate::directive::{Failure, Payloads};
use crate::engine::{EngineConfig, Pinned};
use crate::graph::CONTROL;
use crate::hints::Hears;
use crate::ids::{AttemptKey, EngineNo, JobId};
use crate::ran::Watch;
use crate::store::{
    Answer, DispatchWrite, EndWrite, Held, NewChild, NewJob, Store, StoreError, Submitted, Wish,
};
use crate::worker::Returned;
use callbacks::{Refusing, Renewing};
use doer::Doer;
use done::Done;
use phase::Phase;
use pull::Pulls;
use reconcile::Reconciling;
use rest::Rest;
use serving::Serving;
use strangers::Strangers;
use works::Works;

pub(crate) use callbacks::Calling;
pub(crate) use doer::Service;
pub(crate) use pull::ClaimReply;

/// How long the heart waits before it asks a store again that was away.
const AWAY: Duration = Duration::from_millis(200);

/// What is asked of the heart.
pub(crate) enum Op<W> {
    /// A job to submit.
    Submit { job: NewJob, reply: Reply },
    /// A handler has returned.
    Returned { key: AttemptKey, result: Result<Returned<W>, Failure> },
    /// A batch has ended.
    Batched { key: AttemptKey, end: BatchEnd },
    /// A handler's time is over.
    TimedOut { key: AttemptKey },
    /// A transport has taken a directive, or has not.
    Published { held: Box<Held>, taken: Result<(), String> },
    /// What the store says that this engine holds may be more than it knows.
    Reconcile,
    /// A worker outside asks for work.
    Claim { claim: Claim, reply: ClaimReply },
    /// A worker outside has something to say.
    Callback(Calling),
    /// A message was entered by a decision elsewhere; this engine owns it.
    Entered { held: Box<Held> },
    /// A protocol that was registered after the start.
    Learn { pinned: Arc<Pinned> },
    /// Something may be claimable.
    Wake,
    /// Somebody else may have left something, or hints are not heard any more.
    Hint,
    /// A job is being cancelled: its handlers are told, and its activation may be claimable.
    Cancelling { job_id: JobId },
    /// The end.
    Shutdown { deadline: Duration },
}

type Reply = oneshot::Sender<Result<Submitted, Refusal>>;

/// A job on its way into the store.
struct Submitting {
    job: NewJob,
    reply: Reply,
    /// Whether it was tried before, with an outcome that is not known: then it is entered for nobody, and
    /// what the first try has entered is found in the books.
    repeats: bool,
    /// The directive that was sent along with that try. It is written again once the job is known to be there: the
    /// first one may still be on its way then, and is recognised by its lease whichever comes first.
    ahead: Option<Box<Dispatching>>,
}

/// A handler that runs.
struct Running {
    held: Held,
    ends: Ends,
    started_at: Instant,
    /// When its lease was last renewed.
    renewed_at: Instant,
}

/// An activation of a graph that has not looked at what came before it.
#[derive(Clone)]
struct Seeing {
    held: Held,
    /// The claim of a worker outside that it is for; else it has a slot of this engine.
    pull: Option<u64>,
}

/// An activation on its way through Leg1.
struct Dispatching {
    held: Held,
    /// The rows as they were before the plan moved them along.
    before: (JobRow, AttemptRow),
    write: Option<DispatchWrite>,
    /// The claim that it goes to; else to a slot of this engine.
    pull: Option<u64>,
    /// The child job that it goes to instead.
    child: Option<Arc<NewChild>>,
}

/// A message on its way into Leg2.
struct Ending {
    held: Held,
    write: EndWrite,
    /// Whether the attempt holds a slot of this engine until the message is stored.
    has_slot: bool,
    /// The callback that said so, and waits for its answer.
    calling: Option<Calling>,
}

/// A message on its way through Steps 1 to 3.
#[derive(Clone)]
struct Finishing {
    held: Held,
    output: Option<String>,
    /// Whether a slot is reserved for the next step.
    enter_next: bool,
    repeats: bool,
}

/// What a claim asks the store for, and the slots that it has reserved for that.
struct Claiming {
    wishes: Vec<Wish>,
    slots: HashMap<String, u32>,
}

/// Why an attempt came from the store.
enum Origin {
    /// This engine claimed its activation.
    Claimed,
    /// Its time has come, at this time.
    Due(Millis),
    /// A dead engine held it.
    Orphan,
    /// It was handed out under this claim before.
    Replayed(u64),
    /// It waits to be published, and its time has come.
    Unpublished,
    /// A worker says something about it.
    Called(Box<Calling>),
}

pub(crate) struct Heart<S: Store> {
    store: Arc<S>,
    engine: EngineNo,
    config: EngineConfig,
    services: HashMap<String, Service<S::Work>>,
    protocols: HashMap<String, Arc<Pinned>>,
    /// Those that the engine was built with, the last one first.
    own: Arc<[Arc<Pinned>]>,
    ops: mpsc::UnboundedSender<Op<S::Work>>,
    queue: mpsc::UnboundedReceiver<Op<S::Work>>,
    calls: JoinSet<Done<S::Work>>,
    submits: Phase<Submitting>,
    /// Activations of graphs that have not looked at what came before them.
    sights: Phase<Seeing>,
    /// Those among them whose expressions may take a while.
    bench: bench::Bench,
    /// Those among them that are to run once their signal is there.
    waits: Phase<Seeing>,
    dispatches: Phase<Dispatching>,
    ends: Phase<Ending>,
    works: Works<S::Work>,
    finishes: Phase<Finishing>,
    pulls: Pulls,
    serving: Serving,
    finds: Phase<Calling>,
    renews: Phase<Renewing>,
    refusals: Phase<Refusing>,
    payloads: Payloads,
    /// Directives that are with their transport.
    publishing: HashSet<AttemptKey>,
    reconciling: Reconciling,
    claiming: bool,
    /// Since when a sign of life is on its way: the next one waits for it.
    beats_since: Option<Instant>,
    gates: gates::Watch,
    inbox: inbox::Looking,
    rest: Rest,
    /// Who measures what is run here.
    watch: Watch,
    /// Whether the store may have activations that this engine could claim.
    may_claim: bool,
    /// The store was away; nothing is asked of it before this time.
    away_until: Option<Instant>,
    /// When it was last away: whoever was silent then could not help it.
    last_away: Option<Instant>,
    strangers: Strangers,
    running: HashMap<AttemptKey, Running>,
    lone: lone::Lone,
    /// Whether the next claim also asks for a suspect.
    may_claim_lone: bool,
    /// Which service is asked next.
    suspect_turn: usize,
    stopping: Option<Instant>,
    /// Why it stops, if nobody has asked for it.
    too_old: Option<Refusal>,
    next_lease: u64,
    /// What closing commits record besides, whatever the protocol.
    every_end: Vec<String>,
    /// Told when there may be hooks to call: a job has ended, or it is time to look.
    ended: Arc<Notify>,
    closings: Arc<Closings>,
}

/// What a heart is made of.
pub(crate) struct Body<S: Store> {
    pub(crate) store: Arc<S>,
    pub(crate) engine: EngineNo,
    pub(crate) config: EngineConfig,
    pub(crate) services: HashMap<String, Service<S::Work>>,
    pub(crate) protocols: Vec<Arc<Pinned>>,
    pub(crate) ops: mpsc::UnboundedSender<Op<S::Work>>,
    pub(crate) queue: mpsc::UnboundedReceiver<Op<S::Work>>,
    pub(crate) every_end: Vec<String>,
    pub(crate) ended: Arc<Notify>,
    pub(crate) closings: Arc<Closings>,
    pub(crate) hears: Hears,
    pub(crate) watch: Watch,
}

impl<S: Store> Heart<S> {
    pub(crate) fn new(body: Body<S>) -> Self {
        let mut services = body.services;
        services.insert(CONTROL.to_owned(), Service::control());
        let rest = Rest::new(&body.config, services.len(), body.hears);
        let mut heart = Self {
            store: body.store,
            engine: body.engine,
            config: body.config,
            services,
            own: body.protocols.iter().rev().cloned().collect(),
            protocols: HashMap::new(),
            ops: body.ops,
            queue: body.queue,
            calls: JoinSet::new(),
            submits: Phase::new(),
            sights: Phase::new(),
            bench: bench::Bench::default(),
            waits: Phase::new(),
            dispatches: Phase::new(),
            ends: Phase::new(),
            works: Works::default(),
            finishes: Phase::new(),
            pulls: Pulls::new(),
            serving: Serving::default(),
            finds: Phase::new(),
            renews: Phase::new(),
            refusals: Phase::new(),
            payloads: Payloads::default(),
            publishing: HashSet::new(),
            reconciling: Reconciling::default(),
            watch: body.watch,
            claiming: false,
            beats_since: None,
            gates: gates::Watch::default(),
            inbox: inbox::Looking::default(),
            rest,
            may_claim: true,
            away_until: None,
            last_away: None,
            strangers: Strangers::default(),
            running: HashMap::new(),
            lone: lone::Lone::default(),
            may_claim_lone: true,
            suspect_turn: 0,
            stopping: None,
            too_old: None,
            next_lease: first_lease(),
            every_end: body.every_end,
            ended: body.ended,
            closings: body.closings,
        };
        body.protocols.into_iter().for_each(|pinned| heart.know(pinned));
        heart
    }

    /// A protocol that jobs may follow.
    fn know(&mut self, pinned: Arc<Pinned>) {
        self.gates.is_used(pinned.has_gates);
        self.protocols.insert(pinned.protocol.protocol_id.clone(), pinned);
    }

    /// Beats until it is told to stop and everything it holds has come to rest. If it ends otherwise, no
    /// result of a handler counts any more, so that those that run are told to stop.
    pub(crate) async fn run(mut self) -> Result<(), StoreError> {
        let ended = self.live().await;
        if let Err(error) = &ended {
            tracing::error!(code = "ENGINE_ENDED", engine = self.engine.0, %error, "the engine ends");
            self.running.values().for_each(|running| running.ends.stop(StopReason::Shutdown));
        }
        ended
    }

    async fn live(&mut self) -> Result<(), StoreError> {
        let mut beat = interval(self.config.beat);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ops = Vec::new();
        loop {
            self.pump();
            if self.is_at_rest() {
                self.store.leave(self.engine).await?;
                return self
                    .too_old
                    .take()
                    .map_or(Ok(()), |refusal| Err(StoreError::Refused(refusal)));
            }
            let (away, deadline, hinted) = (self.away_until, self.stopping, self.rest.follow_at());
            let may_expire = !self.claiming && deadline.is_none();
            let claim_ends = self.pulls.next_deadline(away.is_some()).filter(|_| may_expire);
            tokio::select! {
                biased;
                Some(done) = self.calls.join_next() => {
                    self.take(done.map_err(|e| StoreError::Unavailable(e.to_string()))?)?;
                }
                count = self.queue.recv_many(&mut ops, phase::SLICE) => {
                    assert!(count > 0, "the heart holds a sender itself");
                    ops.drain(..).for_each(|op| self.hear(op));
                }
                () = until(away), if away.is_some() => self.away_until = None,
                () = until(deadline), if deadline.is_some() => {}
                () = until(claim_ends), if claim_ends.is_some() => self.expire_claims(),
                _ = beat.tick() => self.beat(),
                () = until(hinted), if hinted.is_some() => self.follow_hint(),
                () = until(Some(self.rest.next())), if self.reconciling == Reconciling::No => self.look(),
            }
        }
    }

    fn is_at_rest(&self) -> bool {
        let Some(deadline) = self.stopping else { return false };
        let idle = self.running.is_empty()
            && self.publishing.is_empty()
            && self.ends.is_empty()
            && self.works.is_empty()
            && self.finishes.is_empty()
            && self.finds.is_empty()
            && self.renews.is_empty()
            && self.refusals.is_empty()
            && !self.strangers.are_expected()
            && self.calls.is_empty();
        idle || Instant::now() >= deadline
    }

    fn hear(&mut self, op: Op<S::Work>) {
        match op {
            Op::Submit { job, reply } => {
                self.submits.push(Submitting { job, reply, repeats: false, ahead: None });
            }
            Op::Returned { key, result } => self.returned(&key, result),
            Op::Batched { key, end } => self.batched(&key, end),
            Op::TimedOut { key } => self.timed_out(&key),
            Op::Published { held, taken } => self.published(*held, taken),
            Op::Reconcile => self.reconciling = Reconciling::Wanted,
            Op::Claim { claim, reply } => self.pull(claim, reply),
            Op::Callback(calling) => self.call(calling),
            Op::Entered { held } => self.admit(Origin::Orphan, *held),
            Op::Learn { pinned } => {
                self.know(pinned);
            }
            Op::Wake => self.wake(),
            Op::Hint => self.rest.hint(),
            Op::Cancelling { job_id } => {
                self.tell_cancelled(job_id);
                self.wake();
            }
            Op::Shutdown { deadline } => self.stop(deadline),
        }
    }

    /// Nothing new starts; handlers are told to end and waited for.
    fn stop(&mut self, deadline: Duration) {
        let deadline = Instant::now() + deadline;
        self.stopping = Some(self.stopping.map_or(deadline, |earlier| earlier.min(deadline)));
        self.dismiss_claims();
        self.running.values().for_each(|running| running.ends.stop(StopReason::Shutdown));
    }

    /// Starts every call that has something to carry. While stopping, only what brings attempts to rest.
    fn pump(&mut self) {
        if self.away_until.is_some() || self.reconciles() {
            return;
        }
        if self.stopping.is_none() {
            self.attend_suspects();
        }
        self.find();
        self.renew();
        self.record_refusals();
        self.work();
        self.end();
        self.finish();
        if self.stopping.is_none() {
            self.look_around();
            self.judge();
            self.wait();
            self.dispatch();
            self.submit();
            self.look_up_claims();
            self.admit_at_gates();
            self.claim();
        }
    }

    fn take(&mut self, done: Done<S::Work>) -> Result<(), StoreError> {
        if done.stirs() {
            self.rest.stir();
        }
        match done {
            Done::Submitted(jobs, answer) => self.submitted(jobs, answer),
            Done::Begun(group, answer) => self.begun(group, answer),
            Done::Claimed(claiming, answer) => self.claimed(claiming, answer),
            Done::Seen(group, answer) => self.seen(group, answer),
            Done::Judged(seeing, finding) => {
                self.judged(*seeing, finding);
                Ok(())
            }
            Done::Waited(group, answer) => self.waited(group, answer),
            Done::Dispatched(held, answer) => self.dispatched(held, answer),
            Done::LookedUp(group, answer) => self.looked_up(group, answer),
            Done::Found(group, answer) => self.found(group, answer),
            Done::Renewed(group, answer) => self.renewed(group, answer),
            Done::Recorded(group, answer) => self.recorded(group, answer),
            Done::Released(answer) | Done::Noted(answer) => self.heard(answer).map(|_| ()),
            Done::Unpublished(answer) => self.unpublished(answer),
            Done::Reconciled(answer) => self.reconciled(answer),
            Done::Ended(ends, answer) => self.ended(ends, answer),
            Done::Over(group, answer) => self.over_soon(group, answer),
            Done::Finished(finishes, answer) => self.finished(finishes, answer),
            Done::Beaten(answer) => self.beaten(answer),
            Done::Worked(working, answer) => self.worked(*working, answer),
            Done::Pulsed(answer) => self.heard(answer).map(|_| ()),
            Done::Cancelling(answer) => {
                for job_id in self.heard(answer)?.unwrap_or_default() {
                    self.tell_cancelled(job_id);
                }
                Ok(())
            }
            Done::TakenOver(answer) => {
                let orphans = self.heard(answer)?.unwrap_or_default();
                for held in orphans {
                    self.admit(Origin::Orphan, held);
                }
                self.may_claim = true;
                // Hooks that it had not called are among what is free now.
                self.ended.notify_one();
                Ok(())
            }
            Done::Looked(answer) => {
                let due = self.heard(answer)?.unwrap_or_default();
                self.may_claim |= due.promoted > 0;
                if due.promoted > 0 {
                    self.gates.look_again();
                }
                if let Some(next) = due.next {
                    self.rest.wake_in(next.saturating_sub(due.now));
                }
                for held in due.held {
                    self.admit(Origin::Due(due.now), held);
                }
                Ok(())
            }
            Done::Entered(answer) => {
                if let Some(held) = self.heard(answer)?.flatten() {
                    self.finish_later(held, None);
                }
                Ok(())
            }
            Done::EnteredAlone(answer) => self.entered_alone(answer),
            Done::Admitted(round, answer) => self.admitted(round, answer),
            Done::TookIn(answer) => self.took_in(answer),
            Done::Seeded(seeing, answer) => self.seeded(*seeing, answer),
            Done::Told(answer) => self.told(answer),
            Done::Tended(answer) => self.tended(answer),
            Done::Measured(held, output, answer) => self.measured(*held, output, answer),
            Done::Learned(protocol_id, answer) => {
                let definition = self.heard(answer)?.flatten();
                self.learned(&protocol_id, definition.as_deref());
                Ok(())
            }
        }
    }

    /// The value of an answer. A store that is away is asked again later; to be fenced off is the end.
    fn heard<T>(&mut self, answer: Answer<T>) -> Result<Option<T>, StoreError> {
        match answer {
            Ok(value) => Ok(Some(value)),
            Err(StoreError::Fenced) => Err(StoreError::Fenced),
            Err(error) => {
                if matches!(error, StoreError::Unavailable(_)) {
                    self.reconciling = Reconciling::Wanted;
                    self.last_away = Some(Instant::now());
                }
                tracing::warn!(code = "STORE_CALL_FAILED", %error, "a call to the store failed");
                self.away_until = Some(Instant::now() + AWAY);
                Ok(None)
            }
        }
    }

    fn service_of(&self, held: &Held) -> String {
        self.pinned(held).steps[held.key.step_index as usize].service.clone()
    }

    fn pinned(&self, held: &Held) -> Arc<Pinned> {
        self.protocols[&held.facts.protocol_id].clone()
    }
}

pub(crate) async fn until(time: Option<Instant>) {
    if let Some(time) = time {
        tokio::time::sleep_until(time).await;
    }
}

/// Where an engine's lease ids begin: far from those of its other lives.
fn first_lease() -> u64 {
    let (high, _) = uuid::Uuid::now_v7().as_u64_pair();
    // Positive as a signed integer, with room to count.
    (high << 8) & i64::MAX.cast_unsigned()
}
