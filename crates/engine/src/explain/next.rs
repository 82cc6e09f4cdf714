//! What will happen next to a job, and when. What a message would come to is the kernel's answer, asked ahead of
//! time by the rules that the job is pinned to; here it becomes a sentence. Without those rules, or for digits that
//! it does not know, there is only what the digits say.

use std::fmt::Write as _;

use sprag_kernel::decide::ahead::{self, Ahead};
use sprag_kernel::decide::leg1::{self, Publish};
use sprag_kernel::decide::leg2::{Duty, Follows};
use sprag_kernel::decide::rows::{AttemptRow, EndingKind, JobRow, Terms};
use sprag_kernel::retry::{Millis, RetryPolicy};
use sprag_kernel::{JobState, Refusal, State, StepState};

use super::{Seen, TOLD, ahead as within, is_parked, whereabouts};
use crate::duration;
use crate::graph::duties::End;
use crate::graph::keys::OnTimeout;
use crate::graph::{Graph, Kind, Node};
use crate::store::{AttemptView, JobView};
use crate::upkeep::{TaskView, is_served};

/// What comes next, from the attempts that hold the job.
pub(super) fn next(seen: &Seen<'_>, open: &[&AttemptView], now: Millis) -> String {
    let Some(first) = open.first() else { return after_the_end(seen, now) };
    let Some(graph) = seen.graph else { return first.row.ledger.next().to_owned() };
    let told = |attempt: &&AttemptView| {
        let looking = Looking { job: seen.job, attempt, graph, now };
        looking.next().unwrap_or_else(|_| attempt.row.ledger.next().to_owned())
    };
    // What is parked for others goes on after them.
    let movable: Vec<&AttemptView> =
        open.iter().copied().filter(|attempt| attempt.countdown == 0).collect();
    match movable[..] {
        [] => told(first),
        [only] => told(&only),
        [..] => {
            let place = |attempt: &AttemptView| {
                format!("Step {}{}: ", attempt.step_id, whereabouts(attempt))
            };
            let few = movable.iter().take(TOLD);
            few.map(|attempt| place(attempt) + &told(attempt)).collect::<Vec<_>>().join(" ")
        }
    }
}

/// What is left to do when a job is over.
fn after_the_end(seen: &Seen<'_>, now: Millis) -> String {
    if seen.tasks.is_empty() {
        return "Nothing: the job is over.".to_owned();
    }
    let told: Vec<String> = seen.tasks.iter().map(|task| delivery(task, now)).collect();
    format!("The job is over. {}", told.join(" "))
}

fn delivery(task: &TaskView, now: Millis) -> String {
    let name = task.task.split_once(':').map_or(task.task.as_str(), |(_, name)| name);
    if task.is_claimed {
        let again = within(task.due_at, now);
        return format!("Hook {name} is being called; if nobody hears of that, again {again}.");
    }
    let failed = task.error.as_ref().map_or(String::new(), |why| format!(": {why}"));
    match task.deliveries {
        0 => format!("Hook {name} is to be called by an engine that has it."),
        calls => {
            let times = if calls == 1 { "once".to_owned() } else { format!("{calls} times") };
            let again = within(task.due_at, now);
            format!("Hook {name} has failed {times}{failed}; it is called again {again}.")
        }
    }
}

/// An open attempt, the rules it goes by, and the time.
struct Looking<'a> {
    job: &'a JobView,
    attempt: &'a AttemptView,
    graph: &'a Graph,
    now: Millis,
}

