//! Schedules: jobs that are submitted by the clock. A schedule is a cron expression in a time zone and an
//! envelope. One commit moves it on to its next tick and lays the envelopes of the ticks it has passed into the
//! inbox, each with a dedup key of its own; from there they become jobs like any other. So a tick is one job,
//! however many engines look and whenever one of them dies.
//!
//! The clock is the store's. What was missed while nobody looked is made up for by the schedule's policy.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use sprag_kernel::decide::schedule::{MAX_TICKS, Missed, Ticked, tick};
use sprag_kernel::keys::DedupKey;
use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal};
use tokio::sync::{Notify, watch};

use crate::engine::{Engine, Pinned, new_job};
use crate::envelope::Envelope;
use crate::limits::MAX_BYTES;
use crate::names::check_name;
use crate::protocol::Protocol;
use crate::store::{Answer, Store, StoreError};

/// How long an engine goes without a look, in case another one has added a schedule.
const LOOK: Duration = Duration::from_secs(15);
/// How long it waits after a look that failed.
const AGAIN: Duration = Duration::from_secs(1);
/// How many schedules one look takes; the others come with the next.
const AT_A_TIME: u32 = 100;
/// The longest cron expression.
const MAX_CRON_BYTES: usize = 200;

/// Jobs by the clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Whose jobs it makes.
    pub tenant_id: String,
    /// Its name, among those of the tenant.
    pub schedule_id: String,
    /// Five fields, or six with seconds first.
    pub cron: String,
    /// The time zone of the expression, such as `Europe/Berlin`.
    pub zone: String,
    /// What becomes of ticks that were missed.
    pub missed: Missed,
    /// JSON text of what is submitted at each tick.
    pub envelope: String,
}

/// A schedule as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleView {
    /// What it is.
    pub schedule: Schedule,
    /// Its version: each tick, pause and resume is one more. It begins with the time at which the schedule is added,
    /// so that one which is removed and added again never has the version of the one before.
    pub version: u64,
    /// Its next tick, if there is one.
    pub next_at: Option<Millis>,
    /// Since when it rests.
    pub paused_at: Option<Millis>,
    /// The newest tick that is done with.
    pub last_tick: Option<Millis>,
}

/// Moves a schedule on.
#[derive(Clone, Debug)]
pub struct TickWrite {
    /// Whose.
    pub tenant_id: String,
    /// Which.
    pub schedule_id: String,
    /// The version it must have.
    pub version: u64,
    /// The dedup keys of the jobs to make.
    pub dedup_keys: Vec<String>,
    /// The newest tick that this takes.
    pub last_tick: Millis,
    /// The tick after that.
    pub next_at: Option<Millis>,
}

/// The books of schedules.
pub trait Schedules: Send + Sync + 'static {
    /// Keeps a schedule with its first tick. One that is there stays as it is, and is returned.
    fn put_schedule(
        &self,
        schedule: Schedule,
        next_at: Option<Millis>,
    ) -> impl Future<Output = Answer<ScheduleView>> + Send;

    /// One schedule.
    fn schedule(
        &self,
        tenant_id: &str,
        schedule_id: &str,
    ) -> impl Future<Output = Answer<Option<ScheduleView>>> + Send;

    /// Schedules by tenant and name, of this tenant only if one is named.
    fn schedules(
        &self,
        tenant_id: Option<&str>,
    ) -> impl Future<Output = Answer<Vec<ScheduleView>>> + Send;

    /// Forgets a schedule; its jobs stay. Says whether it was there.
    fn remove_schedule(
        &self,
        tenant_id: &str,
        schedule_id: &str,
    ) -> impl Future<Output = Answer<bool>> + Send;

    /// Has a schedule rest, or go on with this tick. Nothing changes if it does so already.
    fn rest_schedule(
        &self,
        tenant_id: &str,
        schedule_id: &str,
        rest: Rest,
    ) -> impl Future<Output = Answer<()>> + Send;

    /// Schedules that are awake and have a next tick, the first due first.
    fn next_schedules(&self, limit: u32) -> impl Future<Output = Answer<Vec<ScheduleView>>> + Send;

    /// Moves a schedule on and lays its envelopes into the inbox, in one transaction. Says whether it was there,
    /// awake and of this version; if not, nothing was written.
    fn tick(&self, write: TickWrite) -> impl Future<Output = Answer<bool>> + Send;
}

