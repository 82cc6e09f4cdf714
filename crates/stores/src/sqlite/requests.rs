//! Requests: created once, then amended under the writer's transaction, with the job of a run.

use rusqlite::{Row, params};
use sprag_engine::crash::crash_point;
use sprag_engine::ids::{EngineNo, JobId, RequestId};
use sprag_engine::requests::{
    DecideRequest, NewRequest, RequestFacts, RequestFilter, RequestStore, RequestView,
    RequestWrite, RunView,
};
use sprag_engine::store::{Answer, EventView, StoreError};
use sprag_kernel::Refusal;
use sprag_kernel::keys::Hash;
use sprag_kernel::machine::State;

use super::SqliteStore;
use super::engines::expect_alive;
use super::rows::{failed, state};
use super::submit::submit_one;
use super::writer::Tx;

impl RequestStore for SqliteStore {
    async fn create_request(&self, request: NewRequest) -> Answer<RequestView> {
        self.writer.run(move |tx| create(tx, &request)).await
    }

    async fn amend_request<T: Send + 'static>(
        &self,
        engine: EngineNo,
        request_id: RequestId,
        mut decide: DecideRequest<T>,
    ) -> Answer<Option<Result<T, Refusal>>> {
        self.writer.run(move |tx| amend(tx, engine, request_id, &mut decide)).await
    }

    async fn request(&self, request_id: RequestId) -> Answer<Option<RequestView>> {
        self.readers.run(move |tx| one(tx, request_id)).await
    }

    async fn requests(&self, filter: RequestFilter) -> Answer<Vec<RequestView>> {
        self.readers.run(move |tx| list(tx, &filter)).await
    }

    async fn request_events(&self, request_id: RequestId) -> Answer<Vec<EventView>> {
        self.readers.run(move |tx| events(tx, request_id)).await
    }
}

/// Columns in the order in which `view` reads them.
const SELECT: &str = "SELECT r.request_id, r.tenant_id, r.request_type, r.request_key, r.content_hash, \
    r.inputs, r.requirement, r.plan_revision, r.envelope, r.draft, r.protocol_id, r.status, r.version, \
    r.run_no, r.created_at, r.updated_at, j.job_id, j.state, j.version, j.error_code \
    FROM request r LEFT JOIN job j ON j.job_id = r.job_id";

fn view(row: &Row<'_>) -> Answer<RequestView> {
    let read = || -> rusqlite::Result<_> {
        let facts = RequestFacts {
            request_id: RequestId::from_bytes(row.get(0)?),
            tenant_id: row.get(1)?,
            request_type: row.get(2)?,
            key: Hash::from_bytes(row.get(3)?),
            content: Hash::from_bytes(row.get(4)?),
            inputs: row.get(5)?,
            requirement: row.get(6)?,
            plan_revision: row.get(7)?,
        };
        let run: Option<([u8; 16], u8, u64)> = match row.get::<_, Option<[u8; 16]>>(16)? {
            Some(job_id) => Some((job_id, row.get(17)?, row.get(18)?)),
            None => None,
        };
        Ok((facts, row.get::<_, u8>(11)?, run))
    };
    let (facts, stored, run) = read().map_err(|error| failed(&error))?;
    let error_code: Option<String> = row.get(19).map_err(|error| failed(&error))?;
    let run = run.map(|(job_id, code, version)| {
        let job_id = JobId::from_bytes(job_id);
        Ok::<_, StoreError>(RunView { job_id, state: state(code)?, version, error_code })
    });
    let (stored, run) = (state(stored)?, run.transpose()?);
    let rest = || -> rusqlite::Result<_> {
        Ok(RequestView {
            facts,
            envelope: row.get(8)?,
            draft: row.get(9)?,
            protocol_id: row.get(10)?,
            stored,
            version: row.get(12)?,
            run_no: row.get(13)?,
            run,
            created_at: row.get(14)?,
            updated_at: row.get(15)?,
        })
    };
    rest().map_err(|error| failed(&error))
}

fn one(tx: &Tx<'_>, request_id: RequestId) -> Answer<Option<RequestView>> {
    let sql = format!("{SELECT} WHERE r.request_id = ?1");
    Ok(tx.all(&sql, [request_id.as_bytes()], view)?.pop())
}

