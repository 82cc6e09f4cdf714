//! Tables as a move sees them: names, kinds of values, and the order in which rows are read.

use std::fmt::Write as _;

use sprag_engine::store::{Answer, StoreError};

use super::OWN;

/// A value on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    Null,
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// A column, with its type as its store calls it.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) kind: String,
    /// Whether the store counts it up itself.
    pub(super) is_counted: bool,
    /// Its place in the primary key.
    pub(super) key: Option<i32>,
}

/// A table.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) name: String,
    /// What is copied, by name.
    pub(super) copied: Vec<Column>,
    /// What rows are read in the order of.
    pub(super) order: Vec<Column>,
}

/// Columns that say where in the feed a row is. They are the order, and are given anew.
const POSITION: [&str; 2] = ["xid", "pos"];
/// Columns that only SQLite has: they name such places, and the eras of keys. It fills them in when all is there.
const FILLED: [&str; 3] = ["before", "last_event", "era"];

impl Table {
    /// A table from all its columns; nothing if it is not to be copied.
    pub(super) fn new(name: &str, mut columns: Vec<Column>) -> Option<Self> {
        if OWN.contains(&name) {
            return None;
        }
        columns.sort_by(|one, two| one.name.cmp(&two.name));
        let is_position = |column: &&Column| POSITION.contains(&column.name.as_str());
        let mut order: Vec<Column> = columns.iter().filter(is_position).cloned().collect();
        // The transaction stands before the position in it.
        order.reverse();
        if order.is_empty() {
            order = columns.iter().filter(|column| column.key.is_some()).cloned().collect();
            order.sort_by_key(|column| column.key);
        }
        columns.retain(|column| !is_position(&column) && !FILLED.contains(&column.name.as_str()));
        Some(Self { name: name.to_owned(), copied: columns, order })
    }

    /// The names of what is copied.
    pub(super) fn columns(&self) -> Vec<&str> {
        self.copied.iter().map(|column| column.name.as_str()).collect()
    }
}

/// A key as the target notes it.
pub(super) fn key_text(key: &[Cell]) -> String {
    let cells = key.iter().map(|cell| match cell {
        Cell::Null => serde_json::Value::Null,
        Cell::Int(n) => (*n).into(),
        Cell::Text(text) => format!("t{text}").into(),
        Cell::Bytes(bytes) => {
            let mut digits = String::from("x");
            for byte in bytes {
                write!(digits, "{byte:02x}").expect("text takes text");
            }
            digits.into()
        }
    });
    serde_json::Value::Array(cells.collect()).to_string()
}

/// A key from the target's note.
pub(super) fn key_from(text: &str) -> Answer<Vec<Cell>> {
    let unreadable = || StoreError::Poison(format!("a note of a move that is none: {text}"));
    let cells: Vec<serde_json::Value> = serde_json::from_str(text).map_err(|_| unreadable())?;
    let cell = |value: &serde_json::Value| match value {
        serde_json::Value::Null => Some(Cell::Null),
        serde_json::Value::Number(n) => n.as_i64().map(Cell::Int),
        serde_json::Value::String(text) => match text.split_at_checked(1)? {
            ("t", text) => Some(Cell::Text(text.to_owned())),
            ("x", digits) => bytes_from(digits).map(Cell::Bytes),
            _ => None,
        },
        serde_json::Value::Bool(_) | serde_json::Value::Array(_) | serde_json::Value::Object(_) => {
            None
        }
    };
    cells.iter().map(|value| cell(value).ok_or_else(unreadable)).collect()
}

fn bytes_from(digits: &str) -> Option<Vec<u8>> {
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::{Cell, key_from, key_text};

    #[test]
    fn a_key_is_read_as_it_was_noted() {
        let key = vec![
            Cell::Int(-7),
            Cell::Text("x\"é".to_owned()),
            Cell::Bytes(vec![0, 255, 16]),
            Cell::Null,
        ];
        assert_eq!(key_from(&key_text(&key)).unwrap(), key);
        assert!(key_from("[true]").is_err());
        assert!(key_from("no").is_err());
    }
}