/// Whether a schedule makes jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It makes none.
    Paused,
    /// It goes on, with this tick.
    Awake(Option<Millis>),
}

/// A cron expression in its time zone.
struct Rhythm {
    cron: Cron,
    zone: TimeZone,
}

impl Rhythm {
    fn read(schedule: &Schedule) -> Result<Self, Refusal> {
        let invalid = |field: &'static str, reason: String| {
            Refusal::new(Code::ScheduleInvalid).with("field", field).with("reason", reason)
        };
        if schedule.cron.len() > MAX_CRON_BYTES {
            return Err(invalid("cron", format!("is longer than {MAX_CRON_BYTES} bytes")));
        }
        let parser = CronParser::builder().seconds(Seconds::Optional).build();
        let cron = parser.parse(&schedule.cron).map_err(|e| invalid("cron", e.to_string()))?;
        let zone = TimeZone::get(&schedule.zone).map_err(|e| invalid("zone", e.to_string()))?;
        Ok(Self { cron, zone })
    }

    fn at(&self, time: Millis) -> Option<Zoned> {
        let time = i64::try_from(time).ok()?;
        Some(Timestamp::from_millisecond(time).ok()?.to_zoned(self.zone.clone()))
    }

    /// The first tick after this time; none if there is none any more.
    fn after(&self, time: Millis) -> Option<Millis> {
        let next = self.cron.find_next_occurrence(&self.at(time)?, false).ok()?;
        u64::try_from(next.timestamp().as_millisecond()).ok()
    }

    /// The newest tick at this time or before it.
    fn newest(&self, time: Millis) -> Option<Millis> {
        let newest = self.cron.find_previous_occurrence(&self.at(time)?, true).ok()?;
        u64::try_from(newest.timestamp().as_millisecond()).ok()
    }

    /// The first ticks from this one on that are due.
    fn due(&self, first: Millis, now: Millis) -> Vec<Millis> {
        let next = |tick: &Millis| self.after(*tick);
        std::iter::successors(Some(first), next)
            .take_while(|tick| *tick <= now)
            .take(MAX_TICKS)
            .collect()
    }
}

/// A time as it is read in a zone, to the second; nothing if there is no such zone.
pub fn written(time: Millis, zone: &str) -> Option<String> {
    let time = Timestamp::from_millisecond(i64::try_from(time).ok()?).ok()?;
    let zoned = time.to_zoned(TimeZone::get(zone).ok()?);
    Some(zoned.strftime("%Y-%m-%d %H:%M:%S %Z").to_string())
}

fn unknown(tenant_id: &str, schedule_id: &str) -> Refusal {
    Refusal::new(Code::ScheduleUnknown)
        .with("tenant_id", tenant_id.to_owned())
        .with("schedule_id", schedule_id.to_owned())
}

/// Adds a schedule. The same again is a no-op, other content under its name is refused.
pub async fn add<S: Store>(store: &S, schedule: Schedule) -> Result<ScheduleView, Refusal> {
    check_name("schedule_id", &schedule.schedule_id)?;
    let rhythm = Rhythm::read(&schedule)?;
    expect_job(store, &schedule).await?;
    let next_at = rhythm.after(store.now().await?);
    let kept = store.put_schedule(schedule.clone(), next_at).await?;
    if kept.schedule == schedule {
        return Ok(kept);
    }
    Err(Refusal::new(Code::ScheduleExists).with("schedule_id", schedule.schedule_id))
}

/// What cannot become a job now is refused now.
async fn expect_job<S: Store>(store: &S, schedule: &Schedule) -> Result<(), Refusal> {
    let envelope = Envelope::read(schedule.envelope.as_bytes(), MAX_BYTES)?;
    if envelope.tenant_id != schedule.tenant_id {
        return Err(Refusal::new(Code::TenantMismatch).with("tenant_id", envelope.tenant_id));
    }
    let stored = store.protocols().await?;
    let mut stored = stored.iter().filter_map(|text| Protocol::read(text).ok());
    let protocol = stored.find(|protocol| protocol.serves(&envelope.request_type));
    let protocol = protocol.ok_or_else(|| {
        Refusal::new(Code::ProtocolUnknown).with("request_type", envelope.request_type.clone())
    })?;
    new_job(envelope, String::new(), &Pinned::new(protocol)).map(|_| ())
}

