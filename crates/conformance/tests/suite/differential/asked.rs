//! The verbs of a request, decided by the kernel under the row's lock.

use sprag_engine::requests::{DecideRequest, DraftWrite, RequestView, RequestWrite};
use sprag_engine::store::NewJob;
use sprag_kernel::decide::request::{self, Verb};
use sprag_kernel::machine::State;
use sprag_kernel::{Change, Refusal, RequestStatus};

/// Which verb.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// With this preview.
    Draft(&'static str),
    Confirm {
        run: bool,
        is_blocked: bool,
    },
    Run,
    Retry(u32),
}

/// A verb, as somebody asks for it who has read this version.
#[derive(Clone, Debug)]
pub struct Asked {
    pub wanted: Wanted,
    pub version: Option<u64>,
    /// The job of the run, if one begins.
    pub job: NewJob,
}

impl Asked {
    /// The decision, and in a word what it came to.
    pub fn decide(self) -> DecideRequest<&'static str> {
        Box::new(move |view| self.written(view))
    }

    fn written(&self, view: &RequestView) -> Result<(Option<RequestWrite>, &'static str), Refusal> {
        let (row, version) = (view.row(), self.version);
        let (verb, draft) = match self.wanted {
            Wanted::Draft(preview) => {
                let is_new = view.draft.as_deref() != Some(preview);
                let draft = DraftWrite {
                    envelope: view.envelope.clone(),
                    preview: preview.to_owned(),
                    protocol_id: Some("test.v1".to_owned()),
                };
                (request::draft(&row, version, is_new)?, Some(draft))
            }
            Wanted::Confirm { run, is_blocked } => {
                (request::confirm(&row, version, run, is_blocked.then_some("envelope"))?, None)
            }
            Wanted::Run => (request::run(&row, version)?, None),
            Wanted::Retry(run_no) => (request::retry(&row, version, run_no)?, None),
        };
        let (changes, version, creates_run) = match verb {
            Verb::NoOp => return Ok((None, "nothing")),
            Verb::Edited { version } => (Vec::new(), version, None),
            Verb::Moved { changes, version, creates_run } => (changes, version, creates_run),
        };
        let reached = changes.iter().map(Change::to).rfind(|to| request::rests(*to));
        let said = |change: &Change<RequestStatus>| {
            format!("R{}>{}", change.from().code(), change.to().code())
        };
        let said: Vec<String> = changes.iter().map(said).collect();
        let write = RequestWrite {
            stored: reached.unwrap_or(view.stored),
            version,
            run_no: creates_run.unwrap_or(view.run_no),
            draft,
            changes: if said.is_empty() { vec!["edited".to_owned()] } else { said },
            job: creates_run.map(|_| self.job.clone()),
        };
        Ok((Some(write), if creates_run.is_some() { "run" } else { "moved" }))
    }
}
