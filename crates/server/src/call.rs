//! What a handler reads from a call. Everything has a limit, and what is wrong is refused as problem
//! details.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Query, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sprag_kernel::canon::canonical;
use sprag_kernel::{Code, Refusal};

use crate::app::App;
use crate::guests::Caller;
use crate::problem::{Refused, invalid};

/// How many items a list shows unless it is told otherwise, and at most.
const LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 500;

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| Refused(Refusal::new(Code::Unauthenticated)))
    }
}

/// The one parameter in the path.
pub(crate) struct Named<T>(pub(crate) T);

impl<S: Sync + Send, T: FromStr<Err = Refusal>> FromRequestParts<S> for Named<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        Ok(Self(in_path(parts, state, 0).await?))
    }
}

/// The second parameter in the path: what is below an id.
pub(crate) struct Below<T>(pub(crate) T);

impl<S: Sync + Send, T: FromStr<Err = Refusal>> FromRequestParts<S> for Below<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        Ok(Self(in_path(parts, state, 1).await?))
    }
}

/// A parameter in the path, by its place.
async fn in_path<T: FromStr<Err = Refusal>>(
    parts: &mut Parts,
    state: &(impl Sync + Send),
    place: usize,
) -> Result<T, Refused> {
    let params = RawPathParams::from_request_parts(parts, state).await;
    let params = params.map_err(|_| Refused(Refusal::new(Code::RouteUnknown)))?;
    let value = params.iter().nth(place).map(|(_, value)| value);
    Ok(value.ok_or_else(|| invalid("path", "has no name"))?.parse()?)
}

/// A name in a path that is no id.
pub(crate) struct Name(pub(crate) String);

impl FromStr for Name {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        sprag_engine::names::check_name("path", text)?;
        Ok(Self(text.to_owned()))
    }
}

/// The parameters after the question mark. One that nobody knows is refused, so that a misspelt filter
/// does not show everything.
pub(crate) struct Asked(HashMap<String, String>);

impl<S: Sync + Send> FromRequestParts<S> for Asked {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        let query = Query::<HashMap<String, String>>::from_request_parts(parts, state).await;
        let Query(asked) = query.map_err(|error| invalid("query", error.body_text()))?;
        // No store keeps it, so nothing can be found by it; Postgres does not even look.
        if asked.values().any(|value| value.contains('\0')) {
            return Err(invalid("query", "has a NUL"));
        }
        Ok(Self(asked))
    }
}

impl Asked {
    /// Takes a parameter out.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// Takes a number out.
    pub(crate) fn number<T: FromStr>(&mut self, name: &'static str) -> Result<Option<T>, Refused> {
        let number = |text: String| text.parse().map_err(|_| invalid(name, "is no number"));
        self.take(name).map(number).transpose()
    }

    /// The tenant whose things are wanted: the caller's own if it has one.
    pub(crate) fn tenant(&mut self, caller: &Caller) -> Result<Option<String>, Refused> {
        let named = self.take("tenant");
        caller.expect_tenant(named.as_deref())?;
        Ok(caller.tenant_id().map(str::to_owned).or(named))
    }

    /// Where the list goes on.
    pub(crate) fn cursor<T: FromStr>(&mut self) -> Result<Option<T>, Refused> {
        let cursor =
            |text: String| text.parse().map_err(|_| invalid("cursor", "is not one of this list"));
        self.take("cursor").map(cursor).transpose()
    }

    /// How many items are wanted.
    pub(crate) fn limit(&mut self) -> Result<u32, Refused> {
        let limit = self.number("limit")?.unwrap_or(LIMIT);
        if limit == 0 || limit > MAX_LIMIT {
            return Err(invalid("limit", format!("is from 1 to {MAX_LIMIT}")));
        }
        Ok(limit)
    }

    /// Nothing is left over.
    pub(crate) fn finish(self) -> Result<(), Refused> {
        match self.0.into_keys().min() {
            None => Ok(()),
            Some(unknown) => {
                let shown: String = unknown.chars().take(64).collect();
                Err(invalid("query", format!("there is no parameter {shown}")))
            }
        }
    }
}

/// The body of a call: JSON that is not too large, not too deep, and came in time. Empty is allowed.
pub(crate) struct Document(pub(crate) Bytes);

impl FromRequest<Arc<App>> for Document {
    type Rejection = Refused;

    async fn from_request(call: Request, app: &Arc<App>) -> Result<Self, Refused> {
        let body = read(app, call, app.settings.max_body_bytes).await?;
        if !body.trim_ascii().is_empty() {
            canonical(&body)?;
        }
        Ok(Self(body))
    }
}

impl Document {
    /// The fields of the body.
    pub(crate) fn fields<T: DeserializeOwned>(&self) -> Result<T, Refused> {
        let text: &[u8] = if self.0.trim_ascii().is_empty() { b"{}" } else { &self.0 };
        serde_json::from_slice(text).map_err(|error| invalid("body", error.to_string()))
    }
}

/// Reads a body of at most `limit` bytes.
pub(crate) async fn read(app: &App, call: Request, limit: usize) -> Result<Bytes, Refused> {
    let too_large = || {
        Refused(Refusal::new(Code::InputTooLarge).with("what", "body").with("limit_bytes", limit))
    };
    let told = call.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok());
    if told.and_then(|text| text.parse::<usize>().ok()).is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let collected = Limited::new(call.into_body(), limit).collect();
    match tokio::time::timeout(app.settings.body_timeout, collected).await {
        Err(_) => Err(Refused(Refusal::new(Code::TooSlow))),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(invalid("body", error.to_string())),
    }
}

/// The version that If-Match names; none if there is no such header, or if it matches everything.
pub(crate) fn if_match<T: FromStr>(headers: &HeaderMap) -> Result<Option<T>, Refused> {
    let Some(value) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let value = value.to_str().unwrap_or_default().trim();
    if value == "*" {
        return Ok(None);
    }
    let version = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
    let version = version.and_then(|version| version.parse().ok());
    version.map(Some).ok_or_else(|| invalid("If-Match", "is not one ETag of this server"))
}

/// A JSON answer.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("answers have string keys");
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (status, kind, Body::from(body)).into_response()
}

/// A JSON answer with the version of what it shows.
pub(crate) fn versioned(
    status: StatusCode,
    version: impl std::fmt::Display,
    value: &impl Serialize,
) -> Response {
    let mut response = json(status, value);
    let tag = HeaderValue::from_str(&format!("\"{version}\"")).expect("versions are digits");
    response.headers_mut().insert(header::ETAG, tag);
    response
}
