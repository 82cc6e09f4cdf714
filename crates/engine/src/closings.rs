//! Who waits for which job to be over. A waiter stands in the list before it looks at the job, so that an end
//! in between is not missed; a job that another engine closes is found by looking again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sprag_kernel::{Code, Refusal, State};
use tokio::sync::Notify;

use crate::engine::Engine;
use crate::ids::JobId;
use crate::store::{JobView, Store};

/// How often a waiter looks by itself.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The list of one engine: a bell for each job that is waited for, and how many listen.
#[derive(Default)]
pub(crate) struct Closings(Mutex<HashMap<JobId, (Arc<Notify>, usize)>>);

impl Closings {
    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, (Arc<Notify>, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job is over.
    pub(crate) fn tell(&self, job_id: JobId) {
        if let Some((bell, _)) = self.lock().get(&job_id) {
            bell.notify_waiters();
        }
    }

    fn wait_for(&self, job_id: JobId) -> Place<'_> {
        let mut list = self.lock();
        let (bell, listeners) = list.entry(job_id).or_default();
        *listeners += 1;
        Place { closings: self, job_id, bell: bell.clone() }
    }
}

/// A place in the list, until it is dropped.
struct Place<'a> {
    closings: &'a Closings,
    job_id: JobId,
    bell: Arc<Notify>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut list = self.closings.lock();
        if let Some((_, listeners)) = list.get_mut(&self.job_id) {
            *listeners -= 1;
            if *listeners == 0 {
                list.remove(&self.job_id);
            }
        }
    }
}

impl<S: Store> Engine<S> {
    /// Waits until a job is over, whoever closes it, and returns it as it is then. To wait for some time only:
    /// `tokio::time::timeout(time, engine.closed(job_id))`.
    pub async fn closed(&self, job_id: JobId) -> Result<JobView, Refusal> {
        let place = self.closings.wait_for(job_id);
        loop {
            let mut rung = std::pin::pin!(place.bell.notified());
            rung.as_mut().enable();
            let unknown = || Refusal::new(Code::JobUnknown).with("job_id", job_id.to_string());
            let job = self.store().job(job_id).await?.ok_or_else(unknown)?;
            if job.row.state.is_terminal() {
                return Ok(job);
            }
            // Without a bell another engine may have closed it.
            let _ = tokio::time::timeout(LOOK_AGAIN, rung).await;
        }
    }
}
