//! The commands: values, the same for both stores, that call one writing primitive of the seam each. What one
//! answered is text without what may differ, and what it did as far as the model needs to be told.

use std::fmt::{self, Debug, Write as _};
use std::time::Duration;

use sprag_engine::batch::store::{BatchOutcome, BatchWorked, BatchWrite, Batches};
use sprag_engine::gate::Gates;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId, Place, RequestId};
use sprag_engine::inbox::TakeIn;
use sprag_engine::pairs::{Beginning, Begun, Over};
use sprag_engine::plan;
use sprag_engine::requests::{NewRequest, RequestStore};
use sprag_engine::schedules::{Rest, Schedule, TickWrite};
use sprag_engine::signals::{Signal, Signals, WaitWrite};
use sprag_engine::store::{
    Amendment, Answer, AttemptError, Decide, DispatchOutcome, DispatchWrite, EndOutcome, EndWrite,
    FinishOutcome, FinishWrite, Held, NewJob, Pulse, RenewOutcome, RenewWrite, StaleCallback,
    Store, StoreError, Wish, Worked,
};
use sprag_engine::tokens::{NewToken, TokenStore};
use sprag_engine::upkeep::{Delivery, Task};
use sprag_kernel::decide::rerun;
use sprag_kernel::decide::rows::{Fence, LeaseId};
use sprag_kernel::retry::{Millis, RetryPolicy};
use sprag_kernel::{Code, JobState, Refusal};

use super::asked::Asked;
use super::look;
use crate::deeds::Then;
use crate::play::{Play, acknowledging, publishing};
use crate::world::World;

/// How long the work of a handler may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Which attempt a decision is about: the newest at the place, or the job's current one.
pub type Spot = (JobId, Option<Place>);

