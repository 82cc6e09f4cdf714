//! Signals: what the world outside says to a job that waits for it, such as an approval.
//!
//! A signal has an id of its sender's, unique in the job: the same id with the same content is the same signal,
//! whenever it comes again. It is kept in the commit that accepts it, with an event that says who and why, and
//! goes to one wait: the first that is parked, or the next that looks. A wait is an activation like any other:
//! taken up once to look, parked if there is nothing, and claimable again in the commit that brings its signal
//! or when its time is over. A `reject` fails the wait for good; its reason is the step's.

use std::future::Future;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_kernel::canon::canonical;
use sprag_kernel::keys::Hash;
use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal};

use crate::directive::Failure;
use crate::engine::Engine;
use crate::graph::keys::{OnTimeout, Wait};
use crate::graph::{Graph, Kind};
use crate::ids::{AttemptKey, EngineNo, JobId, Place};
use crate::limits::{MAX_MESSAGE_BYTES, check_json};
use crate::names::check_name;
use crate::protocol::Protocol;
use crate::store::{Answer, Store};

/// What a signal decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The wait succeeds with the payload.
    #[default]
    Approve,
    /// The wait fails for good.
    Reject,
}

impl Decision {
    /// The stable small integer of this decision.
    pub fn code(self) -> i16 {
        match self {
            Self::Approve => 0,
            Self::Reject => 1,
        }
    }

    /// The decision of a code.
    pub fn from_code(code: i16) -> Option<Self> {
        [Self::Approve, Self::Reject].into_iter().find(|decision| decision.code() == code)
    }
}

/// What somebody says to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its sender's id for it.
    pub signal_id: String,
    /// Its name, which a step waits for.
    pub name: String,
    /// What it decides.
    pub decision: Decision,
    /// JSON text.
    pub payload: String,
    /// Who says so.
    pub by: Option<String>,
    /// Why.
    pub reason: Option<String>,
}

impl Signal {
    /// A signal that approves, with a payload.
    pub fn new(signal_id: &str, name: &str, payload: &Value) -> Self {
        Self {
            signal_id: signal_id.to_owned(),
            name: name.to_owned(),
            decision: Decision::Approve,
            payload: payload.to_string(),
            by: None,
            reason: None,
        }
    }

    /// The hash of its content, to know a repeat; how the payload was spaced does not matter.
    pub fn content(&self) -> Hash {
        let payload = canonical(self.payload.as_bytes()).ok();
        let payload = payload.as_ref().unwrap_or(&self.payload);
        let content = (&self.name, self.decision, payload, &self.by, &self.reason);
        Hash::of(serde_json::to_string(&content).expect("text and null").as_bytes())
    }

    /// What the event of its arrival says.
    pub fn note(&self) -> String {
        serde_json::json!({
            "signal_id": self.signal_id, "signal": self.name, "decision": self.decision,
            "by": self.by, "reason": self.reason,
        })
        .to_string()
    }

    fn check(&self, limit: usize) -> Result<(), Refusal> {
        check_name("signal_id", &self.signal_id)?;
        check_name("signal", &self.name)?;
        if let Some(by) = &self.by {
            check_name("by", by)?;
        }
        let reason = self.reason.as_deref().unwrap_or_default();
        if reason.len() > MAX_MESSAGE_BYTES || reason.contains('\0') {
            return Err(Refusal::new(Code::SignalInvalid)
                .with("field", "reason")
                .with("limit_bytes", MAX_MESSAGE_BYTES));
        }
        check_json("payload", &self.payload, limit)?;
        canonical(self.payload.as_bytes()).map(|_| ())
    }
}

/// The answer to a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signalled {
    /// Whether this call brought it; else it was there with the same content.
    pub created: bool,
    /// The wait that it has gone to.
    pub taken_by: Option<Place>,
}

/// A signal as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalView {
    /// What it says.
    pub signal: Signal,
    /// When it came.
    pub received_at: Millis,
    /// The wait that it has gone to.
    pub taken_by: Option<Place>,
}

/// A wait that is taken up.
#[derive(Clone, Debug)]
pub struct WaitWrite {
    /// Which attempt.
    pub key: AttemptKey,
    /// The version the row must have.
    pub version: u64,
    /// The name of the signal.
    pub signal: String,
    /// How long it waits; for ever if absent.
    pub timeout_ms: Option<Millis>,
}

