//! Services: paused and resumed for every engine at once.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use sprag_engine::tokens::Scope;
use sprag_engine::upkeep::Upkeep;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::call::{Document, Name, Named, json};
use crate::guests::Caller;
use crate::problem::Answered;
use crate::shapes::List;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(pause)).routes(routes!(resume))
}

/// A service that is paused, that work waits for, or that somebody has served.
#[derive(Serialize, ToSchema)]
struct ServiceShape {
    /// Its name.
    service: String,
    /// Since when nothing of it is started, in milliseconds since 1970.
    paused_at: Option<u64>,
    /// How many activations wait for a worker.
    ready: u64,
    /// When an engine or a worker last offered itself for it, in milliseconds since 1970.
    seen_at: Option<u64>,
    /// Since when the activation waits that is claimed next, in milliseconds since 1970.
    ready_since: Option<u64>,
}

/// Lists services that are paused, that work waits for, or that somebody has served.
#[utoipa::path(
    get, path = "/v1/services", tag = "services", security(("token" = ["read"])),
    responses(
        (status = 200, description = "All of them", body = List<ServiceShape>),
    )
)]
async fn list(State(app): State<Arc<App>>, caller: Caller) -> Answered<Response> {
    caller.expect_everyone(Scope::Read)?;
    Ok(json(StatusCode::OK, &List::<ServiceShape> { items: shapes(&app).await?, next: None }))
}

async fn shapes(app: &App) -> Answered<Vec<ServiceShape>> {
    let views = app.engine.store().services().await?;
    let shape = |view: sprag_engine::upkeep::ServiceView| ServiceShape {
        service: view.service,
        paused_at: view.paused_at,
        ready: view.ready,
        seen_at: view.seen_at,
        ready_since: view.ready_since,
    };
    Ok(views.into_iter().map(shape).collect())
}

/// Nothing of the service is started until it is resumed; what runs goes on.
#[utoipa::path(
    post, path = "/v1/services/{id}/pause", tag = "services", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The service")),
    responses(
        (status = 200, description = "All services", body = List<ServiceShape>),
    )
)]
async fn pause(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(Name(service)): Named<Name>,
    _body: Document,
) -> Answered<Response> {
    caller.expect_everyone(Scope::Admin)?;
    app.engine.pause(&service).await?;
    Ok(json(StatusCode::OK, &List::<ServiceShape> { items: shapes(&app).await?, next: None }))
}

/// The service goes on.
#[utoipa::path(
    post, path = "/v1/services/{id}/resume", tag = "services", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The service")),
    responses(
        (status = 200, description = "All services", body = List<ServiceShape>),
    )
)]
async fn resume(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(Name(service)): Named<Name>,
    _body: Document,
) -> Answered<Response> {
    caller.expect_everyone(Scope::Admin)?;
    app.engine.resume(&service).await?;
    Ok(json(StatusCode::OK, &List::<ServiceShape> { items: shapes(&app).await?, next: None }))
}
