//! Expressions: CEL over what a step can see, checked when the protocol is read and bounded when evaluated.
//!
//! An expression sees `input` (what the job was submitted with), its `tenant`, `steps.NAME.output` of steps that
//! are over when it is asked, `item` and `index` in a fan-out, `turn` in a cycle. It can do nothing but compute. Its
//! cost has limits: of the text and the tree when it is read; of what it copies, of its result and of its time while
//! it is evaluated (`meter.rs`). What it sees is lent to it, not copied.

mod meter;
mod shape;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue};
use cel::common::types::{
    CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt,
};
use cel::common::value::Val;
use cel::parser::PrattParser;
use cel::{Context, Env, Value};
use serde_json::Value as Json;

use meter::{CALLS, Function, Purse, meter};

pub use meter::MAX_COST;
pub use shape::Shape;

/// The longest expression, in bytes.
pub const MAX_BYTES: usize = 4_096;
/// The deepest tree: evaluation recurses.
pub const MAX_DEPTH: usize = 48;
/// The most nodes of the tree.
const MAX_NODES: usize = 1_000;

/// What the language brings along.
static STANDARD: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

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
    shape: Shape,
    has_loops: bool,
}

/// What an expression refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Of the variables `input`, `tenant`, `item`, `index` and `turn`.
    pub variables: BTreeSet<String>,
    /// The steps whose output it reads.
    pub steps: BTreeSet<String>,
    /// Whether it looks for patterns, which are made anew each time.
    pub patterns: bool,
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
        let shape = shape::shape(&tree)?;
        let has_loops = meter(&mut tree);
        Ok(Self { source: source.to_owned(), tree: Arc::new(tree), names, shape, has_loops })
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

    /// Whether it takes no while: what is left without loops and patterns is a few comparisons.
    pub fn is_quick(&self) -> bool {
        !self.has_loops && !self.names.patterns
    }

    /// What it can be seen to result in.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Evaluates it; says why it has no value.
    pub fn evaluate(&self, sight: &Sight) -> Result<Json, String> {
        let purse = Purse::new();
        let mut context = Context::with_env(STANDARD.clone());
        for name in CALLS {
            let weigh = purse.clone().function();
            context.add_function::<Function, _>(name, weigh).map_err(|error| error.to_string())?;
        }
        for (name, value) in sight.variables(&self.names) {
            context.add_variable_as_val(name, value);
        }
        let value = Value::resolve_val(&self.tree, &context);
        purse.check()?;
        json_of(value.map_err(|error| one_line(&error.to_string()))?.as_ref(), &purse)
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
    fn variables<'v>(&'v self, names: &'v Names) -> Vec<(&'static str, Box<dyn Val + 'v>)> {
        let mut variables: Vec<(&'static str, Box<dyn Val + 'v>)> = Vec::new();
        let wanted = |name: &str| names.variables.contains(name);
        if wanted("input") {
            variables.push(("input", value_of(&self.input)));
        }
        if wanted("tenant") {
            let tenant = self.tenant.as_deref().map_or_else(null, text);
            variables.push(("tenant", tenant));
        }
        if wanted("item") {
            variables.push(("item", self.item.as_ref().map_or_else(null, value_of)));
        }
        for (name, number) in [("index", self.index), ("turn", self.turn)] {
            if wanted(name) {
                variables
                    .push((name, number.map_or_else(null, |n| boxed(CelInt::from(i64::from(n))))));
            }
        }
        let steps = names.steps.iter().map(|name| {
            let output = self.steps.get(name).map_or_else(null, value_of);
            (name.as_str(), map([("output", output)]))
        });
        variables.push(("steps", map(steps)));
        variables
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
            names.patterns |= call.func_name == "matches";
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

/// JSON as CEL sees it: whole numbers are `int`, so that they can be compared and added with literals.
fn value_of(json: &Json) -> Box<dyn Val + '_> {
    match json {
        Json::Null => null(),
        Json::Bool(truth) => boxed(CelBool::from(*truth)),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => boxed(CelInt::from(whole)),
            (None, Some(large)) => boxed(CelUInt::from(large)),
            (None, None) => number.as_f64().map_or_else(null, |real| boxed(CelDouble::from(real))),
        },
        Json::String(string) => text(string),
        Json::Array(items) => boxed(CelList::from(items.iter().map(value_of).collect::<Vec<_>>())),
        Json::Object(members) => {
            map(members.iter().map(|(name, value)| (name.as_str(), value_of(value))))
        }
    }
}

fn boxed<'v>(value: impl Val + 'v) -> Box<dyn Val + 'v> {
    Box::new(value)
}

fn null<'v>() -> Box<dyn Val + 'v> {
    boxed(CelNull)
}

fn text(text: &str) -> Box<dyn Val + '_> {
    boxed(CelString::from(text))
}

fn map<'v>(entries: impl IntoIterator<Item = (&'v str, Box<dyn Val + 'v>)>) -> Box<dyn Val + 'v> {
    let entries = entries.into_iter().map(|(name, value)| (CelMapKey::from(name), value));
    boxed(CelMap::from(entries.collect::<HashMap<_, _>>()))
}

/// A result as JSON. What was shared until now is copied here, so each value is paid for before it is made.
fn json_of(value: &dyn Val, purse: &Purse) -> Result<Json, String> {
    const VALUE: u64 = 32;
    let pay = |bytes: usize| purse.take(VALUE + bytes as u64);
    if let Some(string) = value.downcast_ref::<CelString>() {
        pay(string.inner().len())?;
        return Ok(Json::String(string.inner().to_owned()));
    }
    pay(0)?;
    if let Some(list) = value.downcast_ref::<CelList>() {
        let items = list.inner().iter().map(|item| json_of(item.as_ref(), purse));
        return items.collect::<Result<_, _>>().map(Json::Array);
    }
    if let Some(map) = value.downcast_ref::<CelMap>() {
        let mut members = serde_json::Map::new();
        for (key, member) in map.inner() {
            let name = match json_of(key.inner(), purse)? {
                Json::String(name) => name,
                other => other.to_string(),
            };
            members.insert(name, json_of(member.as_ref(), purse)?);
        }
        return Ok(Json::Object(members));
    }
    let json = Value::try_from(value).ok().and_then(|value| value.json().ok());
    json.ok_or_else(|| "results in something that JSON cannot hold".to_owned())
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
