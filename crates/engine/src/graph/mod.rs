//! The graph under a protocol: a flat list of nodes, each with its scope, what it waits for, and what it can
//! see.
//!
//! A node is what attempts are made of: its index is the `step_index` of their rows. Most steps are one
//! node. A step that opens a scope (`for_each`, `repeat`) is several: an opener, the nodes of the scope, and
//! a closer, which has the step's output. Openers and closers are activities like any other, done by the
//! engine itself ([`CONTROL`]).
//!
//! Which rows a scope is born with, which node waits for how many others, and which row of which branch an
//! end is told to, is arithmetic on this list: [`place`]. A protocol without any of the keys of a graph
//! compiles to its steps, one node each, in their order.

mod compile;
pub mod duties;
pub mod keys;
pub mod place;
pub mod show;
pub mod sight;
#[cfg(test)]
mod tests;

use sprag_kernel::retry::{Millis, RetryPolicy};

use crate::batch::keys::BatchPlan;
use crate::expression::Expression;
use crate::gate::GatePlan;
use crate::schema::Schema;
use keys::{Child, Exec, Http, OnFailure, Wait};

/// The service of openers, closers, waits and sleeps: every engine that knows a graph serves it.
pub const CONTROL: &str = "sprag.control";
/// The service of steps that run a command.
pub const EXEC: &str = "sprag.exec";
/// The service of steps that make an HTTP request.
pub const HTTP: &str = "sprag.http";
/// Names of services that begin so belong to Sprag.
pub const RESERVED: &str = "sprag.";

/// How deep fan-outs may be nested: a path of branches is one number.
pub const MAX_DEPTH: u32 = 3;
/// The most items of a fan-out, whatever it asks for.
pub const MAX_ITEMS: u32 = 1_000_000;
/// The most items of a fan-out that asks for nothing else.
pub const DEFAULT_ITEMS: u32 = 100_000;
/// The most turns of a cycle.
pub const MAX_TURNS: u32 = 1_000_000;

/// A compiled protocol.
#[derive(Clone, Debug)]
pub struct Graph {
    nodes: Vec<Node>,
    scopes: Vec<Scope>,
    is_sequence: bool,
}

/// One activity.
#[derive(Clone, Debug)]
pub struct Node {
    /// What its rows are called.
    pub step_id: String,
    /// The name under which its output can be read.
    pub publishes: Option<String>,
    /// The kind of work.
    pub step_type: String,
    /// Who does it.
    pub service: String,
    /// What it is.
    pub kind: Kind,
    /// The scope it belongs to.
    pub scope: usize,
    /// The nodes of its scope that it waits for.
    pub needs: Vec<u32>,
    /// The nodes of its scope that wait for it.
    pub followers: Vec<u32>,
    /// The nodes whose output it can read: what is over when it begins, here and in the scopes around it.
    pub sees: Vec<u32>,
    /// What the payload must look like.
    pub payload_schema: Option<Schema>,
    /// Its items, if it is a batch.
    pub batch: Option<BatchPlan>,
    /// Where it waits until it may start.
    pub gate: Option<GatePlan>,
    /// It is skipped unless this holds.
    pub when: Option<Expression>,
    /// From its activation to the time it is due.
    pub delay_ms: Millis,
    /// When it is tried again, and how long one attempt may take.
    pub policy: RetryPolicy,
    /// Higher goes first.
    pub priority: i32,
}

/// What a node is.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A worker of its service does it.
    Work,
    /// Opens a fan-out: one branch per item.
    Fan(Fan),
    /// Closes a fan-out: its output is the outputs of the branches in the order of the items.
    Gather {
        /// The opener.
        fan: u32,
    },
    /// Opens a cycle.
    Begin {
        /// The scope of its turns.
        scope: usize,
    },
    /// Closes a cycle, or has it run another turn. Its output is that of the last turn.
    Loop(Loop),
    /// Ends a scope that has several last nodes; its output is theirs, by name.
    Join,
    /// Waits for a signal, with the schema of its payload.
    Wait(Wait, Option<Schema>),
    /// Waits for its time.
    Sleep,
    /// A child job, and the expression for its payload.
    Job(Child, Expression),
    /// A command.
    Exec(Exec),
    /// An HTTP request, and the expression for its body.
    Http(Http, Option<Expression>),
}

/// The opener of a fan-out.
#[derive(Clone, Debug)]
pub struct Fan {
    /// One branch for each of these.
    pub items: Expression,
    /// The most of them.
    pub max_items: u32,
    /// How many branches may be open at a time.
    pub max_parallel: Option<u32>,
    /// What a failed branch means.
    pub on_failure: OnFailure,
    /// The scope of the branches.
    pub scope: usize,
}

/// The closer of a cycle.
#[derive(Clone, Debug)]
pub struct Loop {
    /// Another turn while this holds.
    pub condition: Expression,
    /// The most turns.
    pub max: u32,
    /// From one turn to the next.
    pub delay_ms: Millis,
    /// The scope of the turns.
    pub scope: usize,
}

/// Nodes that are born together.
#[derive(Clone, Debug)]
pub struct Scope {
    /// What opens it.
    pub kind: ScopeKind,
    /// The scope around it; itself for the job.
    pub outer: usize,
    /// Its nodes, closers aside: those are born with the scope they close.
    pub nodes: Vec<u32>,
    /// How many fan-outs are around its nodes.
    pub depth: u32,
    /// Whether its nodes are inside a cycle.
    pub in_cycle: bool,
    /// Whether a failure inside is counted by the fan-out around it instead of failing the job.
    pub tolerates: bool,
}

/// What a scope is opened by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeKind {
    /// The job itself.
    Job,
    /// A fan-out, branch by branch.
    Branches {
        /// Its opener.
        fan: u32,
        /// Its closer.
        gather: u32,
        /// The node that ends a branch.
        end: u32,
    },
    /// A cycle, turn by turn.
    Turns {
        /// Its opener.
        begin: u32,
        /// Its closer.
        closer: u32,
        /// The node that ends a turn.
        end: u32,
    },
}

impl Graph {
    /// Every node, by its index.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node with this index.
    pub fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    /// Every scope; the first is the job.
    pub fn scopes(&self) -> &[Scope] {
        &self.scopes
    }

    /// The scope of a node.
    pub fn scope_of(&self, index: u32) -> &Scope {
        &self.scopes[self.node(index).scope]
    }

    /// Whether it is a sequence, one step after the other, without any key of a graph.
    pub fn is_sequence(&self) -> bool {
        self.is_sequence
    }
}
