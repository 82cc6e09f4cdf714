//! Hooks: what the user wants done when a job has ended. The closing commit records a task per hook; the
//! deliverer calls the hook, at least once, and tells the store how it went. A hook that fails, panics or
//! takes too long is called again after a wait; one whose engine dies is called by whoever takes over.

use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sprag_kernel::retry::{Backoff, Millis};
use sprag_kernel::{JobState, State, StepState};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::crash::crash_point;
use crate::heart::until;
use crate::ids::{EngineNo, JobId};
use crate::store::{Answer, AttemptError, Store, StoreError};
use crate::upkeep::{Delivery, Task};

/// How many hooks run at a time.
const AT_ONCE: u32 = 16;
/// How long a hook may take; then it is dropped, and called again.
const LIMIT: Duration = Duration::from_secs(60);
/// As long as it may run nobody else calls it. More than that, since what it is told is read first.
const HOLD_MS: Millis = 90_000;

/// The completion task of a hook.
pub(crate) fn task_of(hook: &str) -> String {
    format!("hook:{hook}")
}

/// A job that has ended, as a hook is told of it.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The job.
    pub job_id: JobId,
    /// Whose it is.
    pub tenant_id: String,
    /// What was asked for.
    pub request_type: String,
    /// How it ended.
    pub state: JobState,
    /// What its last step has produced, if it succeeded.
    pub output: Option<Value>,
    /// Why it failed.
    pub error: Option<AttemptError>,
    /// The same at every delivery: hand it to the outside world so that it can make the effect once.
    pub effect_key: String,
}

type Called = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// What is called when a job has ended.
#[derive(Clone)]
pub struct Hook(Arc<dyn Fn(Ended) -> Called + Send + Sync>);

impl Hook {
    /// A hook; an error is written down, and the hook is called again.
    pub fn new<E: Display, F, A>(call: F) -> Self
    where
        F: Fn(Ended) -> A + Send + Sync + 'static,
        A: Future<Output = Result<(), E>> + Send + 'static,
    {
        Self(Arc::new(move |ended| {
            let called = call(ended);
            Box::pin(async move { called.await.map_err(|error| error.to_string()) })
        }))
    }
}

/// Delivers the completion tasks that this engine has hooks for.
pub(crate) struct Deliverer<S: Store> {
    pub(crate) store: Arc<S>,
    pub(crate) engine: EngineNo,
    pub(crate) hooks: HashMap<String, Hook>,
    pub(crate) backoff: Backoff,
    /// A job has ended, or it is time to look.
    pub(crate) ended: Arc<Notify>,
    pub(crate) stop: watch::Receiver<bool>,
}

impl<S: Store> Deliverer<S> {
    /// Delivers until it is told to stop, or the engine is fenced off.
    pub(crate) async fn run(mut self) {
        let mut again_at = None;
        while !*self.stop.borrow() {
            match self.deliver(&mut again_at).await {
                // As many as were asked for: there may be more.
                Ok(count) if count == AT_ONCE as usize => continue,
                Ok(_) => {}
                Err(StoreError::Fenced) => return,
                Err(error) => {
                    tracing::warn!(code = "STORE_CALL_FAILED", %error, "hooks wait for the store");
                }
            }
            tokio::select! {
                _ = self.stop.changed() => {}
                () = self.ended.notified() => {}
                () = until(again_at), if again_at.is_some() => again_at = None,
            }
        }
    }

