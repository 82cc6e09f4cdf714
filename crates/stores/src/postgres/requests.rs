//! Requests: created once, then amended under the row's lock, with the job of a run in the same
//! transaction. The engine's row is locked first, as everywhere; nobody else locks requests.

use sprag_engine::crash::crash_point;
use sprag_engine::ids::{EngineNo, JobId, RequestId};
use sprag_engine::requests::{
    DecideRequest, NewRequest, RequestFacts, RequestFilter, RequestStore, RequestView,
    RequestWrite, RunView,
};
use sprag_engine::store::{Answer, EventView, StoreError};
use sprag_kernel::Refusal;
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::PostgresStore;
use super::failure::{Repeats, failed};
use super::hints::ring;
use super::limited;
use super::pools::{Pools, begin, commit};
use super::rows::{get, hash, state, unsigned, unsigned_long};
use super::slice::{code, signed};

impl RequestStore for PostgresStore {
    async fn create_request(&self, request: NewRequest) -> Answer<RequestView> {
        create(&self.pools, &request).await
    }

    async fn amend_request<T: Send + 'static>(
        &self,
        engine: EngineNo,
        request_id: RequestId,
        mut decide: DecideRequest<T>,
    ) -> Answer<Option<Result<T, Refusal>>> {
        amend(&self.pools, engine, request_id, &mut decide).await
    }

    async fn request(&self, request_id: RequestId) -> Answer<Option<RequestView>> {
        let sql = format!("{SELECT} WHERE r.request_id = $1");
        self.pools.read(&sql, &[&request_id.uuid()]).await?.first().map(view).transpose()
    }

    async fn requests(&self, filter: RequestFilter) -> Answer<Vec<RequestView>> {
        let sql = format!(
            "{SELECT} WHERE ($1::text IS NULL OR r.tenant_id = $1)
                 AND ($2::text IS NULL OR r.request_type = $2)
                 AND ($3::uuid IS NULL OR r.request_id < $3)
             ORDER BY r.request_id DESC LIMIT $4"
        );
        let before = filter.before.map(RequestId::uuid);
        let limit = i64::from(filter.limit);
        let rows = self
            .pools
            .read(&sql, &[&filter.tenant_id, &filter.request_type, &before, &limit])
            .await?;
        rows.iter().map(view).collect()
    }

    async fn request_events(&self, request_id: RequestId) -> Answer<Vec<EventView>> {
        let sql = "SELECT n::bigint, at, changes FROM sprag.request_event
            WHERE request_id = $1 ORDER BY n";
        let rows = self.pools.read(sql, &[&request_id.uuid()]).await?;
        let event = |row: &Row| {
            let (n, at) = (unsigned_long(row, 0)?, unsigned_long(row, 1)?);
            let (changes, attempt, note) = (get(row, 2)?, None, None);
            Ok(EventView { n, at, attempt, branch: 0, turn: 0, changes, note })
        };
        rows.iter().map(event).collect()
    }
}

/// Columns in the order in which `view` reads them.
const SELECT: &str = "SELECT r.request_id, r.tenant_id, r.request_type, r.request_key, r.content_hash, \
    r.inputs, r.requirement, r.plan_revision, r.envelope, r.draft, r.protocol_id, r.status, r.version, \
    r.run_no, r.created_at, r.updated_at, j.job_id, j.state, j.version, j.error_code \
    FROM sprag.request r LEFT JOIN sprag.job j ON j.job_id = r.job_id";

fn view(row: &Row) -> Answer<RequestView> {
    let run = match get::<Option<Uuid>>(row, 16)? {
        None => None,
        Some(job_id) => Some(RunView {
            job_id: JobId::from(job_id),
            state: state(row, 17)?,
            version: unsigned_long(row, 18)?,
            error_code: get(row, 19)?,
        }),
    };
    Ok(RequestView {
        facts: RequestFacts {
            request_id: RequestId::from(get::<Uuid>(row, 0)?),
            tenant_id: get(row, 1)?,
            request_type: get(row, 2)?,
            key: hash(get(row, 3)?)?,
            content: hash(get(row, 4)?)?,
            inputs: get(row, 5)?,
            requirement: get(row, 6)?,
            plan_revision: get(row, 7)?,
        },
        envelope: get(row, 8)?,
        draft: get(row, 9)?,
        protocol_id: get(row, 10)?,
        stored: state(row, 11)?,
        version: unsigned_long(row, 12)?,
        run_no: unsigned(row, 13)?,
        run,
        created_at: unsigned_long(row, 14)?,
        updated_at: unsigned_long(row, 15)?,
    })
}

