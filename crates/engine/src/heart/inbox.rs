//! The inbox: envelopes of users' own transactions become jobs, by the same rules as any other submit.

use std::sync::Arc;

use sprag_kernel::{Code, Refusal};

use super::{Done, Heart};
use crate::engine::{Pinned, new_job};
use crate::envelope::Envelope;
use crate::ids::EngineNo;
use crate::inbox::{INBOX_SLICE, TakeIn, Waiting};
use crate::protocol::Protocol;
use crate::store::{Answer, Store, StoreError};

/// Whether a look into the inbox is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Looking {
    /// No.
    #[default]
    Not,
    /// Its answer is awaited.
    UnderWay,
}

impl<S: Store> Heart<S> {
    /// Looks into the inbox, one look at a time.
    pub(super) fn look_into_inbox(&mut self) {
        if self.inbox == Looking::UnderWay || self.stopping.is_some() {
            return;
        }
        self.inbox = Looking::UnderWay;
        let (store, engine, own) = (self.store.clone(), self.engine, self.own.clone());
        let limit = self.config.max_envelope_bytes;
        self.calls.spawn(async move {
            let taker = Taker { store: store.as_ref(), engine, own, limit };
            Done::TookIn(taker.take_in().await)
        });
    }

    pub(super) fn took_in(&mut self, answer: Answer<usize>) -> Result<(), StoreError> {
        self.inbox = Looking::Not;
        let taken = self.heard(answer)?.unwrap_or_default();
        if taken > 0 {
            self.may_claim = true;
            // A slice ends with its rows or its bytes, so that only an empty one says that there are no more.
            self.look_into_inbox();
        }
        Ok(())
    }
}

struct Taker<'a, S> {
    store: &'a S,
    engine: EngineNo,
    /// What this engine was built with, the last one first.
    own: Arc<[Arc<Pinned>]>,
    limit: usize,
}

impl<S: Store> Taker<'_, S> {
    /// Turns a slice of what waits into jobs and refusals; says how many it took.
    async fn take_in(&self) -> Answer<usize> {
        let waiting = self.store.inbox_waiting(INBOX_SLICE, self.limit).await?;
        if waiting.is_empty() {
            return Ok(0);
        }
        let stored = self.store.protocols().await?;
        let stored = stored.iter().filter_map(|text| Protocol::read(text).ok());
        let stored: Vec<_> = stored.map(|protocol| Arc::new(Pinned::new(protocol))).collect();
        let entries: Vec<TakeIn> = waiting
            .iter()
            .map(|row| TakeIn { inbox_id: row.inbox_id, job: self.read(row, &stored) })
            .collect();
        match self.store.take_in(self.engine, entries.clone()).await {
            Err(StoreError::Poison(_)) => self.one_by_one(entries).await,
            answer => answer,
        }
    }

    fn read(&self, row: &Waiting, stored: &[Arc<Pinned>]) -> Result<crate::store::NewJob, Refusal> {
        let text = row.envelope.as_ref().ok_or_else(|| Envelope::too_large(self.limit))?;
        let envelope = Envelope::read(text.as_bytes(), self.limit)?;
        let mut known = self.own.iter().chain(stored);
        let pinned = known
            .find(|pinned| pinned.protocol.serves(&envelope.request_type))
            .ok_or_else(|| {
                let given = envelope.request_type.clone();
                Refusal::new(Code::ProtocolUnknown).with("request_type", given)
            })?;
        let dedup_key = row.dedup_key.clone().unwrap_or_else(|| envelope.dedup_key());
        new_job(envelope, dedup_key, pinned)
    }

    /// One of them cannot be stored: each alone, and that one keeps the reason.
    async fn one_by_one(&self, entries: Vec<TakeIn>) -> Answer<usize> {
        let mut taken = 0;
        for entry in entries {
            let inbox_id = entry.inbox_id;
            taken += match self.store.take_in(self.engine, vec![entry]).await {
                Err(StoreError::Poison(reason)) => {
                    let refusal = Refusal::new(Code::MessagePoison).with("reason", reason);
                    let refused = TakeIn { inbox_id, job: Err(refusal) };
                    self.store.take_in(self.engine, vec![refused]).await?
                }
                answer => answer?,
            };
        }
        Ok(taken)
    }
}
