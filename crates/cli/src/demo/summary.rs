//! The end of a demo: what the store says, beside what the script says.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use sprag_engine::graph::{CONTROL, place};
use sprag_engine::store::{AttemptView, JobFilter, JobView};
use sprag_kernel::decide::rows::EndingKind;
use sprag_kernel::{JobState, Refusal, StepState};

use super::act;
use crate::commands::ledger;
use crate::output::{Failure, Output, unreadable};
use crate::stage::Stage;
use crate::stores::Looking;

/// How many jobs are read at a time.
const PAGE: u32 = 500;

/// What came of a demo.
#[derive(Serialize)]
pub(super) struct Summary {
    /// How many documents were submitted.
    jobs: u64,
    succeeded: u64,
    /// Those that are damaged on purpose.
    failed: u64,
    /// Steps that were done by workers.
    steps: u64,
    /// Attempts that failed and were followed by another one.
    retries: u64,
    /// Attempts whose worker fell silent.
    leases_lost: u64,
    duplicates_prevented: Duplicates,
    /// Documents that are published.
    published: u64,
    audit: Audit,
    #[serde(skip)]
    planned: Planned,
    #[serde(skip)]
    told: Told,
}

/// What would have been done twice.
#[derive(Serialize)]
struct Duplicates {
    /// Submits that were known already.
    submits: u64,
    /// Effects that an earlier attempt had brought about.
    effects: u64,
}

#[derive(Serialize)]
struct Audit {
    checks: usize,
    violations: usize,
}

/// What the script says.
struct Planned {
    failed: u64,
    steps: u64,
    /// At least so many attempts fail; a slow machine may lose leases of its own.
    retries: u64,
    effects: u64,
}

/// The job that is told of.
struct Told {
    sentences: Vec<String>,
    attempts: Vec<AttemptView>,
}

impl Summary {
    /// Reads the store and the folder.
    pub(super) fn read(stage: &Stage, documents: u64, submits: u64) -> Result<Self, Refusal> {
        let store = Looking::open(&stage.store())?;
        let mut jobs = Vec::new();
        for job in all(&store)? {
            let attempts = store.attempts(job.facts.job_id)?;
            jobs.push((job, attempts));
        }
        let ended = |state| jobs.iter().filter(|(job, _)| job.row.state == state).count() as u64;
        let work = || {
            let attempts = jobs.iter().flat_map(|(_, attempts)| attempts);
            attempts.filter(|attempt| attempt.service != CONTROL)
        };
        let in_state = |state| work().filter(|a| a.row.state == state).count() as u64;
        let checks = store.audit()?;
        let numbers = || 1..=documents;
        let planned = |is: fn(u64) -> bool| numbers().filter(|n| is(*n)).count() as u64;
        Ok(Self {
            jobs: jobs.len() as u64,
            succeeded: ended(JobState::Succeeded),
            failed: ended(JobState::FailedFinal),
            steps: in_state(StepState::Succeeded),
            retries: in_state(StepState::FailedRetry),
            leases_lost: work().filter(|attempt| is_silent(attempt)).count() as u64,
            duplicates_prevented: Duplicates {
                submits,
                effects: count(&act::recognised(stage.folder()))?,
            },
            published: count(&act::published(stage.folder()))?,
            audit: Audit {
                checks: checks.len(),
                violations: checks.iter().map(|check| check.violations.len()).sum(),
            },
            planned: Planned {
                failed: planned(act::is_broken),
                steps: numbers().map(act::steps).sum(),
                retries: planned(act::is_shaky) + planned(act::dies_after_its_effect) + 1,
                effects: planned(act::dies_after_its_effect),
            },
            told: told(&store, jobs)?,
        })
    }

    /// What is not as the script says.
    pub(super) fn wrong(&self) -> Vec<String> {
        let succeeded = self.jobs - self.planned.failed;
        let equal = [
            ("documents that failed", self.failed, self.planned.failed),
            ("documents that succeeded", self.succeeded, succeeded),
            ("steps", self.steps, self.planned.steps),
            ("documents published", self.published, succeeded),
            ("repeated submits", self.duplicates_prevented.submits, self.jobs),
            ("violations of the audit", self.audit.violations as u64, 0),
        ];
        let at_least = [
            ("retries", self.retries, self.planned.retries),
            ("leases lost", self.leases_lost, 1),
            ("repeated effects", self.duplicates_prevented.effects, self.planned.effects),
        ];
        let differs = equal.into_iter().filter(|(_, is, planned)| is != planned);
        let lacks = at_least.into_iter().filter(|(_, is, planned)| is < planned);
        differs
            .chain(lacks)
            .map(|(what, is, planned)| format!("{what}: {is}, not {planned}"))
            .collect()
    }

