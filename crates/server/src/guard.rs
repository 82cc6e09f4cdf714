//! What every call passes: the name it calls us by, where it comes from, its token, its tenant's rate; and
//! what is noted about it.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sprag_kernel::{Code, Refusal};

use crate::app::App;
use crate::guests::Caller;
use crate::problem::Refused;
use crate::secret::TokenText;
use crate::traces::{Role, Span};

/// The one path that needs no token.
const OPEN: &str = "/healthz";

pub(crate) async fn guard(State(app): State<Arc<App>>, mut call: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = call.method().clone();
    let path = call.extensions().get::<MatchedPath>().cloned();
    // Looked at before anything is awaited: a call cannot be shared with the store.
    let shown = show(&app, &call);
    let parent = app.traces.parent(traceparent(call.headers()));
    let response = match admit(&app, shown).await {
        Ok(caller) => {
            if let Some(caller) = caller {
                call.extensions_mut().insert(caller);
            }
            next.run(call).await
        }
        Err(refusal) => Refused(refusal).into_response(),
    };
    let path = path.as_ref().map_or("none", MatchedPath::as_str);
    app.metrics.answered(&method, path, response.status(), begun.elapsed());
    if let Some(parent) = parent {
        let status = response.status();
        app.traces.send(Span {
            parent,
            name: format!("{method} {path}"),
            role: Role::Server,
            took: begun.elapsed(),
            failed: status.is_server_error(),
            attributes: vec![
                ("http.request.method", method.as_str().into()),
                ("http.route", path.into()),
                ("http.response.status_code", status.as_u16().into()),
            ],
        });
    }
    tracing::debug!(
        code = "CALL_ANSWERED",
        %method,
        path,
        status = response.status().as_u16(),
        ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        "a call was answered"
    );
    response
}

/// The token that a call shows; none where none is needed.
fn show(app: &App, call: &Request) -> Result<Option<TokenText>, Refusal> {
    expect_origin(app, call)?;
    if call.uri().path() == OPEN { Ok(None) } else { bearer(call.headers()).map(Some) }
}

async fn admit(
    app: &App,
    shown: Result<Option<TokenText>, Refusal>,
) -> Result<Option<Caller>, Refusal> {
    let Some(token) = shown? else { return Ok(None) };
    let caller = app.guests.admit(app.engine.store(), &token).await?;
    app.rates.take(&caller)?;
    Ok(Some(caller))
}

/// The name in Host (or, in HTTP/2, in the URI) must be ours, and Origin, which only browsers send, too.
fn expect_origin(app: &App, call: &Request) -> Result<(), Refusal> {
    let refused = |field: &'static str, given: &str| {
        let shown: String = given.chars().take(100).collect();
        Refusal::new(Code::OriginRefused).with(field, shown)
    };
    // Who reads the other one of two would let it in.
    if call.headers().get_all(header::HOST).iter().nth(1).is_some() {
        return Err(refused("host", "more than one"));
    }
    let text = |name| call.headers().get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = call
        .uri()
        .authority()
        .map(axum::http::uri::Authority::as_str)
        .or_else(|| text(header::HOST));
    let host = host.ok_or_else(|| refused("host", "none"))?;
    if !app.settings.answers_to(host) {
        return Err(refused("host", host));
    }
    match text(header::ORIGIN) {
        Some(origin) if origin.split_once("://").is_none_or(|(_, origin)| origin != host) => {
            Err(refused("origin", origin))
        }
        Some(_) | None => Ok(()),
    }
}

/// Where the caller's own trace is, as it says.
pub(crate) fn traceparent(headers: &HeaderMap) -> Option<&str> {
    headers.get("traceparent").and_then(|value| value.to_str().ok())
}

fn bearer(headers: &HeaderMap) -> Result<TokenText, Refusal> {
    let refused = || Refusal::new(Code::Unauthenticated);
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Err(refused()) };
    let (scheme, token) =
        value.to_str().ok().and_then(|v| v.split_once(' ')).ok_or_else(refused)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(refused());
    }
    token.trim().parse()
}
