//! The next command: mostly the next move of an attempt that somebody holds, as its rows say.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;
use sprag_engine::batch::store::{BatchPoint, BatchWrite, Batches, JournalRow};
use sprag_engine::callback::Completion;
use sprag_engine::directive::Failure;
use sprag_engine::gate::Gates;
use sprag_engine::graph::CONTROL;
use sprag_engine::ids::{EngineNo, JobId, Place};
use sprag_engine::plan;
use sprag_engine::store::{
    AttemptError, DispatchWrite, EndWrite, FinishWrite, HandOff, Held, NewJob, NewStep, Pick,
    Pulse, StaleCallback, StepPlace, Store, Tells, Wish,
};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::gate::Limit;
use sprag_kernel::decide::rows::{EndingKind, Fence, LeaseId};
use sprag_kernel::retry::RetryPolicy;
use sprag_kernel::{Code, JobState, StepState};
use sprag_lanes::{Counts, Resume};

use super::Both;
use super::command::{Command, Spot, TASK};
use super::graphs::claim_of;
use crate::deeds::Then;
use crate::play::{Play, SERVICE, facts, new_job};
use crate::world::Sqlite;

/// The gate of sequences that have one.
const GATE: &str = "g";
/// A protocol that is not there: a store refuses the whole slice.
const NOBODYS: &str = "nobody.v1";

fn error(code: &str) -> AttemptError {
    AttemptError { code: code.to_owned(), message: "played".to_owned() }
}

impl Both {
    /// Mostly the newest engine acts, sometimes one that is dead.
    pub fn engine(&mut self) -> EngineNo {
        let newest = self.engines[self.engines.len() - 1];
        if self.dice.roll(14) > 0 { newest } else { self.dice.pick(&self.engines).unwrap() }
    }

    /// Mostly one of the youngest jobs: the others are over.
    pub fn job(&mut self) -> Option<JobId> {
        let from = if self.dice.roll(4) == 0 { 0 } else { self.jobs.len().saturating_sub(12) };
        self.dice.pick(&self.jobs[from..])
    }

    pub async fn think(&mut self) -> Option<Command> {
        let engine = self.engine();
        if let Some((job_id, place)) = self.refused.take() {
            let look = Box::new(|held: &Held, _| Ok((None, held.attempt)));
            let found = self.sqlite.store().amend(engine, job_id, place, look).await.unwrap()?;
            let (version, spot) = (found.unwrap().version, (job_id, place));
            return Some(Command::PublishFailed(engine, spot, version));
        }
        match self.dice.roll(100) {
            0 | 1 => Some(Command::Join),
            2..=6 => {
                let times = [1, 700, 5_000, 30_000, 120_000, 1_000_000];
                self.clock.advance(times[self.dice.roll(6)]);
                Some(Command::Due(engine))
            }
            7 | 8 => Some(Command::Beat(engine)),
            9 | 10 => {
                let dead = self.dice.pick(&self.engines)?;
                (dead != engine).then_some(Command::TakeOver(dead, engine))
            }
            11 => Some(Command::PutProtocol(["one", "one", "two"][self.dice.roll(3)])),
            12..=14 => Some(Command::Submit(engine, self.new_jobs())),
            15 => Some(self.begin_jobs(engine)),
            16..=18 => Some(Command::Submit(engine, vec![self.new_graph()])),
            19..=31 => Some(Command::Claim(engine, self.wishes())),
            32 | 33 => {
                let version = [None, None, None, Some(99)][self.dice.roll(4)];
                let job_id = match self.dice.roll(4) {
                    0 | 1 => self.unsent(),
                    2 => self.dice.pick(&self.jobs),
                    _ => None,
                };
                let job_id = job_id.or_else(|| self.job())?;
                Some(Command::Cancel(engine, job_id, version))
            }
            34 => self.dice.pick(&self.jobs).map(Command::Read),
            35 => Some(Command::Look),
            36 | 37 => self.callback(engine).await,
            38 | 39 => self.repeat(),
            40 if self.dice.roll(4) == 0 && self.engines.len() > 1 => {
                Some(Command::Leave(self.engines[0]))
            }
            41 | 42 => self.signal(engine),
            43..=46 => {
                let mut gates = self.sqlite.store().lines(None, 10).await.unwrap();
                gates.push("nobody's".to_owned());
                Some(Command::Admit(engine, gates))
            }
            47 => {
                self.clock.advance([1, 120_000][self.dice.roll(2)]);
                Some(Command::Unpublished(engine))
            }
            48..=60 => self.beside(engine).await,
            _ => self.move_on(engine).await,
        }
    }

