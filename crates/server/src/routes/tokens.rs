//! Tokens: made, listed and taken back by whoever may do everything.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sprag_engine::tokens::{NewToken, Scope, Scopes, TokenStore};
use sprag_kernel::{Code, Refusal};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::call::{Document, Name, Named, json};
use crate::guests::Caller;
use crate::problem::{Answered, Refused};
use crate::secret::TokenText;
use crate::shapes::{List, TokenShape};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(revoke))
}

/// A token to make.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewTokenShape {
    /// Of `submit`, `work`, `read`, `admin`.
    scopes: Vec<String>,
    /// For this tenant only; not with `admin`. With `work` it is handed this tenant's steps alone.
    tenant_id: Option<String>,
    /// What it is for.
    #[serde(default)]
    label: String,
    /// How long it is accepted, in milliseconds; for ever if absent.
    lifetime_ms: Option<u64>,
}

/// A token that was just made.
#[derive(Serialize, ToSchema)]
struct Made {
    /// Its text. It is not kept, so this is the only time that it is shown.
    token: String,
    /// The rest of it.
    #[serde(flatten)]
    shape: TokenShape,
}

/// Makes a token. Its text is in the answer and nowhere else.
#[utoipa::path(
    post, path = "/v1/tokens", tag = "tokens", security(("token" = ["admin"])), request_body = NewTokenShape,
    responses(
        (status = 201, description = "The token, with its text", body = Made),
    )
)]
async fn create(State(app): State<Arc<App>>, caller: Caller, body: Document) -> Answered<Response> {
    caller.expect_everyone(Scope::Admin)?;
    let asked: NewTokenShape = body.fields()?;
    let scopes = asked.scopes.iter().map(|scope| scope.parse::<Scope>());
    let text = TokenText::new();
    let token = NewToken {
        token_id: text.id().to_owned(),
        hash: text.hash(),
        scopes: scopes.collect::<Result<Scopes, _>>()?,
        tenant_id: asked.tenant_id,
        label: asked.label,
        lifetime_ms: asked.lifetime_ms,
    };
    token.check()?;
    let view = app.engine.store().put_token(token).await?;
    tracing::info!(
        code = "TOKEN_MADE",
        token_id = view.token_id,
        scopes = %view.scopes,
        by = caller.token_id,
        "a token was made"
    );
    let made = Made { token: text.to_string(), shape: TokenShape::of(&view) };
    Ok(json(StatusCode::CREATED, &made))
}

/// Lists all tokens, without their texts.
#[utoipa::path(
    get, path = "/v1/tokens", tag = "tokens", security(("token" = ["admin"])),
    responses(
        (status = 200, description = "All of them", body = List<TokenShape>),
    )
)]
async fn list(State(app): State<Arc<App>>, caller: Caller) -> Answered<Response> {
    caller.expect_everyone(Scope::Admin)?;
    let tokens = app.engine.store().tokens().await?;
    let items = tokens.iter().map(TokenShape::of).collect();
    Ok(json(StatusCode::OK, &List::<TokenShape> { items, next: None }))
}

/// Takes a token back, for good.
#[utoipa::path(
    delete, path = "/v1/tokens/{id}", tag = "tokens", security(("token" = ["admin"])),
    params(("id" = String, Path, description = "The token's id")),
    responses(
        (status = 200, description = "The token", body = TokenShape),
    )
)]
async fn revoke(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(Name(id)): Named<Name>,
) -> Answered<Response> {
    caller.expect_everyone(Scope::Admin)?;
    let revoked = app.engine.store().revoke_token(&id).await?;
    app.guests.forget(&id);
    let unknown = || Refused(Refusal::new(Code::TokenUnknown).with("token_id", id));
    let view = revoked.ok_or_else(unknown)?;
    tracing::info!(
        code = "TOKEN_REVOKED",
        token_id = view.token_id,
        by = caller.token_id,
        "a token was taken back"
    );
    Ok(json(StatusCode::OK, &TokenShape::of(&view)))
}