/// Has a schedule make no jobs until it is resumed.
pub async fn pause<S: Store>(
    store: &S,
    tenant_id: &str,
    schedule_id: &str,
) -> Result<ScheduleView, Refusal> {
    store.rest_schedule(tenant_id, schedule_id, Rest::Paused).await?;
    find(store, tenant_id, schedule_id).await
}

/// Has a schedule go on with the next tick from now on: what it would have done meanwhile was not missed.
pub async fn resume<S: Store>(
    store: &S,
    tenant_id: &str,
    schedule_id: &str,
) -> Result<ScheduleView, Refusal> {
    let view = find(store, tenant_id, schedule_id).await?;
    let next_at = Rhythm::read(&view.schedule)?.after(store.now().await?);
    store.rest_schedule(tenant_id, schedule_id, Rest::Awake(next_at)).await?;
    find(store, tenant_id, schedule_id).await
}

/// Forgets a schedule; its jobs stay.
pub async fn remove<S: Store>(
    store: &S,
    tenant_id: &str,
    schedule_id: &str,
) -> Result<(), Refusal> {
    if store.remove_schedule(tenant_id, schedule_id).await? {
        return Ok(());
    }
    Err(unknown(tenant_id, schedule_id))
}

/// One schedule.
pub async fn find<S: Store>(
    store: &S,
    tenant_id: &str,
    schedule_id: &str,
) -> Result<ScheduleView, Refusal> {
    let found = store.schedule(tenant_id, schedule_id).await?;
    found.ok_or_else(|| unknown(tenant_id, schedule_id))
}

/// The schedule of a name: the named tenant's, or the only one if no tenant is named.
pub async fn find_named<S: Store>(
    store: &S,
    tenant_id: Option<&str>,
    schedule_id: &str,
) -> Result<ScheduleView, Refusal> {
    if let Some(tenant_id) = tenant_id {
        return find(store, tenant_id, schedule_id).await;
    }
    let mut named = store.schedules(None).await?;
    named.retain(|view| view.schedule.schedule_id == schedule_id);
    let refused = |code| Refusal::new(code).with("schedule_id", schedule_id.to_owned());
    match (named.pop(), named.is_empty()) {
        (Some(view), true) => Ok(view),
        (Some(_), false) => Err(refused(Code::CallInvalid)
            .with("reason", "several tenants have a schedule of this name: name the tenant")),
        (None, _) => Err(refused(Code::ScheduleUnknown)),
    }
}

/// What a look at the schedules has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// How many envelopes were laid into the inbox.
    pub laid: usize,
    /// How long until the next tick, if there is one.
    pub next_in: Option<Millis>,
}

/// Takes every tick that is due. Any number of engines may look at once.
pub async fn look<S: Store>(store: &S) -> Answer<Looked> {
    let mut looked = Looked { laid: 0, next_in: None };
    let next = store.next_schedules(AT_A_TIME).await?;
    if next.is_empty() {
        return Ok(looked);
    }
    let now = store.now().await?;
    for view in next {
        let Some(first) = view.next_at else { continue };
        if first > now {
            looked.next_in = Some(first - now);
            break;
        }
        let Some(write) = ticking(&view, first, now) else { continue };
        let count = write.dedup_keys.len();
        // What comes after this tick may be due as well.
        looked.next_in = Some(0);
        if store.tick(write).await? {
            looked.laid += count;
        }
    }
    Ok(looked)
}

/// What the ticks that are due come to; nothing if this binary cannot read the rhythm, so that another can.
fn ticking(view: &ScheduleView, first: Millis, now: Millis) -> Option<TickWrite> {
    let Schedule { tenant_id, schedule_id, missed, .. } = &view.schedule;
    let rhythm = match Rhythm::read(&view.schedule) {
        Ok(rhythm) => rhythm,
        Err(refusal) => {
            tracing::warn!(code = "SCHEDULE_INVALID", schedule_id, %refusal, "the schedule stands still");
            return None;
        }
    };
    let newest = rhythm.newest(now).unwrap_or(first).max(first);
    let Ticked { jobs, last } = tick(*missed, &rhythm.due(first, now), newest, now);
    let key = |tick: &Millis| DedupKey::Schedule { schedule_id, tick: *tick }.to_string();
    Some(TickWrite {
        tenant_id: tenant_id.clone(),
        schedule_id: schedule_id.clone(),
        version: view.version,
        dedup_keys: jobs.iter().map(key).collect(),
        last_tick: last,
        next_at: rhythm.after(last),
    })
}

