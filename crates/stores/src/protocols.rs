//! The protocols of a store, for the checks of the audit that need the graph: each text is read once, and compiled when
//! it is first asked for.

use std::collections::HashMap;

use sprag_engine::graph::Graph;
use sprag_engine::protocol::Protocol;

pub(crate) const SQL: &str = "SELECT protocol_id, definition FROM protocol";

pub(crate) struct Protocols {
    texts: HashMap<String, String>,
    graphs: HashMap<String, Option<Graph>>,
}

impl Protocols {
    /// Of these names and texts.
    pub(crate) fn of(texts: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { texts: texts.into_iter().collect(), graphs: HashMap::new() }
    }

    /// The graph of a protocol, or why there is none.
    pub(crate) fn graph(&mut self, protocol_id: &str) -> Result<&Graph, String> {
        if !self.graphs.contains_key(protocol_id) {
            let Some(text) = self.texts.get(protocol_id) else {
                return Err(format!("protocol {protocol_id:?} is not there"));
            };
            let graph = Protocol::read(text).and_then(|read| read.graph()).ok();
            self.graphs.insert(protocol_id.to_owned(), graph);
        }
        let graph = self.graphs.get(protocol_id).and_then(Option::as_ref);
        graph.ok_or_else(|| format!("protocol {protocol_id:?} cannot be read"))
    }
}
