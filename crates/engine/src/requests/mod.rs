//! Requests: draft, confirm, run, retry. The rules are the kernel's; here a verb is made of reading what
//! it needs, deciding under the row's lock, and writing the row with its job in one commit. Every surface
//! calls these functions and no other.
//!
//! What a verb needs besides the row (the protocol, the preview) is worked out before the lock is taken,
//! from the row as it was; if the row has moved on since, the verb is worked out again.

mod draft;
mod input;
mod store;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sprag_kernel::decide::request::{self, Verb};
use sprag_kernel::keys::DedupKey;
use sprag_kernel::machine::State;
use sprag_kernel::{Code, Refusal, RequestStatus};

pub use draft::MAX_PREVIEW_BYTES;
pub use input::{MAX_REQUIREMENT_BYTES, request_key};
pub use store::{
    DecideRequest, DraftWrite, NewRequest, RequestFacts, RequestFilter, RequestStore, RequestView,
    RequestWrite, RunView,
};

use crate::engine::{Engine, Pinned, new_job};
use crate::envelope::Envelope;
use crate::ids::RequestId;
use crate::store::{NewJob, StoreError};

/// How often a verb is worked out again because the row moved on meanwhile.
const LOOKS: u32 = 8;

/// The version of a request that a caller has read: its own, and that of its job if it saw one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestVersion {
    /// The request's own.
    pub own: u64,
    /// That of the current job.
    pub job: Option<u64>,
}

impl fmt::Display for RequestVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.job {
            Some(job) => write!(f, "{}.{job}", self.own),
            None => self.own.fmt(f),
        }
    }
}

impl FromStr for RequestVersion {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let (own, job) = text.split_once('.').map_or((text, None), |(own, job)| (own, Some(job)));
        let number = |text: &str| {
            text.parse::<u64>().map_err(|_| {
                Refusal::new(Code::RequestInvalid)
                    .with("field", "version")
                    .with("reason", "is no version")
            })
        };
        Ok(Self { own: number(own)?, job: job.map(number).transpose()? })
    }
}

impl RequestView {
    /// The version that a caller who reads this has read.
    pub fn shown_version(&self) -> RequestVersion {
        RequestVersion { own: self.version, job: self.run.as_ref().map(|run| run.version) }
    }
}

impl<S: RequestStore> Engine<S> {
    /// Creates a request, or finds the one that has its key. Says whether this call created it.
    pub async fn request_create(&self, document: &[u8]) -> Result<(RequestView, bool), Refusal> {
        let new = input::read_request(document, self.max_envelope_bytes)?;
        let (request_id, content) = (new.facts.request_id, new.facts.content);
        let view = self.store().create_request(new).await?;
        if view.facts.content != content {
            return Err(Refusal::new(Code::IdempotencyKeyReused)
                .with("request_id", view.facts.request_id.to_string()));
        }
        let created = view.facts.request_id == request_id;
        Ok((view, created))
    }

    /// Works out the plan preview and keeps it; with an edit `{envelope}`, of that envelope.
    pub async fn request_draft(
        &self,
        request_id: RequestId,
        edit: &[u8],
        version: Option<RequestVersion>,
    ) -> Result<RequestView, Refusal> {
        for _ in 0..LOOKS {
            let view = self.request(request_id).await?;
            let edited = input::read_edit(edit, &view.facts, self.max_envelope_bytes)?;
            let is_edit = edited.is_some();
            let before = view.envelope.clone();
            let pinned = self.serving(&view.facts.request_type).await;
            if let Err(refusal) = &pinned
                && refusal.code() != Code::ProtocolUnknown
            {
                return Err(refusal.clone());
            }
            let envelope = edited.unwrap_or(view.envelope);
            let draft = draft::preview(envelope, &pinned, self.max_envelope_bytes)?;
            let decide: DecideRequest<bool> = Box::new(move |view| {
                if !is_edit && view.envelope != before {
                    return Ok((None, false));
                }
                let is_new =
                    view.draft.as_ref() != Some(&draft.preview) || view.envelope != draft.envelope;
                let verb = request::draft(&view.row(), own(version), is_new)?;
                let write = written(view, version, verb, None)?;
                Ok((write.map(|write| RequestWrite { draft: Some(draft.clone()), ..write }), true))
            });
            if self.amend(request_id, decide).await? {
                return self.request(request_id).await;
            }
        }
        Err(keeps_moving(request_id))
    }

    /// Freezes the plan; with `run` the job of run 1 is created in the same commit.
    pub async fn request_confirm(
        &self,
        request_id: RequestId,
        run: bool,
        version: Option<RequestVersion>,
    ) -> Result<RequestView, Refusal> {
        self.verb(request_id, version, move |view| {
            let blocked = draft::blocked(view.draft.as_deref());
            request::confirm(&view.row(), own(version), run, blocked)
        })
        .await
    }

    /// At least queued: from confirmed it queues.
    pub async fn request_run(
        &self,
        request_id: RequestId,
        version: Option<RequestVersion>,
    ) -> Result<RequestView, Refusal> {
        self.verb(request_id, version, move |view| request::run(&view.row(), own(version))).await
    }