impl<S: Store> Engine<S> {
    /// Adds a schedule. The same again is a no-op, other content under its name is refused.
    pub async fn add_schedule(&self, schedule: Schedule) -> Result<ScheduleView, Refusal> {
        let view = add(self.store(), schedule).await?;
        self.rhythm.notify_one();
        Ok(view)
    }

    /// Has a schedule go on with the next tick from now on.
    pub async fn resume_schedule(
        &self,
        tenant_id: &str,
        schedule_id: &str,
    ) -> Result<ScheduleView, Refusal> {
        let view = resume(self.store(), tenant_id, schedule_id).await?;
        self.rhythm.notify_one();
        Ok(view)
    }
}

/// Looks at the schedules when the next tick is due. No leader: whoever is first moves a schedule on.
pub(crate) struct Scheduler<S: Store> {
    pub(crate) store: Arc<S>,
    /// A schedule was added here.
    pub(crate) rhythm: Arc<Notify>,
    /// Tells the heart that something lies in the inbox.
    pub(crate) laid: Box<dyn Fn() + Send + Sync>,
    pub(crate) stop: watch::Receiver<bool>,
}

impl<S: Store> Scheduler<S> {
    /// Looks until it is told to stop.
    pub(crate) async fn run(mut self) {
        while !*self.stop.borrow() {
            let wait = match look(self.store.as_ref()).await {
                Ok(looked) => self.heed(looked),
                Err(StoreError::Fenced) => return,
                Err(error) => {
                    tracing::warn!(code = "STORE_CALL_FAILED", %error, "schedules wait");
                    AGAIN
                }
            };
            tokio::select! {
                _ = self.stop.changed() => {}
                () = self.rhythm.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// How long to wait for the next look.
    fn heed(&self, looked: Looked) -> Duration {
        if looked.laid > 0 {
            (self.laid)();
        }
        looked.next_in.map_or(LOOK, |ms| Duration::from_millis(ms).min(LOOK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Millis = 86_400_000;

    fn rhythm(cron: &str, zone: &str) -> Result<Rhythm, Refusal> {
        Rhythm::read(&Schedule {
            tenant_id: "t".to_owned(),
            schedule_id: "s".to_owned(),
            cron: cron.to_owned(),
            zone: zone.to_owned(),
            missed: Missed::Once,
            envelope: String::new(),
        })
    }

    #[test]
    fn a_rhythm_ticks_in_its_time_zone() {
        let utc = rhythm("30 2 * * *", "UTC").unwrap();
        assert_eq!(utc.after(0), Some(9_000_000));
        assert_eq!(utc.after(9_000_000), Some(9_000_000 + DAY));
        assert_eq!(utc.newest(9_000_000), Some(9_000_000));
        assert_eq!(utc.due(9_000_000, 9_000_000 + 3 * DAY).len(), 4);
        let berlin = rhythm("30 2 * * *", "Europe/Berlin").unwrap();
        assert_eq!(berlin.after(0), Some(5_400_000), "an hour ahead of UTC in the winter of 1970");
        assert_eq!(written(5_400_000, "Europe/Berlin").unwrap(), "1970-01-01 02:30:00 CET");
        let seconds = rhythm("*/10 * * * * *", "UTC").unwrap();
        assert_eq!(seconds.due(0, DAY).len(), MAX_TICKS, "no more than one commit bears");
    }

    #[test]
    fn what_is_no_rhythm_is_refused() {
        for (cron, zone, field) in [
            ("61 * * * *", "UTC", "cron"),
            ("* * *", "UTC", "cron"),
            ("* * * * *", "Mars/North", "zone"),
        ] {
            let refusal = rhythm(cron, zone).err().unwrap();
            assert_eq!(refusal.code(), Code::ScheduleInvalid);
            assert!(refusal.to_string().contains(field), "{cron} {zone}: {refusal}");
        }
        assert!(rhythm(&"*".repeat(MAX_CRON_BYTES + 1), "UTC").is_err());
    }
}