fn list(tx: &Tx<'_>, filter: &RequestFilter) -> Answer<Vec<RequestView>> {
    let sql = format!(
        "{SELECT} WHERE (?1 IS NULL OR r.tenant_id = ?1) AND (?2 IS NULL OR r.request_type = ?2)
             AND (?3 IS NULL OR r.request_id < ?3)
         ORDER BY r.request_id DESC LIMIT ?4"
    );
    let before = filter.before.as_ref().map(RequestId::as_bytes);
    tx.all(&sql, params![filter.tenant_id, filter.request_type, before, filter.limit], view)
}

fn events(tx: &Tx<'_>, request_id: RequestId) -> Answer<Vec<EventView>> {
    let sql = "SELECT n, at, changes FROM request_event WHERE request_id = ?1 ORDER BY n";
    tx.all(sql, [request_id.as_bytes()], |row| {
        let read = || -> rusqlite::Result<EventView> {
            Ok(EventView {
                n: row.get(0)?,
                at: row.get(1)?,
                attempt: None,
                branch: 0,
                turn: 0,
                changes: row.get(2)?,
                note: None,
            })
        };
        read().map_err(|error| failed(&error))
    })
}

fn create(tx: &Tx<'_>, request: &NewRequest) -> Answer<RequestView> {
    let facts = &request.facts;
    let created = tx.execute(
        include_str!("../../sql/sqlite/insert_request.sql"),
        params![
            facts.request_id.as_bytes(),
            tx.now,
            facts.tenant_id,
            facts.request_type,
            facts.key.as_bytes(),
            facts.content.as_bytes(),
            facts.plan_revision,
            facts.requirement,
            facts.inputs,
            request.envelope,
        ],
    )?;
    crash_point("create_request.after_row");
    if created == 1 {
        event(tx, facts.request_id, 1, "created")?;
    }
    let sql =
        format!("{SELECT} WHERE r.tenant_id = ?1 AND r.request_type = ?2 AND r.request_key = ?3");
    let key = params![facts.tenant_id, facts.request_type, facts.key.as_bytes()];
    let found = tx.all(&sql, key, view)?.pop();
    found.ok_or_else(|| StoreError::Unavailable("a request went away".to_owned()))
}

fn event(tx: &Tx<'_>, request_id: RequestId, n: u64, changes: &str) -> Answer<()> {
    let sql = "INSERT INTO request_event (request_id, n, at, changes) VALUES (?1, ?2, ?3, ?4)";
    tx.execute(sql, params![request_id.as_bytes(), n, tx.now, changes]).map(|_| ())
}

fn amend<T>(
    tx: &Tx<'_>,
    engine: EngineNo,
    request_id: RequestId,
    decide: &mut DecideRequest<T>,
) -> Answer<Option<Result<T, Refusal>>> {
    let Some(before) = one(tx, request_id)? else { return Ok(None) };
    match decide(&before) {
        Err(refusal) => Ok(Some(Err(refusal))),
        Ok((None, answer)) => Ok(Some(Ok(answer))),
        Ok((Some(write), answer)) => {
            expect_alive(tx, engine)?;
            // The job first: if it is refused, so is all of this.
            if let Some(job) = &write.job
                && !submit_one(tx, engine, job)??.created
            {
                return Err(StoreError::Poison("a run that never began has a job".to_owned()));
            }
            crash_point("amend_request.after_job");
            write_row(tx, request_id, &write)?;
            Ok(Some(Ok(answer)))
        }
    }
}

fn write_row(tx: &Tx<'_>, request_id: RequestId, write: &RequestWrite) -> Answer<()> {
    let draft = write.draft.as_ref();
    tx.execute(
        include_str!("../../sql/sqlite/amend_request.sql"),
        params![
            request_id.as_bytes(),
            write.stored.code(),
            write.version,
            write.run_no,
            write.job.as_ref().map(|job| job.facts.job_id.as_bytes()),
            write.changes.len(),
            tx.now,
            draft.map(|draft| &draft.envelope),
            draft.map(|draft| &draft.preview),
            draft.and_then(|draft| draft.protocol_id.as_ref()),
        ],
    )?;
    crash_point("amend_request.after_row");
    let sql = "SELECT events FROM request WHERE request_id = ?1";
    let events: Option<u64> = tx.find(sql, [request_id.as_bytes()], |row| row.get(0))?;
    let before = events.unwrap_or(0).saturating_sub(write.changes.len() as u64);
    for (n, changes) in (before + 1..).zip(&write.changes) {
        event(tx, request_id, n, changes)?;
    }
    Ok(())
}