    /// A job with a directive that is not out.
    fn unsent(&mut self) -> Option<JobId> {
        let sql =
            "SELECT lower(hex(job_id)) FROM attempt WHERE state = 1 AND ending IS NULL ORDER BY 1";
        let jobs = self.sqlite_rows(sql).concat();
        self.dice.pick(&jobs)??.parse().ok()
    }

    /// Of activations of one job that are due at the same time each store may take another first; so it takes all.
    fn wishes(&mut self) -> Vec<Wish> {
        let ties = "SELECT service FROM attempt WHERE ready_at IS NOT NULL
            GROUP BY service, ready_at, job_id HAVING count(*) > 1";
        let few = 1 + u32::try_from(self.dice.roll(3)).unwrap();
        let max = if self.sqlite_rows(ties).is_empty() { few } else { 100 };
        let pick = [Pick::Any, Pick::Any, Pick::Fresh, Pick::Lone][self.dice.roll(4)];
        let tenant_id = (self.dice.roll(8) == 0).then(|| "t2".to_owned());
        let wish =
            |service: &str, pick| Wish { service: service.to_owned(), max, pick, tenant_id: None };
        match self.dice.roll(5) {
            0 | 1 => vec![wish(CONTROL, Pick::Any)],
            2 => vec![wish(SERVICE, pick), wish(CONTROL, Pick::Any)],
            _ => vec![Wish { tenant_id, ..wish(SERVICE, pick) }],
        }
    }

    fn new_jobs(&mut self) -> Vec<NewJob> {
        let count = 1 + self.dice.roll(3);
        let mut jobs: Vec<NewJob> = (0..count).map(|_| self.new_sequence()).collect();
        // On Postgres jobs of tenants with a limit are a transaction of their own, which may be taken back alone.
        if let Some(poison) = jobs.iter().find(|job| job.facts.protocol_id == NOBODYS).cloned() {
            jobs.retain(|job| job.facts.tenant_id == poison.facts.tenant_id);
        }
        jobs
    }

    fn new_sequence(&mut self) -> NewJob {
        let key = format!("k{}", self.dice.roll(40));
        let content = ["a", "a", "a", "b"][self.dice.roll(4)];
        let tenant = ["t1", "t1", "t1", "t2"][self.dice.roll(4)];
        let mut facts = facts(tenant, Some(&key), content);
        facts.priority = i32::try_from(self.dice.roll(3)).unwrap() - 1;
        if self.dice.roll(40) == 0 {
            facts.protocol_id.replace_range(.., NOBODYS);
        }
        let mut job = new_job(facts, 1 + self.dice.roll(3));
        job.enter = self.dice.roll(4) == 0;
        if self.dice.roll(5) == 0 {
            job.not_before = Some((self.clock.now() + 10_000).cast_unsigned());
        }
        if self.dice.roll(6) == 0 {
            let limit =
                Some(Limit { max: Some(2), gap_us: [None, Some(2_000_000)][self.dice.roll(2)] });
            let steps = job.steps.iter().map(|step| NewStep { limit, ..step.clone() });
            job.steps = steps.collect();
            job.gates = vec![Some(GATE.to_owned()); job.steps.len()];
            // What has a gate is let in there.
            job.enter = false;
        }
        job
    }

    /// New jobs, and the directives of those that are entered.
    fn begin_jobs(&mut self, engine: EngineNo) -> Command {
        let beginnings = self.new_jobs().into_iter().map(|mut job| {
            job.enter |= job.gates.is_empty() && self.dice.roll(2) == 0;
            let directive = job.enter.then(|| self.sqlite.dispatch_write(&mut plan::born(&job)));
            (job, directive.map(|write| write.expect("what was entered can be dispatched")))
        });
        Command::Begin(engine, beginnings.collect())
    }

