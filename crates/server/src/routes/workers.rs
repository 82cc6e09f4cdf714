//! Workers outside: claim, acknowledge, show a sign of life, report. Every directive carries a lease token,
//! and every callback shows it; one that was not made for its attempt is refused before the store is asked.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_engine::callback::{AckMode, Claim, Completion, Fence, MAX_WAIT};
use sprag_engine::directive::Directive;
use sprag_engine::tokens::Scope;
use sprag_kernel::decide::callback::Report;
use sprag_kernel::{Code, Refusal};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::call::{Document, json};
use crate::guests::Caller;
use crate::problem::{Answered, Refused, invalid};
use crate::secret::{Key, Lease};
use crate::steps;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(claim))
        .routes(routes!(ack))
        .routes(routes!(heartbeat))
        .routes(routes!(input))
        .routes(routes!(result))
}

/// A worker asks for work.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ClaimShape {
    /// Chosen by the worker, new for every claim. The same again gets the same directives while their
    /// leases hold.
    #[schema(max_length = 200, min_length = 1)]
    claim_id: String,
    /// What it can do.
    #[schema(max_items = 100, min_items = 1)]
    services: Vec<String>,
    /// At most so many directives.
    #[serde(default = "one")]
    #[schema(default = 1, minimum = 1, maximum = 500)]
    max: u32,
    /// How many seconds to wait if there is nothing to do.
    #[serde(default)]
    #[schema(default = 0, minimum = 0, maximum = 60)]
    wait_s: u64,
    /// `auto`: the claim is the ACK; `explicit`: the worker will acknowledge.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    ack: AckMode,
}

fn one() -> u32 {
    1
}

/// What is handed out.
#[derive(Serialize)]
struct Directives {
    directives: Vec<Handed>,
}

/// What is handed out.
#[derive(ToSchema)]
#[allow(dead_code)] // the document's view of `Directives`
struct DirectivesShape {
    /// At most as many as were asked for.
    directives: Vec<DirectiveShape>,
}

/// What a worker is told about one attempt.
#[derive(ToSchema)]
#[allow(dead_code)] // the document's view of `Handed`
struct DirectiveShape {
    /// The job.
    #[schema(rename = "jobId")]
    job_id: String,
    /// Whose it is.
    tenant_id: String,
    /// The protocol it follows.
    protocol_id: String,
    /// The step's name.
    #[schema(rename = "stepId")]
    step_id: String,
    /// Where the step is in its protocol.
    step_index: u32,
    /// The branch of a fan-out, a number as text; 0 outside of one.
    branch: String,
    /// The turn of a cycle; 0 outside of one.
    turn: u32,
    /// The kind of work.
    step_type: String,
    /// The attempt, from 1.
    attempt_no: u32,
    /// Its lease, a number as text.
    lease_id: String,
    /// Proves that the attempt was handed to the worker; to be shown with every callback.
    lease_token: String,
    /// The end of the lease, in milliseconds since 1970. It begins anew with every heartbeat.
    lease_expires_at: u64,
    /// Names the effect of the step, the same for all attempts: hand it to whatever must not happen twice.
    effect_key: String,
    /// Where the input is.
    input_ref: Value,
    /// Where this attempt may put what it works with.
    workspace_ref: String,
    /// Where the output goes.
    output_ref: Value,
    /// What the job was submitted with.
    payload: Value,
    /// The outputs of earlier steps, by step.
    #[schema(value_type = Object)]
    inputs: Value,
    /// Outputs that are too large to be handed over, by step, each with its `bytes`: they are read by the page. Absent
    /// if there are none.
    #[schema(value_type = Option<Object>)]
    large_inputs: Option<Value>,
    /// Its place in the fan-out, from 0.
    index: Option<u32>,
    /// The item of its branch.
    item: Option<Value>,
    /// Handed through.
    correlation_id: Option<String>,
    /// Handed through.
    traceparent: Option<String>,
    /// Where the callbacks go, below the server's address.
    callback_urls: Urls,
}

#[derive(Serialize)]
struct Handed {
    #[serde(flatten)]
    directive: Directive,
    lease_token: String,
    callback_urls: Urls,
}

/// Where callbacks go.
#[derive(Clone, Copy, Serialize, ToSchema)]
struct Urls {
    /// The worker has the directive.
    ack: &'static str,
    /// The worker is alive.
    heartbeat: &'static str,
    /// The worker reads a page of an input.
    input: &'static str,
    /// The worker is done.
    result: &'static str,
}

