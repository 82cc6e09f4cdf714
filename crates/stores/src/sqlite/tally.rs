//! How many jobs a transaction has added to or taken from each state. Whoever writes the state of a job notes it
//! here; the writer adds the sums to `job_count` when the transaction ends, a row per state instead of two per
//! job. Triggers would do it for whoever writes, at a third of all that a short job writes; the audit compares
//! the counts with the jobs instead.

use std::cell::Cell;

use rusqlite::Connection;
use sprag_kernel::JobState;
use sprag_kernel::machine::State;

/// As many as a job has states.
const STATES: usize = 7;

#[derive(Default)]
pub(super) struct Tally([Cell<i64>; STATES]);

impl Tally {
    /// A job is there that was not, in this state.
    pub(super) fn born(&self, state: JobState) {
        self.add(state, 1);
    }

    /// A job has passed from one state to another, or stayed.
    pub(super) fn moved(&self, from: JobState, to: JobState) {
        self.add(from, -1);
        self.add(to, 1);
    }

    /// A job in this state is no more.
    pub(super) fn gone(&self, state: JobState) {
        self.add(state, -1);
    }

    /// Forgets what was noted: it is rolled back.
    pub(super) fn forget(&self) {
        self.0.iter().for_each(|jobs| jobs.set(0));
    }

    /// Adds what was noted to the counts.
    pub(super) fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        for (code, jobs) in self.0.iter().enumerate() {
            let jobs = jobs.take();
            if jobs != 0 {
                let sql = include_str!("../../sql/sqlite/count_jobs.sql");
                connection.prepare_cached(sql)?.execute((code, jobs))?;
            }
        }
        Ok(())
    }

    fn add(&self, state: JobState, jobs: i64) {
        let sum = &self.0[usize::from(state.code())];
        sum.set(sum.get() + jobs);
    }
}