    /// A write of the past again: as it was, or as one whose outcome was lost.
    fn repeat(&mut self) -> Option<Command> {
        // A rare one is as likely as any.
        let names: BTreeSet<String> = self.old.iter().map(Command::name).collect();
        let name = self.dice.pick(&Vec::from_iter(names))?;
        let alike: Vec<&Command> = self.old.iter().filter(|old| old.name() == name).collect();
        let mut old = self.dice.pick(&alike)?.clone();
        let lost = self.dice.roll(2) == 0;
        match &mut old {
            Command::Dispatch(_, writes) => writes.iter_mut().for_each(|w| w.repeats = lost),
            Command::End(_, writes) => writes.iter_mut().for_each(|w| w.repeats = lost),
            Command::Finish(_, writes) => writes.iter_mut().for_each(|w| w.repeats = lost),
            Command::Over(_, messages) => messages.iter_mut().for_each(|(end, finish)| {
                (end.repeats, finish.repeats) = (lost, lost);
            }),
            Command::EndWith(_, write, _) => write.repeats = lost,
            Command::CommitBatch(_, write) | Command::CommitBatchWith(_, write, _) => {
                write.repeats = lost;
            }
            _ => {}
        }
        Some(old)
    }

    /// A callback, a publication or a poison that may come too early, too late or from somebody else.
    async fn callback(&mut self, engine: EngineNo) -> Option<Command> {
        let job_id = self.job()?;
        let held = self.sqlite.held(job_id).await;
        let (key, attempt_no) = (held.key, held.key.attempt_no);
        let spot = (job_id, Some(key.place()));
        let own = held.attempt.lease_id.unwrap_or(LeaseId(1));
        let lease_id = [own, LeaseId(4_711)][self.dice.roll(2)];
        let version = held.attempt.version + self.dice.roll(2) as u64;
        Some(match self.dice.roll(9) {
            0 | 1 => Command::Ack(engine, spot, Fence { attempt_no, lease_id }),
            2 => Command::Publish(engine, spot, version),
            3 => Command::PublishFailed(engine, spot, version),
            4 => Command::CloseUnpublished(engine, spot, version),
            5 => {
                let (callback, code) = ("RESULT", Code::StaleFence);
                let stale = StaleCallback { key, lease_id, callback, code };
                Command::RecordStale(engine, vec![stale])
            }
            6 => {
                let pulse =
                    Pulse { key, lease_id, lease_ms: 60_000, progress: Some("1".to_owned()) };
                Command::Pulse(engine, vec![pulse])
            }
            7 => Command::RefuseLeg1(engine, spot),
            _ => Command::PoisonMessage(engine, key),
        })
    }

    /// What engines hold; those that are dead and not taken over included.
    async fn holdings(&self) -> Vec<Held> {
        let mut all = Vec::new();
        for engine in self.engines.iter().rev().take(4) {
            all.extend(self.sqlite.store().held_by(*engine).await.unwrap());
        }
        all
    }

    /// The next move of an attempt that is under way.
    async fn move_on(&mut self, engine: EngineNo) -> Option<Command> {
        let holdings = self.holdings().await;
        let Some(held) = self.dice.pick(&holdings).filter(|_| self.dice.roll(5) > 0) else {
            return self.as_a_worker(engine).await;
        };
        if held.attempt.ending.is_some() {
            return self.finish(engine, &held);
        }
        if !held.attempt.ledger.leg1_complete() {
            return self.leg1(engine, held).await;
        }
        match held.attempt.state {
            StepState::Dispatching => self.publish(engine, &held),
            _ => self.work(engine, held).await,
        }
    }

    fn policy(&self, held: &Held) -> RetryPolicy {
        let pinned = self.pinned.get(&held.facts.protocol_id);
        let own = pinned.map(|pinned| pinned.graph.node(held.key.step_index).policy.clone());
        own.unwrap_or_else(|| self.sqlite.policy.clone())
    }

    fn finish(&mut self, engine: EngineNo, held: &Held) -> Option<Command> {
        if self.dice.roll(12) == 0 {
            return Some(Command::PoisonMessage(engine, held.key));
        }
        let write = if let Some(pinned) = self.pinned.get(&held.facts.protocol_id) {
            pinned.finish(held)
        } else {
            let enter_next = self.dice.roll(2) == 0 && !self.gated.contains(&held.key.job_id);
            plan::finish(held, &self.sqlite.policy, enter_next)
        };
        let results: Arc<[(String, Place)]> = [("s0".to_owned(), Place::from(0))].into();
        let tells =
            held.facts.parent().map(|(parent, _)| Tells { parent, results, max_bytes: 1_000 });
        let tasks: Arc<[String]> =
            if self.dice.roll(3) == 0 { [TASK.to_owned()].into() } else { [].into() };
        Some(Command::Finish(engine, vec![FinishWrite { tasks, tells, ..write.ok()? }]))
    }

