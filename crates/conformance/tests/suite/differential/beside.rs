//! What is done beside jobs: pauses, limits, hooks, retention, the inbox, schedules, requests, tokens, reruns.

use sprag_engine::ids::{EngineNo, JobId, RequestId};
use sprag_engine::inbox::TakeIn;
use sprag_engine::requests::{NewRequest, RequestFacts, RequestStore};
use sprag_engine::schedules::{Rest, Schedule, Schedules, TickWrite};
use sprag_engine::store::{JobFacts, NewJob, Store};
use sprag_engine::tokens::{NewToken, Scope};
use sprag_engine::upkeep::{Delivery, Task};
use sprag_kernel::decide::schedule::Missed;
use sprag_kernel::keys::{DedupKey, Hash};
use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal};

use super::Both;
use super::asked::{Asked, Wanted};
use super::command::{Command, SCHEDULER};
use crate::play::{SERVICE, facts, new_job};

const MINUTE_MS: Millis = 60_000;

/// A sequence that is known by this key.
fn known_by(dedup_key: String) -> NewJob {
    let facts = facts("t1", None, &dedup_key);
    new_job(JobFacts { dedup_key, ..facts }, 1)
}

impl Both {
    pub async fn beside(&mut self, engine: EngineNo) -> Option<Command> {
        match self.dice.roll(33) {
            0 => Some(Command::Pause(["other", SERVICE][self.dice.roll(2)])),
            1 | 2 => Some(Command::Resume(["other", SERVICE][self.dice.roll(2)])),
            3 => Some(Command::Serve(engine, vec![SERVICE.to_owned(), "other".to_owned()])),
            4 | 30 => {
                // Most of the jobs are the first one's.
                let limits = [
                    ("t1", None),
                    ("t1", Some(20)),
                    ("t2", None),
                    ("t2", Some(0)),
                    ("t2", Some(1)),
                ];
                let (tenant, max) = limits[self.dice.roll(5)];
                Some(Command::LimitTenant(tenant, max))
            }
            5 | 6 => Some(Command::ClaimTasks(engine, 2)),
            7 | 8 => self.settle(engine),
            9 => {
                let keep_ms = [0, 60_000][self.dice.roll(2)];
                Some(Command::Retire(engine, keep_ms, [3, 100][self.dice.roll(2)]))
            }
            10 | 29 => Some(Command::Forget(engine, [0, 60_000][self.dice.roll(2)])),
            11 => Some(Command::Mail(["good", "bad"][self.dice.roll(2)])),
            12..=14 => self.take_in(engine).await,
            15..=17 => self.schedule().await,
            18..=25 => self.request(engine).await,
            26 | 27 => Some(self.token()),
            _ => self.rerun(engine).await,
        }
    }

    /// How deliveries went that somebody has claimed.
    fn settle(&mut self, engine: EngineNo) -> Option<Command> {
        let sql = "SELECT lower(hex(job_id)), task, CAST(deliveries AS text) FROM completion
            WHERE owner IS NOT NULL ORDER BY 1, 2";
        let rows = self.sqlite_rows(sql);
        let row = self.dice.pick(&rows)?;
        let text = |column: usize| row[column].clone().unwrap();
        let job_id: JobId = text(0).parse().unwrap();
        let task = Task { job_id, task: text(1), delivery: text(2).parse().unwrap() };
        let failed = Delivery::Failed { delay_ms: 5_000, message: "played".to_owned() };
        let delivery = [Delivery::Done, Delivery::Done, failed][self.dice.roll(3)].clone();
        Some(Command::SettleTasks(engine, vec![(task, delivery)]))
    }

    async fn take_in(&mut self, engine: EngineNo) -> Option<Command> {
        let waiting = self.sqlite.store().inbox_waiting(2, usize::MAX).await.unwrap();
        let entries: Vec<TakeIn> = waiting
            .into_iter()
            .map(|waiting| {
                let key = || format!("k:mail{}", waiting.inbox_id);
                let job = if waiting.envelope.as_deref() == Some("bad") {
                    Err(Refusal::new(Code::EnvelopeInvalid).with("reason", "played"))
                } else {
                    Ok(known_by(waiting.dedup_key.clone().unwrap_or_else(key)))
                };
                TakeIn { inbox_id: waiting.inbox_id, job }
            })
            .collect();
        (!entries.is_empty()).then_some(Command::TakeIn(engine, entries))
    }

