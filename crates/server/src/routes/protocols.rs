//! Protocols: registered once under an id, for ever.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::Store;
use sprag_engine::tokens::Scope;
use sprag_kernel::{Code, Refusal};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::call::{Name, Named, json, read};
use crate::guests::Caller;
use crate::problem::{Answered, Refused, invalid};
use crate::shapes::List;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show, put))
}

/// Lists the protocols, the newest first.
#[utoipa::path(
    get, path = "/v1/protocols", tag = "protocols", security(("token" = ["read"])),
    responses(
        (status = 200, description = "All of them", body = List<Object>),
    )
)]
async fn list(State(app): State<Arc<App>>, caller: Caller) -> Answered<Response> {
    caller.expect(Scope::Read)?;
    let definitions = app.engine.store().protocols().await?;
    let items = definitions.iter().filter_map(|text| serde_json::from_str(text).ok()).collect();
    Ok(json(StatusCode::OK, &List::<serde_json::Value> { items, next: None }))
}

/// Shows a protocol.
#[utoipa::path(
    get, path = "/v1/protocols/{id}", tag = "protocols", security(("token" = ["read"])),
    params(("id" = String, Path, description = "The protocol")),
    responses(
        (status = 200, description = "Its definition", body = Object),
    )
)]
async fn show(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(Name(id)): Named<Name>,
) -> Answered<Response> {
    caller.expect(Scope::Read)?;
    let found = app.engine.store().protocol(&id).await?;
    let found = found.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    let unknown = || Refused(Refusal::new(Code::ProtocolNotFound).with("protocol_id", id));
    Ok(json(StatusCode::OK, &found.ok_or_else(unknown)?))
}

/// Registers a protocol, in JSON or YAML. The same again is a no-op; other content under its id is refused.
#[utoipa::path(
    put, path = "/v1/protocols/{id}", tag = "protocols", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The protocol")),
    request_body(content((Object = "application/json"), (String = "application/yaml"))),
    responses(
        (status = 200, description = "Its definition", body = Object),
    )
)]
async fn put(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(Name(id)): Named<Name>,
    call: axum::extract::Request,
) -> Answered<Response> {
    caller.expect_everyone(Scope::Admin)?;
    let body: Bytes = read(&app, call, app.settings.max_body_bytes).await?;
    let text = std::str::from_utf8(&body).map_err(|_| invalid("body", "is not UTF-8"))?;
    let protocol = Protocol::read(text)?;
    if protocol.protocol_id != id {
        return Err(invalid("protocol_id", "is not the one in the path"));
    }
    app.engine.put_protocol(&protocol).await?;
    Ok(json(StatusCode::OK, &protocol))
}