    pub fn hand_off(&mut self) -> HandOff {
        let (own, outbox) = (HandOff::InProcess, HandOff::Outbox);
        [own, own, own, outbox, HandOff::Pulled, HandOff::PulledUnacked][self.dice.roll(6)]
    }

    async fn leg1(&mut self, engine: EngineNo, mut held: Held) -> Option<Command> {
        let spot: Spot = (held.key.job_id, Some(held.key.place()));
        match self.dice.roll(30) {
            0 | 1 => {
                let activation = (held.key, held.attempt.version);
                return Some(Command::Release(engine, vec![activation]));
            }
            2 => {
                self.leases += 1;
                return Some(Command::FailLeg1(engine, spot, LeaseId(self.leases)));
            }
            3 => return Some(Command::RefuseLeg1(engine, spot)),
            _ => {}
        }
        if held.job.is_ending() && self.dice.roll(3) > 0 {
            return Some(Command::RefuseLeg1(engine, spot));
        }
        if held.job.is_ending() || (held.job.is_graph && self.dice.roll(8) == 0) {
            // As an engine that has not heard of the cancel, or of what others have done.
            (held.job.state, held.job.verdict) = (JobState::Queued, None);
        }
        if held.job.is_graph {
            return self.look_around(engine, held).await;
        }
        self.leases += 1;
        let (hand_off, lease) = (self.hand_off(), LeaseId(self.leases));
        let write = plan::dispatch_to(hand_off, &mut held, lease, &self.sqlite.policy).ok()?;
        let claim_id = claim_of(hand_off);
        Some(Command::Dispatch(engine, vec![DispatchWrite { claim_id, ..write }]))
    }

    /// A directive in the outbox, which a bus takes or does not take.
    fn publish(&mut self, engine: EngineNo, held: &Held) -> Option<Command> {
        let (spot, version) = ((held.key.job_id, Some(held.key.place())), held.attempt.version);
        if held.job.is_ending() {
            return Some(Command::CloseUnpublished(engine, spot, version));
        }
        Some(match self.dice.roll(8) {
            0 | 4 => Command::PublishFailed(engine, spot, version),
            3 => Command::Ack(engine, spot, plan::fence(&held.attempt)),
            1 => Command::CloseUnpublished(engine, spot, version),
            2 => Command::Publish(engine, spot, version),
            _ => {
                let write = plan::worker::published(held, &self.policy(held)).ok()?;
                Command::Renew(engine, vec![write])
            }
        })
    }

    /// An attempt that a slot of the engine runs.
    async fn work(&mut self, engine: EngineNo, held: Held) -> Option<Command> {
        if !self.is_control(&held) {
            match self.dice.roll(12) {
                0 => {
                    let pulse = Pulse {
                        key: held.key,
                        lease_id: held.attempt.lease_id?,
                        lease_ms: 60_000,
                        progress: [None, Some("2".to_owned())][self.dice.roll(2)].clone(),
                    };
                    return Some(Command::Pulse(engine, vec![pulse]));
                }
                1 | 2 => {
                    let then = [Then::Ends, Then::Fails][self.dice.roll(2)];
                    let write = Box::new(self.result(&held)?);
                    return Some(Command::EndWith(engine, write, then));
                }
                3..=6 => return self.batch(engine, &held).await,
                7 => {
                    // A second publisher, who is late.
                    let spot = (held.key.job_id, Some(held.key.place()));
                    return Some(Command::Publish(engine, spot, held.attempt.version));
                }
                _ => {}
            }
        }
        let write = self.result(&held)?;
        if self.dice.roll(2) == 0
            && let Some(Command::Finish(_, finishes)) =
                self.finish(engine, &plan::entered(held, &write))
        {
            return Some(Command::Over(engine, std::iter::once(write).zip(finishes).collect()));
        }
        Some(Command::End(engine, vec![write]))
    }

    /// What a handler returns, or that its engine was lost with it.
    fn result(&mut self, held: &Held) -> Option<EndWrite> {
        let report = match self.dice.roll(14) {
            0 => return Play::<Sqlite>::lost_write(held).ok(),
            1 | 2 => Report::Retryable,
            3 => Report::NonRetryable,
            _ => {
                let output = self.output_of(held);
                return plan::result(held, Report::Succeeded, output, None).ok().flatten();
            }
        };
        plan::result(held, report, None, Some(error("PLAYED"))).ok().flatten()
    }