/// What became of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// It runs: its signal is there, or its time is over.
    Runs,
    /// It is parked, and nobody's.
    Parked,
    /// The job is ending; nothing was written.
    Ending,
    /// The row has moved on; nothing was written.
    Gone,
}

/// The books of signals.
pub trait Signals: Send + Sync + 'static {
    /// Keeps a signal, and has the first wait that is parked for one of this name claimable, in one commit.
    /// `None` if there is no such job.
    fn signal(
        &self,
        engine: EngineNo,
        job_id: JobId,
        signal: Signal,
    ) -> impl Future<Output = Answer<Option<Result<Signalled, Refusal>>>> + Send;

    /// Waits that this engine has taken up get their signal if there is one, go on if their time is over, and
    /// are parked if not. The same again is answered as the first time, but for one that is parked: that is
    /// gone.
    fn wait(
        &self,
        engine: EngineNo,
        writes: Vec<WaitWrite>,
    ) -> impl Future<Output = Answer<Vec<WaitOutcome>>> + Send;

    /// All signals of a job, in the order in which they came.
    fn signals(&self, job_id: JobId) -> impl Future<Output = Answer<Vec<SignalView>>> + Send;

    /// The signal that has gone to a wait.
    fn signal_of(
        &self,
        job_id: JobId,
        place: Place,
    ) -> impl Future<Output = Answer<Option<SignalView>>> + Send;
}

impl Graph {
    /// Refuses a signal that nobody waits for, or whose payload does not fit.
    fn check_signal(&self, signal: &Signal) -> Result<(), Refusal> {
        let schema = self.nodes().iter().find_map(|node| match &node.kind {
            Kind::Wait(wait, schema) if wait.signal == signal.name => Some(schema),
            _ => None,
        });
        let unknown = || Refusal::new(Code::SignalUnknown).with("signal", signal.name.clone());
        match (schema.ok_or_else(unknown)?, signal.decision) {
            (Some(schema), Decision::Approve) => schema.check_text(&signal.payload),
            (None, _) | (_, Decision::Reject) => Ok(()),
        }
    }
}

/// Says something to a job, in the name of an engine. What was said before with the same id is answered as it
/// was then.
pub async fn signal<S: Store>(
    store: &S,
    engine: EngineNo,
    (job_id, signal): (JobId, Signal),
    limit: usize,
) -> Result<Signalled, Refusal> {
    signal.check(limit)?;
    let unknown = || Refusal::new(Code::JobUnknown).with("job_id", job_id.to_string());
    let job = store.job(job_id).await?.ok_or_else(unknown)?;
    let definition = store.protocol(&job.facts.protocol_id).await?;
    let gone =
        || Refusal::new(Code::ProtocolUnknown).with("protocol_id", job.facts.protocol_id.clone());
    Protocol::read(&definition.ok_or_else(gone)?)?.graph()?.check_signal(&signal)?;
    store.signal(engine, job_id, signal).await?.ok_or_else(unknown)?
}

impl<S: Store> Engine<S> {
    /// Says something to a job that waits for it, or will. See [`Signal`].
    pub async fn signal(&self, job_id: JobId, signal: Signal) -> Result<Signalled, Refusal> {
        let limit = self.max_envelope_bytes;
        let signalled = self::signal(self.store(), self.number(), (job_id, signal), limit).await?;
        self.wake();
        Ok(signalled)
    }
}

/// What a wait comes to, from the signal that has gone to it; without one its time is over.
pub(crate) fn outcome(wait: &Wait, found: Option<SignalView>) -> Result<Value, Failure> {
    let Some(SignalView { signal, .. }) = found else {
        return match wait.on_timeout.unwrap_or_default() {
            OnTimeout::Succeed => Ok(Value::Null),
            OnTimeout::Fail => {
                Err(Failure::fatal(Code::WaitTimedOut.name(), Code::WaitTimedOut.what()))
            }
        };
    };
    match signal.decision {
        Decision::Approve => Ok(serde_json::from_str(&signal.payload).unwrap_or(Value::Null)),
        Decision::Reject => {
            let by = signal.by.as_deref().unwrap_or("somebody");
            let why = signal.reason.as_deref().unwrap_or("no reason given");
            Err(Failure::fatal(Code::SignalRejected.name(), format!("rejected by {by}: {why}")))
        }
    }
}
