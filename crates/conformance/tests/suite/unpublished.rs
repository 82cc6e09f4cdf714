//! Directives that are not published when their job begins to end: none of them gets out any more, none of them
//! holds the job open, and whoever got one all the same is told that it is stale.

use std::sync::Arc;

use serde_json::json;
use sprag_engine::bus::{Bus, Delivery, Later, Letter};
use sprag_engine::callback::Fence;
use sprag_engine::directive::Failure;
use sprag_engine::engine::Engine;
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::AttemptView;
use sprag_kernel::{Code, JobState, OutboxState, State, StepState};
use tokio::sync::{Notify, mpsc};

use crate::graphs::{GRACE, closed, handler, submit};
use crate::on_both_stores;
use crate::play::{Play, SERVICE};
use crate::pull::{builder, done, stale, until};
use crate::world::World;

const HOUR_MS: i64 = 3_600_000;

/// A step that runs until it is told to fail, whatever else it is told, beside one behind a bus.
const STEPS: &str = "
  - {step_id: stubborn, needs: [], service: work, retry: {max_attempts: 1}}
  - {step_id: letter, needs: [], service: outside, retry: {backoff: [1h]}}
";

/// A bus that says which letter it has, and answers when it is told how.
struct SlowBus {
    has: mpsc::UnboundedSender<Letter>,
    answers: tokio::sync::Mutex<mpsc::UnboundedReceiver<Result<(), String>>>,
}

impl Bus for SlowBus {
    fn publish(&self, letter: Letter) -> Later<'_, Result<(), String>> {
        Box::pin(async move {
            self.has.send(letter).unwrap();
            self.answers.lock().await.recv().await.unwrap()
        })
    }

    fn receive(&self) -> Later<'_, Option<Delivery>> {
        Box::pin(std::future::pending())
    }
}

/// A job of those steps, an engine that works on it, and the levers of both steps.
struct Scene<W: World> {
    engine: Engine<W::Store>,
    job_id: JobId,
    letters: mpsc::UnboundedReceiver<Letter>,
    answers: mpsc::UnboundedSender<Result<(), String>>,
    go: Arc<Notify>,
}

impl<W: World> Scene<W> {
    /// Both steps have begun: one runs, the other's letter is with the bus.
    async fn begin(play: &Play<W>) -> (Self, Fence) {
        let (has, letters) = mpsc::unbounded_channel();
        let (answers, reads) = mpsc::unbounded_channel();
        let go = Arc::new(Notify::new());
        let told = go.clone();
        let stubborn = handler(move |_| {
            let told = told.clone();
            async move {
                told.notified().await;
                Err(Failure::fatal("TOLD", "on purpose"))
            }
        });
        let text = format!("protocol_id: graph.v1\nrequest_types: [GRAPH]\nsteps:{STEPS}");
        let engine = builder(play)
            .await
            .protocol(Protocol::read(&text).unwrap())
            .service(SERVICE, 1, stubborn)
            .bus(&["outside"], Arc::new(SlowBus { has, answers: reads.into() }))
            .start()
            .await
            .unwrap();
        let job_id = submit(&engine, json!({})).await;
        let mut scene = Self { engine, job_id, letters, answers, go };
        let letter = scene.letters.recv().await.unwrap();
        scene.until(play, "stubborn", |step| step.row.state == StepState::InProgress).await;
        (scene, letter.directive.fence())
    }

    async fn until(
        &self,
        play: &Play<W>,
        step_id: &str,
        wished: impl Fn(&AttemptView) -> bool,
    ) -> AttemptView {
        until(play, self.job_id, |attempt| attempt.step_id == step_id && wished(attempt)).await
    }

    /// The bus refuses the letter, which waits for an hour.
    async fn refuse(&self, play: &Play<W>) {
        self.answers.send(Err("not now".to_owned())).unwrap();
        self.until(play, "letter", |letter| letter.timer_at.is_some()).await;
    }

