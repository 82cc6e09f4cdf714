//! Group Q: requests, through the functions that every surface calls. The engine here is real; its jobs
//! are served by handlers that succeed, fail, wait, or by nobody.

use std::sync::Arc;
use std::time::Duration;

use sprag_engine::directive::Failure;
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::ids::RequestId;
use sprag_engine::protocol::Protocol;
use sprag_engine::requests::{RequestFilter, RequestStore, RequestVersion, RequestView};
use sprag_engine::store::Store;
use sprag_engine::upkeep::Upkeep;
use sprag_engine::worker::{Context, Handler};
use sprag_kernel::decide::request as law;
use sprag_kernel::{Code, JobState, Refusal, RequestStatus};

use RequestStatus::{Confirmed, Created, DraftReady, Failed, Queued, Running, Succeeded};

use crate::on_both_stores;
use crate::play::Play;
use crate::world::World;

const ALL: [RequestStatus; 7] =
    [Created, DraftReady, Confirmed, Queued, Running, Succeeded, Failed];

/// An engine with a protocol per fate: GOOD, BAD, HOLD (runs until it is told to stop), WAIT (nobody).
struct Desk<W: World> {
    engine: Arc<Engine<W::Store>>,
}

impl<W: World> Desk<W> {
    async fn open(play: &Play<W>) -> Self {
        let good = Handler::new(|_: serde_json::Value, directive, _| async move {
            Ok::<_, Failure>(directive.effect_key)
        });
        let bad = Handler::new(|_: serde_json::Value, _, _| async move {
            Err::<(), _>(Failure::fatal("BAD_PAGE", "it is bad"))
        });
        let hold = Handler::new(|_: serde_json::Value, _, mut context: Context| async move {
            context.stopped().await;
            Err::<(), _>(Failure::fatal("STOPPED", "told to stop"))
        });
        let config = EngineConfig { poll: Duration::from_millis(2), ..EngineConfig::default() };
        let mut builder = EngineBuilder::new(play.world.reopen().await.unwrap()).config(config);
        for fate in ["GOOD", "BAD", "HOLD", "WAIT"] {
            let id = format!("{}.v1", fate.to_lowercase());
            builder = builder.protocol(Protocol::new(&id, fate).step("only", fate));
        }
        let builder =
            builder.service("GOOD", 4, good).service("BAD", 4, bad).service("HOLD", 16, hold);
        Self { engine: Arc::new(builder.start().await.unwrap()) }
    }

    async fn close(self) {
        let engine = Arc::into_inner(self.engine).expect("nobody else holds it");
        engine.shutdown(Duration::from_secs(5)).await.unwrap();
    }

    async fn create(&self, request_type: &str, fingerprint: &str) -> RequestView {
        self.engine.request_create(&document(request_type, fingerprint)).await.unwrap().0
    }

    async fn draft(&self, request_id: RequestId) -> RequestView {
        self.engine.request_draft(request_id, b"", None).await.unwrap()
    }

    /// A request in this status.
    async fn in_status(&self, status: RequestStatus) -> RequestView {
        let fate = match status {
            Created | DraftReady | Confirmed | Queued => "WAIT",
            Running => "HOLD",
            Succeeded => "GOOD",
            Failed => "BAD",
        };
        let id = self.create(fate, &RequestId::new().to_string()).await.facts.request_id;
        if status == Created {
            return self.show(id).await;
        }
        self.draft(id).await;
        if status != DraftReady {
            self.engine.request_confirm(id, status != Confirmed, None).await.unwrap();
        }
        self.reaches(id, status).await
    }

    async fn show(&self, request_id: RequestId) -> RequestView {
        self.engine.request(request_id).await.unwrap()
    }

