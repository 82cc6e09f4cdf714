//! Requests: every verb is one function of the engine.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use sprag_engine::ids::RequestId;
use sprag_engine::requests::{RequestFilter, RequestStore, RequestView};
use sprag_engine::tokens::Scope;
use sprag_kernel::{Code, Refusal};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::commands::expect_tenant;
use crate::app::App;
use crate::call::{Asked, Document, Named, if_match, json, versioned};
use crate::guests::Caller;
use crate::problem::{Answered, Problem, Refused, invalid};
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

async fn find(app: &App, caller: &Caller, request_id: RequestId) -> Answered<RequestView> {
    let found = app.engine.store().request(request_id).await?;
    found.filter(|view| caller.sees(&view.facts.tenant_id)).ok_or_else(|| {
        Refused(Refusal::new(Code::RequestUnknown).with("request_id", request_id.to_string()))
    })
}

fn shown(status: StatusCode, view: &RequestView) -> Response {
    versioned(status, view.shown_version(), &RequestShape::of(view))
}

/// A request to create.
#[derive(ToSchema)]
#[allow(dead_code)] // read by the engine; here for the document
struct NewRequestShape {
    /// Whose it is; the token's tenant if it has one.
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
    post, path = "/v1/requests", tag = "requests", request_body = NewRequestShape,
    responses(
        (status = 201, description = "Created", body = RequestShape),
        (status = 200, description = "It was there", body = RequestShape),
        (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json"),
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
    get, path = "/v1/requests", tag = "requests",
    params(
        ("tenant" = Option<String>, Query, description = "Only of this tenant"),
        ("type" = Option<String>, Query, description = "Only of this request type"),
        ("limit" = Option<u32>, Query, description = "At most so many, 1 to 500", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "The `next` of the part before"),
    ),
    responses(
        (status = 200, description = "A part of the list", body = List<RequestShape>),
        (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn list(State(app): State<Arc<App>>, caller: Caller, mut asked: Asked) -> Answered<Response> {
    caller.expect(Scope::Read)?;
    let tenant = asked.take("tenant");
    caller.expect_tenant(tenant.as_deref())?;
    let cursor = asked.take("cursor").map(|cursor| {
        cursor.parse::<RequestId>().map_err(|_| invalid("cursor", "is not one of this list"))
    });
    let filter = RequestFilter {
        tenant_id: caller.tenant_id().map(str::to_owned).or(tenant),
        request_type: asked.take("type"),
        before: cursor.transpose()?,
        limit: asked.limit()?,
    };
    asked.finish()?;
    let limit = filter.limit as usize;
    let views = app.engine.store().requests(filter).await?;
    let last = views.last().filter(|_| views.len() == limit);
    let next = last.map(|view| view.facts.request_id.to_string());
    let items = views.iter().map(RequestShape::of).collect();
    Ok(json(StatusCode::OK, &List::<RequestShape> { items, next }))
}

/// Shows a request.
#[utoipa::path(
    get, path = "/v1/requests/{id}", tag = "requests",
    params(("id" = String, Path, description = "The request")),
    responses(
        (status = 200, description = "The request", body = RequestShape),
        (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn show(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(request_id): Named<RequestId>,
) -> Answered<Response> {
    caller.expect(Scope::Read)?;
    Ok(shown(StatusCode::OK, &find(&app, &caller, request_id).await?))
}

/// Shows what happened to a request by itself; the history of a run is that of its job.
#[utoipa::path(
    get, path = "/v1/requests/{id}/events", tag = "requests",
    params(("id" = String, Path, description = "The request")),
    responses(
        (status = 200, description = "Its events", body = List<EventShape>),
        (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn events(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(request_id): Named<RequestId>,
) -> Answered<Response> {
    caller.expect(Scope::Read)?;
    find(&app, &caller, request_id).await?;
    let events = app.engine.store().request_events(request_id).await?;
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
    post, path = "/v1/requests/{id}/draft", tag = "requests",
    params(
        ("id" = String, Path, description = "The request"),
        ("If-Match" = Option<String>, Header, description = "Only if the request has this version"),
    ),
    request_body = Option<Edit>,
    responses(
        (status = 200, description = "The request", body = RequestShape),
        (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn draft(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(request_id): Named<RequestId>,
    headers: HeaderMap,
    Document(edit): Document,
) -> Answered<Response> {
    caller.expect(Scope::Submit)?;
    find(&app, &caller, request_id).await?;
    let view = app.engine.request_draft(request_id, &edit, if_match(&headers)?).await?;
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
    post, path = "/v1/requests/{id}/confirm", tag = "requests",
    params(
        ("id" = String, Path, description = "The request"),
        ("If-Match" = Option<String>, Header, description = "Only if the request has this version"),
    ),
    request_body = Option<Confirm>,
    responses(
        (status = 200, description = "The request", body = RequestShape),
        (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn confirm(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(request_id): Named<RequestId>,
    headers: HeaderMap,
    body: Document,
) -> Answered<Response> {
    caller.expect(Scope::Submit)?;
    let Confirm { run } = body.fields()?;
    find(&app, &caller, request_id).await?;
    let view = app.engine.request_confirm(request_id, run, if_match(&headers)?).await?;
    Ok(shown(StatusCode::OK, &view))
}

/// Begins the first run of a confirmed request; no more than that.
#[utoipa::path(
    post, path = "/v1/requests/{id}/run", tag = "requests",
    params(
        ("id" = String, Path, description = "The request"),
        ("If-Match" = Option<String>, Header, description = "Only if the request has this version"),
    ),
    responses(
        (status = 200, description = "The request", body = RequestShape),
        (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn run(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(request_id): Named<RequestId>,
    headers: HeaderMap,
    _body: Document,
) -> Answered<Response> {
    caller.expect(Scope::Submit)?;
    find(&app, &caller, request_id).await?;
    let view = app.engine.request_run(request_id, if_match(&headers)?).await?;
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
    post, path = "/v1/requests/{id}/retry", tag = "requests",
    params(
        ("id" = String, Path, description = "The request"),
        ("If-Match" = Option<String>, Header, description = "Only if the request has this version"),
    ),
    request_body = Retry,
    responses(
        (status = 200, description = "The request", body = RequestShape),
        (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn retry(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(request_id): Named<RequestId>,
    headers: HeaderMap,
    body: Document,
) -> Answered<Response> {
    caller.expect(Scope::Submit)?;
    let Retry { run_no } = body.fields()?;
    find(&app, &caller, request_id).await?;
    let view = app.engine.request_retry(request_id, run_no, if_match(&headers)?).await?;
    Ok(shown(StatusCode::OK, &view))
}

/// Asks the job of the current run to stop.
#[utoipa::path(
    post, path = "/v1/requests/{id}/cancel", tag = "requests",
    params(("id" = String, Path, description = "The request")),
    responses(
        (status = 200, description = "The request", body = RequestShape),
        (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(request_id): Named<RequestId>,
    _body: Document,
) -> Answered<Response> {
    caller.expect(Scope::Submit)?;
    find(&app, &caller, request_id).await?;
    Ok(shown(StatusCode::OK, &app.engine.request_cancel(request_id).await?))
}