/// Inserts it, then looks at whoever has the key: that one is committed, because the insert has waited
/// for it.
async fn create(pools: &Pools, request: &NewRequest) -> Answer<RequestView> {
    let facts = &request.facts;
    let (key, content) = (facts.key.as_bytes().as_slice(), facts.content.as_bytes().as_slice());
    pools
        .run(
            include_str!("../../sql/postgres/insert_request.sql"),
            &[
                &facts.request_id.uuid(),
                &pools.test_now(),
                &facts.tenant_id,
                &facts.request_type,
                &key,
                &content,
                &facts.plan_revision,
                &facts.requirement,
                &facts.inputs,
                &request.envelope,
            ],
        )
        .await?;
    let sql =
        format!("{SELECT} WHERE r.tenant_id = $1 AND r.request_type = $2 AND r.request_key = $3");
    let found = pools.run(&sql, &[&facts.tenant_id, &facts.request_type, &key]).await?;
    let gone = || StoreError::Unavailable("a request went away".to_owned());
    view(found.first().ok_or_else(gone)?)
}

async fn amend<T>(
    pools: &Pools,
    engine: EngineNo,
    request_id: RequestId,
    decide: &mut DecideRequest<T>,
) -> Answer<Option<Result<T, Refusal>>> {
    let mut repeats = Repeats::default();
    let mut client = pools.engine().await?;
    let (answer, has_run) = loop {
        let tx = begin(&mut client).await?;
        let alive = "SELECT 1 FROM sprag.engine WHERE engine_no = $1 AND dead = 0 FOR KEY SHARE";
        let alive = tx.query_opt(alive, &[&engine.0]).await.map_err(|error| failed(&error))?;
        let found = lock(&tx, request_id).await.map_err(|error| failed(&error))?;
        crash_point("postgres.amend_request.after_lock");
        let Some(row) = found else { return Ok(None) };
        let (write, answer) = match decide(&view(&row)?) {
            Err(refusal) => return Ok(Some(Err(refusal))),
            Ok((None, answer)) => return Ok(Some(Ok(answer))),
            Ok((Some(_), _)) if alive.is_none() => return Err(StoreError::Fenced),
            Ok((Some(write), answer)) => (write, answer),
        };
        if let Some(job) = &write.job {
            let run = (engine, std::slice::from_ref(job));
            let mut answers = [None];
            limited::fill(&tx, pools.test_now(), run, &mut answers).await?;
            // The key of the run is the request's own and its row is locked: nobody else has made it.
            let [answer] = answers;
            if !answer.transpose()?.is_some_and(|submitted| submitted.created) {
                return Err(StoreError::Poison("a run that never began has a job".to_owned()));
            }
            crash_point("postgres.amend_request.after_job");
        }
        let written = match write_row(&tx, pools, request_id, &write).await {
            Ok(()) => commit(tx).await,
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => break (answer, write.job.is_some()),
            Err(error) if repeats.again(&error) => repeats.pause().await,
            Err(error) => return Err(failed(&error)),
        }
    };
    drop(client);
    if has_run {
        ring(pools).await;
    }
    Ok(Some(Ok(answer)))
}

/// Locks the request, and only then reads it: a statement that waits for a lock sees the request as it is
/// afterwards, but the jobs as they were when it began, so that the job of a run that has just begun
/// would be missing.
async fn lock(
    tx: &Transaction<'_>,
    request_id: RequestId,
) -> Result<Option<Row>, tokio_postgres::Error> {
    let lock = "SELECT 1 FROM sprag.request WHERE request_id = $1 FOR UPDATE";
    tx.execute(lock, &[&request_id.uuid()]).await?;
    let sql = format!("{SELECT} WHERE r.request_id = $1");
    tx.query_opt(&sql, &[&request_id.uuid()]).await
}

async fn write_row(
    tx: &Transaction<'_>,
    pools: &Pools,
    request_id: RequestId,
    write: &RequestWrite,
) -> Result<(), tokio_postgres::Error> {
    let draft = write.draft.as_ref();
    tx.execute(
        include_str!("../../sql/postgres/amend_request.sql"),
        &[
            &request_id.uuid(),
            &code(write.stored),
            &write.version.cast_signed(),
            &signed(write.run_no),
            &write.job.as_ref().map(|job| job.facts.job_id.uuid()),
            &write.changes,
            &pools.test_now(),
            &draft.map(|draft| draft.envelope.as_str()),
            &draft.map(|draft| draft.preview.as_str()),
            &draft.and_then(|draft| draft.protocol_id.as_deref()),
        ],
    )
    .await?;
    Ok(())
}