    async fn reaches(&self, request_id: RequestId, status: RequestStatus) -> RequestView {
        for _ in 0..2_000 {
            let view = self.show(request_id).await;
            if view.status() == status {
                return view;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        panic!("{status} is not reached: {:?}", self.show(request_id).await);
    }

    async fn changes(&self, request_id: RequestId) -> Vec<String> {
        let events = self.engine.store().request_events(request_id).await.unwrap();
        assert!(events.iter().map(|event| event.n).eq(1..=events.len() as u64), "dense from 1");
        events.into_iter().map(|event| event.changes).collect()
    }
}

const GRAPH: &str = "
protocol_id: graph.v1
request_types: [GRAPH]
steps:
  - step_id: all
    for_each: input.items
    steps:
      - {step_id: one, service: GOOD}
      - {step_id: rest, sleep: 1s}
  - {step_id: many, service: GOOD, batch: {items: input.items}}
  - {step_id: yes, wait: {signal: approval}}
  - {step_id: other, job: {request_type: WAIT, input: input}}
";

fn document(request_type: &str, fingerprint: &str) -> Vec<u8> {
    serde_json::json!({
        "tenant_id": "t1", "request_type": request_type, "inputs": {"fingerprint": fingerprint},
        "requirement": "hello  world",
        "envelope": {"input_ref": "in", "output_ref": "out", "payload": {"n": null}, "schema_version": "1"},
    })
    .to_string()
    .into_bytes()
}

#[allow(clippy::unnecessary_wraps)] // as the verbs take it
fn version(own: u64) -> Option<RequestVersion> {
    Some(RequestVersion { own, job: None })
}

/// The answer of every verb in this status, by the library and by the law.
async fn verbs<W: World>(
    desk: &Desk<W>,
    status: RequestStatus,
) -> Vec<(&'static str, Result<(), Code>, Result<(), Code>)> {
    let answer = |answer: Result<RequestView, Refusal>| answer.map(drop).map_err(|r| r.code());
    let ruled = |answer: Result<law::Verb, Refusal>| answer.map(drop).map_err(|r| r.code());
    let mut answers = Vec::new();
    for verb in ["draft", "confirm", "run", "retry", "cancel"] {
        let view = desk.in_status(status).await;
        let (id, row) = (view.facts.request_id, view.row());
        let engine = &desk.engine;
        answers.push(match verb {
            "draft" => (
                verb,
                answer(engine.request_draft(id, b"", None).await),
                ruled(law::draft(&row, None, false)),
            ),
            "confirm" => (
                verb,
                answer(engine.request_confirm(id, true, None).await),
                ruled(law::confirm(&row, None, true, None)),
            ),
            "run" => {
                (verb, answer(engine.request_run(id, None).await), ruled(law::run(&row, None)))
            }
            "retry" => (
                verb,
                answer(engine.request_retry(id, 1, None).await),
                ruled(law::retry(&row, None, 1)),
            ),
            _ => (
                verb,
                answer(engine.request_cancel(id).await),
                law::cancel(&row).map_err(|refusal| refusal.code()),
            ),
        });
    }
    answers
}

on_both_stores! {
    async fn q1_each_legal_move_succeeds_with_one_more_version<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let view = desk.create("BAD", "a").await;
        let id = view.facts.request_id;
        assert_eq!((view.status(), view.version, view.run_no), (Created, 1, 0));
        let view = desk.draft(id).await;
        assert_eq!((view.status(), view.version), (DraftReady, 2));
        let view = desk.engine.request_confirm(id, false, version(2)).await.unwrap();
        assert_eq!((view.status(), view.version, view.run_no), (Confirmed, 3, 0));
        let view = desk.engine.request_run(id, version(3)).await.unwrap();
        assert_eq!((view.version, view.run_no), (4, 1));
        desk.reaches(id, Failed).await;
        let view = desk.engine.request_retry(id, 1, version(4)).await.unwrap();
        assert_eq!((view.version, view.run_no), (5, 2));
        desk.reaches(id, Failed).await;
        assert_eq!(desk.changes(id).await, ["created", "R0>1", "R1>2", "R2>3", "R6>3"]);
        desk.close().await;
    }

    /// The status of a request is read off the job of its current run.
    async fn retention_deletes_superseded_runs_and_keeps_the_current_one<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let store = desk.engine.store();
        let first = desk.in_status(Failed).await;
        let id = first.facts.request_id;
        desk.engine.request_retry(id, 1, None).await.unwrap();
        let second = desk.reaches(id, Failed).await;
        let [first, second] = [first, second].map(|view| view.run.unwrap().job_id);
        // The job of the newest event stays whatever it is.
        desk.in_status(Succeeded).await;
        let sweeper = store.join("sweeper").await.unwrap();
        assert_eq!(store.retire(sweeper, 0, None, 100).await.unwrap().deleted, 1);
        assert!(store.job(first).await.unwrap().is_none());
        assert!(store.job(second).await.unwrap().is_some());
        assert_eq!(store.retire(sweeper, 0, None, 100).await.unwrap().deleted, 0);
        let view = desk.show(id).await;
        assert_eq!((view.status(), view.run_no), (Failed, 2));
        assert!(store.audit().await.unwrap().iter().all(|check| check.violations.is_empty()));
        desk.engine.request_retry(id, 2, None).await.unwrap();
        let third = desk.reaches(id, Failed).await;
        assert_eq!(third.run_no, 3);
        desk.close().await;
    }

