//! A bus: directives go out to the workers of a service, callbacks come back.
//!
//! It may lose, repeat, delay and reorder in both directions: the outbox publishes again what was not taken,
//! timers end what nobody answers, and the fence turns away what comes too late. What it must not do is take a
//! directive that was not written: the heart hands it over after the commit.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use sprag_kernel::{Code, Refusal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::callback::{Callback, Fence};
use crate::directive::Directive;
use crate::heart::{Calling, Op};

/// How many directives of a service an engine publishes at a time.
pub(crate) const MAX_PUBLISHING: usize = 500;
/// How many callbacks of a bus may wait for their answer: a bus that delivers more is read later.
const MAX_DELIVERIES: usize = 1_000;

/// What a transport does later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A directive and where it goes.
#[derive(Clone, Debug)]
pub struct Letter {
    /// The workers it is for.
    pub service: String,
    /// The lane, from 0 to 15.
    pub lane: u32,
    /// What keeps an order among letters.
    pub routing_key: String,
    /// What it says.
    pub directive: Directive,
}

/// A callback that the bus delivers.
#[derive(Debug)]
pub struct Delivery {
    /// Whose it is.
    pub fence: Fence,
    /// What it says.
    pub callback: Callback,
    /// What the bus does with it afterwards.
    pub settle: oneshot::Sender<Settled>,
}

/// What becomes of a callback that was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It was heard, or it never will be: it is done with.
    Done,
    /// It came too early, or the store was away: deliver it again later.
    Again,
}

/// A transport.
pub trait Bus: Send + Sync + 'static {
    /// Hands a directive to the transport. It has taken it when this is `Ok`; an error says why not.
    fn publish(&self, letter: Letter) -> Later<'_, Result<(), String>>;

    /// The next callback; none when the bus is closed.
    fn receive(&self) -> Later<'_, Option<Delivery>>;
}

/// Hands what a bus delivers to the heart, until either is gone.
pub(crate) async fn listen<W>(bus: Arc<dyn Bus>, ops: mpsc::UnboundedSender<Op<W>>) {
    let mut waiting = JoinSet::new();
    while let Some(Delivery { fence, callback, settle }) = bus.receive().await {
        if waiting.len() >= MAX_DELIVERIES {
            waiting.join_next().await;
        }
        let (reply, answer) = oneshot::channel();
        if ops.send(Op::Callback(Calling { fence, callback, reply, tries: 0 })).is_err() {
            return;
        }
        waiting.spawn(async move {
            let settled =
                answer.await.map_or(Settled::Again, |answer| settled(answer.err().as_ref()));
            // A bus that does not wait for it has done with the callback by itself.
            let _ = settle.send(settled);
        });
    }
    while waiting.join_next().await.is_some() {}
}

fn settled(refusal: Option<&Refusal>) -> Settled {
    match refusal.map(Refusal::code) {
        Some(Code::NotYet | Code::StoreUnavailable | Code::EngineFenced) => Settled::Again,
        Some(_) | None => Settled::Done,
    }
}
