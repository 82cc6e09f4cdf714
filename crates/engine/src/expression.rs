//! Expressions: CEL over what a step can see, checked when the protocol is read and bounded when evaluated.
//!
//! An expression sees `input` (what the job was submitted with), its `tenant`, `steps.NAME.output` of steps that
//! are over when it is asked, `item` and `index` in a fan-out, `turn` in a cycle. It can do nothing but compute. Its
//! cost has limits: of the text and the tree when it is read; of the rounds of its loops, counted by a call
//! that is put into each loop's condition, and of the result when it is evaluated. What is left is linear
//! in the values it is given.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue};
use cel::objects::{Key, Map};
use cel::parser::PrattParser;
use cel::{Context, ExecutionError, Value};
use serde_json::Value as Json;

/// The longest expression, in bytes.
pub const MAX_BYTES: usize = 4_096;
/// The deepest tree: evaluation recurses.
pub const MAX_DEPTH: usize = 48;
/// The most nodes of the tree.
const MAX_NODES: usize = 1_000;
/// The most rounds of all loops of one evaluation.
pub const MAX_ROUNDS: u32 = 1_000_000;
/// The largest result, in bytes of JSON.
pub const MAX_RESULT_BYTES: usize = 64 << 20;

/// The call that counts a round. No expression can name it: it is no identifier.
const ROUND: &str = "@round";

/// The functions that an expression may call, besides operators and the loops (`all`, `exists`, `map`...).
const FUNCTIONS: [&str; 16] = [
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "string",
    "int",
    "uint",
    "double",
    "bool",
    "bytes",
    "type",
    "dyn",
    "max",
    "min",
    "has",
];

/// A checked expression.
#[derive(Clone, Debug)]
pub struct Expression {
    source: String,
    tree: Arc<IdedExpr>,
    names: Names,
    has_loops: bool,
}

/// What an expression refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Of the variables `input`, `tenant`, `item`, `index` and `turn`.
    pub variables: BTreeSet<String>,
    /// The steps whose output it reads.
    pub steps: BTreeSet<String>,
}

/// What an expression can be seen to result in without being evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// True or false.
    Truth,
    /// A list.
    List,
    /// A number, text, bytes or null.
    Scalar,
    /// A map.
    Map,
    /// Known only once it is evaluated.
    Unknown,
}

/// What an evaluation sees.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    /// What the job was submitted with.
    pub input: Json,
    /// Whose job it is.
    pub tenant: Option<String>,
    /// The outputs of earlier steps, null for one that was skipped.
    pub steps: BTreeMap<String, Json>,
    /// The item of the branch.
    pub item: Option<Json>,
    /// Its place in the fan-out, from 0.
    pub index: Option<u32>,
    /// The turn of the cycle, from 0.
    pub turn: Option<u32>,
}

impl Expression {
    /// Reads an expression; says what is wrong with it.
    pub fn read(source: &str) -> Result<Self, String> {
        if source.len() > MAX_BYTES {
            return Err(format!("is longer than {MAX_BYTES} bytes"));
        }
        let parser =
            PrattParser::new().max_recursion_depth(48).max_expression_node_count(MAX_NODES);
        let mut tree = parser.parse(source).map_err(|errors| one_line(&errors.to_string()))?;
        let mut names = Names::default();
        look(&tree, &mut Vec::new(), &mut names, 0)?;
        let has_loops = meter(&mut tree);
        Ok(Self { source: source.to_owned(), tree: Arc::new(tree), names, has_loops })
    }

    /// As it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What it refers to.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Whether it goes over lists, which may take a while.
    pub fn has_loops(&self) -> bool {
        self.has_loops
    }

    /// What it can be seen to result in.
    pub fn shape(&self) -> Shape {
        match &self.tree.expr {
            Expr::List(_) => Shape::List,
            Expr::Map(_) => Shape::Map,
            Expr::Literal(LiteralValue::Boolean(_)) => Shape::Truth,
            Expr::Literal(_) => Shape::Scalar,
            Expr::Call(call) => shape_of_call(&call.func_name),
            Expr::Comprehension(_)
            | Expr::Ident(_)
            | Expr::Select(_)
            | Expr::Struct(_)
            | Expr::Unspecified => Shape::Unknown,
        }
    }

