//! The HTTP reference, made from the OpenAPI document of this very binary.

use std::fmt::Write as _;

use serde_json::Value;

use super::ORIGIN;

/// The page.
pub(super) fn page() -> String {
    let document = serde_json::to_value(sprag_server::app::openapi()).expect("it has string keys");
    let mut text = format!(
        "# HTTP\n\n{ORIGIN}\n\n\
         JSON over HTTP/1.1 or 2. Every call but `/healthz` carries `Authorization: Bearer TOKEN`. A refusal is problem\n\
         details (RFC 9457, `application/problem+json`) with a stable `error_code` and `fields`; [errors.md](errors.md)\n\
         lists the codes. A call that is repeated with the same content is answered as the first one was. `GET\n\
         /openapi.json` at a server is what this page is made from.\n"
    );
    let operations = operations(&document);
    let mut tags = Vec::new();
    for operation in &operations {
        if !tags.contains(&operation.tag) {
            tags.push(operation.tag);
        }
    }
    for tag in tags {
        put!(text, "\n## {tag}");
        for operation in operations.iter().filter(|operation| operation.tag == tag) {
            section(operation, &mut text);
        }
    }
    put!(text, "\n## Shapes");
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        shape(name, schema, &mut text);
    }
    text
}

struct Operation<'a> {
    tag: &'a str,
    method: String,
    path: &'a str,
    spec: &'a Value,
}

fn operations(document: &Value) -> Vec<Operation<'_>> {
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        for (method, spec) in methods.as_object().into_iter().flatten() {
            let tag = spec["tags"][0].as_str().unwrap_or("others");
            all.push(Operation { tag, method: method.to_uppercase(), path, spec });
        }
    }
    all
}

fn section(operation: &Operation<'_>, text: &mut String) {
    put!(text, "\n### {} {}\n", operation.method, operation.path);
    let said = |name: &str| operation.spec[name].as_str().map(one_line);
    put!(text, "{}\n", said("description").or(said("summary")).unwrap_or_default());
    let scopes = operation.spec["security"][0]["token"].as_array().into_iter().flatten();
    for scope in scopes.filter_map(Value::as_str) {
        put!(text, "- needs the scope `{scope}`");
    }
    for parameter in operation.spec["parameters"].as_array().into_iter().flatten() {
        let part = |name: &str| parameter[name].as_str().unwrap_or_default();
        put!(text, "- `{}` ({}): {}", part("name"), part("in"), one_line(part("description")));
    }
    for (kind, content) in
        operation.spec["requestBody"]["content"].as_object().into_iter().flatten()
    {
        put!(text, "- body, `{kind}`: {}", type_of(&content["schema"]));
    }
    for (status, answer) in operation.spec["responses"].as_object().into_iter().flatten() {
        let what = one_line(answer["description"].as_str().unwrap_or_default());
        let content = answer["content"].as_object().and_then(|content| content.iter().next());
        let shape = content.map(|(_, content)| type_of(&content["schema"])).unwrap_or_default();
        if status != "default" {
            put!(text, "- answers {status}: {what}: {shape}");
        }
    }
}

fn shape(name: &str, schema: &Value, text: &mut String) {
    put!(text, "\n### {name}\n");
    if let Some(description) = schema["description"].as_str() {
        put!(text, "{}\n", one_line(description));
    }
    if schema["properties"].is_null() {
        put!(text, "{}", type_of(schema));
        return;
    }
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    put!(text, "| field | type | what |\n|---|---|---|");
    for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
        let needed = if required.contains(&field.as_str().into()) { "" } else { ", optional" };
        let what = one_line(schema["description"].as_str().unwrap_or_default());
        put!(text, "| `{field}` | {}{needed} | {what} |", type_of(schema));
    }
}

/// A schema in a word or two.
fn type_of(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(choices) = schema["oneOf"].as_array().or(schema["anyOf"].as_array()) {
        let kinds = choices.iter().filter(|choice| choice["type"] != "null").map(type_of);
        return kinds.collect::<Vec<_>>().join(" or ");
    }
    match &schema["type"] {
        Value::String(kind) if kind == "array" => format!("list of {}", type_of(&schema["items"])),
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => {
            let kinds = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null");
            kinds.collect::<Vec<_>>().join(" or ")
        }
        _ => "anything".to_owned(),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
