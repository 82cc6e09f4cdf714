//! The part of the audit that compares the end of a job with the ends of its steps. Whether a failure was tolerated says
//! the protocol; the rest is said by the query.

use sprag_engine::ids::JobId;
use sprag_engine::store::Violation;

use crate::protocols::Protocols;

pub(crate) const NAME: &str = "42_end_that_its_steps_do_not_bear_out";
pub(crate) const SQL: &str = include_str!("../sql/audit/42_end_that_its_steps_do_not_bear_out.sql");

/// What was found of a job.
pub(crate) struct Found {
    pub(crate) job_id: JobId,
    pub(crate) detail: String,
    /// The protocol and the node, if it is a failure in a graph that has succeeded.
    pub(crate) failure: Option<(String, u32)>,
}

/// What is wrong with it, if anything is.
pub(crate) fn judge(protocols: &mut Protocols, found: Found) -> Option<Violation> {
    let Found { job_id, detail, failure } = found;
    let Some((protocol_id, node)) = failure else {
        return Some(Violation::of_job(job_id, detail));
    };
    let why = match protocols.graph(&protocol_id) {
        Ok(graph) if graph.nodes().len() <= node as usize => "of which there is no node".to_owned(),
        Ok(graph) if graph.scope_of(node).tolerates => return None,
        Ok(_) => "which nothing tolerates".to_owned(),
        Err(why) => why,
    };
    Some(Violation::of_job(job_id, format!("{detail}: {why}")))
}
