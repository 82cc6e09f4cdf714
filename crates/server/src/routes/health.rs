//! Whether the server lives, whether it can work, and what it counts.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sprag_engine::store::{Store, StoreError};
use sprag_engine::tokens::Scope;
use sprag_engine::upkeep::{ServiceView, Upkeep, is_served};
use sprag_kernel::machine::State as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::{App, openapi};
use crate::call::json;
use crate::guests::Caller;
use crate::metrics::{label, put};
use crate::problem::Answered;

/// How long the store may take to answer before the server counts as not ready.
const PATIENCE: Duration = Duration::from_secs(2);
/// After so long a step that nobody takes makes its job one that is stuck.
const STUCK_MS: u64 = 600_000;

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

/// The store answers, and the engine works: it was not declared dead, and its version is admitted.
#[utoipa::path(
    get, path = "/readyz", tag = "operations",
    responses(
        (status = 200, description = "It can work", body = Object),
    )
)]
async fn readyz(State(app): State<Arc<App>>, _caller: Caller) -> Answered<Response> {
    if !app.engine.is_running() {
        return Err(StoreError::Unavailable("the engine has ended".to_owned()).into());
    }
    let asked = tokio::time::timeout(PATIENCE, app.engine.store().now()).await;
    let late = || StoreError::Unavailable("it does not answer".to_owned());
    let now = asked.map_err(|_| late())??;
    Ok(json(StatusCode::OK, &serde_json::json!({"ok": true, "store_time": now})))
}

/// What is counted, for Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "operations", security(("token" = ["read"])),
    responses(
        (status = 200, description = "Text", body = String, content_type = "text/plain"),
    )
)]
async fn metrics(State(app): State<Arc<App>>, caller: Caller) -> Answered<Response> {
    caller.expect_everyone(Scope::Read)?;
    let mut text = String::new();
    stored(&app, &mut text).await?;
    app.metrics.render(&mut text);
    put!(text, "# HELP sprag_spans_dropped_total Spans that the collector of traces did not take.");
    put!(text, "# TYPE sprag_spans_dropped_total counter");
    put!(text, "sprag_spans_dropped_total {}", app.traces.dropped());
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// What the store counts, and how long it took for it.
async fn stored(app: &App, text: &mut String) -> Answered<()> {
    let store = app.engine.store();
    let begun = Instant::now();
    let now = store.now().await?;
    let (jobs, services) = (store.counts().await?, store.services().await?);
    let backlog = store.backlog(now, now.saturating_sub(STUCK_MS)).await?;
    let undelivered = store.undelivered().await?;
    let took = begun.elapsed().as_secs_f64();
    let jobs = jobs.iter().map(|(state, n)| (format!("{{state=\"{}\"}}", state.name()), *n as f64));
    gauge(text, "jobs", "Jobs by state.", jobs.collect());
    let named = |view: &ServiceView| format!("{{service=\"{}\"}}", label(&view.service));
    let ready = services.iter().map(|view| (named(view), view.ready as f64));
    gauge(text, "ready", "Steps that wait for a worker.", ready.collect());
    let lag = services.iter().map(|view| {
        let waits = view.ready_since.map_or(0, |since| now.saturating_sub(since));
        (named(view), waits as f64 / 1_000.0)
    });
    gauge(
        text,
        "lag_seconds",
        "How long the step that a service is handed next has waited for a worker.",
        lag.collect(),
    );
    let paused =
        services.iter().map(|view| (named(view), f64::from(u8::from(view.paused_at.is_some()))));
    gauge(text, "paused", "Whether a service is paused.", paused.collect());
    let served = services
        .iter()
        .map(|view| (named(view), f64::from(u8::from(is_served(view.seen_at, now)))));
    gauge(
        text,
        "served",
        "Whether somebody has offered itself for a service lately.",
        served.collect(),
    );
    for (name, help, value) in [
        (
            "timers_due",
            "Timers whose time has come and that nobody has acted on.",
            backlog.timers_due,
        ),
        ("outbox_pending", "Directives that wait for a publisher.", backlog.unpublished),
        (
            "retries_waiting",
            "Attempts that wait for their time after a failure.",
            backlog.retries_waiting,
        ),
        (
            "stuck_jobs",
            "Jobs with a step that nobody has taken for ten minutes.",
            backlog.stuck_jobs,
        ),
        ("undelivered", "Completion tasks that are not delivered.", undelivered),
    ] {
        gauge(text, name, help, vec![(String::new(), value as f64)]);
    }
    gauge(text, "store_seconds", "How long the store took for this.", vec![(String::new(), took)]);
    Ok(())
}

fn gauge(text: &mut String, name: &str, help: &str, values: Vec<(String, f64)>) {
    put!(text, "# HELP sprag_{name} {help}");
    put!(text, "# TYPE sprag_{name} gauge");
    for (labels, value) in values {
        put!(text, "sprag_{name}{labels} {value}");
    }
}

/// This document.
#[utoipa::path(
    get, path = "/openapi.json", tag = "operations",
    responses(
        (status = 200, description = "OpenAPI 3.1", body = Object),
    )
)]
async fn document(_caller: Caller) -> Response {
    json(StatusCode::OK, &openapi())
}