const URLS: Urls = Urls {
    ack: "/v1/callbacks/ack",
    heartbeat: "/v1/callbacks/heartbeat",
    input: "/v1/callbacks/input",
    result: "/v1/callbacks/result",
};

/// Hands out work, and waits for it if there is none.
#[utoipa::path(
    post, path = "/v1/claim", tag = "workers", security(("token" = ["work"])), request_body = ClaimShape,
    responses(
        (status = 200, description = "Directives, perhaps none", body = DirectivesShape),
    )
)]
async fn claim(State(app): State<Arc<App>>, caller: Caller, body: Document) -> Answered<Response> {
    caller.expect(Scope::Work)?;
    let asked: ClaimShape = body.fields()?;
    if asked.wait_s > MAX_WAIT.as_secs() {
        return Err(invalid("wait_s", format!("is from 0 to {}", MAX_WAIT.as_secs())));
    }
    let claim = Claim {
        claim_id: asked.claim_id,
        services: asked.services,
        tenant_id: caller.tenant_id().map(str::to_owned),
        max: asked.max,
        wait: Duration::from_secs(asked.wait_s),
        ack: asked.ack,
    };
    let mut stopping = app.stopping.subscribe();
    let claimed = tokio::select! {
        biased;
        claimed = app.engine.claim(claim) => claimed?,
        // The worker asks again with the same claim, and the next server answers it.
        _ = stopping.wait_for(|stop| *stop) => Vec::new(),
    };
    for directive in &claimed {
        app.metrics.handed(directive);
    }
    let directives = claimed.into_iter().map(|directive| hand(directive, &app.key)).collect();
    Ok(json(StatusCode::OK, &Directives { directives }))
}

fn hand(directive: Directive, key: &Key) -> Handed {
    let fence = directive.fence();
    let lease_token = lease(&fence, &directive.job_id).token(key, &directive.tenant_id);
    Handed { directive, lease_token, callback_urls: URLS }
}

fn lease<'a>(fence: &'a Fence, job_id: &'a str) -> Lease<'a> {
    Lease {
        job_id,
        step_id: &fence.step_id,
        branch: fence.branch,
        turn: fence.turn,
        attempt_no: fence.attempt_no,
        lease_id: fence.lease_id.0,
    }
}

/// What every callback names: the fields of the directive, as they are.
#[derive(ToSchema)]
#[allow(dead_code)] // the document's view of a callback
struct CallbackShape {
    /// The job.
    #[schema(rename = "jobId")]
    job_id: String,
    /// The step.
    #[schema(rename = "stepId")]
    step_id: String,
    /// Where the step is, if the worker kept it.
    step_index: Option<u32>,
    /// The branch of a fan-out.
    branch: Option<String>,
    /// The turn of a cycle.
    turn: Option<u32>,
    /// The attempt.
    attempt_no: u32,
    /// The lease.
    lease_id: String,
    /// Proves that the attempt was handed to the caller.
    lease_token: String,
    /// With a heartbeat: how far it is.
    progress: Option<Value>,
    /// To read an input: its step, one of `large_inputs` of the directive or any other that it is handed.
    input: Option<String>,
    /// To read an input: where the page begins; 0, or `next_offset` of the page before.
    offset: Option<u64>,
    /// With a result: `SUCCEEDED` or `FAILED`.
    #[schema(pattern = "^(SUCCEEDED|FAILED)$")]
    status: Option<String>,
    /// With a result: what came of it.
    output: Option<Value>,
    /// With a result: where the output is.
    output_ref: Option<Value>,
    /// With FAILED: `RETRYABLE` or `NON_RETRYABLE`.
    #[schema(pattern = "^(RETRYABLE|NON_RETRYABLE)$")]
    failure_class: Option<String>,
    /// With FAILED: why.
    error: Option<ErrorShape>,
}

/// Why an attempt failed.
#[derive(Default, Deserialize, ToSchema)]
struct ErrorShape {
    /// A stable code.
    #[serde(default)]
    code: String,
    /// What happened.
    #[serde(default)]
    message: String,
}

/// A callback as it is read: the fence, its proof, and the rest.
#[derive(Deserialize)]
struct Said<T> {
    #[serde(flatten)]
    fence: Fence,
    lease_token: String,
    #[serde(flatten)]
    rest: T,
}

