//! Callbacks: what workers outside say about the attempts they hold, in groups.
//!
//! A callback is read against the newest rows, decided by the kernel, and written under a guard; so no lock is
//! held in between. Whoever finds the row moved on reads and decides again. A RESULT goes the way of every
//! message that ends an attempt. What is refused as stale or early is recorded before it is answered.

use sprag_kernel::decide::rows::Fence as KernelFence;
use sprag_kernel::{Code, Refusal};
use tokio::sync::oneshot;

use super::phase::Refused;
use super::{Done, Ending, Heart, Origin};
use crate::callback::{Alive, Callback, Fence, Heard};
use crate::crash::crash_point;
use crate::ids::AttemptKey;
use crate::plan::worker;
use crate::store::{
    Answer, Held, RenewOutcome, RenewWrite, StaleCallback, StepPlace, Store, StoreError,
};

/// How often a callback is decided anew because its row has moved on. Each time somebody else was heard.
const MAX_TRIES: u32 = 8;
/// The greatest number that stores keep of an attempt.
const MAX_ATTEMPT: u32 = i32::MAX.cast_unsigned();

/// A callback that waits for its answer.
pub(crate) struct Calling {
    pub(crate) fence: Fence,
    pub(crate) callback: Callback,
    pub(crate) reply: oneshot::Sender<Result<Heard, Refusal>>,
    pub(crate) tries: u32,
}

impl Calling {
    /// Whoever asked may have gone away; what was said counts all the same.
    pub(super) fn answer(self, answer: Result<Heard, Refusal>) {
        crash_point("heart.before_callback_reply");
        let _ = self.reply.send(answer);
        crash_point("heart.after_callback_reply");
    }
}

/// A callback that moves an attempt along.
pub(super) struct Renewing {
    renewer: Renewer,
    write: RenewWrite,
}

/// Who moves an attempt along.
enum Renewer {
    /// A worker; and whether it should stop.
    Worker(Calling, bool),
    /// The publisher.
    Publisher(Box<Held>),
}

impl Renewing {
    /// A directive is marked as sent.
    pub(super) fn sent(held: Held, write: RenewWrite) -> Self {
        Self { renewer: Renewer::Publisher(Box::new(held)), write }
    }
}

/// A callback that changes nothing, and what it is answered.
pub(super) struct Refusing {
    calling: Calling,
    record: StaleCallback,
    refusal: Refusal,
}

impl<S: Store> Heart<S> {
    /// A worker says something, which may be more than can be kept.
    pub(super) fn call(&mut self, calling: Calling) {
        let Calling { fence, callback, reply, tries } = calling;
        match callback.admitted(&fence, self.config.max_output_bytes) {
            Ok(callback) => self.finds.push(Calling { fence, callback, reply, tries }),
            // Whoever asked may have gone away.
            Err(refusal) => drop(reply.send(Err(refusal))),
        }
    }

    pub(super) fn find(&mut self) {
        let Some(group) = self.finds.next_group() else { return };
        let places = group.iter().map(|calling| StepPlace::from(&calling.fence)).collect();
        let store = self.store.clone();
        self.calls.spawn(async move {
            let answer = store.find(places).await;
            Done::Found(group, answer)
        });
    }

    pub(super) fn found(
        &mut self,
        group: Vec<Calling>,
        answer: Answer<Vec<Option<Held>>>,
    ) -> Result<(), StoreError> {
        let found = match answer {
            Ok(found) => found,
            Err(StoreError::Poison(reason)) => {
                if let Refused::Culprit(calling) = self.finds.refused(group) {
                    let refusal = Refusal::new(Code::MessagePoison).with("reason", reason);
                    calling.answer(Err(refusal));
                }
                return Ok(());
            }
            Err(error) => {
                self.finds.again(group);
                return self.heard(Err::<(), _>(error)).map(|_| ());
            }
        };
        self.finds.done();
        for (calling, held) in group.into_iter().zip(found) {
            match calling.fence.expect_known(held) {
                Ok(held) => self.admit(Origin::Called(Box::new(calling)), held),
                Err(unknown) => calling.answer(Err(unknown)),
            }
        }
        Ok(())
    }

    /// Decides a callback on the rows that were just read.
    pub(super) fn called(&mut self, calling: Calling, held: Held) {
        let pinned = self.pinned(&held);
        let policy = &pinned.policies[held.key.step_index as usize];
        let Fence { attempt_no, lease_id, .. } = calling.fence;
        let fence = KernelFence { attempt_no, lease_id };
        match &calling.callback {
            Callback::Ack => match worker::ack(&held, fence, policy) {
                Ok(None) => calling.answer(Ok(Heard::Done)),
                Ok(Some(write)) => {
                    let renewer = Renewer::Worker(calling, false);
                    self.renews.push(Renewing { renewer, write });
                }
                Err(refusal) => self.refuse(calling, held.key, refusal),
            },
            Callback::Heartbeat(progress) => match worker::heartbeat(&held, fence, policy) {
                Ok((write, cancel)) => {
                    let progress = progress.as_ref().map(ToString::to_string);
                    let write = RenewWrite { progress, ..write };
                    let renewer = Renewer::Worker(calling, cancel);
                    self.renews.push(Renewing { renewer, write });
                }
                Err(refusal) => self.refuse(calling, held.key, refusal),
            },
            Callback::Result(completion) => match worker::result(&held, fence, completion) {
                Ok(None) => calling.answer(Ok(Heard::Done)),
                Ok(Some(write)) => {
                    let calling = Some(calling);
                    self.ends.push(Ending { held, write, has_slot: false, calling });
                }
                Err(refusal) => self.refuse(calling, held.key, refusal),
            },
        }
    }

