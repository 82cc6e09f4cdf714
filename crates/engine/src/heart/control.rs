//! Control: the nodes that the engine does itself. They look at the graph and at what is stored, and have no
//! effect but their output; so they are attempts like any other, and a lost one is simply made again.

use std::sync::Arc;

use serde_json::{Map, Value};
use sprag_kernel::{Cause, Code};

use super::bench::EVALUATIONS;
use crate::directive::Failure;
use crate::engine::Pinned;
use crate::graph::keys::OnFailure;
use crate::graph::sight::has_failed;
use crate::graph::{Fan, Kind, Loop};
use crate::signals;
use crate::store::{Ended, Held, Store, StoreError};

/// How many control nodes an engine works on at a time.
pub(crate) const SLOTS: usize = 64;

/// The most failed branches that an error names.
const NAMED_FAILURES: usize = 5;

/// Does the work of a control node. A closer that wants another turn has no output.
pub(super) async fn run<S: Store>(
    store: Arc<S>,
    pinned: Arc<Pinned>,
    held: Held,
) -> Result<Option<Value>, Failure> {
    let node = pinned.graph.node(held.key.step_index);
    match &node.kind {
        Kind::Fan(fan) => open(pinned.clone(), fan.clone(), held).await.map(Some),
        Kind::Gather { fan } => gather(store.as_ref(), &pinned, (*fan, &held)).await.map(Some),
        Kind::Loop(closer) => turned(pinned.clone(), closer.clone(), held).await,
        Kind::Join => Ok(Some(join(&pinned, &held))),
        Kind::Begin { .. } | Kind::Sleep => Ok(Some(Value::Null)),
        Kind::Wait(wait, _) => {
            let found = store.signal_of(held.key.job_id, held.key.place()).await;
            let found =
                found.map_err(|error| Failure::retryable(Cause::SignalUnreadable.name(), error))?;
            signals::outcome(wait, found).map(Some)
        }
        Kind::Work | Kind::Job(..) | Kind::Exec(_) | Kind::Http(..) => Err(Failure::fatal(
            Cause::ControlUnknown.name(),
            "this engine does not run this kind of step",
        )),
    }
}

/// The items of a fan-out. An expression may take a second, so it is not evaluated among the calls.
async fn open(pinned: Arc<Pinned>, fan: Fan, held: Held) -> Result<Value, Failure> {
    let max_items = fan.max_items as usize;
    let items = evaluated(move || fan.items.list(&pinned.graph.sight(&held))).await?;
    if items.len() > max_items {
        let message = format!("{} items, {max_items} are allowed", items.len());
        return Err(Failure::fatal(Cause::TooManyItems.name(), message));
    }
    Ok(Value::Array(items))
}

/// Evaluates once there is a core for it.
async fn evaluated<T: Send + 'static>(
    evaluate: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, Failure> {
    let _core = EVALUATIONS.acquire().await;
    let value = tokio::task::spawn_blocking(evaluate).await;
    let value = value.map_err(|error| Failure::retryable(Cause::ExpressionLost.name(), error))?;
    value.map_err(|reason| Failure::fatal(Code::ExpressionFailed.name(), reason))
}

/// The output of the turn, if it is the last one. An expression may take a second, as above.
async fn turned(pinned: Arc<Pinned>, closer: Loop, held: Held) -> Result<Option<Value>, Failure> {
    let (turn, max) = (held.key.turn, closer.max);
    let end = pinned.graph.turn_end(&closer);
    let output = held.inputs.iter().find(|(seen, _)| *seen == end);
    let output = output.and_then(|(_, text)| serde_json::from_str(text).ok());
    match evaluated(move || closer.condition.holds(&pinned.graph.sight(&held))).await? {
        false => Ok(Some(output.unwrap_or(Value::Null))),
        true if turn + 1 < max => Ok(None),
        true => {
            let message = format!("{max} turns are allowed, and there is more to do");
            Err(Failure::fatal(Cause::TooManyTurns.name(), message))
        }
    }
}

/// The outputs of all branches in the order of their items, or the failure that they add up to.
async fn gather<S: Store>(
    store: &S,
    pinned: &Pinned,
    (fan, held): (u32, &Held),
) -> Result<Value, Failure> {
    let Kind::Fan(opener) = &pinned.graph.node(fan).kind else { unreachable!("it opens branches") };
    let items = held.inputs.iter().find(|(seen, _)| *seen == fan).map(|(_, text)| text.as_str());
    let items: Vec<&serde_json::value::RawValue> = serde_json::from_str(items.unwrap_or("[]"))
        .map_err(|error| Failure::retryable(Cause::ItemsUnreadable.name(), error))?;
    let count = u32::try_from(items.len()).expect("items are limited");
    let places = pinned.graph.gathered(held.key.place(), count);
    let places = places.into_iter().map(|place| (held.key.job_id, place)).collect();
    let ends = store
        .ends(places)
        .await
        .map_err(|error: StoreError| Failure::retryable(Cause::BranchesUnreadable.name(), error))?;
    if let Some(failure) = failed_branches(&ends, opener.on_failure) {
        return Err(failure);
    }
    Ok(Value::Array(ends.iter().map(|end| output(end.as_ref())).collect()))
}

fn output(end: Option<&Ended>) -> Value {
    let text = end.filter(|end| !has_failed(end)).and_then(|end| end.output.as_deref());
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null)
}

/// More failed branches than the fan-out bears.
fn failed_branches(ends: &[Option<Ended>], on_failure: OnFailure) -> Option<Failure> {
    let failed: Vec<(usize, &Ended)> = ends
        .iter()
        .enumerate()
        .filter_map(|(index, end)| Some((index, end.as_ref()?)))
        .filter(|(_, end)| has_failed(end))
        .collect();
    let tolerated = on_failure.tolerated().unwrap_or(0) as usize;
    if failed.len() <= tolerated {
        return None;
    }
    let named: Vec<String> = failed
        .iter()
        .take(NAMED_FAILURES)
        .map(|(index, end)| {
            let code = end.error.as_ref().map_or("failed", |error| error.code.as_str());
            format!("{index} ({code})")
        })
        .collect();
    let (count, all) = (failed.len(), ends.len());
    let message =
        format!("{count} of {all} branches failed, {tolerated} may: {}", named.join(", "));
    Some(Failure::fatal(Cause::BranchesFailed.name(), message))
}

/// The outputs of the nodes that a scope ends with, by name.
fn join(pinned: &Pinned, held: &Held) -> Value {
    let node = pinned.graph.node(held.key.step_index);
    let mut outputs = Map::new();
    for need in &node.needs {
        let name = pinned.graph.node(*need).publishes.as_ref();
        let found = held.inputs.iter().find(|(seen, _)| seen == need);
        let value = found.and_then(|(_, text)| serde_json::from_str(text).ok());
        outputs.extend(name.map(|name| (name.clone(), value.unwrap_or(Value::Null))));
    }
    Value::Object(outputs)
}
