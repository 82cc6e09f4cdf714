//! Writes that are repeated because the outcome of the first was lost. A guard that does not hold may mean
//! that somebody else was first, or that this very write is committed already; the row tells which.

use sprag_engine::batch::store::{BatchView, BatchWrite};
use sprag_engine::store::{DispatchOutcome, DispatchWrite, EndOutcome, EndWrite, FinishWrite};
use sprag_kernel::GuidLedger;
use sprag_kernel::decide::rows::LeaseId;
use sprag_kernel::keys::Hash;

/// What a repeated write looks at to know itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptNow {
    pub(crate) version: u64,
    pub(crate) lease_id: Option<LeaseId>,
    pub(crate) guid: Option<u64>,
    pub(crate) content: Option<[u8; 32]>,
    pub(crate) lease_expires_at: Option<u64>,
}

/// The lease is new with every plan, so it names the write.
pub(crate) fn dispatched(now: Option<AttemptNow>, write: &DispatchWrite) -> DispatchOutcome {
    let version = write.version + 1;
    let is_mine = |now: &AttemptNow| now.lease_id == Some(write.lease_id) && now.version == version;
    match now.filter(is_mine).and_then(|now| now.lease_expires_at) {
        Some(lease_expires_at) => DispatchOutcome::Done { version, lease_expires_at },
        None => DispatchOutcome::Gone,
    }
}

/// The same message with the same content, entered or finished since.
pub(crate) fn ended(now: Option<AttemptNow>, write: &EndWrite) -> EndOutcome {
    let version = write.version + 1;
    let content = write.ending.content.as_ref().map(Hash::as_bytes);
    let is_mine = |now: AttemptNow| {
        let guid = now.guid.and_then(|guid| GuidLedger::from_stored(guid).ok());
        let is_entered = now.version == version && guid == Some(write.ending.guid);
        let is_finished = now.version == version + 1
            && guid.is_some_and(|guid| {
                guid.children_spawned() && guid.ordinal() == write.ending.guid.ordinal()
            });
        (is_entered || is_finished) && now.content.as_ref() == content
    };
    if now.is_some_and(is_mine) { EndOutcome::Entered { version } } else { EndOutcome::Stale }
}

/// Only the attempt whose fence the row has can have moved the cursor to where this write moves it.
pub(crate) fn batched(now: &BatchView, write: &BatchWrite) -> bool {
    (now.attempt_no, now.lease_id) == (write.key.attempt_no, write.lease_id)
        && now.point == write.to
}

/// Only the owner of a message finishes it, so version and digit tell.
pub(crate) fn finished(now: Option<AttemptNow>, write: &FinishWrite) -> bool {
    now.is_some_and(|now| {
        let spawned = now.guid.is_some_and(|guid| {
            GuidLedger::from_stored(guid).is_ok_and(GuidLedger::children_spawned)
        });
        now.version == write.version + 1 && spawned
    })
}