/// Reads a callback whose lease token was made for what it names. The tenant is that of the lease token; one of
/// another tenant than the caller's is as good as none.
fn heard<T: serde::de::DeserializeOwned>(
    app: &App,
    caller: &Caller,
    body: &Document,
) -> Answered<(Fence, T)> {
    caller.expect(Scope::Work)?;
    let said: Said<T> = body.fields()?;
    let job_id = said.fence.job_id.to_string();
    let tenant_id = lease(&said.fence, &job_id).tenant(&app.key, &said.lease_token)?;
    if !caller.sees(&tenant_id) {
        return Err(Refused(Refusal::new(Code::LeaseTokenInvalid)));
    }
    Ok((Fence { tenant_id: Some(tenant_id), ..said.fence }, said.rest))
}

#[derive(Deserialize)]
struct Nothing {}

/// It was heard.
#[derive(Serialize, ToSchema)]
struct Done {
    /// True.
    ok: bool,
}

/// The answer to a sign of life.
#[derive(ToSchema)]
#[allow(dead_code)] // the document's view of the engine's answer
struct AliveShape {
    /// The new end of the lease, in milliseconds since 1970.
    lease_expires_at: u64,
    /// Whether the worker should stop.
    cancel: bool,
}

/// A worker has the directive: its lease begins.
#[utoipa::path(
    post, path = "/v1/callbacks/ack", tag = "workers", security(("token" = ["work"])), request_body = CallbackShape,
    responses(
        (status = 200, description = "Heard", body = Done),
    )
)]
async fn ack(State(app): State<Arc<App>>, caller: Caller, body: Document) -> Answered<Response> {
    let (fence, Nothing {}) = heard(&app, &caller, &body)?;
    app.engine.ack(fence).await?;
    Ok(json(StatusCode::OK, &Done { ok: true }))
}

/// A worker is alive: its lease begins anew.
#[utoipa::path(
    post, path = "/v1/callbacks/heartbeat", tag = "workers", security(("token" = ["work"])), request_body = CallbackShape,
    responses(
        (status = 200, description = "Its lease begins anew", body = AliveShape),
    )
)]
async fn heartbeat(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Document,
) -> Answered<Response> {
    #[derive(Deserialize)]
    struct Beat {
        #[serde(default)]
        progress: Option<Value>,
    }
    let (fence, beat) = heard::<Beat>(&app, &caller, &body)?;
    let alive = app.engine.heartbeat(fence, beat.progress).await?;
    Ok(json(StatusCode::OK, &alive))
}

/// A page of an input.
#[derive(ToSchema)]
#[allow(dead_code)] // the document's view of the engine's answer
struct PageShape {
    /// A piece of the JSON text of the input, of at most 4 MiB: all pieces one after the other are the whole.
    text: String,
    /// Where the next page begins; null after the last one.
    next_offset: Option<u64>,
    /// Bytes of the whole text.
    bytes: u64,
}

/// A worker reads a page of an input of the attempt that it holds.
#[utoipa::path(
    post, path = "/v1/callbacks/input", tag = "workers", security(("token" = ["work"])), request_body = CallbackShape,
    responses(
        (status = 200, description = "A page", body = PageShape),
    )
)]
async fn input(State(app): State<Arc<App>>, caller: Caller, body: Document) -> Answered<Response> {
    #[derive(Deserialize)]
    struct Wanted {
        input: String,
        #[serde(default)]
        offset: usize,
    }
    let (fence, wanted) = heard::<Wanted>(&app, &caller, &body)?;
    let page = app.engine.input_page(&fence, &wanted.input, wanted.offset).await?;
    Ok(json(StatusCode::OK, &page))
}

/// A worker reports how its attempt went. It is stored when this is answered.
#[utoipa::path(
    post, path = "/v1/callbacks/result", tag = "workers", security(("token" = ["work"])), request_body = CallbackShape,
    responses(
        (status = 200, description = "Stored", body = Done),
    )
)]
async fn result(State(app): State<Arc<App>>, caller: Caller, body: Document) -> Answered<Response> {
    #[derive(Deserialize)]
    struct Reported {
        status: String,
        failure_class: Option<String>,
        output: Option<Value>,
        output_ref: Option<Value>,
        error: Option<ErrorShape>,
    }
    let (fence, said) = heard::<Reported>(&app, &caller, &body)?;
    let error = said.error.map(|error| (error.code, error.message));
    let class = said.failure_class.as_deref();
    let completion = Completion::read(&said.status, class, said.output, error)?;
    let completion = Completion { output_ref: said.output_ref, ..completion };
    let report = Report::read(&said.status, class)?;
    app.engine.result(fence.clone(), completion).await?;
    if let Some(handed) = app.metrics.reported(&fence) {
        steps::measure(&steps::reported(&fence, &handed, report), &app.metrics, &app.traces);
    }
    Ok(json(StatusCode::OK, &Done { ok: true }))
}