    /// Evaluates it; says why it has no value.
    pub fn evaluate(&self, sight: &Sight) -> Result<Json, String> {
        let left = AtomicU32::new(MAX_ROUNDS);
        let round = move || -> Result<bool, ExecutionError> {
            let take = |left: u32| left.checked_sub(1);
            match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
                Ok(_) => Ok(true),
                Err(_) => Err(ExecutionError::function_error("loop", "too many rounds")),
            }
        };
        let mut context = Context::default();
        context.add_function(ROUND, round).map_err(|error| error.to_string())?;
        for (name, value) in sight.variables(&self.names) {
            context.add_variable(name, value).map_err(|error| error.to_string())?;
        }
        let value = Value::resolve(&self.tree, &context).map_err(|e| one_line(&e.to_string()))?;
        let json =
            value.json().map_err(|_| "results in something that JSON cannot hold".to_owned())?;
        if json.to_string().len() > MAX_RESULT_BYTES {
            return Err(format!("results in more than {MAX_RESULT_BYTES} bytes"));
        }
        Ok(json)
    }

    /// Evaluates a condition.
    pub fn holds(&self, sight: &Sight) -> Result<bool, String> {
        match self.evaluate(sight)? {
            Json::Bool(holds) => Ok(holds),
            other => Err(format!("results in {}, not in true or false", kind(&other))),
        }
    }

    /// Evaluates a list.
    pub fn list(&self, sight: &Sight) -> Result<Vec<Json>, String> {
        match self.evaluate(sight)? {
            Json::Array(items) => Ok(items),
            other => Err(format!("results in {}, not in a list", kind(&other))),
        }
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Sight {
    /// The variables that an expression with these names needs, and no others: a value that nobody looks
    /// at is not converted.
    fn variables(&self, names: &Names) -> Vec<(&'static str, Value)> {
        let mut variables = Vec::new();
        let wanted = |name: &str| names.variables.contains(name);
        if wanted("input") {
            variables.push(("input", value_of(&self.input)));
        }
        if wanted("tenant") {
            let tenant = self.tenant.clone().map_or(Value::Null, |name| Value::String(name.into()));
            variables.push(("tenant", tenant));
        }
        if wanted("item") {
            variables.push(("item", value_of(self.item.as_ref().unwrap_or(&Json::Null))));
        }
        for (name, number) in [("index", self.index), ("turn", self.turn)] {
            if wanted(name) {
                variables.push((name, number.map_or(Value::Null, |n| Value::Int(n.into()))));
            }
        }
        let steps = names.steps.iter().map(|name| {
            let output = self.steps.get(name).map_or(Value::Null, value_of);
            (text(name), Value::Map(map([(text("output"), output)])))
        });
        variables.push(("steps", Value::Map(map(steps))));
        variables
    }
}

fn shape_of_call(function: &str) -> Shape {
    match function {
        "_&&_" | "_||_" | "!_" | "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" | "@in"
        | "contains" | "startsWith" | "endsWith" | "matches" | "bool" => Shape::Truth,
        "_-_" | "_*_" | "_/_" | "_%_" | "-_" | "size" | "int" | "uint" | "double" | "string" => {
            Shape::Scalar
        }
        _ => Shape::Unknown,
    }
}

/// Walks the tree: its depth, its functions, and what it refers to. `own` are the variables of loops.
fn look(
    node: &IdedExpr,
    own: &mut Vec<String>,
    names: &mut Names,
    depth: usize,
) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("is nested deeper than {MAX_DEPTH}"));
    }
    if let Some(step) = step_output(node)? {
        names.steps.insert(step.to_owned());
        return Ok(());
    }
    let depth = depth + 1;
    match &node.expr {
        Expr::Ident(name) => look_at_name(name, own, names),
        Expr::Select(select) => look(&select.operand, own, names, depth),
        Expr::Call(call) => {
            look_at_function(call)?;
            let parts = call.target.iter().map(AsRef::as_ref).chain(&call.args);
            parts.into_iter().try_for_each(|part| look(part, own, names, depth))
        }
        Expr::List(list) => list.elements.iter().try_for_each(|e| look(e, own, names, depth)),
        Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => {
                look(&entry.key, own, names, depth)?;
                look(&entry.value, own, names, depth)
            }
            EntryExpr::StructField(field) => look(&field.value, own, names, depth),
        }),
        Expr::Comprehension(loops) => {
            look(&loops.iter_range, own, names, depth)?;
            look(&loops.accu_init, own, names, depth)?;
            let outside = own.len();
            own.extend([loops.iter_var.clone(), loops.accu_var.clone()]);
            own.extend(loops.iter_var2.clone());
            for part in [&loops.loop_cond, &loops.loop_step, &loops.result] {
                look(part, own, names, depth)?;
            }
            own.truncate(outside);
            Ok(())
        }
        Expr::Literal(_) => Ok(()),
        Expr::Struct(_) | Expr::Unspecified => Err("makes a typed message".to_owned()),
    }
}

