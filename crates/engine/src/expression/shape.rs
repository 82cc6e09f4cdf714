//! What an expression can be seen to result in without being evaluated, and what can be seen to have no value: literals
//! and operators have types, what a job brings along has none before it is there.

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};

/// What an expression can be seen to result in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// True or false.
    Truth,
    /// A whole number.
    Int,
    /// A whole number without a sign.
    UInt,
    /// A number with a fraction.
    Double,
    /// Text.
    Text,
    /// Bytes.
    Bytes,
    /// Nothing.
    Null,
    /// A list.
    List,
    /// A map.
    Map,
    /// Known only once it is evaluated.
    Unknown,
}

impl Shape {
    /// As it is said of a value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Truth => "true or false",
            Self::Int => "an int",
            Self::UInt => "a uint",
            Self::Double => "a double",
            Self::Text => "text",
            Self::Bytes => "bytes",
            Self::Null => "null",
            Self::List => "a list",
            Self::Map => "a map",
            Self::Unknown => "anything",
        }
    }

    /// Whether it may turn out to be one of these.
    pub fn may_be(self, any: &[Self]) -> bool {
        self == Self::Unknown || any.contains(&self)
    }

    fn is_number(self) -> bool {
        matches!(self, Self::Int | Self::UInt | Self::Double)
    }
}

/// What a tree results in; says what in it never has a value.
pub(super) fn shape(node: &IdedExpr) -> Result<Shape, String> {
    match &node.expr {
        Expr::Literal(literal) => Ok(match literal {
            LiteralValue::Boolean(_) => Shape::Truth,
            LiteralValue::Int(_) => Shape::Int,
            LiteralValue::UInt(_) => Shape::UInt,
            LiteralValue::Double(_) => Shape::Double,
            LiteralValue::String(_) => Shape::Text,
            LiteralValue::Bytes(_) => Shape::Bytes,
            LiteralValue::Null => Shape::Null,
        }),
        Expr::List(list) => {
            list.elements.iter().try_for_each(|element| shape(element).map(|_| ()))?;
            Ok(Shape::List)
        }
        Expr::Map(map) => {
            for entry in &map.entries {
                match &entry.expr {
                    EntryExpr::MapEntry(entry) => {
                        expect(&entry.key, KEYS, "is the key of a map")?;
                        shape(&entry.value)?;
                    }
                    EntryExpr::StructField(field) => drop(shape(&field.value)?),
                }
            }
            Ok(Shape::Map)
        }
        Expr::Select(select) => {
            expect(&select.operand, &[Shape::Map], "has no members")?;
            Ok(if select.test { Shape::Truth } else { Shape::Unknown })
        }
        Expr::Call(call) => of_call(call),
        Expr::Comprehension(loops) => of_loop(loops),
        Expr::Ident(_) | Expr::Struct(_) | Expr::Unspecified => Ok(Shape::Unknown),
    }
}

const KEYS: &[Shape] = &[Shape::Truth, Shape::Int, Shape::UInt, Shape::Text];
const MANY: &[Shape] = &[Shape::List, Shape::Map];

/// A part that must be one of these.
fn expect(part: &IdedExpr, any: &[Shape], otherwise: &str) -> Result<Shape, String> {
    let seen = shape(part)?;
    if seen.may_be(any) {
        return Ok(seen);
    }
    Err(format!("{} {otherwise}", seen.name()))
}

/// All loops result in a list or in true or false, by what they begin with.
fn of_loop(loops: &ComprehensionExpr) -> Result<Shape, String> {
    expect(&loops.iter_range, MANY, "is nothing to go over")?;
    for part in [&loops.loop_cond, &loops.loop_step, &loops.result] {
        shape(part)?;
    }
    Ok(if shape(&loops.accu_init)? == Shape::List { Shape::List } else { Shape::Truth })
}

