//! Jobs: lists, one of them, what is below it, and asking it to stop.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use sprag_engine::explain::{self, Explanation};
use sprag_engine::ids::{AttemptKey, JobId};
use sprag_engine::store::{AttemptFilter, AttemptView, EventView, JobFilter, JobView, Store};
use sprag_engine::tokens::Scope;
use sprag_kernel::JobState;
use sprag_kernel::machine::State as _;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::commands::SubmittedShape;
use super::found::{Found, Thing};
use crate::app::App;
use crate::call::{Asked, Document, if_match, json, versioned};
use crate::guests::Caller;
use crate::problem::{Answered, invalid};
use crate::shapes::{EventShape, JobShape, List, StepShape};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(steps))
        .routes(routes!(events))
        .routes(routes!(ledger))
        .routes(routes!(explained))
        .routes(routes!(cancel))
        .routes(routes!(rerun))
}

/// Lists jobs, the newest first.
#[utoipa::path(
    get, path = "/v1/jobs", tag = "jobs", security(("token" = ["read"])),
    params(
        ("tenant" = Option<String>, Query, description = "Only of this tenant"),
        ("state" = Option<String>, Query, description = "Only in this state, such as QUEUED"),
        ("type" = Option<String>, Query, description = "Only of this request type"),
        ("from" = Option<u64>, Query, description = "Submitted at this time or later"),
        ("to" = Option<u64>, Query, description = "Submitted before this time"),
        ("text" = Option<String>, Query, description = "With this text in correlation id, document, key or error"),
        ("limit" = Option<u32>, Query, description = "At most so many, 1 to 500", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "The `next` of the part before"),
    ),
    responses(
        (status = 200, description = "A part of the list", body = List<JobShape>),
    )
)]
async fn list(State(app): State<Arc<App>>, caller: Caller, mut asked: Asked) -> Answered<Response> {
    caller.expect(Scope::Read)?;
    let state = asked.take("state").map(|name| {
        JobState::from_name(&name).ok_or_else(|| invalid("state", "is no state of a job"))
    });
    let filter = JobFilter {
        tenant_id: asked.tenant(&caller)?,
        state: state.transpose()?,
        request_type: asked.take("type"),
        from: asked.number("from")?,
        to: asked.number("to")?,
        text: asked.take("text"),
        before: asked.cursor()?,
        limit: asked.limit()?,
    };
    asked.finish()?;
    let limit = filter.limit;
    let jobs = app.engine.store().jobs(filter).await?;
    let (shape, id) =
        (|job: &JobView| JobShape::of(job, &[]), |job: &JobView| job.facts.job_id.to_string());
    Ok(json(StatusCode::OK, &List::part(&jobs, limit, shape, id)))
}

/// Shows a job.
#[utoipa::path(
    get, path = "/v1/jobs/{id}", tag = "jobs", security(("token" = ["read"])),
    params(("id" = String, Path, description = "The job")),
    responses(
        (status = 200, description = "The job", body = JobShape),
    )
)]
async fn show(Found(job): Found<JobView>) -> Response {
    shown(StatusCode::OK, &job)
}

fn shown(status: StatusCode, job: &JobView) -> Response {
    versioned(status, job.row.version, &JobShape::of(job, &[]))
}

/// Shows the steps of a job, each as its newest attempt.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/steps", tag = "jobs", security(("token" = ["read"])),
    params(
        ("id" = String, Path, description = "The job"),
        ("limit" = Option<u32>, Query, description = "At most so many, 1 to 500; with all outputs 1 to 50", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "The `next` of the part before"),
        ("outputs" = Option<String>, Query, description = "Which outputs: `none`, those up to 16 KiB (`small`, the default), or `all`"),
    ),
    responses(
        (status = 200, description = "A part of its steps", body = List<StepShape>),
    )
)]
async fn steps(
    State(app): State<Arc<App>>,
    Found(job): Found<JobView>,
    asked: Asked,
) -> Answered<Response> {
    attempts(&app, job.facts.job_id, asked, true).await
}

/// Shows the history of a job.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/events", tag = "jobs", security(("token" = ["read"])),
    params(
        ("id" = String, Path, description = "The job"),
        ("limit" = Option<u32>, Query, description = "At most so many, 1 to 500", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "The `next` of the part before"),
    ),
    responses(
        (status = 200, description = "A part of its events", body = List<EventShape>),
    )
)]
async fn events(
    State(app): State<Arc<App>>,
    Found(job): Found<JobView>,
    mut asked: Asked,
) -> Answered<Response> {
    let (after, limit) = (asked.cursor::<u64>()?.unwrap_or(0), asked.limit()?);
    asked.finish()?;
    let events = app.engine.store().events_after(job.facts.job_id, after, limit).await?;
    let n = |event: &EventView| event.n.to_string();
    Ok(json(StatusCode::OK, &List::part(&events, limit, EventShape::of, n)))
}

/// Shows every attempt of a job with its digits.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/ledger", tag = "jobs", security(("token" = ["read"])),
    params(
        ("id" = String, Path, description = "The job"),
        ("limit" = Option<u32>, Query, description = "At most so many, 1 to 500; with all outputs 1 to 50", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "The `next` of the part before"),
        ("outputs" = Option<String>, Query, description = "Which outputs: `none`, those up to 16 KiB (`small`, the default), or `all`"),
    ),
    responses(
        (status = 200, description = "A part of its attempts", body = List<StepShape>),
    )
)]
async fn ledger(
    State(app): State<Arc<App>>,
    Found(job): Found<JobView>,
    asked: Asked,
) -> Answered<Response> {
    attempts(&app, job.facts.job_id, asked, false).await
}

