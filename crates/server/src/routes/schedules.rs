//! Schedules: jobs by the clock.

use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::RawValue;
use sprag_engine::schedules::{self, Schedule, ScheduleView, Schedules};
use sprag_engine::tokens::Scope;
use sprag_kernel::decide::schedule::Missed;
use sprag_kernel::{Code, Refusal};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::commands::expect_tenant;
use crate::app::App;
use crate::call::{Asked, Document, Name, Named, json};
use crate::guests::Caller;
use crate::problem::{Answered, Refused};
use crate::shapes::{List, ScheduleShape};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(add, list))
        .routes(routes!(show, remove))
        .routes(routes!(pause))
        .routes(routes!(resume))
}

/// A schedule to add.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewScheduleShape {
    /// Its name, among those of the tenant.
    schedule_id: String,
    /// Five fields, or six with seconds first.
    cron: String,
    /// The time zone of the expression; `UTC` if absent.
    zone: Option<String>,
    /// What becomes of ticks that were missed: `skip`, `once` (the default) or `all`.
    missed: Option<String>,
    /// What is submitted at each tick: the body of `POST /v1/commands`.
    #[schema(value_type = Object)]
    envelope: Box<RawValue>,
}

#[derive(Deserialize)]
struct Tenant {
    tenant_id: Option<String>,
}

/// Adds a schedule. The same again is a no-op.
#[utoipa::path(
    post, path = "/v1/schedules", tag = "schedules", security(("token" = ["submit"])), request_body = NewScheduleShape,
    responses(
        (status = 200, description = "The schedule", body = ScheduleShape),
    )
)]
async fn add(State(app): State<Arc<App>>, caller: Caller, body: Document) -> Answered<Response> {
    caller.expect(Scope::Submit)?;
    let asked: NewScheduleShape = body.fields()?;
    let envelope = asked.envelope.get();
    expect_tenant(&caller, envelope.as_bytes())?;
    let tenant = serde_json::from_str::<Tenant>(envelope).ok().and_then(|t| t.tenant_id);
    let missed = asked.missed.as_deref().map(|name| {
        Missed::from_name(name).ok_or_else(|| {
            Refusal::new(Code::ScheduleInvalid)
                .with("field", "missed")
                .with("reason", name.to_owned())
        })
    });
    let schedule = Schedule {
        // Without one the envelope is refused, with the place.
        tenant_id: tenant.unwrap_or_default(),
        schedule_id: asked.schedule_id,
        cron: asked.cron,
        zone: asked.zone.unwrap_or_else(|| "UTC".to_owned()),
        missed: missed.transpose()?.unwrap_or_default(),
        envelope: envelope.to_owned(),
    };
    Ok(shown(&app.engine.add_schedule(schedule).await?))
}

fn shown(view: &ScheduleView) -> Response {
    json(StatusCode::OK, &ScheduleShape::of(view))
}

/// Lists schedules by tenant and name.
#[utoipa::path(
    get, path = "/v1/schedules", tag = "schedules", security(("token" = ["read"])),
    params(("tenant" = Option<String>, Query, description = "Only of this tenant")),
    responses(
        (status = 200, description = "All of them", body = List<ScheduleShape>),
    )
)]
async fn list(State(app): State<Arc<App>>, caller: Caller, mut asked: Asked) -> Answered<Response> {
    caller.expect(Scope::Read)?;
    let tenant = asked.take("tenant");
    asked.finish()?;
    caller.expect_tenant(tenant.as_deref())?;
    let tenant = caller.tenant_id().map(str::to_owned).or(tenant);
    let views = app.engine.store().schedules(tenant.as_deref()).await?;
    let items = views.iter().map(ScheduleShape::of).collect();
    Ok(json(StatusCode::OK, &List::<ScheduleShape> { items, next: None }))
}

/// The schedule that the path names, of the token's tenant, of the one after the question mark, or the only one.
struct Scheduled(ScheduleView);

impl FromRequestParts<Arc<App>> for Scheduled {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Answered<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        caller.expect(if parts.method == Method::GET { Scope::Read } else { Scope::Submit })?;
        let Named(Name(id)) = Named::<Name>::from_request_parts(parts, app).await?;
        let mut asked = Asked::from_request_parts(parts, app).await?;
        let tenant = asked.take("tenant");
        asked.finish()?;
        caller.expect_tenant(tenant.as_deref())?;
        let tenant = caller.tenant_id().or(tenant.as_deref());
        Ok(Self(schedules::find_named(app.engine.store(), tenant, &id).await?))
    }
}

/// Shows a schedule.
#[utoipa::path(
    get, path = "/v1/schedules/{id}", tag = "schedules", security(("token" = ["read"])),
    params(
        ("id" = String, Path, description = "The schedule"),
        ("tenant" = Option<String>, Query, description = "Whose, if several tenants have one of this name"),
    ),
    responses(
        (status = 200, description = "The schedule", body = ScheduleShape),
    )
)]
async fn show(Scheduled(view): Scheduled) -> Response {
    shown(&view)
}

/// Forgets a schedule; its jobs stay.
#[utoipa::path(
    delete, path = "/v1/schedules/{id}", tag = "schedules", security(("token" = ["submit"])),
    params(
        ("id" = String, Path, description = "The schedule"),
        ("tenant" = Option<String>, Query, description = "Whose, if several tenants have one of this name"),
    ),
    responses(
        (status = 200, description = "The schedule as it was", body = ScheduleShape),
    )
)]
async fn remove(State(app): State<Arc<App>>, Scheduled(view): Scheduled) -> Answered<Response> {
    let Schedule { tenant_id, schedule_id, .. } = &view.schedule;
    schedules::remove(app.engine.store(), tenant_id, schedule_id).await?;
    Ok(shown(&view))
}

/// The schedule makes no jobs until it is resumed.
#[utoipa::path(
    post, path = "/v1/schedules/{id}/pause", tag = "schedules", security(("token" = ["submit"])),
    params(
        ("id" = String, Path, description = "The schedule"),
        ("tenant" = Option<String>, Query, description = "Whose, if several tenants have one of this name"),
    ),
    responses(
        (status = 200, description = "The schedule", body = ScheduleShape),
    )
)]
async fn pause(
    State(app): State<Arc<App>>,
    Scheduled(view): Scheduled,
    _body: Document,
) -> Answered<Response> {
    let Schedule { tenant_id, schedule_id, .. } = &view.schedule;
    Ok(shown(&schedules::pause(app.engine.store(), tenant_id, schedule_id).await?))
}

/// The schedule goes on with its next tick. What it would have done meanwhile is not made up for.
#[utoipa::path(
    post, path = "/v1/schedules/{id}/resume", tag = "schedules", security(("token" = ["submit"])),
    params(
        ("id" = String, Path, description = "The schedule"),
        ("tenant" = Option<String>, Query, description = "Whose, if several tenants have one of this name"),
    ),
    responses(
        (status = 200, description = "The schedule", body = ScheduleShape),
    )
)]
async fn resume(
    State(app): State<Arc<App>>,
    Scheduled(view): Scheduled,
    _body: Document,
) -> Answered<Response> {
    let Schedule { tenant_id, schedule_id, .. } = &view.schedule;
    Ok(shown(&app.engine.resume_schedule(tenant_id, schedule_id).await?))
}
