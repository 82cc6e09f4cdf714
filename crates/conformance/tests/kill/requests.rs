//! Requests in the script, as somebody makes them who remembers only what it was about to ask: each verb is noted
//! before it is asked, asked twice, and asked once more by the next life if this one ends before the answer. Every
//! repeat must answer as the first did, so that versions, runs and jobs move once.
//!
//! The jobs of the runs wait for a signal, run a command and make a call.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use sprag_engine::engine::Engine;
use sprag_engine::ids::RequestId;
use sprag_engine::protocol::Protocol;
use sprag_engine::requests::{RequestFilter, RequestStore, RequestVersion, RequestView};
use sprag_engine::signals::Signal;
use sprag_engine::store::JobView;
use sprag_kernel::{JobState, RequestStatus};

use super::victim::soon;

/// What was asked, a line each.
const NOTES: &str = "asked";
/// The first goes verb by verb; the second has its draft edited, its first run cancelled, and is run again.
const REQUESTS: usize = 2;
/// The versions that they end with, and their runs.
const ENDS: [(u64, u32); REQUESTS] = [(4, 1), (6, 2)];

const STEPS: &str = "
  - {step_id: ok, wait: {signal: go}}
  - {step_id: command, exec: {command: [cat]}}
  - {step_id: call, http: {method: POST, url: 'https://example.org/', body: steps.ok.output}}
";

/// The same in every life: the preview of a draft names it.
pub(crate) fn protocol() -> Protocol {
    let text = format!("protocol_id: asked.v1\nrequest_types: [ASKED]\nsteps:{STEPS}");
    let mut protocol = Protocol::read(&text).unwrap();
    protocol.steps.iter_mut().for_each(soon);
    protocol
}

/// What can be asked of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Draft,
    Edit,
    Confirm,
    ConfirmAndRun,
    Run,
    Cancel,
    Retry,
}

const VERBS: [Verb; 7] = [
    Verb::Draft,
    Verb::Edit,
    Verb::Confirm,
    Verb::ConfirmAndRun,
    Verb::Run,
    Verb::Cancel,
    Verb::Retry,
];

impl Verb {
    /// How many versions it moves its request on.
    fn moves(self) -> u64 {
        match self {
            Self::Cancel => 0,
            Self::Draft | Self::Edit | Self::Confirm | Self::Run | Self::Retry => 1,
            Self::ConfirmAndRun => 2,
        }
    }

    /// Asks it of a request that was last seen with this version, and expects what it comes to.
    async fn ask<S: RequestStore>(self, engine: &Engine<S>, id: RequestId, own: u64) {
        let version = Some(RequestVersion { own, job: None });
        let asked = match self {
            Self::Draft => engine.request_draft(id, b"", version).await,
            Self::Edit => engine.request_draft(id, &edit(), version).await,
            Self::Confirm => engine.request_confirm(id, false, version).await,
            Self::ConfirmAndRun => engine.request_confirm(id, true, version).await,
            Self::Run => engine.request_run(id, version).await,
            Self::Cancel => engine.request_cancel(id).await,
            Self::Retry => engine.request_retry(id, 1, version).await,
        };
        let view = asked.unwrap_or_else(|refusal| panic!("{self:?} of version {own}: {refusal}"));
        assert_eq!(view.version, own + self.moves(), "{self:?} of version {own}: {view:?}");
    }
}

/// The verb that a request needs next, none if its job must go on by itself.
fn next(n: usize, view: &RequestView) -> Option<Verb> {
    match (view.status(), view.run_no) {
        (RequestStatus::Created, _) => Some(Verb::Draft),
        (RequestStatus::DraftReady, _) if n == 0 => Some(Verb::Confirm),
        (RequestStatus::DraftReady, _) if view.version == 2 => Some(Verb::Edit),
        (RequestStatus::DraftReady, _) => Some(Verb::ConfirmAndRun),
        (RequestStatus::Confirmed, _) => Some(Verb::Run),
        (RequestStatus::Queued | RequestStatus::Running, 1) if n == 1 => Some(Verb::Cancel),
        (RequestStatus::Failed, 1) if n == 1 => Some(Verb::Retry),
        (RequestStatus::Queued | RequestStatus::Running, _) => None,
        (RequestStatus::Succeeded | RequestStatus::Failed, _) => panic!("{n}: {view:?} is over"),
    }
}

fn document(n: usize) -> Vec<u8> {
    serde_json::json!({
        "tenant_id": "t", "request_type": "ASKED", "inputs": {"fingerprint": n.to_string()},
        "requirement": "", "envelope": envelope("first"),
    })
    .to_string()
    .into_bytes()
}