    async fn schedule(&mut self) -> Option<Command> {
        let schedule_id = format!("s{}", self.dice.roll(2));
        let now = self.clock.now().cast_unsigned();
        match self.dice.roll(10) {
            0 | 1 => {
                let schedule = Schedule {
                    tenant_id: SCHEDULER.to_owned(),
                    schedule_id,
                    cron: "* * * * *".to_owned(),
                    zone: "Europe/Berlin".to_owned(),
                    missed: Missed::Once,
                    envelope: "good".to_owned(),
                };
                Some(Command::PutSchedule(Box::new(schedule), Some(now + MINUTE_MS)))
            }
            2 if self.dice.roll(2) == 0 => Some(Command::RemoveSchedule(schedule_id)),
            3 => Some(Command::RestSchedule(schedule_id, Rest::Paused)),
            4 => Some(Command::RestSchedule(schedule_id, Rest::Awake(Some(now + MINUTE_MS)))),
            _ => {
                let all = self.sqlite.store().schedules(None).await.unwrap();
                let view = self.dice.pick(&all)?;
                let tick = view.next_at.filter(|tick| *tick <= now)?;
                let id = view.schedule.schedule_id;
                let key = DedupKey::Schedule { schedule_id: &id, tick }.to_string();
                let write = TickWrite {
                    tenant_id: SCHEDULER.to_owned(),
                    version: view.version + u64::from(self.dice.roll(4) == 0),
                    dedup_keys: vec![key],
                    schedule_id: id,
                    last_tick: tick,
                    next_at: Some(now + MINUTE_MS),
                };
                Some(Command::Tick(Box::new(write)))
            }
        }
    }

    async fn request(&mut self, engine: EngineNo) -> Option<Command> {
        if self.requests.is_empty() || self.dice.roll(6) == 0 {
            return Some(self.new_request());
        }
        let request_id = if self.dice.roll(20) == 0 {
            RequestId::new()
        } else {
            self.dice.pick(&self.requests)?
        };
        let view = self.sqlite.store().request(request_id).await.unwrap();
        let (own, run_no) = view.map_or((1, 0), |view| (view.version, view.run_no));
        let wanted = match self.dice.roll(8) {
            0 | 1 => Wanted::Draft(["one", "two"][self.dice.roll(2)]),
            2..=4 => {
                let (run, is_blocked) = (self.dice.roll(2) == 0, self.dice.roll(4) == 0);
                Wanted::Confirm { run, is_blocked }
            }
            5 => Wanted::Run,
            _ => Wanted::Retry(run_no + u32::from(self.dice.roll(4) == 0)),
        };
        let version = [None, Some(own), Some(own + 1)][self.dice.roll(3)];
        let named = request_id.to_string();
        let dedup_key = DedupKey::Request { request_id: &named, run_no: run_no + 1 }.to_string();
        let asked = Asked { wanted, version, job: known_by(dedup_key) };
        Some(Command::AmendRequest(engine, request_id, Box::new(asked)))
    }

    fn new_request(&mut self) -> Command {
        let facts = RequestFacts {
            request_id: RequestId::new(),
            tenant_id: "t1".to_owned(),
            request_type: "TEST".to_owned(),
            key: Hash::of(format!("q{}", self.dice.roll(6)).as_bytes()),
            content: Hash::of(b"content"),
            inputs: "{}".to_owned(),
            requirement: "played".to_owned(),
            plan_revision: "1".to_owned(),
        };
        Command::CreateRequest(Box::new(NewRequest { facts, envelope: "{}".to_owned() }))
    }

    fn token(&mut self) -> Command {
        let token_id = format!("k{}", self.dice.roll(2));
        if self.dice.roll(3) == 0 {
            return Command::RevokeToken(token_id);
        }
        Command::PutToken(Box::new(NewToken {
            hash: Hash::of(format!("{token_id}{}", self.dice.roll(4) / 3).as_bytes()),
            token_id,
            scopes: [Scope::Read, Scope::Work].into_iter().collect(),
            tenant_id: Some("t1".to_owned()),
            label: "played".to_owned(),
            lifetime_ms: [None, Some(60_000)][self.dice.roll(2)],
        }))
    }

    /// A job is to run again, as another one that names it. Whether it may the stores are asked.
    async fn rerun(&mut self, engine: EngineNo) -> Option<Command> {
        let job_id = self.job()?;
        let job = self.sqlite.job(job_id).await;
        let named = job_id.to_string();
        let facts = JobFacts {
            job_id: JobId::new(),
            dedup_key: DedupKey::Rerun { job_id: &named, n: 1 }.to_string(),
            idempotency_key: None,
            rerun_of: Some(job_id),
            ..job.facts
        };
        let again = match self.pinned.get(&facts.protocol_id) {
            Some(pinned) => pinned.new_job(facts),
            None => new_job(facts, 1),
        };
        Some(Command::Rerun(engine, job_id, Box::new(again)))
    }
}