    async fn q2_q18_q30_every_verb_in_every_status_is_answered_as_the_law_says<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        for status in ALL {
            for (verb, answer, ruled) in verbs(&desk, status).await {
                assert_eq!(answer, ruled, "{verb} in {status}");
            }
        }
        desk.close().await;
    }

    async fn q2_q4_an_illegal_move_names_from_and_to_and_writes_nothing<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let before = desk.create("WAIT", "a").await;
        let id = before.facts.request_id;
        for refusal in [
            desk.engine.request_run(id, None).await.unwrap_err(),
            desk.engine.request_confirm(id, true, None).await.unwrap_err(),
        ] {
            assert_eq!(refusal.code(), Code::JobIllegalTransition);
            assert_eq!(refusal.field("machine").unwrap().to_string(), "request");
            assert_eq!(refusal.field("from").unwrap().to_string(), "created");
            assert!(refusal.field("to").is_some());
        }
        let after = desk.show(id).await;
        assert_eq!((after.status(), after.version), (Created, 1));
        assert_eq!(desk.changes(id).await, ["created"]);
        assert_eq!(desk.engine.store().open_jobs().await.unwrap(), 0);
        desk.close().await;
    }

    async fn q3_q7_the_same_wish_again_changes_nothing<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        for status in [DraftReady, Confirmed, Queued, Running, Succeeded] {
            let before = desk.in_status(status).await;
            let id = before.facts.request_id;
            let again = match status {
                DraftReady => desk.engine.request_draft(id, b"", None).await,
                Confirmed => desk.engine.request_confirm(id, false, None).await,
                Created | Queued | Running | Succeeded | Failed => {
                    desk.engine.request_run(id, None).await
                }
            }
            .unwrap();
            let seen = |view: &RequestView| (view.version, view.run_no, view.updated_at);
            assert_eq!(seen(&again), seen(&before), "{status}");
            assert_eq!(again.status(), status);
        }
        desk.close().await;
    }

    async fn q5_confirm_queues_through_confirmed_in_one_commit_with_two_events<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let id = desk.create("WAIT", "a").await.facts.request_id;
        desk.draft(id).await;
        let view = desk.engine.request_confirm(id, true, version(2)).await.unwrap();
        assert_eq!((view.status(), view.version, view.run_no), (Queued, 4, 1));
        assert_eq!(desk.changes(id).await[2..], ["R1>2", "R2>3"]);
        let job = desk.engine.store().job(view.run.unwrap().job_id).await.unwrap().unwrap();
        assert_eq!(job.row.state, JobState::Queued);
        assert_eq!(job.facts.dedup_key, format!("r:{id}:1"));
        assert_eq!(job.facts.payload, r#"{"n":null}"#, "handed on as it was sent");
        desk.close().await;
    }

    async fn q9_a_stale_version_conflicts_and_of_two_writers_exactly_one_does<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let id = desk.create("WAIT", "a").await.facts.request_id;
        let refusal = desk.engine.request_draft(id, b"", version(7)).await.unwrap_err();
        assert_eq!(refusal.code(), Code::JobVersionConflict);
        assert_eq!(refusal.field("expected").unwrap().to_string(), "7");
        assert_eq!(refusal.field("actual").unwrap().to_string(), "1");
        assert_eq!(desk.show(id).await.version, 1);
        desk.draft(id).await;
        let edit = |n: u32| {
            let engine = desk.engine.clone();
            let edit = serde_json::json!({"envelope": {"input_ref": "in", "output_ref": "out",
                "payload": n, "schema_version": "1"}}).to_string();
            tokio::spawn(async move { engine.request_draft(id, edit.as_bytes(), version(2)).await })
        };
        let (one, two) = (edit(1), edit(2));
        let answers = [one.await.unwrap(), two.await.unwrap()];
        let lost: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
        assert_eq!(lost.len(), 1, "{answers:?}");
        assert_eq!(lost[0].code(), Code::JobVersionConflict);
        assert_eq!(desk.show(id).await.version, 3);
        desk.close().await;
    }

    async fn q9_whoever_read_another_state_of_the_job_conflicts<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let view = desk.in_status(Failed).await;
        let id = view.facts.request_id;
        let read = view.shown_version();
        let older = RequestVersion { own: read.own, job: read.job.map(|job| job - 1) };
        let refusal = desk.engine.request_retry(id, 1, Some(older)).await.unwrap_err();
        assert_eq!(refusal.code(), Code::JobVersionConflict);
        assert_eq!(refusal.field("actual").unwrap().to_string(), read.to_string());
        assert_eq!(read.to_string().parse::<RequestVersion>().unwrap(), read);
        assert_eq!(desk.engine.request_retry(id, 1, Some(read)).await.unwrap().run_no, 2);
        desk.close().await;
    }

    async fn q10_a_stale_caller_whose_wish_is_fulfilled_gets_the_latest_state<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let view = desk.in_status(Queued).await;
        let id = view.facts.request_id;
        let again = desk.engine.request_confirm(id, true, version(2)).await.unwrap();
        assert_eq!((again.version, again.status()), (view.version, Queued));
        desk.close().await;
    }

    async fn q11_e9_a_retry_is_a_new_job_and_leaves_the_old_one_as_it_was<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let view = desk.in_status(Failed).await;
        let (id, first) = (view.facts.request_id, view.run.unwrap().job_id);
        let before = desk.engine.store().job(first).await.unwrap().unwrap();
        let view = desk.engine.request_retry(id, 1, None).await.unwrap();
        let second = view.run.unwrap().job_id;
        assert_eq!(view.run_no, 2);
        assert_ne!(second, first);
        desk.reaches(id, Failed).await;
        let again = desk.engine.request_retry(id, 1, None).await.unwrap();
        assert_eq!(again.run_no, 2, "a delayed repeat starts nothing");
        let refusal = desk.engine.request_retry(id, 9, None).await.unwrap_err();
        assert_eq!(refusal.code(), Code::RunMismatch);
        let after = desk.engine.store().job(first).await.unwrap().unwrap();
        assert_eq!((after.row.state, after.row.version), (before.row.state, before.row.version));
        let attempts = desk.engine.store().attempts(second).await.unwrap();
        assert_eq!(attempts[0].row.attempt_no, 1, "a budget of its own");
        desk.close().await;
    }

    async fn q13_a_retry_of_a_success_starts_nothing<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let view = desk.in_status(Succeeded).await;
        let again = desk.engine.request_retry(view.facts.request_id, 1, None).await.unwrap();
        assert_eq!((again.run_no, again.status()), (1, Succeeded));
        desk.close().await;
    }

    async fn q15_the_status_follows_the_job_and_a_cancelled_one_has_failed<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        for (status, states) in [
            (Queued, vec![JobState::Queued]),
            (Running, vec![JobState::Dispatching, JobState::InProgress]),
            (Succeeded, vec![JobState::Succeeded]),
            (Failed, vec![JobState::FailedFinal]),
        ] {
            let view = desk.in_status(status).await;
            let run = view.run.unwrap();
            assert!(states.contains(&run.state), "{status} {}", run.state);
        }
        let id = desk.in_status(Queued).await.facts.request_id;
        desk.engine.request_cancel(id).await.unwrap();
        let run = desk.show(id).await.run.unwrap();
        assert!(matches!(run.state, JobState::Cancelling | JobState::Cancelled), "{}", run.state);
        desk.close().await;
    }

    async fn q28_an_edit_is_one_more_version_and_the_same_status_until_the_plan_is_frozen<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let id = desk.create("WAIT", "a").await.facts.request_id;
        desk.draft(id).await;
        let edit = br#"{"envelope":{"input_ref":"in","output_ref":"out","payload":7,"schema_version":"1"}}"#;
        let view = desk.engine.request_draft(id, edit, version(2)).await.unwrap();
        assert_eq!((view.version, view.status()), (3, DraftReady));
        let draft: serde_json::Value = serde_json::from_str(&view.draft.unwrap()).unwrap();
        assert_eq!(draft["protocol_id"], "wait.v1");
        assert_eq!(draft["steps"][0]["payload"], 7);
        assert!(draft["checks"].as_array().unwrap().iter().all(|check| check["passed"] == true));
        assert_eq!(desk.engine.request_draft(id, edit, None).await.unwrap().version, 3);
        desk.engine.request_confirm(id, true, None).await.unwrap();
        let refusal = desk.engine.request_draft(id, edit, None).await.unwrap_err();
        assert_eq!(refusal.code(), Code::DraftFrozen);
        assert_eq!(desk.changes(id).await[2], "edited");
        desk.close().await;
    }

    async fn a_draft_with_a_check_that_fails_can_be_seen_and_mended_but_not_confirmed<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let unknown = desk.create("NOBODY", "a").await.facts.request_id;
        let draft: serde_json::Value =
            serde_json::from_str(&desk.draft(unknown).await.draft.unwrap()).unwrap();
        assert_eq!(draft["checks"][1]["passed"], false, "{draft}");
        let refusal = desk.engine.request_confirm(unknown, true, None).await.unwrap_err();
        assert_eq!(refusal.code(), Code::DraftBlocked);
        assert_eq!(refusal.field("check").unwrap().to_string(), "protocol");
        assert_eq!(desk.show(unknown).await.status(), DraftReady);
        // Registered while the engine runs: the next draft finds it.
        let late = Protocol::new("nobody.v1", "NOBODY").step("only", "GOOD");
        desk.engine.put_protocol(&late).await.unwrap();
        assert_eq!(desk.draft(unknown).await.version, 3);
        desk.engine.request_confirm(unknown, true, None).await.unwrap();
        desk.reaches(unknown, Succeeded).await;

        let bare = serde_json::json!({"tenant_id": "t1", "request_type": "GOOD"}).to_string();
        let bare = desk.engine.request_create(bare.as_bytes()).await.unwrap().0.facts.request_id;
        desk.draft(bare).await;
        let refusal = desk.engine.request_confirm(bare, false, None).await.unwrap_err();
        assert_eq!(refusal.field("check").unwrap().to_string(), "envelope");
        desk.close().await;
    }

    async fn a_draft_whose_payload_the_protocol_does_not_take_is_not_confirmed_until_it_is_mended<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let mut sums = Protocol::new("sums.v1", "SUMS").step("add", "GOOD");
        sums.steps[0].payload_schema = Some(serde_json::json!({"required": ["num"]}));
        desk.engine.put_protocol(&sums).await.unwrap();
        let id = desk.create("SUMS", "a").await.facts.request_id;
        let draft: serde_json::Value =
            serde_json::from_str(&desk.draft(id).await.draft.unwrap()).unwrap();
        assert_eq!((&draft["checks"][2]["name"], &draft["checks"][2]["passed"]),
            (&"payload".into(), &false.into()), "{draft}");
        for run in [false, true] {
            let refusal = desk.engine.request_confirm(id, run, None).await.unwrap_err();
            assert_eq!(refusal.code(), Code::DraftBlocked);
            assert_eq!(refusal.field("check").unwrap().to_string(), "payload");
        }
        assert_eq!(desk.show(id).await.status(), DraftReady);
        let edit = br#"{"envelope":{"input_ref":"in","output_ref":"out","payload":{"num":7},"schema_version":"1"}}"#;
        desk.engine.request_draft(id, edit, None).await.unwrap();
        desk.engine.request_confirm(id, true, None).await.unwrap();
        desk.reaches(id, Succeeded).await;
        desk.close().await;
    }

    async fn a_draft_shows_every_step_of_a_graph_and_what_does_it<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let graph = Protocol::read(GRAPH).unwrap();
        desk.engine.put_protocol(&graph).await.unwrap();
        let id = desk.create("GRAPH", "a").await.facts.request_id;
        let draft: serde_json::Value =
            serde_json::from_str(&desk.draft(id).await.draft.unwrap()).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or("-").to_owned();
        let shown: Vec<String> = draft["steps"].as_array().unwrap().iter().map(|step| {
            let [id, kind, service, within] =
                ["stepId", "kind", "service", "within"].map(|key| text(&step[key]));
            format!("{id} {kind} {service} {within} {}", step["payload"])
        }).collect();
        let handed = r#"{"n":null}"#;
        assert_eq!(shown, [
            "all steps - - null".to_owned(),
            format!("one service GOOD all {handed}"),
            "rest sleep - all null".to_owned(),
            format!("many batch GOOD - {handed}"),
            "yes wait - - null".to_owned(),
            "other job - - null".to_owned(),
        ]);
        desk.close().await;
    }

    async fn the_same_request_is_one_request_and_other_content_under_its_key_is_refused<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let create = || {
            let engine = desk.engine.clone();
            tokio::spawn(async move { engine.request_create(&document("WAIT", "a")).await.unwrap() })
        };
        let tasks: Vec<_> = (0..16).map(|_| create()).collect();
        let mut ids = Vec::new();
        let mut created = 0;
        for task in tasks {
            let (view, is_new) = task.await.unwrap();
            ids.push(view.facts.request_id);
            created += usize::from(is_new);
        }
        ids.dedup();
        assert_eq!((ids.len(), created), (1, 1));
        let mut other: serde_json::Value = serde_json::from_slice(&document("WAIT", "a")).unwrap();
        other["requirement"] = " hello world\n".into();
        let same = desk.engine.request_create(other.to_string().as_bytes()).await.unwrap();
        assert_eq!((same.0.facts.request_id, same.1), (ids[0], false), "white space does not matter");
        other["envelope"]["payload"] = 8.into();
        let refusal = desk.engine.request_create(other.to_string().as_bytes()).await.unwrap_err();
        assert_eq!(refusal.code(), Code::IdempotencyKeyReused);
        other["tenant_id"] = "t2".into();
        assert!(desk.engine.request_create(other.to_string().as_bytes()).await.unwrap().1);
        let filter = RequestFilter {
            tenant_id: Some("t2".to_owned()),
            limit: 10,
            ..RequestFilter::default()
        };
        assert_eq!(desk.engine.store().requests(filter).await.unwrap().len(), 1);
        desk.close().await;
    }

    async fn of_many_confirms_at_once_one_makes_the_job<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let id = desk.create("WAIT", "a").await.facts.request_id;
        desk.draft(id).await;
        let confirm = || {
            let engine = desk.engine.clone();
            tokio::spawn(async move { engine.request_confirm(id, true, None).await.unwrap() })
        };
        let tasks: Vec<_> = (0..8).map(|_| confirm()).collect();
        let mut jobs = Vec::new();
        for task in tasks {
            jobs.push(task.await.unwrap().run.unwrap().job_id);
        }
        jobs.dedup();
        assert_eq!(jobs.len(), 1);
        assert_eq!(desk.engine.store().open_jobs().await.unwrap(), 1);
        assert_eq!(desk.show(id).await.version, 4);
        desk.close().await;
    }

    async fn effects_of_two_runs_have_one_name<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        let view = desk.in_status(Succeeded).await;
        let attempts = desk.engine.store().attempts(view.run.unwrap().job_id).await.unwrap();
        let effect = attempts[0].output.clone().unwrap();
        assert_eq!(effect, format!("\"{}/0/0/0\"", view.facts.request_id), "the request's, not the job's");
        desk.close().await;
    }

    async fn what_is_no_request_is_refused_by_code<W>(play: &Play<W>) {
        let desk = Desk::open(play).await;
        for (document, code) in [
            ("{", Code::JsonInvalid),
            ("[1]", Code::RequestInvalid),
            (r#"{"request_type":"GOOD"}"#, Code::RequestInvalid),
            (r#"{"tenant_id":"t1","request_type":"GOOD","inputs":3}"#, Code::RequestInvalid),
            (r#"{"tenant_id":"t1","request_type":"GOOD","requirement":3}"#, Code::RequestKeyInvalid),
            (r#"{"tenant_id":"t1","request_type":"GOOD","requirement":"a\u0000"}"#, Code::NulCharacter),
            (r#"{"tenant_id":"t1","request_type":"GOOD","plan_revision":"\u0000"}"#, Code::NulCharacter),
            (r#"{"tenant_id":"t1","request_type":"GOOD","inputs":{"a":"\u0000"}}"#, Code::NulCharacter),
            (r#"{"tenant_id":"","request_type":"GOOD"}"#, Code::NameInvalid),
            (r#"{"tenant_id":"t1","request_type":"GOOD","envelope":{"tenant_id":"t2"}}"#, Code::EnvelopeInvalid),
            (r#"{"tenant_id":"t1","request_type":"GOOD","envelope":{"idempotency_key":"k"}}"#, Code::EnvelopeInvalid),
        ] {
            let refusal = desk.engine.request_create(document.as_bytes()).await.unwrap_err();
            assert_eq!(refusal.code(), code, "{document}");
        }
        let id = desk.create("GOOD", "an edit").await.facts.request_id;
        let edit = desk.engine.request_draft(id, br#"{"envelope":{"payload":"\u0000"}}"#, None).await;
        assert_eq!(edit.unwrap_err().code(), Code::NulCharacter);
        let unknown = desk.engine.request_run(RequestId::new(), None).await.unwrap_err();
        assert_eq!(unknown.code(), Code::RequestUnknown);
        desk.close().await;
    }
}