/// A command. Its name is that of the primitive, or of the decision that it has the primitive make.
#[derive(Clone, Debug)]
pub enum Command {
    // The lives of engines.
    Join,
    Beat(EngineNo),
    TakeOver(EngineNo, EngineNo),
    Due(EngineNo),
    Leave(EngineNo),
    // The two legs.
    PutProtocol(&'static str),
    Submit(EngineNo, Vec<NewJob>),
    Claim(EngineNo, Vec<Wish>),
    Release(EngineNo, Vec<(AttemptKey, u64)>),
    Dispatch(EngineNo, Vec<DispatchWrite>),
    Unpublished(EngineNo),
    Renew(EngineNo, Vec<RenewWrite>),
    RecordStale(EngineNo, Vec<StaleCallback>),
    Pulse(EngineNo, Vec<Pulse>),
    End(EngineNo, Vec<EndWrite>),
    EndWith(EngineNo, Box<EndWrite>, Then),
    Finish(EngineNo, Vec<FinishWrite>),
    // Two of them with one call.
    Begin(EngineNo, Vec<Beginning>),
    Over(EngineNo, Vec<(EndWrite, FinishWrite)>),
    Rerun(EngineNo, JobId, Box<NewJob>),
    // Decisions under the rows' locks.
    Cancel(EngineNo, JobId, Option<u64>),
    RefuseLeg1(EngineNo, Spot),
    SkipLeg1(EngineNo, Spot, Option<AttemptError>),
    FailLeg1(EngineNo, Spot, LeaseId),
    Publish(EngineNo, Spot, u64),
    PublishFailed(EngineNo, Spot, u64),
    CloseUnpublished(EngineNo, Spot, u64),
    Ack(EngineNo, Spot, Fence),
    PoisonMessage(EngineNo, AttemptKey),
    // Batches, signals, gates.
    OpenBatch(EngineNo, AttemptKey, LeaseId),
    CommitBatch(EngineNo, Box<BatchWrite>),
    CommitBatchWith(EngineNo, Box<BatchWrite>, Then),
    Signal(EngineNo, JobId, Box<Signal>),
    Wait(EngineNo, Vec<WaitWrite>),
    Admit(EngineNo, Vec<String>),
    // Beside jobs.
    Pause(&'static str),
    Resume(&'static str),
    Serve(EngineNo, Vec<String>),
    LimitTenant(&'static str, Option<u32>),
    ClaimTasks(EngineNo, u32),
    SettleTasks(EngineNo, Vec<(Task, Delivery)>),
    Retire(EngineNo, Millis, u32),
    Forget(EngineNo, Millis),
    Mail(&'static str),
    TakeIn(EngineNo, Vec<TakeIn>),
    PutSchedule(Box<Schedule>, Option<Millis>),
    RemoveSchedule(String),
    RestSchedule(String, Rest),
    Tick(Box<TickWrite>),
    CreateRequest(Box<NewRequest>),
    AmendRequest(EngineNo, RequestId, Box<Asked>),
    PutToken(Box<NewToken>),
    RevokeToken(String),
    // What only reads.
    Read(JobId),
    Look,
}

/// What a command did, as far as the model needs to be told.
pub enum Effect {
    Nothing,
    Claimed(Vec<AttemptKey>),
    TakenOver(Vec<AttemptKey>),
    /// Which writes of the slice were done by this very call.
    Done(Vec<bool>),
    /// Which were, whether each closed its job, and whether the next step was entered with it.
    Finished(Vec<Option<(JobState, bool)>>),
    /// A decision under the locks was made, and is about this attempt; or it was refused.
    Decided(Result<Option<AttemptKey>, Refusal>),
    /// A signal was kept.
    Signalled,
}

/// The tenant of every schedule.
pub const SCHEDULER: &str = "t1";
/// The task of every end.
pub const TASK: &str = "hook:told";

/// An answer as text without what may differ.
pub fn told<T: Debug>(answer: &Answer<T>) -> String {
    match answer {
        Ok(value) => format!("{value:?}"),
        // The words of the database differ.
        Err(StoreError::Poison(_)) => "Err(Poison)".to_owned(),
        Err(error) => format!("Err({error:?})"),
    }
}

fn idle<T: Debug>(answer: &Answer<T>) -> (String, Effect) {
    (told(answer), Effect::Nothing)
}

/// As [`told`], in an order that does not depend on where rows lie.
pub fn sorted<T: Debug>(answer: &Answer<Vec<T>>) -> String {
    let mut lines: Vec<String> = answer.iter().flatten().map(|one| format!("{one:?}")).collect();
    lines.sort();
    if answer.is_ok() { lines.join("\n") } else { told(answer) }
}

fn done<T: Debug>(answer: &Answer<Vec<T>>, is_done: impl Fn(&T) -> bool) -> (String, Effect) {
    (told(answer), Effect::Done(answer.iter().flatten().map(is_done).collect()))
}

fn keys(answer: Answer<Vec<Held>>) -> Vec<AttemptKey> {
    answer.into_iter().flatten().map(|held| held.key).collect()
}

/// Takes the first word, and refuses what comes behind it.
struct Name(String);

impl fmt::Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let is_word = text.chars().all(char::is_alphanumeric);
        if is_word { self.0.write_str(text) } else { Err(fmt::Error) }
    }
}

/// After which command of which seed something does not hold.
pub struct After<'a>(pub u64, pub &'a Command);

impl fmt::Display for After<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.0, self.1)
    }
}

impl Command {
    /// Its name.
    pub fn name(&self) -> String {
        let mut name = Name(String::new());
        // It ends where the name does.
        let _ = write!(name, "{self:?}");
        name.0
    }

