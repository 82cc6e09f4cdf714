//! Who waits for which job to be over. A waiter stands in the list before it looks at the job, so that an end
//! in between is not missed, and is told how the job ended; a job that another engine closes is found by looking again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sprag_kernel::{Code, JobState, Refusal, State};
use tokio::sync::watch;

use crate::engine::Engine;
use crate::ids::JobId;
use crate::store::{JobView, Store};

/// How often a waiter looks by itself.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How a job has ended, once it has.
type Bell = watch::Sender<Option<JobState>>;

/// The list of one engine: a bell for each job that is waited for, and how many listen.
#[derive(Default)]
pub(crate) struct Closings(Mutex<HashMap<JobId, (Arc<Bell>, usize)>>);

impl Closings {
    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, (Arc<Bell>, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job is over.
    pub(crate) fn tell(&self, job_id: JobId, state: JobState) {
        if let Some((bell, _)) = self.lock().get(&job_id) {
            bell.send_replace(Some(state));
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
    bell: Arc<Bell>,
}

impl Place<'_> {
    /// Waits until the bell rings.
    async fn told(&self) -> JobState {
        let mut bell = self.bell.subscribe();
        let rung = bell.wait_for(Option::is_some).await.map(|state| *state);
        rung.ok().flatten().expect("the bell is held here, and has rung")
    }
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

/// How a waiter learnt of the end.
enum Heard {
    /// By looking at the job.
    Read(Box<JobView>),
    /// By the bell.
    Told(JobState),
}

impl<S: Store> Engine<S> {
    /// Waits until a job is over, whoever closes it, and says how it ended. To wait for some time only:
    /// `tokio::time::timeout(time, engine.outcome(job_id))`.
    pub async fn outcome(&self, job_id: JobId) -> Result<JobState, Refusal> {
        Ok(match self.heard_of(job_id).await? {
            Heard::Read(job) => job.row.state,
            Heard::Told(state) => state,
        })
    }

    /// Waits as [`Self::outcome`] does, and returns the job as it is then.
    pub async fn closed(&self, job_id: JobId) -> Result<JobView, Refusal> {
        match self.heard_of(job_id).await? {
            Heard::Read(job) => Ok(*job),
            Heard::Told(_) => self.known(job_id).await,
        }
    }

    async fn heard_of(&self, job_id: JobId) -> Result<Heard, Refusal> {
        let place = self.closings.wait_for(job_id);
        loop {
            let job = self.known(job_id).await?;
            if job.row.state.is_terminal() {
                return Ok(Heard::Read(Box::new(job)));
            }
            // Without a bell another engine may have closed it.
            if let Ok(state) = tokio::time::timeout(LOOK_AGAIN, place.told()).await {
                return Ok(Heard::Told(state));
            }
        }
    }

    async fn known(&self, job_id: JobId) -> Result<JobView, Refusal> {
        let unknown = || Refusal::new(Code::JobUnknown).with("job_id", job_id.to_string());
        self.store().job(job_id).await?.ok_or_else(unknown)
    }
}
