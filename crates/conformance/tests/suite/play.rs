//! The moves of a job, as an engine makes them: each asks the kernel by way of the engine's plans and
//! hands the answer to the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sprag_engine::graph::CONTROL;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId};
use sprag_engine::plan;
use sprag_engine::store::{
    Amendment, Answer, AttemptError, AttemptView, Begins, DispatchOutcome, DispatchWrite,
    EndOutcome, EndWrite, FinishOutcome, FinishWrite, HandOff, Held, JobFacts, JobView, NewJob,
    NewStep, Pick, Store, Submitted, Timer, Wish,
};
use sprag_kernel::decide::callback::{self, Ack, Report};
use sprag_kernel::decide::leg1::{self, Leg1, Publish};
use sprag_kernel::decide::rows::{EndingKind, Fence, LeaseId, Terms};
use sprag_kernel::keys::{DedupKey, Hash, Mode, route};
use sprag_kernel::machine::State;
use sprag_kernel::retry::RetryPolicy;
use sprag_kernel::{JobState, Refusal};
use sprag_stores::TestClock;

use crate::world::World;

/// The service of every step.
pub const SERVICE: &str = "work";
/// When every play begins.
pub const BEGIN_MS: i64 = 1_700_000_000_000;

/// A store, its clock, and an engine that plays on it.
pub struct Play<W: World> {
    pub world: W,
    pub clock: TestClock,
    pub engine: EngineNo,
    pub policy: RetryPolicy,
    leases: AtomicU64,
}

