//! Workers in process: a handler for a service, run under a slot, a time limit and a stop signal.
//!
//! Three kinds. A [`Handler`] is an async function, or a blocking one that runs off the async threads. A
//! [`TransactionalHandler`] also returns work that the store runs in the transaction that stores the
//! RESULT: both are committed, or neither is. Whatever a handler does, it ends in an output or in a
//! classified [`Failure`]; a panic is one that another attempt may mend.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sprag_kernel::{Cause, Code};

pub use crate::context::{Context, StopReason};
use crate::directive::{Directive, Failure};

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// A handler, with its types erased.
#[derive(Clone)]
pub struct Handler(Arc<dyn Fn(Directive, Context) -> Answer<Value> + Send + Sync>);

impl Handler {
    /// A handler whose input is the job's payload and whose output is kept as JSON.
    pub fn new<I, O, F, A>(run: F) -> Self
    where
        I: DeserializeOwned + Send,
        O: Serialize + Send,
        F: Fn(I, Directive, Context) -> A + Send + Sync + 'static,
        A: Future<Output = Result<O, Failure>> + Send + 'static,
    {
        Self(Arc::new(move |directive, context| match input(&directive) {
            Ok(input) => {
                let answer = run(input, directive, context);
                Box::pin(async move { output(answer.await?) })
            }
            Err(failure) => Box::pin(async move { Err(failure) }),
        }))
    }

    /// A handler that blocks its thread. It runs off the async threads, as many at a time as its service
    /// has slots, and keeps its slot until it returns: it cannot be ended from outside, so it should look
    /// at [`Context::should_stop`] now and then.
    pub fn blocking<I, O, F>(run: F) -> Self
    where
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send,
        F: Fn(I, Directive, Context) -> Result<O, Failure> + Send + Sync + 'static,
    {
        let run = Arc::new(run);
        Self(Arc::new(move |directive, context| {
            let run = run.clone();
            let call = move || output(run(input(&directive)?, directive, context)?);
            let task = tokio::task::spawn_blocking(call);
            Box::pin(async move {
                match task.await {
                    Ok(result) => result,
                    Err(error) => match error.try_into_panic() {
                        Ok(panic) => Err(panicked(Cause::HandlerPanic.name(), panic.as_ref())),
                        Err(error) => Err(Failure::retryable(Cause::HandlerEnded.name(), error)),
                    },
                }
            })
        }))
    }
}

/// A handler that returns its output and work for the transaction that stores it. What the work writes
/// stands exactly once: the guard of the attempt holds when it runs, and an attempt whose RESULT is not
/// stored leaves nothing of it. `W` is the [`Store::Work`](crate::store::Store::Work) of the store that the
/// engine is built on.
pub struct TransactionalHandler<W>(Arc<Transactional<W>>);

type Transactional<W> = dyn Fn(Directive, Context) -> Answer<(Value, W)> + Send + Sync;

impl<W: Send + 'static> TransactionalHandler<W> {
    /// A handler whose input is the job's payload and whose output is kept as JSON.
    pub fn new<I, O, F, A>(run: F) -> Self
    where
        I: DeserializeOwned + Send,
        O: Serialize + Send,
        F: Fn(I, Directive, Context) -> A + Send + Sync + 'static,
        A: Future<Output = Result<(O, W), Failure>> + Send + 'static,
    {
        Self(Arc::new(move |directive, context| match input(&directive) {
            Ok(input) => {
                let answer = run(input, directive, context);
                Box::pin(async move {
                    let (said, work) = answer.await?;
                    Ok((output(said)?, work))
                })
            }
            Err(failure) => Box::pin(async move { Err(failure) }),
        }))
    }
}

/// What a handler of any kind returned.
pub(crate) struct Returned<W> {
    /// Nothing if it is another turn of a cycle that has come of it.
    pub(crate) output: Option<Value>,
    pub(crate) work: Option<W>,
}

/// A handler of any kind, as the engine runs it.
pub struct Runner<W>(Arc<dyn Fn(Directive, Context) -> Answer<Returned<W>> + Send + Sync>);

impl<W> Clone for Runner<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<W: Send + 'static> From<Handler> for Runner<W> {
    fn from(Handler(handler): Handler) -> Self {
        Self(Arc::new(move |directive, context| {
            let answer = handler(directive, context);
            Box::pin(async move { Ok(Returned { output: Some(answer.await?), work: None }) })
        }))
    }
}

impl<W: Send + 'static> From<TransactionalHandler<W>> for Runner<W> {
    fn from(TransactionalHandler(handler): TransactionalHandler<W>) -> Self {
        Self(Arc::new(move |directive, context| {
            let answer = handler(directive, context);
            Box::pin(async move {
                let (output, work) = answer.await?;
                Ok(Returned { output: Some(output), work: Some(work) })
            })
        }))
    }
}

impl<W> Runner<W> {
    /// Runs the handler; a panic is a failure that another attempt may mend.
    pub(crate) async fn run(
        &self,
        directive: Directive,
        context: Context,
    ) -> Result<Returned<W>, Failure> {
        let started = catch_unwind(AssertUnwindSafe(|| (self.0)(directive, context)));
        match started {
            Ok(answer) => caught(Cause::HandlerPanic.name(), answer).await,
            Err(panic) => Err(panicked(Cause::HandlerPanic.name(), panic.as_ref())),
        }
    }
}

fn input<I: DeserializeOwned>(directive: &Directive) -> Result<I, Failure> {
    I::deserialize(directive.payload.as_ref())
        .map_err(|error| Failure::fatal(Code::PayloadInvalid.name(), error))
}

fn output(said: impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(said).map_err(|error| Failure::fatal(Cause::OutputInvalid.name(), error))
}

/// The result of user code that may panic when it is polled.
pub async fn caught<T>(
    code: &str,
    mut answer: Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + '_>>,
) -> Result<T, Failure> {
    poll_fn(move |cx| match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx))) {
        Ok(poll) => poll,
        Err(panic) => Poll::Ready(Err(panicked(code, panic.as_ref()))),
    })
    .await
}

/// A panic of user code, as a failure that another attempt may mend.
pub fn panicked(code: &str, panic: &(dyn Any + Send)) -> Failure {
    let message = panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned());
    Failure::retryable(code, message)
}