impl Looking<'_> {
    fn node(&self) -> &Node {
        self.graph.node(self.attempt.key.step_index)
    }

    fn next(&self) -> Result<String, Refusal> {
        let attempt = self.attempt;
        if let Some(ending) = attempt.row.ending {
            return self.message(ending.kind);
        }
        let is_unbegun = matches!(attempt.row.state, StepState::Pending | StepState::FailedRetry);
        if is_unbegun && self.job.row.is_ending() {
            let end = self.end_of_job();
            return Ok(format!("Nobody begins it any more: it is closed, and the job ends {end}."));
        }
        if attempt.countdown > 0 {
            return Ok(format!("It begins when {} others have ended.", attempt.countdown));
        }
        match attempt.row.state {
            StepState::Pending | StepState::FailedRetry if is_parked(attempt) => self.signal(),
            StepState::Pending | StepState::FailedRetry => Ok(self.beginning()),
            StepState::Dispatching => self.publishing(),
            StepState::AwaitingAck => {
                let due = attempt.timer_at.unwrap_or(self.now);
                let late = format!("nobody acknowledges it {}", by(due, self.now));
                self.unless(&late, EndingKind::AckTimeout, due)
            }
            StepState::InProgress => self.running(),
            StepState::Succeeded
            | StepState::FailedFinal
            | StepState::Cancelled
            | StepState::Skipped => Ok(attempt.row.ledger.next().to_owned()),
        }
    }

    /// Which attempt it is, and of how many: those whose engine was lost are given back.
    fn number(&self, row: &AttemptRow) -> String {
        let max = self.node().policy.max_attempts + row.attempt_no - row.counted_attempts();
        format!("attempt {} of {max}", row.attempt_no)
    }

    /// An attempt that nobody has taken up.
    fn beginning(&self) -> String {
        let (attempt, number) = (self.attempt, self.number(&self.attempt.row));
        let service = &attempt.service;
        match attempt.timer_at {
            _ if attempt.is_in_line => match attempt.line.as_ref().and_then(|gate| gate.next_at) {
                Some(at) if at > self.now => {
                    format!("Its limit lets the next one in {}: {number}.", within(at, self.now))
                }
                Some(_) | None => {
                    format!("When its limit lets it in, {number} goes to the queue.")
                }
            },
            _ if attempt.is_ready && attempt.is_paused => {
                format!("Nothing until service {service} is resumed; then {number} begins.")
            }
            _ if attempt.is_ready && !is_served(attempt.served_at, self.now) => {
                format!("Nothing until somebody serves {service}; then {number} begins.")
            }
            _ if attempt.is_ready => {
                format!("The next free worker of {service} begins {number}.")
            }
            Some(due) if matches!(self.node().kind, Kind::Sleep) => {
                format!("Its sleep is over {}.", within(due, self.now))
            }
            Some(due) => format!("{} begins {}.", capital(&number), within(due, self.now)),
            None => format!("The engine that has taken it up begins {number}."),
        }
    }

    /// A wait that is parked, until its signal or its time.
    fn signal(&self) -> Result<String, Refusal> {
        let name = self.attempt.waits_for.as_deref().unwrap_or_default();
        let Some(due) = self.attempt.timer_at else {
            return Ok(format!("Nothing until signal {name} comes."));
        };
        let Kind::Wait(wait, _) = &self.node().kind else {
            return Ok(self.attempt.row.ledger.next().to_owned());
        };
        let begun = AttemptRow {
            state: StepState::InProgress,
            ledger: self.attempt.row.ledger.enter_leg1()?.complete_leg1()?,
            ..self.attempt.row
        };
        let then = match wait.on_timeout.unwrap_or_default() {
            OnTimeout::Succeed => "the step succeeds without it".to_owned(),
            OnTimeout::Fail => self.then(&self.ask(&begun, EndingKind::NonRetryable, due)?, due),
        };
        let over = within(due, self.now);
        Ok(format!("Nothing until signal {name} comes, or its time ends {over}: then {then}."))
    }

    /// A directive that waits in the outbox.
    fn publishing(&self) -> Result<String, Refusal> {
        let (row, policy) = (&self.attempt.row, &self.node().policy);
        let due = self.attempt.timer_at.unwrap_or(self.now);
        let number = format!("Try {} of {}", row.publish_attempts + 1, policy.max_publish_attempts);
        let why = match &self.attempt.error {
            Some(error) if row.publish_attempts > 0 => {
                format!(" (the last one failed: {})", error.message)
            }
            Some(_) | None => String::new(),
        };
        let follows = match leg1::publish_failed(row, row.version, terms(policy, due))? {
            Publish::Again { not_before, .. } => {
                format!("if that fails, the next one follows {}", later(not_before - due))
            }
            Publish::Failed { .. } => {
                let ahead = self.ask(row, EndingKind::PublishFailed, due)?;
                format!("it is the last one: if it fails, {}", self.then(&ahead, due))
            }
            Publish::Sent { .. } | Publish::Superseded(_) => {
                unreachable!("a refused directive is neither sent nor superseded")
            }
        };
        let when = within(due, self.now);
        Ok(format!("{number} to publish the directive is due {when}{why}; {follows}."))
    }

    /// An attempt that somebody works on.
    fn running(&self) -> Result<String, Refusal> {
        let attempt = self.attempt;
        let over = attempt.acked_at.and_then(|at| self.node().policy.ends_at(at));
        let slow = |over: Millis| format!("it is not done {}", by(over, self.now));
        if let Some(child) = attempt.child {
            let failed = over.map_or_else(
                || format!("job {child} fails"),
                |over| format!("job {child} fails, or is not over {}", by(over, self.now)),
            );
            return self.unless(&failed, EndingKind::Retryable, self.now);
        }
        if let Some(due) = attempt.timer_at {
            let late = match over {
                // No lease goes beyond the attempt.
                Some(over) if over <= due => slow(over),
                Some(_) | None => format!("its lease ends unrenewed {}", by(due, self.now)),
            };
            return self.unless(&late, EndingKind::LeaseExpired, due);
        }
        let failed = over
            .map_or_else(|| "it fails".to_owned(), |over| format!("it fails, or {}", slow(over)));
        let mut told = self.unless(&failed, EndingKind::Retryable, self.now)?;
        let lost = self.ask(&attempt.row, EndingKind::OwnerLost, self.now)?;
        if matches!(lost.follows, Follows::NextAttempt { .. }) {
            let then = self.then(&lost, self.now);
            write!(told, " If its engine is lost, {then}.")
                .expect("writing to a string does not fail");
        }
        Ok(told)
    }

    /// A message that has entered and is not done.
    fn message(&self, kind: EndingKind) -> Result<String, Refusal> {
        let row = &self.attempt.row;
        let terms = terms(&self.node().policy, self.now);
        let Some(ahead) = ahead::after(&self.job_row(), row, self.duty(kind)?, terms)? else {
            return Ok(row.ledger.next().to_owned());
        };
        Ok(format!("Its message is finished at once: {}.", self.then(&ahead, self.now)))
    }

    /// A sentence about a message that comes if nothing happens before.
    fn unless(&self, condition: &str, kind: EndingKind, at: Millis) -> Result<String, Refusal> {
        let ahead = self.ask(&self.attempt.row, kind, at)?;
        let then = self.then(&ahead, at);
        Ok(match ahead.follows {
            Follows::NextAttempt { .. } => format!("If {condition}, {then}."),
            Follows::Nothing if self.job.row.is_ending() => format!("If {condition}, {then}."),
            Follows::NextStep(_) | Follows::Duty { .. } | Follows::Nothing => {
                format!("It is the last attempt: if {condition}, {then}.")
            }
        })
    }

    /// What the kernel says of a message of this kind at this time.
    fn ask(&self, row: &AttemptRow, kind: EndingKind, at: Millis) -> Result<Ahead, Refusal> {
        let terms = terms(&self.node().policy, at);
        let asked = (kind, self.duty(kind)?);
        let ahead = ahead::if_ended(&self.job_row(), row, asked, terms)?;
        Ok(ahead.expect("a message that enters now has done nothing before"))
    }

    /// The job as the decision of this attempt finds it: a graph that has begun is under way.
    fn job_row(&self) -> JobRow {
        let row = self.job.row;
        let state = match row.state {
            JobState::Queued | JobState::Dispatching if row.is_graph => JobState::InProgress,
            JobState::Queued
            | JobState::Dispatching
            | JobState::InProgress
            | JobState::Cancelling
            | JobState::Succeeded
            | JobState::FailedFinal
            | JobState::Cancelled => row.state,
        };
        JobRow { state, ..row }
    }

    /// What a node of a graph owes if its step ends by a message of this kind and is not tried again.
    fn duty(&self, kind: EndingKind) -> Result<Option<Duty>, Refusal> {
        if !self.job.row.is_graph {
            return Ok(None);
        }
        let state = match kind {
            EndingKind::Success => StepState::Succeeded,
            EndingKind::Skip => StepState::Skipped,
            EndingKind::Retryable
            | EndingKind::NonRetryable
            | EndingKind::AckTimeout
            | EndingKind::LeaseExpired
            | EndingKind::OwnerLost
            | EndingKind::PublishFailed
            | EndingKind::Leg1Failed(_)
            | EndingKind::Leg2Exhausted
            | EndingKind::Cancel => StepState::FailedFinal,
        };
        let place = self.attempt.key.place();
        let output = self.attempt.output.as_deref().filter(|_| state == StepState::Succeeded);
        let end = End { place, state, output, item: None, facts: &self.job.facts };
        let children = self.graph.duties(&end, &self.graph.new_steps())?.children();
        let is_tolerated = self.graph.scope_of(place.step_index).tolerates;
        Ok(Some(Duty { children, is_tolerated }))
    }

    /// What a message that enters at this time comes to.
    fn then(&self, ahead: &Ahead, at: Millis) -> String {
        match ahead.follows {
            Follows::NextAttempt { due, .. } => {
                let number = ahead.next.as_ref().map(|row| self.number(row)).unwrap_or_default();
                format!("{number} follows {}", later(due.saturating_sub(at)))
            }
            Follows::NextStep(index) => format!("step {} begins", self.graph.node(index).step_id),
            Follows::Duty { .. } | Follows::Nothing => match ahead.ends {
                Some(state) => format!("the job ends {}", state.name()),
                None if self.job.row.is_ending() => {
                    format!("it is not tried again: the job ends {}", self.end_of_job())
                }
                None if ahead.step == StepState::FailedFinal => {
                    "it counts as failed, and what is beside it goes on".to_owned()
                }
                None => "what waits for it goes on".to_owned(),
            },
        }
    }

    /// How a job ends whose end is certain.
    fn end_of_job(&self) -> &'static str {
        match self.job.row.verdict {
            _ if self.job.row.state == JobState::Cancelling => JobState::Cancelled.name(),
            Some(verdict) => verdict.name(),
            None => self.job.row.state.name(),
        }
    }
}

fn terms(policy: &RetryPolicy, now: Millis) -> Terms<'_> {
    Terms { now, policy }
}

/// A time as a deadline.
fn by(due: Millis, now: Millis) -> String {
    if due <= now { "by now".to_owned() } else { within(due, now) }
}

/// A wait after something that has not happened yet.
fn later(wait: Millis) -> String {
    if wait == 0 { "at once".to_owned() } else { format!("{} later", duration::show(wait)) }
}

fn capital(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    first.to_uppercase() + rest
}