/// The largest output that a list shows unless it is asked for all.
const SMALL_BYTES: u32 = 16 << 10;
/// The most attempts that are shown with outputs of any size: each may have a megabyte.
const LARGE_LIMIT: u32 = 50;

/// A part of the attempts of a job.
async fn attempts(app: &App, job_id: JobId, mut asked: Asked, newest: bool) -> Answered<Response> {
    let after: Option<AttemptCursor> = asked.cursor()?;
    let limit = asked.limit()?;
    let max_output = match asked.take("outputs").as_deref() {
        Some("none") => Some(0),
        None | Some("small") => Some(SMALL_BYTES),
        Some("all") if limit > LARGE_LIMIT => {
            let reason = format!("is from 1 to {LARGE_LIMIT} with all outputs");
            return Err(invalid("limit", reason));
        }
        Some("all") => None,
        Some(_) => return Err(invalid("outputs", "is none, small or all")),
    };
    asked.finish()?;
    let filter = AttemptFilter {
        after: after.map(|cursor| cursor.of(job_id)),
        limit: Some(limit),
        newest,
        max_output,
    };
    let found = app.engine.store().attempts_by(job_id, filter).await?;
    let cursor = |attempt: &AttemptView| AttemptCursor::behind(&attempt.key).to_string();
    Ok(json(StatusCode::OK, &List::part(&found, limit, StepShape::of, cursor)))
}

/// Where a list of attempts goes on: step, branch, turn and attempt, with dots.
struct AttemptCursor(u32, u64, u32, u32);

impl AttemptCursor {
    fn behind(key: &AttemptKey) -> Self {
        Self(key.step_index, key.branch, key.turn, key.attempt_no)
    }

    fn of(&self, job_id: JobId) -> AttemptKey {
        let Self(step_index, branch, turn, attempt_no) = *self;
        AttemptKey { job_id, step_index, branch, turn, attempt_no }
    }
}

impl fmt::Display for AttemptCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(step, branch, turn, attempt) = self;
        write!(f, "{step}.{branch}.{turn}.{attempt}")
    }
}

impl FromStr for AttemptCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        // No store counts higher than this.
        let number = |part: &str| part.parse::<u32>().ok().filter(|n| i32::try_from(*n).is_ok());
        let parts: Vec<&str> = text.split('.').collect();
        let [step, branch, turn, attempt] = parts[..] else { return Err(()) };
        let cursor =
            || Some(Self(number(step)?, branch.parse().ok()?, number(turn)?, number(attempt)?));
        cursor().ok_or(())
    }
}

/// A job in sentences.
#[derive(ToSchema)]
#[allow(dead_code)] // the document's view of `Explanation`
struct ExplanationShape {
    /// What happened, in order.
    happened: Vec<String>,
    /// What holds the job now.
    now: String,
    /// What will happen next.
    next: String,
}

/// Tells what happened to a job, what holds it now, and what comes next.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/explain", tag = "jobs", security(("token" = ["read"])),
    params(("id" = String, Path, description = "The job")),
    responses(
        (status = 200, description = "Sentences", body = ExplanationShape),
    )
)]
async fn explained(State(app): State<Arc<App>>, Found(job): Found<JobView>) -> Answered<Response> {
    let store = app.engine.store();
    // Sentences quote what was left behind, but not a book.
    let filter = AttemptFilter { max_output: Some(SMALL_BYTES), ..AttemptFilter::default() };
    let explanation: Explanation = explain::explained(store, &job, filter).await?;
    Ok(json(StatusCode::OK, &explanation))
}

/// Asks a job to stop. Again, or on a job that is over, changes nothing.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/cancel", tag = "jobs", security(("token" = ["submit"])),
    params(
        ("id" = String, Path, description = "The job"),
        ("If-Match" = Option<String>, Header, description = "Only if the job has this version"),
    ),
    responses(
        (status = 202, description = "The job: CANCELLING, CANCELLED, or how it had ended", body = JobShape),
    )
)]
async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    Found(job): Found<JobView>,
    headers: HeaderMap,
    _body: Document,
) -> Answered<Response> {
    let job_id = job.facts.job_id;
    app.engine.cancel(job_id, if_match(&headers)?).await?;
    Ok(shown(StatusCode::ACCEPTED, &JobView::find(&app, &caller, job_id).await?))
}

/// Which rerun of a job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Rerun {
    /// From 1: the same number again is the same job. The next one if absent.
    n: Option<u32>,
}

/// Runs a job that ended badly again, as a new job.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/rerun", tag = "jobs", security(("token" = ["submit"])),
    params(
        ("id" = String, Path, description = "The job"),
        ("If-Match" = Option<String>, Header, description = "Only if the job has this version"),
    ),
    request_body = Option<Rerun>,
    responses(
        (status = 202, description = "The new job", body = SubmittedShape),
    )
)]
async fn rerun(
    State(app): State<Arc<App>>,
    Found(job): Found<JobView>,
    headers: HeaderMap,
    body: Document,
) -> Answered<Response> {
    let Rerun { n } = body.fields()?;
    // A job that may be run again is over, so its version does not change any more.
    job.row.expect_version(if_match(&headers)?)?;
    let submitted = app.engine.rerun(job.facts.job_id, n).await?;
    Ok(json(StatusCode::ACCEPTED, &SubmittedShape::from(submitted)))
}