/// `steps.NAME.output` or `steps["NAME"].output`.
fn step_output(node: &IdedExpr) -> Result<Option<&str>, String> {
    let is_steps = |node: &IdedExpr| matches!(&node.expr, Expr::Ident(name) if name == "steps");
    let advice = || "reads steps in another way than steps.NAME.output".to_owned();
    let (name, whole) = match &node.expr {
        Expr::Ident(name) if name == "steps" => return Err(advice()),
        Expr::Select(outer) => match &outer.operand.expr {
            Expr::Select(inner) if is_steps(&inner.operand) => (inner.field.as_str(), outer),
            Expr::Call(call) if call.func_name == "_[_]" && is_steps(&call.args[0]) => {
                let Expr::Literal(LiteralValue::String(name)) = &call.args[1].expr else {
                    return Err(advice());
                };
                (name.inner(), outer)
            }
            _ => return Ok(None),
        },
        _ => return Ok(None),
    };
    if whole.field == "output" { Ok(Some(name)) } else { Err(advice()) }
}

fn look_at_name(name: &str, own: &[String], names: &mut Names) -> Result<(), String> {
    if own.iter().any(|known| known == name) {
        return Ok(());
    }
    match name {
        "input" | "tenant" | "item" | "index" | "turn" => {
            names.variables.insert(name.to_owned());
            Ok(())
        }
        // What `type(x) == ...` is compared with.
        "bool" | "int" | "uint" | "double" | "string" | "bytes" | "list" | "map" => Ok(()),
        other => Err(format!(
            "refers to {other}, which is not input, tenant, steps, item, index or turn"
        )),
    }
}

fn look_at_function(call: &CallExpr) -> Result<(), String> {
    let name = call.func_name.as_str();
    let is_operator = name.starts_with(['_', '!', '-', '@']);
    if is_operator || FUNCTIONS.contains(&name) {
        return Ok(());
    }
    Err(format!("calls {name}, which does not exist"))
}

/// Puts a count into the condition of every loop; says whether there is one.
fn meter(node: &mut IdedExpr) -> bool {
    // Not `any`: each part is to be seen.
    let all = |found: bool, part: &mut IdedExpr| meter(part) | found;
    match &mut node.expr {
        Expr::Comprehension(loops) => {
            let call = |func_name: &str, args| IdedExpr {
                id: 0,
                expr: Expr::Call(CallExpr { func_name: func_name.to_owned(), target: None, args }),
            };
            for part in [&mut loops.iter_range, &mut loops.loop_step, &mut loops.result] {
                meter(part);
            }
            let condition = std::mem::take(&mut loops.loop_cond);
            loops.loop_cond = call("_&&_", vec![call(ROUND, Vec::new()), condition]);
            true
        }
        Expr::Call(call) => {
            let found = call.target.iter_mut().fold(false, |found, target| all(found, target));
            call.args.iter_mut().fold(found, all)
        }
        Expr::Select(select) => meter(&mut select.operand),
        Expr::List(list) => list.elements.iter_mut().fold(false, all),
        Expr::Map(map) => {
            map.entries.iter_mut().fold(false, |found, entry| match &mut entry.expr {
                EntryExpr::MapEntry(entry) => all(all(found, &mut entry.key), &mut entry.value),
                EntryExpr::StructField(field) => all(found, &mut field.value),
            })
        }
        Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => false,
    }
}

/// JSON as CEL sees it: whole numbers are `int`, so that they can be compared and added with literals.
fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(truth) => Value::Bool(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Value::Int(whole),
            (None, Some(large)) => Value::UInt(large),
            (None, None) => number.as_f64().map_or(Value::Null, Value::Float),
        },
        Json::String(text) => Value::String(Arc::new(text.clone())),
        Json::Array(items) => Value::List(Arc::new(items.iter().map(value_of).collect())),
        Json::Object(members) => {
            Value::Map(map(members.iter().map(|(name, value)| (text(name), value_of(value)))))
        }
    }
}

fn text(name: &str) -> Key {
    Key::String(Arc::new(name.to_owned()))
}

fn map(entries: impl IntoIterator<Item = (Key, Value)>) -> Map {
    Map { map: Arc::new(entries.into_iter().collect::<HashMap<_, _>>()) }
}

fn kind(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "true or false",
        Json::Number(_) => "a number",
        Json::String(_) => "text",
        Json::Array(_) => "a list",
        Json::Object(_) => "a map",
    }
}

/// The first line of a message, without what a terminal would show below it.
fn one_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().trim().chars().take(300).collect()
}
