//! A refusal as an HTTP answer: problem details (RFC 9457) with the stable code and its fields.

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};
use sprag_kernel::{Code, Refusal};
use utoipa::ToSchema;

/// How long a caller waits before it sends the same again, in seconds.
const RETRY_AFTER_S: u32 = 1;

/// Problem details.
#[derive(Debug, Serialize, ToSchema)]
pub struct Problem {
    /// Names the kind of problem.
    #[serde(rename = "type")]
    #[schema(example = "urn:sprag:error:JOB_UNKNOWN")]
    pub kind: String,
    /// What happened, in general.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened here.
    pub detail: String,
    /// The stable code; docs/errors.md lists them.
    #[schema(example = "JOB_UNKNOWN")]
    pub error_code: String,
    /// What to do about it.
    pub advice: String,
    /// Which row, which value, which place.
    #[schema(value_type = Object)]
    pub fields: Map<String, Value>,
}

impl From<&Refusal> for Problem {
    fn from(refusal: &Refusal) -> Self {
        let code = refusal.code();
        let field = |(name, value): &(Cow<'static, str>, sprag_kernel::error::Field)| {
            (name.to_string(), serde_json::to_value(value).unwrap_or(Value::Null))
        };
        Self {
            kind: format!("urn:sprag:error:{code}"),
            title: code.what().to_owned(),
            status: code.http_status(),
            detail: refusal.message(),
            error_code: code.name().to_owned(),
            advice: code.todo().to_owned(),
            fields: refusal.fields().iter().map(field).collect(),
        }
    }
}

/// A refusal on its way out.
#[derive(Debug)]
pub struct Refused(pub Refusal);

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self(refusal)
    }
}

impl From<sprag_engine::store::StoreError> for Refused {
    fn from(error: sprag_engine::store::StoreError) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let code = self.0.code();
        let problem = Problem::from(&self.0);
        let status =
            StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() {
            tracing::error!(code = "CALL_FAILED", refusal = %self.0, "a call failed");
        }
        let body = serde_json::to_vec(&problem).expect("problems have string keys");
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        if code == Code::Unauthenticated {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(code, Code::NotYet | Code::RateLimited | Code::StoreUnavailable) {
            headers.insert(header::RETRY_AFTER, RETRY_AFTER_S.into());
        }
        response
    }
}

/// The answer of a handler.
pub type Answered<T> = Result<T, Refused>;

/// A header, a parameter or a field that has the wrong form.
pub fn invalid(field: &'static str, reason: impl Into<String>) -> Refused {
    Refused(Refusal::new(Code::CallInvalid).with("field", field).with("reason", reason.into()))
}