    /// The row has moved on since it was read: reads and decides again.
    pub(super) fn call_again(&mut self, mut calling: Calling) {
        calling.tries += 1;
        if calling.tries < MAX_TRIES {
            self.finds.push(calling);
        } else {
            let reason = "the attempt keeps moving";
            calling.answer(Err(Refusal::new(Code::StoreUnavailable).with("reason", reason)));
        }
    }

    fn refuse(&mut self, calling: Calling, step: AttemptKey, refusal: Refusal) {
        match refusal.code() {
            code @ (Code::StaleFence | Code::NotYet) => {
                let record = StaleCallback {
                    // No attempt has a greater number than a column holds, whatever is named.
                    key: AttemptKey {
                        attempt_no: calling.fence.attempt_no.min(MAX_ATTEMPT),
                        ..step
                    },
                    lease_id: calling.fence.lease_id,
                    callback: calling.callback.name(),
                    code,
                };
                self.refusals.push(Refusing { calling, record, refusal });
            }
            _ => calling.answer(Err(refusal)),
        }
    }

    pub(super) fn renew(&mut self) {
        let Some(group) = self.renews.next_group() else { return };
        let writes = group.iter().map(|renewing| renewing.write.clone()).collect();
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let answer = store.renew(engine, writes).await;
            Done::Renewed(group, answer)
        });
    }

    pub(super) fn renewed(
        &mut self,
        group: Vec<Renewing>,
        answer: Answer<Vec<RenewOutcome>>,
    ) -> Result<(), StoreError> {
        let outcomes = match answer {
            Ok(outcomes) => outcomes,
            Err(error) => return self.renew_failed(group, error),
        };
        self.renews.done();
        for (Renewing { renewer, .. }, outcome) in group.into_iter().zip(outcomes) {
            match (outcome, renewer) {
                // Sent, or closed meanwhile: it is out of the publisher's hands.
                (_, Renewer::Publisher(held)) => self.no_longer_publishing(&held),
                (RenewOutcome::Gone, Renewer::Worker(calling, _)) => self.call_again(calling),
                (RenewOutcome::Done { deadline, .. }, Renewer::Worker(calling, cancel)) => {
                    let heard = match &calling.callback {
                        Callback::Heartbeat(_) => {
                            Heard::Alive(Alive { lease_expires_at: deadline, cancel })
                        }
                        Callback::Ack | Callback::Result(_) => Heard::Done,
                    };
                    calling.answer(Ok(heard));
                }
            }
        }
        Ok(())
    }

    /// An outcome that was lost is found by reading again: an ACK that counts is then a duplicate. What was
    /// marked as sent finds its row moved on.
    fn renew_failed(&mut self, group: Vec<Renewing>, error: StoreError) -> Result<(), StoreError> {
        match error {
            StoreError::Fenced => Err(StoreError::Fenced),
            StoreError::Unavailable(_) => {
                self.renews.done();
                for Renewing { renewer, write } in group {
                    match renewer {
                        Renewer::Worker(calling, _) => self.finds.push(calling),
                        Renewer::Publisher(held) => self.renews.push(Renewing::sent(*held, write)),
                    }
                }
                self.heard(Err::<(), _>(error)).map(|_| ())
            }
            StoreError::Poison(reason) => {
                let refusal = Refusal::new(Code::MessagePoison).with("reason", reason);
                self.renew_refused(group, refusal);
                Ok(())
            }
            StoreError::Refused(refusal) => {
                self.renew_refused(group, refusal);
                Ok(())
            }
        }
    }

    fn renew_refused(&mut self, group: Vec<Renewing>, refusal: Refusal) {
        match self.renews.refused(group) {
            Refused::Smaller => {}
            Refused::Culprit(Renewing { renewer: Renewer::Worker(calling, _), .. }) => {
                calling.answer(Err(refusal));
            }
            // It stays in the outbox with this engine, for an operator to see.
            Refused::Culprit(Renewing { renewer: Renewer::Publisher(held), .. }) => {
                tracing::error!(code = refusal.code().name(), job_id = %held.key.job_id, %refusal,
                    "a directive cannot be marked as sent");
                self.no_longer_publishing(&held);
            }
        }
    }

    pub(super) fn record_refusals(&mut self) {
        let Some(group) = self.refusals.next_group() else { return };
        let records = group.iter().map(|refusing| refusing.record.clone()).collect();
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let answer = store.record_stale(engine, records).await;
            Done::Recorded(group, answer)
        });
    }

    pub(super) fn recorded(
        &mut self,
        group: Vec<Refusing>,
        answer: Answer<()>,
    ) -> Result<(), StoreError> {
        self.refusals.done();
        // A record that could not be kept does not change the answer.
        self.heard(answer)?;
        for Refusing { calling, refusal, .. } in group {
            calling.answer(Err(refusal));
        }
        Ok(())
    }
}