    /// The batch of an attempt: it is taken up, or moved on by two items, perhaps the last.
    async fn batch(&mut self, engine: EngineNo, held: &Held) -> Option<Command> {
        let lease_id = held.attempt.lease_id?;
        let found = self.sqlite.store().batch((&held.key).into()).await.unwrap();
        let own = found.filter(|batch| batch.lease_id == lease_id && self.dice.roll(8) > 0);
        let Some(batch) = own else {
            return Some(Command::OpenBatch(engine, held.key, lease_id));
        };
        let before = batch.point.resume;
        let from = if self.dice.roll(5) == 0 { before.cursor + 1 } else { before.cursor };
        let fails = u64::from(self.dice.roll(6) == 0);
        let counts = Counts {
            success: before.counts.success + 2 - fails,
            fail: before.counts.fail + fails,
            ..before.counts
        };
        let cursor = before.cursor + 2;
        let resume = Resume { cursor, counts, outcome_hash: cursor * 7, input_hash: [7; 32] };
        let to = BatchPoint {
            resume,
            first_failed: batch.point.first_failed.or((fails > 0).then_some(before.cursor)),
            out_bytes: batch.point.out_bytes + 2,
        };
        let journal = JournalRow {
            first_seq: before.cursor,
            seqs: 2,
            outcomes: if fails > 0 { "1F1S" } else { "2S" }.to_owned(),
            notes: String::new(),
            outputs: "1\n".to_owned(),
        };
        let is_last = self.dice.roll(3) == 0;
        let end = if is_last { self.result(held) } else { None };
        let (key, total) = (held.key, [None, Some(1_000)][self.dice.roll(2)]);
        let journal = Some(journal);
        let write = BatchWrite { key, lease_id, from, to, total, journal, end, repeats: false };
        Some(match self.dice.roll(2) {
            0 => {
                let then = [Then::Ends, Then::Ends, Then::Fails][self.dice.roll(3)];
                Command::CommitBatchWith(engine, Box::new(write), then)
            }
            _ => Command::CommitBatch(engine, Box::new(write)),
        })
    }

    /// A worker outside that has an attempt, or a timer that ends it.
    async fn as_a_worker(&mut self, engine: EngineNo) -> Option<Command> {
        let job_id = self.job()?;
        let mut attempts = self.sqlite.attempts(job_id).await;
        attempts.retain(|attempt| {
            let is_out =
                matches!(attempt.row.state, StepState::AwaitingAck | StepState::InProgress);
            is_out && attempt.row.ending.is_none() && attempt.owner.is_none()
        });
        let attempt = self.dice.pick(&attempts)?;
        let (key, step_id) = (attempt.key, attempt.step_id);
        let (step_index, branch, turn) = (Some(key.step_index), key.branch, key.turn);
        let place = StepPlace { job_id, step_id, step_index, branch, turn };
        let held = self.sqlite.store().find(vec![place]).await.unwrap().pop().flatten()?;
        if attempt.child.is_some() {
            let again = plan::worker::look_again(&held, 60_000);
            return Some(Command::Renew(engine, vec![again]));
        }
        let (fence, policy) = (plan::fence(&held.attempt), self.policy(&held));
        let is_acked = held.attempt.state == StepState::InProgress;
        Some(match (self.dice.roll(8), is_acked) {
            (0, _) => {
                let kind = if is_acked { EndingKind::LeaseExpired } else { EndingKind::AckTimeout };
                Command::End(engine, vec![plan::ended_by(&held, kind, error("LATE")).ok()?])
            }
            (1, true) => {
                let (write, _) = plan::worker::heartbeat(&held, fence, &policy).ok()?;
                Command::Renew(engine, vec![write])
            }
            (_, true) => {
                let failed = Failure::retryable("PLAYED", "on purpose");
                let result =
                    if self.dice.roll(5) == 0 { Err(failed) } else { Ok(json!({"of": 1})) };
                let completion = Completion { result, output_ref: Some(json!("there")) };
                let write = plan::worker::result(&held, fence, &completion).ok()??;
                Command::End(engine, vec![write])
            }
            (1, false) => Command::Ack(engine, (job_id, Some(key.place())), fence),
            (_, false) => {
                let write = plan::worker::ack(&held, fence, &policy).ok()??;
                Command::Renew(engine, vec![write])
            }
        })
    }
}
