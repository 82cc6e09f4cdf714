//! What an evaluation may cost, counted while it is under way.
//!
//! Calls of functions that no expression can name are put into the tree, where values are copied: around what is
//! put into a list or a map, what is added up, what a loop goes over, and once into each round of a loop. Such a call
//! weighs its argument before the copy is made, and hands it on. Texts of what the job brought along are shared, not
//! copied, so they weigh nothing until they are added up or a result is written. What is left between two calls is
//! comparisons, bounded by the size of the tree and of the values; for these there is a clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};
use cel::common::types::{CelBytes, CelList, CelMap, CelString};
use cel::common::value::{CowVal, Val};
use cel::{ExecutionError, FunctionContext};

/// What one evaluation may copy and result in, in bytes. A fan-out of 100,000 small items fits several times.
pub const MAX_COST: u64 = 128 << 20;

/// What a value weighs by itself: its place, and what the allocator needs for it.
const VALUE: u64 = 64;

/// How long an evaluation may take. Only comparisons of large values in loops come near.
const MAX_TIME: Duration = Duration::from_secs(10);

/// The calls that weigh, by what becomes of the argument: one that keeps shared text shared, and one that reads or
/// copies it. No expression can name them: they are no identifiers.
pub(super) const CALLS: [&str; 2] = [KEEPS, READS];
const KEEPS: &str = "@keeps";
const READS: &str = "@reads";

/// A function as the evaluator wants it, which hands on its argument without a copy.
pub(super) type Function = Box<
    dyn for<'context, 'call> Fn(
            &mut FunctionContext<'context, 'call>,
        ) -> Result<CowVal<'context, 'call>, ExecutionError>
        + Send
        + Sync,
>;

/// What an evaluation has left.
#[derive(Debug)]
pub(super) struct Purse {
    left: AtomicU64,
    until: Instant,
}

impl Purse {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(MAX_COST), until: Instant::now() + MAX_TIME })
    }

    /// Takes so much, or all there is: whoever has spent everything gets nothing more.
    pub(super) fn take(&self, cost: u64) -> Result<(), String> {
        let left = self.left.load(Ordering::Relaxed);
        let rest = if Instant::now() > self.until { 0 } else { left.saturating_sub(cost) };
        self.left.store(rest, Ordering::Relaxed);
        self.check()
    }

    /// Says why there is nothing left: an error in an expression can be outvoted (`error || true`), this cannot.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.left.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        Err(if Instant::now() > self.until {
            format!("takes longer than {} seconds", MAX_TIME.as_secs())
        } else {
            format!("makes more than {MAX_COST} bytes on the way to its result")
        })
    }

    /// The calls that weigh.
    pub(super) fn function(self: Arc<Self>) -> Function {
        Box::new(move |call| {
            let value = call.args.pop().ok_or_else(|| call.error("weighs nothing"))?;
            let left = self.left.load(Ordering::Relaxed);
            let text = value.downcast_ref::<CelString>().filter(|_| call.name == READS);
            let cost = match text {
                Some(text) => VALUE + text.inner().len() as u64,
                None => weight(value.as_ref(), left),
            };
            self.take(cost).map_err(|reason| call.error(reason))?;
            Ok(value)
        })
    }
}

/// What a copy of a value weighs. Whoever is over the limit is not looked through any further.
fn weight(value: &dyn Val, limit: u64) -> u64 {
    let text = |len: usize, is_shared: bool| if is_shared { 0 } else { len as u64 };
    if let Some(string) = value.downcast_ref::<CelString>() {
        return VALUE + text(string.inner().len(), string.as_borrowed().is_some());
    }
    if let Some(bytes) = value.downcast_ref::<CelBytes>() {
        return VALUE + text(bytes.inner().len(), bytes.as_borrowed().is_some());
    }
    let mut sum = VALUE;
    if let Some(list) = value.downcast_ref::<CelList>() {
        for element in list.inner() {
            if sum > limit {
                break;
            }
            sum += weight(element.as_ref(), limit - sum);
        }
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        for (key, element) in map.inner() {
            if sum > limit {
                break;
            }
            sum += weight(key.inner(), limit);
            sum += weight(element.as_ref(), limit.saturating_sub(sum));
        }
    }
    sum
}

/// Puts the calls into a tree; says whether it has a loop.
pub(super) fn meter(node: &mut IdedExpr) -> bool {
    // Not `any`: each part is to be seen.
    match &mut node.expr {
        Expr::Comprehension(loops) => {
            meter_loop(loops);
            true
        }
        Expr::Call(call) => meter_call(call),
        Expr::Select(select) => meter(&mut select.operand),
        Expr::List(list) => list.elements.iter_mut().fold(false, kept),
        Expr::Map(map) => {
            map.entries.iter_mut().fold(false, |found, entry| match &mut entry.expr {
                EntryExpr::MapEntry(entry) => kept(kept(found, &mut entry.key), &mut entry.value),
                EntryExpr::StructField(field) => kept(found, &mut field.value),
            })
        }
        Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => false,
    }
}

/// Of a call, what copies its arguments or goes through them. A comparison stops at the first difference, and an
/// index or the size of a list looks at nothing: to weigh their arguments would cost more than they do.
fn meter_call(call: &mut CallExpr) -> bool {
    let is_operator = call.func_name.starts_with(['_', '!', '-', '@']);
    let weighs = call.func_name == "_+_" || !(is_operator || call.func_name == "size");
    let each = |found, part: &mut IdedExpr| {
        let has_loop = meter(part);
        if weighs {
            wrap(READS, part);
        }
        found | has_loop
    };
    let found = call.target.iter_mut().fold(false, |found, target| each(found, target));
    call.args.iter_mut().fold(found, each)
}

/// A round is counted where the evaluator still sees what kind of loop it is: one that only appends to a list
/// (`map`, `filter`) appends in place, if its condition is left as it is, and has a list made in each round.
fn meter_loop(loops: &mut ComprehensionExpr) {
    kept(false, &mut loops.iter_range);
    if !matches!(loops.accu_init.expr, Expr::List(_)) {
        let condition = std::mem::take(&mut loops.loop_cond);
        let mut round = literal_true();
        wrap(KEEPS, &mut round);
        loops.loop_cond = node("_&&_", vec![round, condition]);
        meter(&mut loops.loop_step);
        return;
    }
    let append = match &mut loops.loop_step.expr {
        Expr::Call(choice) if choice.func_name == "_?_:_" => {
            kept(false, &mut choice.args[0]);
            &mut choice.args[1]
        }
        _ => &mut loops.loop_step,
    };
    if let Expr::Call(append) = &mut append.expr {
        meter(&mut append.args[1]);
    }
}

/// Lets a part be weighed before it is kept in something larger.
fn kept(found: bool, part: &mut IdedExpr) -> bool {
    let has_loop = meter(part);
    wrap(KEEPS, part);
    found | has_loop
}

fn wrap(call: &str, part: &mut IdedExpr) {
    let inner = std::mem::take(part);
    *part = node(call, vec![inner]);
}

fn node(func_name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    let call = CallExpr { func_name: func_name.to_owned(), target: None, args };
    IdedExpr { id: 0, expr: Expr::Call(call) }
}

fn literal_true() -> IdedExpr {
    IdedExpr { id: 0, expr: Expr::Literal(LiteralValue::Boolean(true.into())) }
}
