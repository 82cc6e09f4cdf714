//! Gates: how many attempts of a kind may run at a time, or start in a span of time, over all engines.
//!
//! The key `limit` of a step names a gate: its service, or, with an expression, each value of that. An
//! attempt of such a step carries the name of its gate and the limit from the moment its row is made; what
//! it can refer to is known then: `tenant`, `input` and the `item` of its branch. When it is due it stands in
//! line at the gate instead of the queue, so that claims never see what may not start. Whoever comes by
//! admits those that may (`sprag_kernel::decide::gate`); an attempt holds its slot until it is over, in the
//! books and nowhere else, so that no crash can lose one.
//!
//! A key that has no value gives no gate: the attempt is claimed at once, and ends there for that reason.

use std::future::Future;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_kernel::Refusal;
use sprag_kernel::decide::gate::Limit;
use sprag_kernel::retry::Millis;

use crate::duration;
use crate::expression::{Expression, Shape, Sight};
use crate::ids::EngineNo;
use crate::protocol::invalid;
use crate::store::{Answer, JobFacts};

/// The most attempts of a gate at a time: they are counted each time somebody is admitted.
pub const MAX_AT_ONCE: u32 = 10_000;
/// The most starts of a rate.
pub const MAX_STARTS: u32 = 1_000_000;
/// The longest expression of a key, in bytes: it is part of the gate's name.
pub const MAX_KEY_BYTES: usize = 200;
/// The longest value of a key, in bytes.
pub const MAX_VALUE_BYTES: usize = 500;
/// The most gates that one call admits at.
pub const MAX_GATES: usize = 100;

/// The key `limit` of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitKey {
    /// At most so many at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// One limit for each value of this; one for the service if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// At most so many starts in a span of time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// So many starts in a span of time, evenly: in any such span there are never more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// So many.
    pub max: u32,
    /// In this time.
    #[serde(with = "duration::required")]
    pub per: Millis,
}

/// The gates of a step, checked.
#[derive(Clone, Debug)]
pub struct GatePlan {
    service: String,
    key: Option<Expression>,
    /// How many may run, and how fast they may start.
    pub limit: Limit,
}

impl GatePlan {
    /// Checks the key of a step; `expression` reads one at the step's place.
    pub(crate) fn of(
        given: &LimitKey,
        service: &str,
        place: &str,
        expression: impl FnOnce(&str) -> Result<Expression, Refusal>,
    ) -> Result<Self, Refusal> {
        let wrong = |field: &str, reason: String| Err(invalid(&format!("{place}.{field}"), reason));
        if given.max.is_none() && given.rate.is_none() {
            return wrong("limit", "has neither max nor rate".to_owned());
        }
        if given.max.is_some_and(|max| max == 0 || max > MAX_AT_ONCE) {
            return wrong("limit.max", format!("is not from 1 to {MAX_AT_ONCE}"));
        }
        if let Some(Rate { max, per }) = given.rate {
            if max == 0 || max > MAX_STARTS {
                return wrong("limit.rate.max", format!("is not from 1 to {MAX_STARTS}"));
            }
            if per == 0 {
                return wrong("limit.rate.per", "is 0".to_owned());
            }
        }
        let key = given.key.as_deref().map(expression).transpose()?;
        if let Some(reason) = key.as_ref().and_then(fault) {
            return wrong("limit.key", reason);
        }
        let gap = |rate: Rate| (rate.per * 1_000).div_ceil(u64::from(rate.max));
        let limit = Limit { max: given.max, gap_us: given.rate.map(gap) };
        Ok(Self { service: service.to_owned(), key, limit })
    }

    /// The gate of an attempt, or why it has none.
    pub fn gate(&self, facts: &JobFacts, item: Option<&str>) -> Result<String, String> {
        let Some(key) = &self.key else { return Ok(self.service.clone()) };
        let json = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
        let wants = |name: &str| key.names().variables.contains(name);
        let sight = Sight {
            input: if wants("input") { json(&facts.payload) } else { Value::Null },
            item: item.filter(|_| wants("item")).map(json),
            tenant: Some(facts.tenant_id.clone()),
            ..Sight::default()
        };
        let value = match key.evaluate(&sight)? {
            Value::String(text) => text,
            value @ (Value::Number(_) | Value::Bool(_)) => value.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => {
                return Err("results in neither text nor a number nor true or false".to_owned());
            }
        };
        if value.len() > MAX_VALUE_BYTES || value.contains('\0') {
            return Err(format!("results in more than {MAX_VALUE_BYTES} bytes, or in a NUL"));
        }
        Ok(format!("{}[{} = {value}]", self.service, key.source()))
    }
}

/// Why an expression cannot be a key: it is asked for each attempt, before the attempt's turn has come.
fn fault(key: &Expression) -> Option<String> {
    let late = ["index", "turn"].into_iter().find(|name| key.names().variables.contains(*name));
    if key.source().len() > MAX_KEY_BYTES {
        Some(format!("is longer than {MAX_KEY_BYTES} bytes"))
    } else if let Some(name) = late {
        Some(format!("refers to {name}, a key only to input, tenant and item"))
    } else if !key.names().steps.is_empty() {
        Some("refers to steps, a key only to input, tenant and item".to_owned())
    } else if key.has_loops() {
        Some("has a loop".to_owned())
    } else if matches!(key.shape(), Shape::List | Shape::Map | Shape::Null) {
        Some("can never be text or a number".to_owned())
    } else {
        None
    }
}

/// A gate as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateView {
    /// So many are admitted and not over.
    pub admitted: u64,
    /// So many stand in line.
    pub waiting: u64,
    /// No start by a rate before this time.
    pub next_at: Option<Millis>,
}

/// The part of the store seam that knows of gates.
pub trait Gates: Send + Sync + 'static {
    /// Admits those that may start at these gates, the most urgent first, and says how many. Again is a no-op.
    fn admit(
        &self,
        engine: EngineNo,
        gates: Vec<String>,
    ) -> impl Future<Output = Answer<usize>> + Send;

    /// Gates behind this one, by name, at which somebody stands in line.
    fn lines(
        &self,
        after: Option<String>,
        limit: u32,
    ) -> impl Future<Output = Answer<Vec<String>>> + Send;

    /// How a gate stands.
    fn gate(&self, gate: &str) -> impl Future<Output = Answer<GateView>> + Send;
}
