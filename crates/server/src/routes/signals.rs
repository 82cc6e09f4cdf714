//! Signals: what somebody says to a job that waits for it, or will.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sprag_engine::signals::{Decision, Signal, Signals as _};
use sprag_engine::store::JobView;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::found::Found;
use crate::app::App;
use crate::call::{Below, Document, Name, json};
use crate::guests::Caller;
use crate::problem::Answered;
use crate::shapes::{Items, SignalShape};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(say))
}

/// What is said.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Said {
    /// The sender's id for it: the same id is the same signal.
    signal_id: String,
    /// What the step that waits has as its output; null if absent.
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// `approve` if absent; `reject` fails the step.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    decision: Decision,
    /// Who says so; the name of the token if absent.
    by: Option<String>,
    /// Why.
    reason: Option<String>,
}

/// The answer to a signal.
#[derive(Serialize, ToSchema)]
struct SaidShape {
    /// The job.
    #[serde(rename = "jobId")]
    job_id: String,
    /// The name of the signal.
    signal: String,
    /// Its id.
    signal_id: String,
    /// Whether this call brought it.
    created: bool,
    /// Whether a step has it already; if not, it is kept for one.
    taken: bool,
}

/// Lists what was said to a job.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/signals", tag = "jobs", security(("token" = ["read"])),
    params(("id" = String, Path, description = "The job")),
    responses(
        (status = 200, description = "Its signals", body = Items<SignalShape>),
    )
)]
async fn list(State(app): State<Arc<App>>, Found(job): Found<JobView>) -> Answered<Response> {
    let signals = app.engine.store().signals(job.facts.job_id).await?;
    let items = signals.iter().map(SignalShape::of).collect();
    Ok(json(StatusCode::OK, &Items::<SignalShape> { items }))
}

/// Says something to a job. It is kept if no step waits for it yet; the same id again changes nothing.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/signals/{name}", tag = "jobs", security(("token" = ["submit"])),
    params(
        ("id" = String, Path, description = "The job"),
        ("name" = String, Path, description = "The signal that a step waits for"),
    ),
    request_body = Said,
    responses(
        (status = 202, description = "It is kept", body = SaidShape),
    )
)]
async fn say(
    State(app): State<Arc<App>>,
    caller: Caller,
    Found(job): Found<JobView>,
    Below(Name(name)): Below<Name>,
    body: Document,
) -> Answered<Response> {
    let job_id = job.facts.job_id;
    let said: Said = body.fields()?;
    let signal = Signal {
        signal_id: said.signal_id,
        name,
        decision: said.decision,
        payload: said.payload.map_or_else(|| "null".to_owned(), |raw| raw.get().to_owned()),
        by: Some(said.by.unwrap_or_else(|| caller.token_id.clone())),
        reason: said.reason,
    };
    let (name, signal_id) = (signal.name.clone(), signal.signal_id.clone());
    let signalled = app.engine.signal(job_id, signal).await?;
    let shape = SaidShape {
        job_id: job_id.to_string(),
        signal: name,
        signal_id,
        created: signalled.created,
        taken: signalled.taken_by.is_some(),
    };
    Ok(json(StatusCode::ACCEPTED, &shape))
}