    /// The letter is closed, and the other step still runs.
    async fn expect_letter_closed(&self, play: &Play<W>) {
        let letter = self.until(play, "letter", |letter| letter.row.state.is_terminal()).await;
        let ends = (letter.row.state, letter.row.outbox);
        assert_eq!(ends, (StepState::Cancelled, Some(OutboxState::FailedFinal)));
        let reason = "SELECT reason FROM outbox WHERE step_id = 'letter'";
        let reason = play.world.query(reason).await.unwrap();
        assert_eq!(reason[0][0].as_deref(), Some("cancelled"));
        assert!(!play.job(self.job_id).await.row.state.is_terminal(), "the other step still runs");
        play.expect_sound().await;
    }

    /// The end is certain, and nobody has closed the letter: as if it had been in other hands at that moment.
    async fn pin(&self, play: &Play<W>) {
        let (verdict, job_id) = (JobState::FailedFinal.code(), W::id(self.job_id));
        let sql = format!("UPDATE job SET verdict = {verdict} WHERE job_id = {job_id}");
        play.world.execute(&sql).await.unwrap();
    }

    /// The step that runs is told to fail, and the job ends.
    async fn end(mut self, play: &Play<W>) -> JobState {
        self.go.notify_one();
        let state = closed(play.store(), self.job_id).await.row.state;
        assert!(self.letters.try_recv().is_err(), "no further letter gets out");
        self.engine.shutdown(GRACE).await.unwrap();
        state
    }
}

on_both_stores! {
    async fn a_cancel_closes_a_letter_that_waits_although_another_step_runs<W>(play: &Play<W>) {
        let (scene, _) = Scene::<W>::begin(play).await;
        scene.refuse(play).await;
        let cancelled = scene.engine.cancel(scene.job_id, None).await.unwrap();
        assert_eq!(cancelled, JobState::Cancelling);
        scene.expect_letter_closed(play).await;
        play.clock.advance(HOUR_MS);
        assert_eq!(scene.end(play).await, JobState::Cancelled);
    }

    /// The worker has it before the store says so. Its job is over, and its result changes nothing.
    async fn a_letter_that_is_on_its_way_when_its_job_fails_is_stale<W>(play: &Play<W>) {
        let (scene, fence) = Scene::<W>::begin(play).await;
        scene.go.notify_one();
        assert_eq!(closed(play.store(), scene.job_id).await.row.state, JobState::FailedFinal);
        scene.answers.send(Ok(())).unwrap();
        let engine = &scene.engine;
        assert_eq!(engine.ack(fence.clone()).await.unwrap_err().code(), Code::StaleFence);
        assert_eq!(engine.heartbeat(fence.clone(), None).await.unwrap_err().code(), Code::StaleFence);
        assert_eq!(engine.result(fence, done()).await.unwrap_err().code(), Code::StaleFence);
        let once = |name: &str| (name.to_owned(), "STALE_FENCE".to_owned(), "1".to_owned());
        assert_eq!(stale(play).await, ["ack", "heartbeat", "result"].map(once));
        let letter = scene.until(play, "letter", |_| true).await;
        let ends = (letter.row.state, letter.row.outbox);
        assert_eq!(ends, (StepState::Cancelled, Some(OutboxState::FailedFinal)));
        scene.engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_letter_that_the_bus_refuses_when_its_job_is_ending_is_closed<W>(play: &Play<W>) {
        let (scene, _) = Scene::<W>::begin(play).await;
        scene.pin(play).await;
        scene.answers.send(Err("not now".to_owned())).unwrap();
        scene.expect_letter_closed(play).await;
        assert_eq!(scene.end(play).await, JobState::FailedFinal);
    }

    async fn a_letter_whose_time_comes_when_its_job_is_ending_is_closed_and_not_published<W>(play: &Play<W>) {
        let (scene, _) = Scene::<W>::begin(play).await;
        scene.refuse(play).await;
        scene.pin(play).await;
        play.clock.advance(HOUR_MS);
        scene.expect_letter_closed(play).await;
        assert_eq!(scene.end(play).await, JobState::FailedFinal);
    }
}
