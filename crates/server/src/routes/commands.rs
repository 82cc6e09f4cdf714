//! Submitting: one envelope, or many as lines.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use sprag_engine::store::Submitted;
use sprag_engine::tokens::Scope;
use sprag_kernel::machine::State as _;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::call::{Document, json, read};
use crate::guard::traceparent;
use crate::guests::Caller;
use crate::problem::{Answered, Problem, Refused, invalid};
use crate::traces::Parent;

/// How many lines of one call are submitted at a time; the engine commits them in groups.
const AT_A_TIME: usize = 512;
const NDJSON: &str = "application/x-ndjson";

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(submit))
}

/// An envelope. Only the fields that are required are listed as such.
#[derive(ToSchema)]
#[allow(dead_code)] // read by the engine; here for the document
pub(crate) struct Envelope {
    /// Whose job it is; for a token with a tenant, that one.
    #[schema(max_length = 200, min_length = 1)]
    tenant_id: String,
    /// What is asked for; names the protocol.
    #[schema(max_length = 200, min_length = 1)]
    request_type: String,
    /// Where the input is.
    input_ref: Reference,
    /// Where the output goes.
    output_ref: Reference,
    /// What every step is handed.
    payload: serde_json::Value,
    /// The version of the payload's schema.
    schema_version: String,
    /// The caller's own key: the same key is the same job.
    #[schema(max_length = 200, min_length = 1)]
    idempotency_key: Option<String>,
    /// `DEFAULT` or `BURST`.
    #[schema(pattern = "^(DEFAULT|BURST)$")]
    mode: Option<String>,
    /// Which document, for mode BURST.
    #[schema(max_length = 200, min_length = 1)]
    doc_id: Option<String>,
    /// Handed through.
    #[schema(max_length = 200, min_length = 1)]
    correlation_id: Option<String>,
    /// Handed through; that of the call if absent.
    #[schema(max_length = 200, min_length = 1)]
    traceparent: Option<String>,
    /// Not to start before, in milliseconds since 1970.
    not_before: Option<u64>,
    /// Higher goes first.
    priority: Option<i32>,
}

/// Where something is. The engine hands it on and never opens it.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code)] // as above
enum Reference {
    /// As it is.
    Text(String),
    /// With more that the worker may know.
    Object {
        /// Where it is.
        uri: String,
    },
}

/// What became of a submit.
#[derive(Serialize, ToSchema)]
pub(crate) struct SubmittedShape {
    /// The job.
    #[serde(rename = "jobId")]
    job_id: String,
    /// Where it is now.
    state: &'static str,
    /// Whether this call created it.
    created: bool,
}

impl From<Submitted> for SubmittedShape {
    fn from(submitted: Submitted) -> Self {
        Self {
            job_id: submitted.job_id.to_string(),
            state: submitted.state.name(),
            created: submitted.created,
        }
    }
}

/// Submits an envelope; with `application/x-ndjson` one per line, answered line by line. Each line counts as a call
/// for the tenant's rate; those above it are answered `RATE_LIMITED` and may be sent again.
#[utoipa::path(
    post, path = "/v1/commands", tag = "jobs", security(("token" = ["submit"])),
    request_body(content(
        (Envelope = "application/json"),
        (String = "application/x-ndjson"),
    )),
    responses(
        (status = 202, description = "The job, new or known", body = SubmittedShape),
        (status = 200, description = "One line per line: a job, or problem details", body = String, content_type = "application/x-ndjson"),
    )
)]
async fn submit(State(app): State<Arc<App>>, caller: Caller, call: Request) -> Answered<Response> {
    caller.expect(Scope::Submit)?;
    let kind = call.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
    if kind.is_some_and(|kind| kind.starts_with(NDJSON)) {
        return submit_lines(&app, &caller, call).await;
    }
    let trace = trace(call.headers());
    let Document(envelope) = Document::from_request(call, &app).await?;
    let submitted = submit_one(&app, &caller, &envelope, trace.as_deref()).await?;
    Ok(json(StatusCode::ACCEPTED, &submitted))
}

async fn submit_one(
    app: &App,
    caller: &Caller,
    envelope: &[u8],
    trace: Option<&str>,
) -> Answered<SubmittedShape> {
    expect_tenant(caller, envelope)?;
    Ok(app.engine.submit_traced(envelope, trace).await?.into())
}

/// The caller's trace, for jobs whose envelopes name none. One that is not well formed is not handed on.
fn trace(headers: &HeaderMap) -> Option<String> {
    let given = traceparent(headers)?;
    given.parse::<Parent>().is_ok().then(|| given.trim().to_owned())
}

/// Refuses a body that names another tenant than the token's.
pub(crate) fn expect_tenant(caller: &Caller, body: &[u8]) -> Answered<()> {
    #[derive(Deserialize)]
    struct Tenant {
        tenant_id: Option<String>,
    }
    if caller.tenant_id().is_none() {
        return Ok(());
    }
    // What cannot be read here is refused by the engine, with the place.
    let named = serde_json::from_slice::<Tenant>(body).ok().and_then(|tenant| tenant.tenant_id);
    caller.expect_tenant(named.as_deref())
}

async fn submit_lines(app: &App, caller: &Caller, call: Request) -> Answered<Response> {
    let trace = trace(call.headers());
    let trace = trace.as_deref();
    let body = read(app, call, app.settings.max_bulk_bytes).await?;
    let lines: Vec<Bytes> = body
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .filter(|line| !line.is_empty())
        .map(|line| body.slice_ref(line))
        .collect();
    let answers = futures_util::stream::iter(lines.into_iter().enumerate())
        .map(|(n, line)| async move {
            // The call itself has paid for its first line.
            let paid = if n == 0 { Ok(()) } else { app.rates.take(caller).map_err(Refused) };
            let submitted = match paid {
                Ok(()) => submit_one(app, caller, &line, trace).await,
                Err(refused) => Err(refused),
            };
            match submitted {
                Ok(submitted) => serde_json::to_string(&submitted),
                Err(refused) => serde_json::to_string(&Problem::from(&refused.0)),
            }
        })
        .buffered(AT_A_TIME);
    let mut text = String::new();
    let mut answers = std::pin::pin!(answers);
    while let Some(answer) = answers.next().await {
        text.push_str(&answer.map_err(|error| invalid("body", error.to_string()))?);
        text.push('\n');
    }
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON))];
    Ok((StatusCode::OK, kind, Body::from(text)).into_response())
}