    /// Another run in place of `run_no`, which failed.
    pub async fn request_retry(
        &self,
        request_id: RequestId,
        run_no: u32,
        version: Option<RequestVersion>,
    ) -> Result<RequestView, Refusal> {
        self.verb(request_id, version, move |view| {
            request::retry(&view.row(), own(version), run_no)
        })
        .await
    }

    /// Asks the job of the current run to stop.
    pub async fn request_cancel(&self, request_id: RequestId) -> Result<RequestView, Refusal> {
        let view = self.request(request_id).await?;
        request::cancel(&view.row())?;
        if let Some(run) = view.run {
            self.cancel(run.job_id, None).await?;
        }
        self.request(request_id).await
    }

    /// One request.
    pub async fn request(&self, request_id: RequestId) -> Result<RequestView, Refusal> {
        let found = self.store().request(request_id).await?;
        found.ok_or_else(|| unknown(request_id))
    }

    /// A verb that may create the job of a run.
    async fn verb(
        &self,
        request_id: RequestId,
        version: Option<RequestVersion>,
        verb: impl Fn(&RequestView) -> Result<Verb, Refusal> + Clone + Send + 'static,
    ) -> Result<RequestView, Refusal> {
        for _ in 0..LOOKS {
            let view = self.request(request_id).await?;
            let pinned = match &view.protocol_id {
                Some(protocol_id) => Some(self.pinned(protocol_id).await?),
                None => None,
            };
            let (verb, limit) = (verb.clone(), self.max_envelope_bytes);
            let decide: DecideRequest<bool> = Box::new(move |view| {
                let known = pinned.as_ref().map(|pinned| pinned.protocol.protocol_id.as_str());
                if view.protocol_id.as_deref() != known {
                    return Ok((None, false));
                }
                let job = |run_no| job_of(view, run_no, pinned.as_ref(), limit);
                Ok((written(view, version, verb(view)?, Some(&job))?, true))
            });
            if self.amend(request_id, decide).await? {
                self.wake();
                return self.request(request_id).await;
            }
        }
        Err(keeps_moving(request_id))
    }

    async fn amend(
        &self,
        request_id: RequestId,
        decide: DecideRequest<bool>,
    ) -> Result<bool, Refusal> {
        let found = self.store().amend_request(self.number(), request_id, decide).await?;
        match found.ok_or_else(|| unknown(request_id))? {
            Ok(done) => Ok(done),
            Err(refusal) => {
                if refusal.code() == Code::JobIllegalTransition {
                    tracing::info!(
                        code = "REQUEST_ILLEGAL_TRANSITION",
                        %request_id,
                        %refusal,
                        "a request cannot make this move"
                    );
                }
                Err(refusal)
            }
        }
    }
}

fn own(version: Option<RequestVersion>) -> Option<u64> {
    version.map(|version| version.own)
}

fn unknown(request_id: RequestId) -> Refusal {
    Refusal::new(Code::RequestUnknown).with("request_id", request_id.to_string())
}

fn keeps_moving(request_id: RequestId) -> Refusal {
    StoreError::Unavailable(format!("request {request_id} keeps moving")).into()
}

type MakeJob<'a> = &'a dyn Fn(u32) -> Result<NewJob, Refusal>;

/// What a verb writes. Whoever read another version of the job than there is has read another status.
fn written(
    view: &RequestView,
    expected: Option<RequestVersion>,
    verb: Verb,
    job: Option<MakeJob<'_>>,
) -> Result<Option<RequestWrite>, Refusal> {
    let (changes, version, creates_run) = match verb {
        Verb::NoOp => return Ok(None),
        Verb::Edited { version } => (Vec::new(), version, None),
        Verb::Moved { changes, version, creates_run } => (changes, version, creates_run),
    };
    let actual = view.shown_version();
    if let Some(expected) = expected
        && expected.job.is_some()
        && expected != actual
    {
        return Err(Refusal::new(Code::JobVersionConflict)
            .with("expected", expected.to_string())
            .with("actual", actual.to_string()));
    }
    let reached = changes.iter().map(sprag_kernel::Change::to).rfind(|to| request::rests(*to));
    let told = |change: &sprag_kernel::Change<RequestStatus>| {
        format!("R{}>{}", change.from().code(), change.to().code())
    };
    let told: Vec<_> = changes.iter().map(told).collect();
    let job = creates_run.zip(job).map(|(run_no, job)| job(run_no)).transpose()?;
    Ok(Some(RequestWrite {
        stored: reached.unwrap_or(view.stored),
        version,
        run_no: creates_run.unwrap_or(view.run_no),
        draft: None,
        changes: if told.is_empty() { vec!["edited".to_owned()] } else { told },
        job,
    }))
}

/// The job of a run: the frozen envelope under the frozen protocol, with a key of the request's own.
fn job_of(
    view: &RequestView,
    run_no: u32,
    pinned: Option<&Arc<Pinned>>,
    limit: usize,
) -> Result<NewJob, Refusal> {
    let pinned = pinned.ok_or_else(|| {
        Refusal::new(Code::ProtocolUnknown).with("request_type", view.facts.request_type.clone())
    })?;
    let envelope = Envelope::read(view.envelope.as_bytes(), limit)?;
    let request_id = view.facts.request_id.to_string();
    let dedup_key = DedupKey::Request { request_id: &request_id, run_no }.to_string();
    new_job(envelope, dedup_key, pinned)
}
