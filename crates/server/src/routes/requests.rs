//! Requests: every verb is one function of the engine.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use sprag_engine::requests::{RequestFilter, RequestStore, RequestView};
use sprag_engine::tokens::Scope;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::commands::expect_tenant;
use super::found::Found;
use crate::app::App;
use crate::call::{Asked, Document, if_match, json, versioned};
use crate::guests::Caller;
use crate::problem::Answered;
use crate::shapes::{EventShape, List, RequestShape};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(show))
        .routes(routes!(events))
        .routes(routes!(draft))
        .routes(routes!(confirm))
        .routes(routes!(run))
        .routes(routes!(retry))
        .routes(routes!(cancel))
}

fn shown(status: StatusCode, view: &RequestView) -> Response {
    versioned(status, view.shown_version(), &RequestShape::of(view))
}

/// A request to create.
#[derive(ToSchema)]
#[allow(dead_code)] // read by the engine; here for the document
struct NewRequestShape {
    /// Whose it is; for a token with a tenant, that one.
    tenant_id: String,
    /// What is asked for; names the protocol.
    request_type: String,
    /// What it is about; `fingerprint` is part of the key.
    #[schema(value_type = Option<Object>)]
    inputs: Option<serde_json::Value>,
    /// What is wanted, in words; part of the key.
    requirement: Option<String>,
    /// Text or a number; part of the key.
    plan_revision: Option<serde_json::Value>,
    /// What its jobs are submitted with.
    #[schema(value_type = Option<Object>)]
    envelope: Option<serde_json::Value>,
}

/// Creates a request, or answers with the one that has its key.
#[utoipa::path(
    post, path = "/v1/requests", tag = "requests", security(("token" = ["submit"])), request_body = NewRequestShape,
    responses(
        (status = 201, description = "Created", body = RequestShape),
        (status = 200, description = "It was there", body = RequestShape),
    )
)]
async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Document(body): Document,
) -> Answered<Response> {
    caller.expect(Scope::Submit)?;
    expect_tenant(&caller, &body)?;
    let (view, created) = app.engine.request_create(&body).await?;
    Ok(shown(if created { StatusCode::CREATED } else { StatusCode::OK }, &view))
}

/// Lists requests, the newest first.
#[utoipa::path(
    get, path = "/v1/requests", tag = "requests", security(("token" = ["read"])),
    params(
        ("tenant" = Option<String>, Query, description = "Only of this tenant"),
        ("type" = Option<String>, Query, description = "Only of this request type"),
        ("limit" = Option<u32>, Query, description = "At most so many, 1 to 500", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "The `next` of the part before"),
    ),
    responses(
        (status = 200, description = "A part of the list", body = List<RequestShape>),
    )
)]
async fn list(State(app): State<Arc<App>>, caller: Caller, mut asked: Asked) -> Answered<Response> {
    caller.expect(Scope::Read)?;
    let filter = RequestFilter {
        tenant_id: asked.tenant(&caller)?,
        request_type: asked.take("type"),
        before: asked.cursor()?,
        limit: asked.limit()?,
    };
    asked.finish()?;
    let limit = filter.limit;
    let views = app.engine.store().requests(filter).await?;
    let id = |view: &RequestView| view.facts.request_id.to_string();
    Ok(json(StatusCode::OK, &List::part(&views, limit, RequestShape::of, id)))
}

/// Shows a request.
#[utoipa::path(
    get, path = "/v1/requests/{id}", tag = "requests", security(("token" = ["read"])),
    params(("id" = String, Path, description = "The request")),
    responses(
        (status = 200, description = "The request", body = RequestShape),
    )
)]
async fn show(Found(request): Found<RequestView>) -> Response {
    shown(StatusCode::OK, &request)
}

/// Shows what happened to a request by itself; the history of a run is that of its job.
#[utoipa::path(
    get, path = "/v1/requests/{id}/events", tag = "requests", security(("token" = ["read"])),
    params(("id" = String, Path, description = "The request")),
    responses(
        (status = 200, description = "Its events", body = List<EventShape>),
    )
)]
async fn events(
    State(app): State<Arc<App>>,
    Found(request): Found<RequestView>,
) -> Answered<Response> {
    let events = app.engine.store().request_events(request.facts.request_id).await?;
    let items = events.iter().map(EventShape::of).collect();
    Ok(json(StatusCode::OK, &List::<EventShape> { items, next: None }))
}