fn of_call(call: &CallExpr) -> Result<Shape, String> {
    let parts: Vec<&IdedExpr> = call.target.iter().map(AsRef::as_ref).chain(&call.args).collect();
    let all = |any: &[Shape], otherwise: &str| {
        parts.iter().try_for_each(|part| expect(part, any, otherwise).map(|_| ()))
    };
    match (call.func_name.as_str(), parts.as_slice()) {
        ("_&&_" | "_||_" | "!_", _) => {
            all(&[Shape::Truth], "is neither true nor false")?;
            Ok(Shape::Truth)
        }
        ("_?_:_", [condition, one, other]) => {
            expect(condition, &[Shape::Truth], "is neither true nor false")?;
            let (one, other) = (shape(one)?, shape(other)?);
            Ok(if one == other { one } else { Shape::Unknown })
        }
        ("_<_" | "_<=_" | "_>_" | "_>=_", [one, other]) => compared(shape(one)?, shape(other)?),
        ("_+_", [one, other]) => {
            use Shape::{Bytes, Double, Int, List, Text, UInt};
            combined(one, other, &[Int, UInt, Double, Text, Bytes, List])
        }
        ("_-_" | "_*_" | "_/_", [one, other]) => {
            combined(one, other, &[Shape::Int, Shape::UInt, Shape::Double])
        }
        ("_%_", [one, other]) => combined(one, other, &[Shape::Int, Shape::UInt]),
        ("-_", [one]) => expect(one, &[Shape::Int, Shape::Double], "has no negative"),
        ("@in", [one, many]) => {
            shape(one)?;
            expect(many, MANY, "contains nothing").map(|_| Shape::Truth)
        }
        ("_[_]", [many, index]) => {
            expect(many, MANY, "has no members")?;
            shape(index).map(|_| Shape::Unknown)
        }
        ("contains" | "startsWith" | "endsWith" | "matches", _) => {
            all(&[Shape::Text, Shape::Bytes], "is no text").map(|()| Shape::Truth)
        }
        ("size", [one]) => {
            use Shape::{Bytes, List, Map, Text};
            expect(one, &[Text, Bytes, List, Map], "has no size").map(|_| Shape::Int)
        }
        (name, parts) => {
            parts.iter().try_for_each(|part| shape(part).map(|_| ()))?;
            Ok(result_of(name))
        }
    }
}

fn result_of(function: &str) -> Shape {
    match function {
        "_==_" | "_!=_" | "bool" | "@not_strictly_false" => Shape::Truth,
        "int" => Shape::Int,
        "uint" => Shape::UInt,
        "double" => Shape::Double,
        "string" => Shape::Text,
        "bytes" => Shape::Bytes,
        _ => Shape::Unknown,
    }
}

/// Two of one of these shapes.
fn combined(one: &IdedExpr, other: &IdedExpr, any: &[Shape]) -> Result<Shape, String> {
    let (one, other) = (shape(one)?, shape(other)?);
    let fits = one.may_be(any) && other.may_be(any);
    match (one, other) {
        _ if !fits => Err(no_value(one, other)),
        (Shape::Unknown, known) | (known, Shape::Unknown) => Ok(known),
        (one, other) if one == other => Ok(one),
        (one, other) => Err(no_value(one, other)),
    }
}

/// Numbers of all kinds have an order among each other.
fn compared(one: Shape, other: Shape) -> Result<Shape, String> {
    use Shape::{Bytes, Double, Int, Text, Truth, UInt, Unknown};
    let fits = [one, other].iter().all(|s| s.may_be(&[Truth, Int, UInt, Double, Text, Bytes]));
    let alike = one == other || one == Unknown || other == Unknown;
    if fits && (alike || (one.is_number() && other.is_number())) {
        return Ok(Truth);
    }
    Err(no_value(one, other))
}

fn no_value(one: Shape, other: Shape) -> String {
    format!("takes {} together with {}, which has no value", one.name(), other.name())
}
