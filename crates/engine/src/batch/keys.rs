//! The key `batch` of a step: which items, how many may fail, where the ordered output goes.

use serde::{Deserialize, Serialize};

use crate::expression::Expression;

/// The most threads of one batch.
pub const MAX_THREADS: u32 = 1_024;
/// The most retries of one item.
pub const MAX_RETRIES: u32 = 1_000;

/// A batch, as a protocol asks for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// An expression for the list of items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<String>,
    /// An expression for the path of a file with one item per line, as JSON, below the engine's files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// How many items may fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnItemFailure>,
    /// Where the ordered output goes; the table if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<Out>,
    /// On how many threads; as the service says if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Retries of one item in one attempt of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
}

/// What failed items mean to the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnItemFailure {
    /// Any of them fails it, once all items have an outcome.
    #[default]
    AnyFail,
    /// More than so many fail it.
    Tolerate(u64),
}

impl OnItemFailure {
    /// How many failed items the step bears.
    pub fn tolerated(self) -> u64 {
        match self {
            Self::AnyFail => 0,
            Self::Tolerate(most) => most,
        }
    }
}

/// Where the ordered output goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Out {
    /// The store's journal of the batch, read page by page.
    Table,
    /// The journal, and a file below the engine's files: an expression for its path.
    File(String),
    /// The journal, and what the service's output handler writes in the transaction of each commit.
    Handler,
}

impl Batch {
    /// A batch of the items of this expression, with everything else by default.
    pub fn of(items: &str) -> Self {
        let items = Some(items.to_owned());
        Self { items, file: None, on_failure: None, out: None, threads: None, retries: None }
    }

    /// What is wrong with it, besides its expressions: the key and the reason.
    pub(crate) fn fault(&self) -> Option<(&'static str, String)> {
        if self.items.is_some() == self.file.is_some() {
            return Some(("batch", "has neither items nor a file, or both".to_owned()));
        }
        for (field, given, least, most) in [
            ("batch.threads", self.threads, 1, MAX_THREADS),
            ("batch.retries", self.retries, 0, MAX_RETRIES),
        ] {
            if given.is_some_and(|given| given < least || given > most) {
                return Some((field, format!("is not from {least} to {most}")));
            }
        }
        None
    }
}

/// A batch with its expressions read.
#[derive(Clone, Debug)]
pub struct BatchPlan {
    /// Its items.
    pub items: ItemsPlan,
    /// How many of them may fail.
    pub tolerated: u64,
    /// The path of the output file, if there is one.
    pub out_file: Option<Expression>,
    /// Whether each commit brings along the work of the service's output handler.
    pub out_handler: bool,
    /// On how many threads, if not as the service says.
    pub threads: Option<u32>,
    /// Retries of one item, if not by default.
    pub retries: Option<u32>,
}

impl BatchPlan {
    /// What it asks for before it begins.
    pub fn expressions(&self) -> impl Iterator<Item = &Expression> {
        let (ItemsPlan::List(items) | ItemsPlan::File(items)) = &self.items;
        std::iter::once(items).chain(&self.out_file)
    }
}

/// Where the items of a batch come from.
#[derive(Clone, Debug)]
pub enum ItemsPlan {
    /// A list.
    List(Expression),
    /// The path of a file with one item per line.
    File(Expression),
}