    /// The engine that makes it.
    pub fn engine(&mut self) -> Option<&mut EngineNo> {
        match self {
            Self::Beat(engine)
            | Self::TakeOver(_, engine)
            | Self::Due(engine)
            | Self::Submit(engine, _)
            | Self::Rerun(engine, ..)
            | Self::Claim(engine, _)
            | Self::Release(engine, _)
            | Self::Dispatch(engine, _)
            | Self::Unpublished(engine)
            | Self::Renew(engine, _)
            | Self::RecordStale(engine, _)
            | Self::Pulse(engine, _)
            | Self::End(engine, _)
            | Self::EndWith(engine, ..)
            | Self::Finish(engine, _)
            | Self::Begin(engine, _)
            | Self::Over(engine, _)
            | Self::Cancel(engine, ..)
            | Self::RefuseLeg1(engine, _)
            | Self::SkipLeg1(engine, ..)
            | Self::FailLeg1(engine, ..)
            | Self::Publish(engine, ..)
            | Self::PublishFailed(engine, ..)
            | Self::CloseUnpublished(engine, ..)
            | Self::Ack(engine, ..)
            | Self::PoisonMessage(engine, _)
            | Self::OpenBatch(engine, ..)
            | Self::CommitBatch(engine, _)
            | Self::CommitBatchWith(engine, ..)
            | Self::Signal(engine, ..)
            | Self::Wait(engine, _)
            | Self::Admit(engine, _)
            | Self::ClaimTasks(engine, _)
            | Self::SettleTasks(engine, _)
            | Self::Retire(engine, ..)
            | Self::Forget(engine, _)
            | Self::TakeIn(engine, _)
            | Self::AmendRequest(engine, ..) => Some(engine),
            _ => None,
        }
    }

    /// Has its last write twice in the slice, as when a worker says the same twice: it counts once. Or has one before it
    /// that was planned on an older row: that does not count.
    pub fn twice(&mut self, is_older: bool) {
        fn again<T: Clone>(slice: &mut Vec<T>, older: impl Fn(&mut T) -> &mut u64, is_older: bool) {
            let mut first = slice.last().expect("a slice has writes").clone();
            if is_older {
                *older(&mut first) -= 1;
            }
            slice.insert(0, first);
        }
        match self {
            Self::Release(_, activations) => again(activations, |(_, version)| version, is_older),
            // What an older one is told depends on when its job is looked at: `pairs.rs` has that case.
            Self::Dispatch(_, writes) => again(writes, |write| &mut write.version, false),
            Self::Renew(_, writes) => again(writes, |write| &mut write.version, is_older),
            Self::End(_, writes) => again(writes, |write| &mut write.version, is_older),
            Self::Finish(_, writes) => again(writes, |write| &mut write.version, is_older),
            Self::Over(_, messages) => again(messages, |(end, _)| &mut end.version, is_older),
            _ => {}
        }
    }

    /// The jobs that it may create.
    pub fn jobs(&self) -> Vec<NewJob> {
        match self {
            Self::Submit(_, jobs) => jobs.clone(),
            Self::Rerun(_, _, again) => vec![(**again).clone()],
            Self::Begin(_, beginnings) => beginnings.iter().map(|(job, _)| job.clone()).collect(),
            Self::TakeIn(_, entries) => {
                entries.iter().filter_map(|entry| entry.job.clone().ok()).collect()
            }
            Self::Dispatch(_, writes) => {
                writes.iter().filter_map(|write| Some(write.child.as_ref()?.job.clone())).collect()
            }
            Self::AmendRequest(_, _, asked) => vec![asked.job.clone()],
            _ => Vec::new(),
        }
    }
}

/// What a command answered, and what it did.
pub async fn run<W: World>(play: &Play<W>, command: Command) -> (String, Effect) {
    match command {
        Command::Join
        | Command::Beat(_)
        | Command::TakeOver(..)
        | Command::Due(_)
        | Command::Leave(_) => run_life(play.store(), command).await,
        Command::Cancel(..)
        | Command::RefuseLeg1(..)
        | Command::SkipLeg1(..)
        | Command::FailLeg1(..)
        | Command::Publish(..)
        | Command::PublishFailed(..)
        | Command::CloseUnpublished(..)
        | Command::Ack(..)
        | Command::PoisonMessage(..) => run_amend(play.store(), &play.policy, command).await,
        Command::PutProtocol(_)
        | Command::Submit(..)
        | Command::Rerun(..)
        | Command::Claim(..)
        | Command::Release(..)
        | Command::Dispatch(..)
        | Command::Unpublished(..)
        | Command::Renew(..)
        | Command::RecordStale(..)
        | Command::Pulse(..)
        | Command::End(..)
        | Command::Finish(..)
        | Command::Begin(..)
        | Command::Over(..) => run_leg(play.store(), command).await,
        Command::EndWith(..)
        | Command::OpenBatch(..)
        | Command::CommitBatch(..)
        | Command::CommitBatchWith(..)
        | Command::Signal(..)
        | Command::Wait(..)
        | Command::Admit(..) => run_work::<W>(play.store(), command).await,
        Command::Read(job_id) => (look::read(play.store(), job_id).await, Effect::Nothing),
        Command::Look => (look::look(play.store()).await, Effect::Nothing),
        Command::Mail(envelope) => {
            let at = play.clock.now();
            let sql =
                format!("INSERT INTO inbox (envelope, submitted_at) VALUES ('{envelope}', {at})");
            (format!("{:?}", play.world.execute(&sql).await), Effect::Nothing)
        }
        _ => run_beside(play.store(), command).await,
    }
}