    /// One group: claimed, called side by side, settled. Notes when the first that failed is to be called again;
    /// what others have left is found at the next look of the heart.
    async fn deliver(&self, again_at: &mut Option<Instant>) -> Answer<usize> {
        let tasks = self.hooks.keys().map(|name| task_of(name)).collect();
        let claimed = self.store.claim_tasks(self.engine, tasks, AT_ONCE, HOLD_MS).await?;
        let count = claimed.len();
        let mut calls = JoinSet::new();
        for task in claimed {
            calls.spawn(call(self.store.clone(), self.hook_of(&task), task));
        }
        let mut settled = Vec::with_capacity(count);
        while let Some(called) = calls.join_next().await {
            let (task, result) = called.map_err(|e| StoreError::Unavailable(e.to_string()))?;
            crash_point("hooks.after_call");
            settled.push(self.settle(task, result?));
        }
        let wait = settled.iter().filter_map(|(_, delivery)| delivery.waits()).min();
        if count > 0 {
            self.store.settle_tasks(self.engine, settled).await?;
        }
        if let Some(soonest) = wait.map(|wait| Instant::now() + wait) {
            *again_at = Some(again_at.map_or(soonest, |at| at.min(soonest)));
        }
        Ok(count)
    }

    fn hook_of(&self, task: &Task) -> Hook {
        let name = task.task.split_once(':').map_or("", |(_, name)| name);
        self.hooks[name].clone()
    }

    fn settle(&self, task: Task, result: Result<(), String>) -> (Task, Delivery) {
        let delivery = match result {
            Ok(()) => Delivery::Done,
            Err(message) => {
                let (job_id, hook) = (task.job_id, &task.task);
                tracing::warn!(code = "HOOK_FAILED", %job_id, hook, message, "it is called again");
                Delivery::Failed { delay_ms: self.backoff.after(task.delivery), message }
            }
        };
        (task, delivery)
    }
}

/// Calls a hook. It runs as a task of its own, so that its panic is its own too.
async fn call<S: Store>(
    store: Arc<S>,
    hook: Hook,
    task: Task,
) -> (Task, Answer<Result<(), String>>) {
    let ended = match ended(store.as_ref(), &task).await {
        Ok(Some(ended)) => ended,
        Ok(None) => return (task, Ok(Err("the job is gone".to_owned()))),
        Err(error) => return (task, Err(error)),
    };
    (task, Ok(within(LIMIT, async move { (hook.0)(ended).await }).await))
}

/// What is not done in time does not go on beside the next call.
async fn within(
    limit: Duration,
    called: impl Future<Output = Result<(), String>> + Send + 'static,
) -> Result<(), String> {
    let mut called = tokio::spawn(called);
    match tokio::time::timeout(limit, &mut called).await {
        Ok(Ok(result)) => result,
        Ok(Err(panicked)) => Err(panicked.to_string()),
        Err(_) => {
            called.abort();
            Err("the hook did not return in time".to_owned())
        }
    }
}

async fn ended<S: Store>(store: &S, task: &Task) -> Answer<Option<Ended>> {
    let Some(job) = store.job(task.job_id).await? else { return Ok(None) };
    debug_assert!(job.row.state.is_terminal(), "tasks are recorded by the closing commit");
    let mut attempts = store.attempts(task.job_id).await?;
    attempts.retain(|attempt| attempt.row.state == StepState::Succeeded);
    let last = attempts.last().filter(|_| job.row.state == JobState::Succeeded);
    let output = last.and_then(|attempt| attempt.output.as_deref());
    Ok(Some(Ended {
        job_id: task.job_id,
        tenant_id: job.facts.tenant_id,
        request_type: job.facts.request_type,
        state: job.row.state,
        output: output.and_then(|text| serde_json::from_str(text).ok()),
        error: job.error,
        effect_key: format!("{}/{}", task.job_id, task.task),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells when it is dropped.
    struct Told(Option<tokio::sync::oneshot::Sender<()>>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.take().expect("it is dropped once").send(());
        }
    }

    #[tokio::test]
    async fn a_hook_that_takes_too_long_does_not_go_on() {
        let (told, dropped) = tokio::sync::oneshot::channel();
        let told = Told(Some(told));
        let called = async move {
            let _told = told;
            std::future::pending::<()>().await;
            Ok(())
        };
        let result = within(Duration::from_millis(1), called).await;
        assert_eq!(result, Err("the hook did not return in time".to_owned()));
        dropped.await.expect("it is dropped");
    }
}