/// What never changes about a job of this tenant with this key and content.
pub fn facts(tenant: &str, key: Option<&str>, content: &str) -> JobFacts {
    let hash = Hash::of(content.as_bytes());
    JobFacts {
        job_id: JobId::new(),
        tenant_id: tenant.to_owned(),
        request_type: "TEST".to_owned(),
        protocol_id: "test.v1".to_owned(),
        input_ref: r#""in""#.to_owned(),
        output_ref: r#""out""#.to_owned(),
        payload: format!(r#"{{"content":"{content}"}}"#),
        schema_version: "1".to_owned(),
        idempotency_key: key.map(str::to_owned),
        dedup_key: key.map_or(DedupKey::Content(hash), DedupKey::Given).to_string(),
        hash,
        doc_id: None,
        mode: Mode::Default,
        route: route(tenant, Mode::Default, None).unwrap(),
        correlation_id: Some("c".to_owned()),
        traceparent: None,
        priority: 0,
        rerun_of: None,
    }
}

/// A job of so many steps.
pub fn new_job(facts: JobFacts, steps: usize) -> NewJob {
    let step = |n: usize| NewStep {
        step_id: format!("s{n}"),
        step_type: "TEST".to_owned(),
        service: SERVICE.to_owned(),
        priority: 0,
        delay_ms: 0,
        limit: None,
        begins: if n == 0 { Begins::Ready } else { Begins::Dormant },
    };
    NewJob {
        facts: Arc::new(facts),
        steps: (0..steps).map(step).collect(),
        gates: Vec::new(),
        is_graph: false,
        not_before: None,
        enter: false,
    }
}

fn error(code: &str) -> AttemptError {
    AttemptError { code: code.to_owned(), message: format!("{code} was played") }
}

impl<W: World> Play<W> {
    pub async fn begin() -> Self {
        Self::begin_at(TestClock::at(BEGIN_MS)).await
    }

    pub async fn begin_at(clock: TestClock) -> Self {
        let world = W::open(&clock).await;
        world.store().put_protocol("test.v1", "{}").await.unwrap();
        let engine = world.store().join("first").await.unwrap();
        let policy = RetryPolicy::default();
        Self { world, clock, engine, policy, leases: AtomicU64::new(1) }
    }

    pub fn store(&self) -> &W::Store {
        self.world.store()
    }

    /// Every check of the audit finds nothing.
    pub async fn expect_sound(&self) {
        let checks = self.store().audit().await.unwrap();
        assert_eq!(checks.len(), 39 + W::OWN_CHECKS.len(), "every check has run");
        for check in checks {
            assert!(check.violations.is_empty(), "{}: {:?}", check.name, check.violations);
        }
    }

    // What is there.

    pub async fn job(&self, job_id: JobId) -> JobView {
        self.store().job(job_id).await.unwrap().unwrap()
    }

    pub async fn attempts(&self, job_id: JobId) -> Vec<AttemptView> {
        self.store().attempts(job_id).await.unwrap()
    }

    /// The newest attempt of the current step.
    pub async fn held(&self, job_id: JobId) -> Held {
        let look = Box::new(|held: &Held, _| Ok((None, held.clone())));
        self.store().amend(self.engine, job_id, None, look).await.unwrap().unwrap().unwrap()
    }

    /// Activity ledger and GUID ledger of an attempt, with fifteen digits, read past the store.
    pub async fn digits(&self, key: &AttemptKey) -> (String, Option<String>) {
        let sql = format!(
            "SELECT CAST(ledger AS text), CAST(guid AS text) FROM attempt
             WHERE job_id = {} AND step_index = {} AND attempt_no = {}",
            W::id(key.job_id),
            key.step_index,
            key.attempt_no
        );
        let row = self.world.query(&sql).await.unwrap().pop().unwrap();
        let pad = |digits: &String| format!("{digits:0>15}");
        (pad(row[0].as_ref().unwrap()), row[1].as_ref().map(pad))
    }

    // Submit and claim.

    pub async fn submit(&self, job: NewJob) -> Result<Submitted, Refusal> {
        self.store().submit(self.engine, vec![job]).await.unwrap().pop().unwrap()
    }

    /// A new job of so many steps, waiting in the queue.
    pub async fn create(&self, steps: usize) -> JobId {
        let content = JobId::new().to_string();
        self.submit(new_job(facts("t1", None, &content), steps)).await.unwrap().job_id
    }

    pub async fn claim_as(&self, engine: EngineNo, max: u32) -> Answer<Vec<Held>> {
        self.claim_of(SERVICE, engine, max).await
    }

    async fn claim_of(&self, service: &str, engine: EngineNo, max: u32) -> Answer<Vec<Held>> {
        let wish = Wish { service: service.to_owned(), max, pick: Pick::Any, tenant_id: None };
        self.store().claim(engine, vec![wish]).await
    }

    /// Claims the only activation there is.
    pub async fn claim(&self) -> Held {
        self.claim_only(SERVICE).await
    }

    /// Claims the only activation of a job that is being cancelled: not for its service, but to end it.
    pub async fn claim_cancelled(&self) -> Held {
        assert_eq!(self.claim_as(self.engine, 10).await.unwrap().len(), 0);
        self.claim_only(CONTROL).await
    }

    async fn claim_only(&self, service: &str) -> Held {
        let mut claimed = self.claim_of(service, self.engine, 10).await.unwrap();
        assert_eq!(claimed.len(), 1, "one activation waits");
        claimed.pop().unwrap()
    }

    // Leg1.

    fn lease(&self) -> LeaseId {
        LeaseId(self.leases.fetch_add(1, Ordering::SeqCst))
    }

    /// The write that hands an attempt to a slot of the engine; the held rows are moved along.
    pub fn dispatch_write(&self, held: &mut Held) -> Result<DispatchWrite, Refusal> {
        plan::dispatch(held, self.lease(), &self.policy)
    }

    pub async fn dispatch_as(
        &self,
        engine: EngineNo,
        write: DispatchWrite,
    ) -> Answer<DispatchOutcome> {
        let outcomes = self.store().dispatch(engine, vec![write]).await?;
        Ok(outcomes[0])
    }

    /// Hands a claimed attempt to a slot of this engine.
    pub async fn dispatch(&self, held: &mut Held) {
        let write = self.dispatch_write(held).unwrap();
        match self.dispatch_as(self.engine, write).await.unwrap() {
            DispatchOutcome::Done { version, .. } => held.attempt.version = version,
            outcome => panic!("{outcome:?}"),
        }
        held.job = self.job(held.key.job_id).await.row;
    }

    /// Writes the directive to the outbox and no further.
    pub async fn write_directive(&self, held: &Held) -> DispatchOutcome {
        let write = directive_write(held, self.lease(), &self.policy).unwrap();
        self.dispatch_as(self.engine, write).await.unwrap()
    }

    /// A decision under the rows' locks.
    pub async fn amend<T: Send + 'static>(
        &self,
        job_id: JobId,
        step_index: Option<u32>,
        decide: impl FnMut(&Held, u64) -> Result<(Option<Amendment>, T), Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.store()
            .amend(self.engine, job_id, step_index.map(Into::into), Box::new(decide))
            .await
            .unwrap()
            .unwrap()
    }

    /// The transport takes the directive.
    pub async fn publish(&self, job_id: JobId, version: u64) -> Result<(), Refusal> {
        self.amend(job_id, None, publishing(&self.policy, version)).await
    }

    /// A worker says that it has the directive.
    pub async fn ack(&self, job_id: JobId, step: Option<u32>, fence: Fence) -> Result<(), Refusal> {
        self.amend(job_id, step, acknowledging(&self.policy, fence)).await
    }

    // Leg2.

    pub fn result_write(held: &Held, report: Report) -> EndWrite {
        let (output, failed) = match report {
            Report::Succeeded => (Some(format!(r#"{{"of":{}}}"#, held.key.step_index)), None),
            Report::Retryable | Report::NonRetryable => (None, Some(error("PLAYED"))),
        };
        plan::result(held, report, output, failed).unwrap().unwrap()
    }

    pub fn lost_write(held: &Held) -> Result<EndWrite, Refusal> {
        plan::ended_by(held, EndingKind::OwnerLost, error("OWNER_LOST"))
    }

    pub async fn end_as(&self, engine: EngineNo, write: EndWrite) -> Answer<EndOutcome> {
        let outcomes = self.store().end(engine, vec![write]).await?;
        Ok(outcomes[0])
    }

    /// A message enters; the held rows are moved along if it was the first.
    pub async fn end(&self, held: &mut Held, write: EndWrite) -> EndOutcome {
        let outcome = self.end_as(self.engine, write.clone()).await.unwrap();
        if let EndOutcome::Entered { version } = outcome {
            held.attempt.version = version;
            held.attempt.ledger = write.ledger;
            held.attempt.ending = Some(write.ending);
        }
        outcome
    }

    /// The handler's RESULT enters.
    pub async fn report(&self, held: &mut Held, report: Report) {
        let write = Self::result_write(held, report);
        assert!(matches!(self.end(held, write).await, EndOutcome::Entered { .. }));
    }

    pub fn finish_write(&self, held: &Held, enter_next: bool) -> Result<FinishWrite, Refusal> {
        plan::finish(held, &self.policy, enter_next)
    }

    pub async fn finish_as(&self, engine: EngineNo, write: FinishWrite) -> Answer<FinishOutcome> {
        let outcomes = self.store().finish(engine, vec![write]).await?;
        Ok(outcomes[0])
    }

    /// Steps 1 to 3 of the message that has entered.
    pub async fn finish(&self, held: &Held) -> FinishOutcome {
        let write = self.finish_write(held, false).unwrap();
        self.finish_as(self.engine, write).await.unwrap()
    }

    /// Claims the only activation, runs it and reports.
    pub async fn run_step(&self, report: Report) -> Held {
        let mut held = self.claim().await;
        self.dispatch(&mut held).await;
        self.report(&mut held, report).await;
        let outcome = self.finish(&held).await;
        assert!(matches!(outcome, FinishOutcome::Done { .. }), "{outcome:?}");
        held
    }

    // Cancel.

    /// Somebody asks to stop the job.
    pub async fn cancel(&self, job_id: JobId) -> Result<JobState, Refusal> {
        let decide = |held: &Held, _| plan::cancel(held, None);
        self.amend(job_id, None, decide).await.map(|(state, _)| state)
    }

    /// Leg1 finds that the job is being cancelled: a `cancel` message instead of a directive.
    pub async fn refuse_leg1(&self, job_id: JobId) -> Held {
        let decide = |held: &Held, _| plan::cancel_in_leg1(held);
        self.amend(job_id, None, decide).await.unwrap().expect("the job is being cancelled")
    }
}

/// The write that puts a directive into the outbox.
pub fn directive_write(
    held: &Held,
    lease_id: LeaseId,
    policy: &RetryPolicy,
) -> Result<DispatchWrite, Refusal> {
    let lease = policy.lease(lease_id, 0);
    let Leg1::Dispatch(decided) = leg1::dispatch(&held.job, &held.attempt, lease)? else {
        panic!("the job is not being cancelled")
    };
    let job = decided.job.map(|job| format!("J{}>{} ", job.from().code(), job.to().code()));
    let step = (decided.step.from().code(), decided.step.to().code());
    Ok(DispatchWrite {
        key: held.key,
        version: held.attempt.version,
        lease_id,
        lease_ms: policy.lease_ms,
        ack_timeout_ms: policy.ack_timeout_ms,
        hand_off: HandOff::Outbox,
        claim_id: None,
        child: None,
        step_to: decided.step.to(),
        job_from: held.job.state,
        job_to: decided.job.map_or(held.job.state, |job| job.to()),
        ledger: decided.ledger,
        changes: format!("{}S{}>{} ", job.unwrap_or_default(), step.0, step.1),
        repeats: false,
    })
}

/// The decision that a directive was published, by whoever has read this version.
pub fn publishing(
    policy: &RetryPolicy,
    version: u64,
) -> impl FnMut(&Held, u64) -> Result<(Option<Amendment>, ()), Refusal> + Send + 'static {
    let policy = policy.clone();
    move |held, now| {
        let terms = Terms { now, policy: &policy };
        let sent = leg1::published(&held.attempt, version, terms)?;
        let Publish::Sent { outbox, step, ack_deadline } = sent else { unreachable!() };
        let mut attempt = held.attempt;
        attempt.outbox = Some(outbox.to());
        attempt.state = step.to();
        attempt.deadline = Some(ack_deadline);
        let amendment = Amendment {
            job_to: held.job.state,
            verdict: None,
            attempt,
            timer: Timer::At(ack_deadline),
            output: None,
            error: None,
            changes: "O0>1 S1>2 ".to_owned(),
        };
        Ok((Some(amendment), ()))
    }
}

/// The decision about an ACK with this fence.
pub fn acknowledging(
    policy: &RetryPolicy,
    fence: Fence,
) -> impl FnMut(&Held, u64) -> Result<(Option<Amendment>, ()), Refusal> + Send + 'static {
    let policy = policy.clone();
    move |held, now| {
        let terms = Terms { now, policy: &policy };
        let ack = callback::ack(&held.job, &held.attempt, fence, terms)?;
        let Ack::Accepted { job, step, lease_expires_at } = ack else {
            return Ok((None, ()));
        };
        let mut attempt = held.attempt;
        attempt.acked = true;
        attempt.state = step.to();
        attempt.deadline = Some(lease_expires_at);
        let told = job.map(|job| format!("J{}>{} ", job.from().code(), job.to().code()));
        let amendment = Amendment {
            job_to: job.map_or(held.job.state, |job| job.to()),
            verdict: None,
            attempt,
            timer: Timer::At(lease_expires_at),
            output: None,
            error: None,
            changes: format!("{}S2>3 ", told.unwrap_or_default()),
        };
        Ok((Some(amendment), ()))
    }
}

/// Runs all at the same time and waits for all.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(Box::pin).map(Some).collect();
    let mut outputs: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (slot, output) in running.iter_mut().zip(&mut outputs) {
            if let Some(future) = slot
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                *output = Some(value);
                *slot = None;
            }
        }
        if running.iter().all(Option::is_none) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
