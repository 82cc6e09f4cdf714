//! A call in two parts, each in a transaction of its own: what the second is to be built upon is committed when it runs,
//! and both are durable when it is answered, by one sync.

use sprag_engine::store::{Answer, StoreError};
use tokio::sync::oneshot;

use super::writer::{Call, Tx, caught, failed_with};

pub(super) struct Pair<A, B, F, G> {
    first: F,
    second: G,
    part: Part<A, B>,
    reply: oneshot::Sender<Answer<(A, B)>>,
}

/// How far it is. A part may run twice, so its result is that of its last run.
enum Part<A, B> {
    First(Option<Answer<A>>),
    Second(A, Option<Answer<B>>),
}

impl<A, B, F, G> Pair<A, B, F, G> {
    pub(super) fn new(first: F, second: G, reply: oneshot::Sender<Answer<(A, B)>>) -> Self {
        Self { first, second, part: Part::First(None), reply }
    }
}

impl<A, B, F, G> Call for Pair<A, B, F, G>
where
    A: Send,
    B: Send,
    F: FnMut(&Tx<'_>) -> Answer<A> + Send,
    G: FnMut(&Tx<'_>, &A) -> Answer<B> + Send,
{
    fn is_work(&self) -> bool {
        false
    }

    fn run(&mut self, tx: &Tx<'_>) -> bool {
        match &mut self.part {
            Part::First(result) => result.insert(caught(|| (self.first)(tx))).is_ok(),
            Part::Second(first, result) => {
                result.insert(caught(|| (self.second)(tx, first))).is_ok()
            }
        }
    }

    fn goes_on(&mut self) -> bool {
        match std::mem::replace(&mut self.part, Part::First(None)) {
            Part::First(Some(Ok(first))) => {
                self.part = Part::Second(first, None);
                true
            }
            other => {
                self.part = other;
                false
            }
        }
    }

    fn answer(self: Box<Self>, failure: Option<&StoreError>) {
        let result = match (failure, self.part) {
            (Some(failure), _) => Err(failed_with(failure)),
            (None, Part::First(Some(Err(error))) | Part::Second(_, Some(Err(error)))) => Err(error),
            (None, Part::Second(first, Some(Ok(second)))) => Ok((first, second)),
            (None, Part::First(_) | Part::Second(_, None)) => {
                Err(StoreError::Unavailable("the call did not run".to_owned()))
            }
        };
        // A caller that has gone away needs no answer.
        let _ = self.reply.send(result);
    }
}
