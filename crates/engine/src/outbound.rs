//! Outbound calls: what an `http` step asks of the world. The engine knows no HTTP; whoever builds one hands in
//! what makes the call, and here stands what the call is and what its answer means.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_kernel::{Cause, Code};

use crate::directive::Failure;
use crate::engine::Pinned;
use crate::graph::Kind;
use crate::store::Held;

/// How long a call may take whose step has no timeout.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// How many calls an engine makes at a time.
pub const CALLS: usize = 16;

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// GET, POST, PUT, PATCH or DELETE.
    pub method: String,
    /// Where.
    pub url: String,
    /// JSON text.
    pub body: Option<String>,
    /// Goes out as `Idempotency-Key`: the same effect has the same key, whichever attempt brings it about.
    pub effect_key: String,
    /// How long it may take in all.
    pub timeout: Duration,
    /// The largest answer that is taken.
    pub max_bytes: u64,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// Makes calls. It blocks, on a thread that may, and never beyond the call's timeout for long. It follows no
/// redirects. An answer of any status is one; a failure is that there was none.
pub type Caller = Arc<dyn Fn(&Call) -> Result<Answer, Failure> + Send + Sync>;

/// The call of an `http` step.
pub(crate) fn call(pinned: &Pinned, held: &Held, max_bytes: usize) -> Result<Call, Failure> {
    let node = pinned.graph.node(held.key.step_index);
    let Kind::Http(http, body) = &node.kind else { unreachable!("only http steps call") };
    let body = body.as_ref().map(|body| body.evaluate(&pinned.graph.sight(held)));
    let body =
        body.transpose().map_err(|reason| Failure::fatal(Code::ExpressionFailed.name(), reason))?;
    Ok(Call {
        method: http.method.clone(),
        url: http.url.clone(),
        body: body.map(|body| body.to_string()),
        effect_key: held.key.effect_key(&held.facts.effect_owner()),
        timeout: node.policy.step_ms.map_or(DEFAULT_TIMEOUT, Duration::from_millis),
        max_bytes: max_bytes as u64,
    })
}

/// What an answer means: a 2xx is the step's output; what may pass is tried again; the rest is final, a redirect
/// too, for nobody follows it.
pub(crate) fn outcome(answer: &Answer) -> Result<Value, Failure> {
    let text = String::from_utf8_lossy(&answer.body);
    let status = answer.status;
    if (200..300).contains(&status) {
        let body = if text.trim().is_empty() {
            Value::Null
        } else {
            serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.into_owned()))
        };
        return Ok(json!({"status": status, "body": body}));
    }
    let (code, message) = (Cause::HttpStatus.numbered(status), text.trim());
    // Too slow, too early, too often, or their fault: another attempt may meet it better.
    if [408, 425, 429].contains(&status) || status >= 500 {
        return Err(Failure::retryable(&code, message));
    }
    Err(Failure::fatal(&code, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_whether_another_attempt_may_help() {
        let answer = |status, body: &str| outcome(&Answer { status, body: body.into() });
        assert_eq!(answer(201, r#"{"a":1}"#).unwrap(), json!({"status": 201, "body": {"a": 1}}));
        assert_eq!(answer(204, "").unwrap()["body"], Value::Null);
        assert_eq!(answer(200, "plain").unwrap()["body"], "plain");
        for (status, retryable) in [
            (301, false),
            (400, false),
            (404, false),
            (408, true),
            (425, true),
            (429, true),
            (503, true),
        ] {
            let failure = answer(status, "why").unwrap_err();
            assert_eq!((failure.retryable, failure.code), (retryable, format!("HTTP_{status}")));
        }
    }
}
