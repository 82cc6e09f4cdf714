//! Workers in process: a handler for a service, run under a slot, a time limit and a cancel signal.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;

use crate::directive::{Directive, Failure};

/// What a handler can ask while it runs.
#[derive(Clone, Debug)]
pub struct Context {
    stop: watch::Receiver<bool>,
}

impl Context {
    pub(crate) fn new(stop: watch::Receiver<bool>) -> Self {
        Self { stop }
    }

    /// Whether the handler should end soon: its time is over, its job is cancelled, or the engine stops.
    pub fn should_stop(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits until the handler should end.
    pub async fn stopped(&mut self) {
        // The sender lives as long as the attempt; if it is gone, so is the attempt.
        let _ = self.stop.wait_for(|stop| *stop).await;
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Value, Failure>> + Send>>;

/// A handler, with its types erased.
#[derive(Clone)]
pub struct Handler(Arc<dyn Fn(Directive, Context) -> Answer + Send + Sync>);

impl Handler {
    /// A handler whose input is the job's payload and whose output is kept as JSON.
    pub fn new<I, O, F, A>(run: F) -> Self
    where
        I: DeserializeOwned + Send,
        O: Serialize + Send,
        F: Fn(I, Directive, Context) -> A + Send + Sync + 'static,
        A: Future<Output = Result<O, Failure>> + Send + 'static,
    {
        Self(Arc::new(move |directive, context| {
            let input = match serde_json::from_value(directive.payload.clone()) {
                Ok(input) => input,
                Err(error) => {
                    let failure = Failure::fatal("PAYLOAD_INVALID", error);
                    return Box::pin(async move { Err(failure) });
                }
            };
            let answer = run(input, directive, context);
            Box::pin(async move {
                let output = answer.await?;
                serde_json::to_value(output).map_err(|e| Failure::fatal("OUTPUT_INVALID", e))
            })
        }))
    }

    /// Runs it; a panic is a failure that another attempt may mend.
    pub(crate) async fn run(
        &self,
        directive: Directive,
        context: Context,
    ) -> Result<Value, Failure> {
        let started = catch_unwind(AssertUnwindSafe(|| (self.0)(directive, context)));
        let mut answer = match started {
            Ok(answer) => answer,
            Err(panic) => return Err(panicked(panic.as_ref())),
        };
        poll_fn(move |cx| match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx))) {
            Ok(poll) => poll,
            Err(panic) => Poll::Ready(Err(panicked(panic.as_ref()))),
        })
        .await
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let message = panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned());
    Failure::retryable("HANDLER_PANIC", message)
}