    /// Prints it.
    pub(super) fn print(&self, took: Duration, output: &mut Output) -> Result<(), Failure> {
        if output.is_json() {
            return output.json(self);
        }
        let Self { jobs, succeeded, failed, steps, retries, leases_lost, published, .. } = self;
        let Duplicates { submits, effects } = self.duplicates_prevented;
        let Audit { checks, violations } = self.audit;
        let verdict = if violations == 0 { "clean" } else { "BROKEN" };
        for (name, text) in [
            (
                "jobs",
                format!(
                    "{jobs}: {succeeded} succeeded, {failed} failed for good (damaged on purpose)"
                ),
            ),
            ("steps", format!("{steps} done by workers")),
            (
                "retries",
                format!("{retries}; {leases_lost} of them because a killed worker fell silent"),
            ),
            (
                "duplicates prevented",
                format!("{submits} repeated submits, {effects} repeated effects"),
            ),
            ("published", format!("{published} documents, each once")),
            ("audit", format!("{verdict}: {checks} checks, {violations} violations")),
            ("time", format!("{:.1} s", took.as_secs_f64())),
        ] {
            output.line(format_args!("{name:>20}  {text}"))?;
        }
        self.told.print(output)
    }
}

impl Told {
    /// What happened in sentences, the digits of every attempt, and those of the last one explained.
    fn print(&self, output: &mut Output) -> Result<(), Failure> {
        output.line("\nOne of the jobs, told from its rows:\n")?;
        for sentence in &self.sentences {
            output.line(format_args!("  {sentence}"))?;
        }
        output
            .line("\nThe fifteen digits of its attempts, and of the messages that ended them:\n")?;
        for attempt in &self.attempts {
            let guid = attempt.row.ending.map(|ending| ending.guid.to_string());
            let name = match attempt.key.branch {
                0 => attempt.step_id.clone(),
                branch => format!("{} {}", attempt.step_id, place::show(branch)),
            };
            output.line(format_args!(
                "  {name:12}  attempt {}  {}  {}",
                attempt.key.attempt_no,
                attempt.row.ledger,
                guid.unwrap_or_default()
            ))?;
        }
        let Some(last) = self.attempts.last() else { return Ok(()) };
        output.line(format_args!(
            "\nDigit by digit, attempt {} of {}:\n",
            last.key.attempt_no, last.step_id
        ))?;
        ledger::activity(last.row.ledger, output)?;
        output.line("")?;
        last.row.ending.map_or(Ok(()), |ending| ledger::guid(ending.guid, output))
    }
}

fn all(store: &Looking) -> Result<Vec<JobView>, Refusal> {
    let mut jobs = Vec::new();
    loop {
        let before = jobs.last().map(|job: &JobView| job.facts.job_id);
        let page = store.jobs(JobFilter { before, limit: PAGE, ..JobFilter::default() })?;
        let is_last = page.len() < PAGE as usize;
        jobs.extend(page);
        if is_last {
            return Ok(jobs);
        }
    }
}

fn is_silent(attempt: &AttemptView) -> bool {
    attempt.row.ending.is_some_and(|ending| ending.kind == EndingKind::LeaseExpired)
}

/// A job that lost its worker, and had other trouble too if there is such a one.
fn told(store: &Looking, jobs: Vec<(JobView, Vec<AttemptView>)>) -> Result<Told, Refusal> {
    let trouble = |(_, attempts): &(JobView, Vec<AttemptView>)| {
        let again = attempts.iter().filter(|a| a.row.state == StepState::FailedRetry).count();
        (attempts.iter().any(is_silent), again)
    };
    let Some((job, attempts)) = jobs.into_iter().max_by_key(trouble) else {
        return Ok(Told { sentences: Vec::new(), attempts: Vec::new() });
    };
    let sentences = store.explain(&job)?.happened;
    Ok(Told { sentences, attempts })
}

fn count(folder: &Path) -> Result<u64, Refusal> {
    let entries = fs::read_dir(folder).map_err(|error| unreadable(folder.display(), &error))?;
    Ok(entries.count() as u64)
}