async fn run_life<S: Store>(store: &S, command: Command) -> (String, Effect) {
    match command {
        Command::Join => idle(&store.join("engine").await),
        Command::Beat(engine) => idle(&store.beat(engine, Some(20_000)).await),
        Command::Leave(engine) => idle(&store.leave(engine).await),
        Command::Due(engine) => {
            let answer = store.due(engine, 50).await;
            let held = answer.as_ref().map(|due| due.held.clone()).unwrap_or_default();
            let rest = answer.map(|due| (due.promoted, due.now, due.next));
            (format!("promoted {}\n{}", told(&rest), sorted(&Ok(held))), Effect::Nothing)
        }
        Command::TakeOver(dead, heir) => {
            let answer = store.take_over(dead, heir).await;
            (sorted(&answer), Effect::TakenOver(keys(answer)))
        }
        other => unreachable!("{other:?} is no part of a life"),
    }
}

async fn run_leg<S: Store>(store: &S, command: Command) -> (String, Effect) {
    match command {
        Command::PutProtocol(text) => idle(&store.put_protocol("other.v1", text).await),
        Command::Submit(engine, jobs) => idle(&store.submit(engine, jobs).await),
        Command::Rerun(engine, job_id, again) => {
            let Some(job) = store.job(job_id).await.unwrap() else {
                return ("nobody".to_owned(), Effect::Nothing);
            };
            match rerun::rerun(job.row.state, &job.facts.dedup_key) {
                Ok(()) => idle(&store.submit(engine, vec![*again]).await),
                Err(refusal) => (format!("{refusal:?}"), Effect::Nothing),
            }
        }
        Command::Claim(engine, wishes) => {
            let answer = store.claim(engine, wishes).await;
            (sorted(&answer), Effect::Claimed(keys(answer)))
        }
        Command::Release(engine, activations) => idle(&store.release(engine, activations).await),
        Command::Dispatch(engine, writes) => {
            let is_done =
                |outcome: &DispatchOutcome| matches!(outcome, DispatchOutcome::Done { .. });
            done(&store.dispatch(engine, writes).await, is_done)
        }
        Command::Unpublished(engine) => {
            let services = vec![crate::play::SERVICE.to_owned()];
            (sorted(&store.unpublished(engine, services, 100).await), Effect::Nothing)
        }
        Command::Renew(engine, writes) => {
            let is_done = |outcome: &RenewOutcome| matches!(outcome, RenewOutcome::Done { .. });
            done(&store.renew(engine, writes).await, is_done)
        }
        Command::RecordStale(engine, callbacks) => {
            idle(&store.record_stale(engine, callbacks).await)
        }
        Command::Pulse(engine, pulses) => idle(&store.pulse(engine, pulses).await),
        Command::End(engine, writes) => {
            let is_done = |outcome: &EndOutcome| matches!(outcome, EndOutcome::Entered { .. });
            done(&store.end(engine, writes).await, is_done)
        }
        Command::Finish(engine, writes) => {
            let answer = store.finish(engine, writes).await;
            (told(&answer), Effect::Finished(answer.iter().flatten().map(finished).collect()))
        }
        Command::Begin(engine, beginnings) => {
            let is_done = |begun: &Begun| matches!(begun.1, Some(DispatchOutcome::Done { .. }));
            done(&store.submit_and_dispatch(engine, beginnings).await, is_done)
        }
        Command::Over(engine, messages) => {
            let answer = store.end_and_finish(engine, messages).await;
            let of_second = |over: &Over| over.1.as_ref().and_then(finished);
            (told(&answer), Effect::Finished(answer.iter().flatten().map(of_second).collect()))
        }
        other => unreachable!("{other:?} is no part of a leg"),
    }
}

