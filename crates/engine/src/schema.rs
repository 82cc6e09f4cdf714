//! JSON Schemas of protocols: read when a protocol is checked, asked when a payload comes.
//!
//! A schema is whole in itself: a reference to anything outside of it is a mistake in the protocol, found
//! when that is registered, so no payload ever makes the engine open a file or an address. Patterns are
//! those that take linear time. What does not fit is told by its place; the payload itself is not repeated,
//! for it may be large or a secret.

use std::error::Error;
use std::sync::Arc;

use jsonschema::{PatternOptions, Retrieve, Uri, Validator};
use serde_json::Value;
use sprag_kernel::{Code, Refusal};

/// The largest schema, as text.
pub const MAX_SCHEMA_BYTES: usize = 64 * 1024;

/// A schema that can be asked.
#[derive(Clone, Debug)]
pub struct Schema(Arc<Validator>);

impl Schema {
    /// Reads a schema, or says what is wrong with it.
    pub fn read(schema: &Value) -> Result<Self, String> {
        let bytes = schema.to_string().len();
        if bytes > MAX_SCHEMA_BYTES {
            return Err(format!("has {bytes} bytes, {MAX_SCHEMA_BYTES} are allowed"));
        }
        jsonschema::options()
            .with_retriever(Nothing)
            .with_pattern_options(PatternOptions::regex())
            .build(schema)
            .map(|validator| Self(Arc::new(validator)))
            .map_err(|error| format!("is no JSON Schema that can be used: {error}"))
    }

    /// Refuses a payload that does not fit, naming the first place where.
    pub fn check(&self, payload: &Value) -> Result<(), Refusal> {
        let Some(misfit) = self.0.iter_errors(payload).next() else { return Ok(()) };
        Err(Refusal::new(Code::PayloadInvalid)
            .with("pointer", misfit.instance_path().to_string())
            .with("reason", misfit.masked().to_string()))
    }

    /// The same for JSON text.
    pub fn check_text(&self, payload: &str) -> Result<(), Refusal> {
        self.check(&serde_json::from_str(payload).unwrap_or(Value::Null))
    }
}

/// What is found outside of a schema.
struct Nothing;

impl Retrieve for Nothing {
    fn retrieve(&self, _: &Uri<String>) -> Result<Value, Box<dyn Error + Send + Sync>> {
        Err("a schema may refer to nothing outside of it".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_misfit_is_told_by_its_place_without_the_value() {
        let schema = json!({"type": "object", "required": ["pages"],
            "properties": {"pages": {"type": "array", "items": {"type": "integer"}}}});
        let schema = Schema::read(&schema).unwrap();
        schema.check(&json!({"pages": [1, 2]})).unwrap();
        let refusal = schema.check(&json!({"pages": [1, "secret"]})).unwrap_err();
        assert_eq!(refusal.code(), Code::PayloadInvalid);
        assert_eq!(refusal.field("pointer"), Some(&"/pages/1".into()));
        assert!(!refusal.to_string().contains("secret"), "{refusal}");
        assert_eq!(schema.check_text("7").unwrap_err().field("pointer"), Some(&"".into()));
    }

    #[test]
    fn what_is_no_schema_or_refers_to_something_outside_is_refused() {
        for (schema, says) in [
            (json!({"type": "objekt"}), "objekt"),
            (json!({"$ref": "https://example.org/schema.json"}), "nothing outside"),
            (json!({"properties": {"a": {"$ref": "file:///etc/hostname"}}}), "nothing outside"),
            (json!({"$schema": "https://example.org/own"}), "own"),
            (json!({"pattern": "(?=a)"}), "regex"),
            (json!({"description": "x".repeat(MAX_SCHEMA_BYTES)}), "are allowed"),
        ] {
            let reason = Schema::read(&schema).unwrap_err();
            assert!(reason.contains(says), "{reason}");
        }
    }

    #[test]
    fn a_schema_may_refer_to_itself() {
        let tree = json!({"$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "$ref": "#/$defs/tree"});
        let tree = Schema::read(&tree).unwrap();
        tree.check(&json!([[], [[]]])).unwrap();
        assert_eq!(
            tree.check(&json!([[], [1]])).unwrap_err().field("pointer"),
            Some(&"/1/0".into())
        );
        Schema::read(&json!({"$ref": "#"})).unwrap().check(&json!({"any": "thing"})).unwrap();
    }
}
