//! Whether the server lives, whether it can work, and what it counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sprag_engine::store::{Store, StoreError};
use sprag_engine::tokens::Scope;
use sprag_engine::upkeep::{Upkeep, is_served};
use sprag_kernel::machine::State as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::{App, openapi};
use crate::call::json;
use crate::guests::Caller;
use crate::problem::{Answered, Problem};

/// How long the store may take to answer before the server counts as not ready.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(healthz))
        .routes(routes!(readyz))
        .routes(routes!(metrics))
        .routes(routes!(document))
}

/// The process answers. Needs no token.
#[utoipa::path(
    get, path = "/healthz", tag = "operations", security(()),
    responses((status = 200, description = "It lives", body = Object))
)]
async fn healthz() -> Response {
    json(StatusCode::OK, &serde_json::json!({"ok": true}))
}

/// The store answers.
#[utoipa::path(
    get, path = "/readyz", tag = "operations",
    responses(
        (status = 200, description = "It can work", body = Object),
        (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn readyz(State(app): State<Arc<App>>, _caller: Caller) -> Answered<Response> {
    let asked = tokio::time::timeout(PATIENCE, app.engine.store().now()).await;
    let late = || StoreError::Unavailable("it does not answer".to_owned());
    let now = asked.map_err(|_| late())??;
    Ok(json(StatusCode::OK, &serde_json::json!({"ok": true, "store_time": now})))
}

/// What is counted, for Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "operations",
    responses(
        (status = 200, description = "Text", body = String, content_type = "text/plain"),
        (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn metrics(State(app): State<Arc<App>>, caller: Caller) -> Answered<Response> {
    caller.expect_everyone(Scope::Read)?;
    let store = app.engine.store();
    let begun = Instant::now();
    let (jobs, services) = (store.counts().await?, store.services().await?);
    let (undelivered, now) = (store.undelivered().await?, store.now().await?);
    let took = begun.elapsed().as_secs_f64();
    let mut text = String::new();
    let mut put = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    put("# TYPE sprag_jobs gauge".to_owned());
    for (state, count) in jobs {
        put(format!("sprag_jobs{{state=\"{}\"}} {count}", state.name()));
    }
    put("# TYPE sprag_ready gauge".to_owned());
    for view in services {
        let service = view.service.replace('\\', "\\\\").replace('"', "\\\"");
        put(format!("sprag_ready{{service=\"{service}\"}} {}", view.ready));
        let paused = u8::from(view.paused_at.is_some());
        put(format!("sprag_paused{{service=\"{service}\"}} {paused}"));
        let served = u8::from(is_served(view.seen_at, now));
        put(format!("sprag_served{{service=\"{service}\"}} {served}"));
    }
    put("# TYPE sprag_undelivered gauge".to_owned());
    put(format!("sprag_undelivered {undelivered}"));
    put("# TYPE sprag_store_seconds gauge".to_owned());
    put(format!("sprag_store_seconds {took}"));
    app.metrics.render(&mut text);
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// This document.
#[utoipa::path(
    get, path = "/openapi.json", tag = "operations",
    responses(
        (status = 200, description = "OpenAPI 3.1", body = Object),
        (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn document(_caller: Caller) -> Response {
    json(StatusCode::OK, &openapi())
}