fn finished(outcome: &FinishOutcome) -> Option<(JobState, bool)> {
    match outcome {
        FinishOutcome::Done { job, entered_next, .. } => Some((*job, *entered_next)),
        FinishOutcome::Gone => None,
    }
}

async fn run_work<W: World>(store: &W::Store, command: Command) -> (String, Effect) {
    match command {
        Command::EndWith(engine, write, then) => {
            let work = W::work(&effect(&write.key), then);
            let answer = store.end_with(engine, *write, work, LIMIT).await;
            let is_done = matches!(answer, Ok(Worked::Entered { .. }));
            (told(&answer), Effect::Done(vec![is_done]))
        }
        Command::OpenBatch(engine, key, lease) => idle(&store.open_batch(engine, key, lease).await),
        Command::CommitBatch(engine, write) => {
            let answer = store.commit_batch(engine, *write).await;
            let is_done = matches!(answer, Ok(BatchOutcome::Committed { .. }));
            (told(&answer), Effect::Done(vec![is_done]))
        }
        Command::CommitBatchWith(engine, write, then) => {
            let work = W::work(&format!("{}/{}", effect(&write.key), write.from), then);
            let answer = store.commit_batch_with(engine, *write, work, LIMIT).await;
            let is_done = matches!(answer, Ok(BatchWorked::Committed { .. }));
            (told(&answer), Effect::Done(vec![is_done]))
        }
        Command::Signal(engine, job_id, signal) => {
            let answer = store.signal(engine, job_id, *signal).await;
            let is_new = matches!(&answer, Ok(Some(Ok(signalled))) if signalled.created);
            (told(&answer), if is_new { Effect::Signalled } else { Effect::Nothing })
        }
        Command::Wait(engine, writes) => idle(&store.wait(engine, writes).await),
        Command::Admit(engine, gates) => idle(&store.admit(engine, gates).await),
        other => unreachable!("{other:?} is no work"),
    }
}

/// What names the effect of an attempt's work.
fn effect(key: &AttemptKey) -> String {
    format!("{}/{}/{}/{}/{}", key.job_id, key.step_index, key.branch, key.turn, key.attempt_no)
}

async fn run_beside<S: RequestStore + TokenStore>(store: &S, command: Command) -> (String, Effect) {
    match command {
        Command::Pause(service) => idle(&store.pause(service).await),
        Command::Resume(service) => idle(&store.resume(service).await),
        Command::Serve(engine, services) => idle(&store.serve(engine, services).await),
        Command::LimitTenant(tenant, max) => idle(&store.limit_tenant(tenant, max).await),
        Command::ClaimTasks(engine, max) => {
            idle(&store.claim_tasks(engine, vec![TASK.to_owned()], max, 1_000).await)
        }
        Command::SettleTasks(engine, settled) => idle(&store.settle_tasks(engine, settled).await),
        Command::Retire(engine, keep_ms, limit) => {
            idle(&store.retire(engine, keep_ms, None, limit).await)
        }
        Command::Forget(engine, keep_ms) => idle(&store.forget(engine, keep_ms, 100).await),
        Command::TakeIn(engine, entries) => idle(&store.take_in(engine, entries).await),
        Command::PutSchedule(schedule, next) => idle(&store.put_schedule(*schedule, next).await),
        Command::RemoveSchedule(id) => idle(&store.remove_schedule(SCHEDULER, &id).await),
        Command::RestSchedule(id, rest) => idle(&store.rest_schedule(SCHEDULER, &id, rest).await),
        Command::Tick(write) => idle(&store.tick(*write).await),
        Command::CreateRequest(request) => idle(&store.create_request(*request).await),
        Command::AmendRequest(engine, request_id, asked) => {
            idle(&store.amend_request(engine, request_id, asked.decide()).await)
        }
        Command::PutToken(token) => idle(&store.put_token(*token).await),
        Command::RevokeToken(id) => idle(&store.revoke_token(&id).await),
        other => unreachable!("{other:?} is about jobs"),
    }
}