fn envelope(payload: &str) -> serde_json::Value {
    serde_json::json!({"input_ref": "i", "output_ref": "o", "payload": payload, "schema_version": "1"})
}

fn edit() -> Vec<u8> {
    serde_json::json!({"envelope": envelope("edited")}).to_string().into_bytes()
}

/// Asks until every request has succeeded.
pub(crate) async fn ask<S: RequestStore>(engine: &Engine<S>, folder: &Path) {
    let mut notes = Notes::read(folder);
    for n in 0..REQUESTS {
        let id = engine.request_create(&document(n)).await.unwrap().0.facts.request_id;
        assert_eq!(id, engine.request_create(&document(n)).await.unwrap().0.facts.request_id);
        notes.same(&format!("request {n}"), &id.to_string());
        if let Some((verb, own)) = notes.last(n) {
            verb.ask(engine, id, own).await;
        }
        loop {
            let view = engine.request(id).await.unwrap();
            if let Some(run) = &view.run {
                notes.same(&format!("run {n} {}", view.run_no), &run.job_id.to_string());
            }
            if view.status() == RequestStatus::Succeeded {
                break;
            }
            if let Some(verb) = next(n, &view) {
                notes.note(n, verb, view.version);
                verb.ask(engine, id, view.version).await;
                verb.ask(engine, id, view.version).await;
            } else if let Some(run) = &view.run {
                // It may have ended since.
                let _ = engine.signal(run.job_id, Signal::new("go", "go", &"go".into())).await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// What this life and those before it have asked and heard.
struct Notes {
    file: std::path::PathBuf,
    heard: BTreeMap<String, String>,
    asked: Vec<(usize, Verb, u64)>,
}

impl Notes {
    fn read(folder: &Path) -> Self {
        let file = folder.join(NOTES);
        let text = fs::read_to_string(&file).unwrap_or_default();
        let mut this = Self { file, heard: BTreeMap::new(), asked: Vec::new() };
        for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
            if let Some(asked) = name.strip_prefix("asked ") {
                let (n, own) = asked.split_once(' ').unwrap();
                let verb = VERBS.into_iter().find(|verb| format!("{verb:?}") == value).unwrap();
                this.asked.push((n.parse().unwrap(), verb, own.parse().unwrap()));
            } else {
                this.heard.insert(name.to_owned(), value.to_owned());
            }
        }
        this
    }

    fn write(&self, line: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.file).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// What was heard once is always heard.
    fn same(&mut self, name: &str, value: &str) {
        if let Some(before) = self.heard.get(name) {
            assert_eq!(before, value, "{name}");
            return;
        }
        self.write(&format!("{name}={value}"));
        self.heard.insert(name.to_owned(), value.to_owned());
    }

    fn note(&mut self, n: usize, verb: Verb, own: u64) {
        self.write(&format!("asked {n} {own}={verb:?}"));
    }

    /// What the life before has asked last.
    fn last(&self, n: usize) -> Option<(Verb, u64)> {
        self.asked.iter().rfind(|(of, ..)| *of == n).map(|(_, verb, own)| (*verb, *own))
    }
}

/// Nothing was ever asked: the books are new.
pub(crate) fn forget(folder: &Path) {
    let _ = fs::remove_file(folder.join(NOTES));
}

/// Every request has succeeded, with as many versions, events and runs as it has had verbs.
pub(crate) async fn look<S: RequestStore>(store: &S, runs: &[JobView], points: &[String]) {
    let filter = RequestFilter { limit: 100, ..RequestFilter::default() };
    let mut requests = store.requests(filter).await.unwrap();
    requests.sort_by_key(|view| view.facts.request_id);
    let found: Vec<_> = requests.iter().map(|view| (view.version, view.run_no)).collect();
    assert_eq!(found, ENDS, "{points:?}: {requests:?}");
    for view in &requests {
        let id = view.facts.request_id;
        assert_eq!(view.status(), RequestStatus::Succeeded, "{points:?}: {view:?}");
        let events = store.request_events(id).await.unwrap();
        assert_eq!(events.len() as u64, view.version, "{points:?}: {events:?}");
        let id = id.to_string();
        let own = runs.iter().filter(|job| job.facts.request_id() == Some(id.as_str()));
        let mut own: Vec<_> = own.map(|job| (job.facts.job_id, job.row.state)).collect();
        own.sort_by_key(|(job_id, _)| *job_id);
        let states: Vec<_> = own.into_iter().map(|(_, state)| state).collect();
        let expected: &[JobState] =
            &[JobState::Cancelled, JobState::Succeeded][2 - view.run_no as usize..];
        assert_eq!(states, expected, "{points:?}: the runs of {view:?}");
    }
}
