//! A batch step: many items in one step, computed in parallel, committed strictly in order, resumed where
//! they stopped.
//!
//! The items run on the lanes of [`sprag_lanes`], inside the attempt of the step. Each contiguous run of
//! outcomes is one commit of the store ([`store`]): the cursor is compared and moved, with the fence in the
//! same row, and one journal row holds the outcomes and outputs of the run. The last of them also stores the
//! message that ends the attempt, so that a batch is over exactly once. Whatever happens to the process, the
//! committed prefix stands; the next attempt reads the same items again, is refused if they are not the
//! same, and goes on at the cursor.
//!
//! [`keys`] is how a protocol asks for one, `run` the life of one, `sink` its commits, `items` where its
//! items come from, `journal` how outcomes are written down, [`output`] how they are read.

mod items;
mod journal;
pub mod keys;
pub mod output;
pub(crate) mod run;
mod sink;
pub mod store;

use std::sync::Arc;

use serde_json::Value;
use sprag_lanes::{Context, ErrorClass, Outcome};

/// One item, as its handler gets it.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its place among the items, from 0.
    pub seq: u64,
    /// The item.
    pub value: Value,
    /// Names the effect of the item, whichever attempt brings it about.
    pub effect_key: String,
}

/// What a handler makes of an item.
#[derive(Clone, Debug, PartialEq)]
pub enum ItemOutcome {
    /// Its output, at its place in the ordered output.
    Success(Value),
    /// Nothing to put out, for this reason.
    Skip(String),
}

/// Why an item failed. The class says whether another try may help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemFailure {
    /// What kind of failure.
    pub class: ErrorClass,
    /// What happened.
    pub message: String,
}

impl ItemFailure {
    /// A failure that may pass.
    pub fn transient(message: impl std::fmt::Display) -> Self {
        Self { class: ErrorClass::RetryableTransient, message: message.to_string() }
    }

    /// Work that was given up because the batch ends ([`ItemContext::should_end`]). In a stop the item has no outcome,
    /// whatever its retries, and the next attempt computes it again; in a cancel it is cancelled.
    pub fn given_up(message: impl std::fmt::Display) -> Self {
        Self { class: ErrorClass::NonRetryableCancellation, message: message.to_string() }
    }

    /// A failure that the item itself is the cause of.
    pub fn input(message: impl std::fmt::Display) -> Self {
        Self { class: ErrorClass::NonRetryableInput, message: message.to_string() }
    }
}

/// What a handler can ask while it works on an item.
pub struct ItemContext<'a>(&'a Context<'a>);

impl ItemContext<'_> {
    /// Retries of this item before this try, in this attempt of the step.
    pub fn retries(&self) -> u16 {
        self.0.attempts()
    }

    /// Whether the batch is stopping or being cancelled. Long work may return early,
    /// with [`ItemFailure::given_up`].
    pub fn should_end(&self) -> bool {
        self.0.should_end()
    }

    /// Brings the ledger of the run into a contradiction, as a defect of the runtime would: for tests of
    /// what becomes of the step then.
    #[doc(hidden)]
    pub fn break_ledger(&self) {
        self.0.break_ledger();
    }
}

/// A run of outcomes that one commit of a batch makes durable, as its output handler gets it.
#[derive(Clone, Debug)]
pub struct OutputRun {
    /// Names the effect of the step, whichever attempt brings it about; that of an item has its seq behind it.
    pub effect_key: String,
    /// Its seqs, in order, with what came out of each.
    pub items: Vec<output::OutputItem>,
}

/// What makes work for the transaction of a commit from what that commit puts out.
pub(crate) type OutputHandler<W> = Arc<dyn Fn(OutputRun) -> W + Send + Sync>;

type Compute = dyn Fn(Item, &ItemContext<'_>) -> Result<ItemOutcome, ItemFailure> + Send + Sync;

/// What computes the items of a batch service, and on how many threads.
#[derive(Clone)]
pub struct BatchHandler {
    pub(crate) threads: usize,
    compute: Arc<Compute>,
}

impl BatchHandler {
    /// A handler. It is called by several threads at once, and may block.
    pub fn new(
        threads: usize,
        compute: impl Fn(Item, &ItemContext<'_>) -> Result<ItemOutcome, ItemFailure>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { threads, compute: Arc::new(compute) }
    }

    /// Computes the item with this text.
    pub(crate) fn compute(
        &self,
        text: &str,
        effect: &str,
        context: &Context<'_>,
    ) -> Outcome<String> {
        let seq = context.seq();
        let value = match serde_json::from_str(text) {
            Ok(value) => value,
            Err(error) => return Outcome::Fail(ErrorClass::NonRetryableSchema, error.to_string()),
        };
        let item = Item { seq, value, effect_key: format!("{effect}/{seq}") };
        match (self.compute)(item, &ItemContext(context)) {
            Ok(ItemOutcome::Success(output)) => Outcome::Success(output.to_string()),
            Ok(ItemOutcome::Skip(reason)) => Outcome::Skip(reason),
            Err(failure) => Outcome::Fail(failure.class, failure.message),
        }
    }
}