/// The edit of a draft.
#[derive(ToSchema)]
#[allow(dead_code)] // read by the engine; here for the document
struct Edit {
    /// What the jobs are to be submitted with instead.
    #[schema(value_type = Option<Object>)]
    envelope: Option<serde_json::Value>,
}

/// Works out the plan preview and keeps it; until the plan is frozen, again with an edit.
#[utoipa::path(
    post, path = "/v1/requests/{id}/draft", tag = "requests", security(("token" = ["submit"])),
    params(
        ("id" = String, Path, description = "The request"),
        ("If-Match" = Option<String>, Header, description = "Only if the request has this version"),
    ),
    request_body = Option<Edit>,
    responses(
        (status = 200, description = "The request", body = RequestShape),
    )
)]
async fn draft(
    State(app): State<Arc<App>>,
    Found(request): Found<RequestView>,
    headers: HeaderMap,
    Document(edit): Document,
) -> Answered<Response> {
    let view =
        app.engine.request_draft(request.facts.request_id, &edit, if_match(&headers)?).await?;
    Ok(shown(StatusCode::OK, &view))
}

/// How to confirm.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Confirm {
    /// Whether the first run begins at once.
    #[serde(default = "yes")]
    #[schema(default = true)]
    run: bool,
}

fn yes() -> bool {
    true
}

/// Freezes the plan; with `run` the first run begins in the same commit.
#[utoipa::path(
    post, path = "/v1/requests/{id}/confirm", tag = "requests", security(("token" = ["submit"])),
    params(
        ("id" = String, Path, description = "The request"),
        ("If-Match" = Option<String>, Header, description = "Only if the request has this version"),
    ),
    request_body = Option<Confirm>,
    responses(
        (status = 200, description = "The request", body = RequestShape),
    )
)]
async fn confirm(
    State(app): State<Arc<App>>,
    Found(request): Found<RequestView>,
    headers: HeaderMap,
    body: Document,
) -> Answered<Response> {
    let Confirm { run } = body.fields()?;
    let view =
        app.engine.request_confirm(request.facts.request_id, run, if_match(&headers)?).await?;
    Ok(shown(StatusCode::OK, &view))
}

/// Begins the first run of a confirmed request; no more than that.
#[utoipa::path(
    post, path = "/v1/requests/{id}/run", tag = "requests", security(("token" = ["submit"])),
    params(
        ("id" = String, Path, description = "The request"),
        ("If-Match" = Option<String>, Header, description = "Only if the request has this version"),
    ),
    responses(
        (status = 200, description = "The request", body = RequestShape),
    )
)]
async fn run(
    State(app): State<Arc<App>>,
    Found(request): Found<RequestView>,
    headers: HeaderMap,
    _body: Document,
) -> Answered<Response> {
    let view = app.engine.request_run(request.facts.request_id, if_match(&headers)?).await?;
    Ok(shown(StatusCode::OK, &view))
}

/// Which run to replace.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Retry {
    /// The run that failed.
    run_no: u32,
}

/// Begins another run in place of the failed one that is named.
#[utoipa::path(
    post, path = "/v1/requests/{id}/retry", tag = "requests", security(("token" = ["submit"])),
    params(
        ("id" = String, Path, description = "The request"),
        ("If-Match" = Option<String>, Header, description = "Only if the request has this version"),
    ),
    request_body = Retry,
    responses(
        (status = 200, description = "The request", body = RequestShape),
    )
)]
async fn retry(
    State(app): State<Arc<App>>,
    Found(request): Found<RequestView>,
    headers: HeaderMap,
    body: Document,
) -> Answered<Response> {
    let Retry { run_no } = body.fields()?;
    let view =
        app.engine.request_retry(request.facts.request_id, run_no, if_match(&headers)?).await?;
    Ok(shown(StatusCode::OK, &view))
}

/// Asks the job of the current run to stop.
#[utoipa::path(
    post, path = "/v1/requests/{id}/cancel", tag = "requests", security(("token" = ["submit"])),
    params(("id" = String, Path, description = "The request")),
    responses(
        (status = 200, description = "The request", body = RequestShape),
    )
)]
async fn cancel(
    State(app): State<Arc<App>>,
    Found(request): Found<RequestView>,
    _body: Document,
) -> Answered<Response> {
    Ok(shown(StatusCode::OK, &app.engine.request_cancel(request.facts.request_id).await?))
}