/// What a decision answers: as text, and the attempt whose message it has entered; of a cancel the one it looked at.
type Told = (String, Option<AttemptKey>);
type Decided = Result<(Option<Amendment>, Told), Refusal>;

fn entering(decided: Result<(Option<Amendment>, Option<Held>), Refusal>) -> Decided {
    decided
        .map(|(amendment, held)| (amendment, (format!("Ok({held:?})"), held.map(|held| held.key))))
}

fn saying<T: Debug>(decided: Result<(Option<Amendment>, T), Refusal>) -> Decided {
    decided.map(|(amendment, said)| (amendment, (format!("Ok({said:?})"), None)))
}

async fn run_amend<S: Store>(
    store: &S,
    policy: &RetryPolicy,
    command: Command,
) -> (String, Effect) {
    let policy = policy.clone();
    let (engine, (job_id, place), decide): (_, Spot, Decide<Told>) = match command {
        Command::Cancel(engine, job_id, version) => {
            let decide = move |held: &Held, _| {
                let (amendment, (state, entered)) = plan::cancel(held, version)?;
                Ok((amendment, (format!("Ok({state:?}, {entered:?})"), Some(held.key))))
            };
            (engine, (job_id, None), Box::new(decide))
        }
        Command::RefuseLeg1(engine, spot) => {
            (engine, spot, Box::new(|held: &Held, _| entering(plan::cancel_in_leg1(held))))
        }
        Command::SkipLeg1(engine, spot, error) => {
            let decide = move |held: &Held, _| entering(plan::skip_in_leg1(held, error.clone()));
            (engine, spot, Box::new(decide))
        }
        Command::FailLeg1(engine, spot, lease) => {
            let decide = move |held: &Held, now| {
                entering(plan::fail_in_leg1(held, lease, now, (Code::MessagePoison, "played")))
            };
            (engine, spot, Box::new(decide))
        }
        Command::Publish(engine, spot, version) => {
            let mut decide = publishing(&policy, version);
            (engine, spot, Box::new(move |held: &Held, now| saying(decide(held, now))))
        }
        Command::PublishFailed(engine, spot, version) => {
            let decide = move |held: &Held, now| {
                let why = (now, "played");
                entering(plan::worker::publish_failed(held, version, &policy, why))
            };
            (engine, spot, Box::new(decide))
        }
        Command::CloseUnpublished(engine, spot, version) => {
            let decide =
                move |held: &Held, _| entering(plan::worker::close_unpublished(held, version));
            (engine, spot, Box::new(decide))
        }
        Command::Ack(engine, spot, fence) => {
            let mut decide = acknowledging(&policy, fence);
            (engine, spot, Box::new(move |held: &Held, now| saying(decide(held, now))))
        }
        Command::PoisonMessage(engine, key) => {
            let decide = move |held: &Held, _| entering(Ok(plan::poison_message(held, &key, "no")));
            (engine, (key.job_id, Some(key.place())), Box::new(decide))
        }
        other => unreachable!("{other:?} decides nothing under locks"),
    };
    match store.amend(engine, job_id, place, decide).await {
        Ok(Some(Ok((text, entered)))) => (text, Effect::Decided(Ok(entered))),
        Ok(Some(Err(refusal))) => (format!("{refusal:?}"), Effect::Decided(Err(refusal))),
        Ok(None) => ("nobody".to_owned(), Effect::Nothing),
        Err(error) => idle(&Err::<(), _>(error)),
    }
}
