//! One side of a move: a SQLite file, owned while it lasts.

use std::fs::File;
use std::path::Path;

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, Transaction, params_from_iter};
use sprag_engine::store::{Answer, Check};

use super::table::{Cell, Column, Table};
use crate::sqlite::{
    Durability, audit_of, divide, expect_file, failed, known_tables, open_file, open_store,
    own_file,
};

pub(super) struct SqliteSide {
    connection: Connection,
    _lock: File,
}

impl SqliteSide {
    pub(super) fn open(path: &Path, must_exist: bool) -> Answer<Self> {
        if must_exist {
            expect_file(path)?;
        }
        let lock = own_file(path)?;
        let open = if must_exist { open_store } else { open_file };
        let connection = open(path, Durability::Full)?;
        // Tables come one after the other, in no order that references know; the audit has the last word.
        let off = connection.pragma_update(None, "foreign_keys", "OFF");
        off.map_err(|error| failed(&error))?;
        Ok(Self { connection, _lock: lock })
    }

    pub(super) fn tables(&self) -> Answer<Vec<Table>> {
        self.read_tables().map_err(|error| failed(&error))
    }

    fn read_tables(&self) -> rusqlite::Result<Vec<Table>> {
        let sql = "SELECT name, sql LIKE '%AUTOINCREMENT%' FROM sqlite_master
            WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name";
        let mut statement = self.connection.prepare(sql)?;
        let names = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        // The others are the user's own: the file is theirs too.
        let known = known_tables()?;
        let mut tables = Vec::new();
        for name in names {
            let (name, is_counted): (String, bool) = name?;
            if !known.contains(&name) {
                continue;
            }
            let mut columns =
                self.connection.prepare("SELECT name, type, pk FROM pragma_table_info(?1)")?;
            let columns = columns.query_map([&name], |row| {
                let key: i32 = row.get(2)?;
                Ok(Column {
                    name: row.get(0)?,
                    kind: row.get(1)?,
                    is_counted: is_counted && key > 0,
                    key: (key > 0).then_some(key),
                })
            })?;
            tables.extend(Table::new(&name, columns.collect::<rusqlite::Result<_>>()?));
        }
        Ok(tables)
    }

    pub(super) fn meta(&self, key: &str) -> Answer<Option<String>> {
        let sql = "SELECT value FROM meta WHERE key = ?1";
        let found = self.connection.query_row(sql, [key], |row| row.get(0)).optional();
        found.map_err(|error| failed(&error))
    }

    /// Closes the store and writes notes, in one transaction. This process owns the file, so no engine works on it.
    pub(super) fn close(&mut self, notes: &[(&str, &str)], open: &str) -> Answer<()> {
        self.run(|tx| {
            tx.execute("DELETE FROM meta WHERE key = ?1", [open])?;
            notes.iter().try_for_each(|(key, value)| tx.execute(NOTE, [key, value]).map(|_| ()))
        })
    }

    /// Opens the store: deletes notes, and all that begin so, in one transaction.
    pub(super) fn open_again(&mut self, keys: &[&str], beginning: &str, open: &str) -> Answer<()> {
        self.run(|tx| {
            for key in keys {
                tx.execute("DELETE FROM meta WHERE key = ?1", [key])?;
            }
            tx.execute(FORGET, [beginning])?;
            tx.execute(NOTE, [open, ""]).map(|_| ())
        })
    }

    /// Deletes all rows of these tables with the eras of their keys, and the notes that begin so, in one transaction.
    pub(super) fn empty(&mut self, tables: &[&str], beginning: &str) -> Answer<()> {
        self.run(|tx| {
            for table in tables {
                tx.execute(&format!("DELETE FROM {table}"), [])?;
            }
            divide(tx)?;
            tx.execute(FORGET, [beginning]).map(|_| ())
        })
    }

    fn run(&mut self, work: impl Fn(&Transaction<'_>) -> rusqlite::Result<()>) -> Answer<()> {
        let run = |connection: &mut Connection| {
            let tx = connection.transaction()?;
            work(&tx)?;
            tx.commit()
        };
        run(&mut self.connection).map_err(|error| failed(&error))
    }

    pub(super) fn count(&self, table: &str) -> Answer<u64> {
        let sql = format!("SELECT count(*) FROM {table}");
        self.connection.query_row(&sql, [], |row| row.get(0)).map_err(|error| failed(&error))
    }

    pub(super) fn read(
        &self,
        table: &Table,
        after: Option<&[Cell]>,
        limit: u32,
    ) -> Answer<Vec<(Vec<Cell>, Vec<Cell>)>> {
        let order: Vec<&str> = table.order.iter().map(|column| column.name.as_str()).collect();
        let columns: Vec<&str> = order.iter().copied().chain(table.columns()).collect();
        let places = vec!["?"; order.len()].join(", ");
        let (key, behind) = match after {
            None => (Vec::new(), String::new()),
            Some(after) => {
                let behind = format!("WHERE ({}) > ({places})", order.join(", "));
                (after.iter().map(value).collect(), behind)
            }
        };
        let (names, by) = (columns.join(", "), order.join(", "));
        let sql =
            format!("SELECT {names} FROM {} {behind} ORDER BY {by} LIMIT {limit}", table.name);
        let run = || -> rusqlite::Result<Vec<(Vec<Cell>, Vec<Cell>)>> {
            let mut statement = self.connection.prepare_cached(&sql)?;
            let rows = statement.query_map(params_from_iter(key.iter()), |row| {
                let cells = |from: usize, to: usize| {
                    let cells = (from..to).map(|n| cell(row.get_ref(n)?));
                    cells.collect::<rusqlite::Result<Vec<Cell>>>()
                };
                Ok((cells(0, order.len())?, cells(order.len(), columns.len())?))
            })?;
            rows.collect()
        };
        run().map_err(|error| failed(&error))
    }

    pub(super) fn write(
        &mut self,
        table: &Table,
        rows: &[Vec<Cell>],
        (note, value_of): (&str, &str),
    ) -> Answer<()> {
        let places = vec!["?"; table.copied.len()].join(", ");
        let names = table.columns().join(", ");
        let sql = format!("INSERT INTO {} ({names}) VALUES ({places})", table.name);
        self.run(|tx| {
            for row in rows {
                tx.prepare_cached(&sql)?.execute(params_from_iter(row.iter().map(value)))?;
            }
            tx.execute(NOTE, [note, value_of]).map(|_| ())
        })
    }

    /// Counts the jobs that were written, chains their events and begins eras of their keys, once more if that was done
    /// before.
    pub(super) fn settle(&mut self) -> Answer<()> {
        self.run(|tx| {
            for sql in [
                "INSERT OR REPLACE INTO job_count SELECT 0, state, count(*) FROM job GROUP BY state",
                include_str!("../../sql/sqlite/chain_events.sql"),
                include_str!("../../sql/sqlite/name_last_events.sql"),
            ] {
                tx.execute(sql, [])?;
            }
            divide(tx)
        })
    }

    pub(super) fn audit(&self) -> Answer<Vec<Check>> {
        audit_of(&self.connection)
    }
}

const NOTE: &str = "INSERT OR REPLACE INTO meta VALUES (?1, ?2)";
const FORGET: &str = "DELETE FROM meta WHERE substr(key, 1, length(?1)) = ?1";

fn value(cell: &Cell) -> Value {
    match cell {
        Cell::Null => Value::Null,
        Cell::Int(n) => Value::Integer(*n),
        Cell::Text(text) => Value::Text(text.clone()),
        Cell::Bytes(bytes) => Value::Blob(bytes.clone()),
    }
}

fn cell(value: ValueRef<'_>) -> rusqlite::Result<Cell> {
    Ok(match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(n) => Cell::Int(n),
        ValueRef::Text(text) => Cell::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Cell::Bytes(bytes.to_vec()),
        ValueRef::Real(_) => return Err(rusqlite::Error::InvalidQuery),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_is_emptied_has_the_one_era_that_it_began_with() {
        let folder = tempfile::tempdir().unwrap();
        let mut side = SqliteSide::open(&folder.path().join("s.db"), false).unwrap();
        side.connection.execute_batch("INSERT INTO era (era, writer) VALUES (1, 7)").unwrap();
        side.empty(&["job", "retired"], "move ").unwrap();
        let sql = "SELECT count(*), max(era), max(writer) FROM era";
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let found: (i64, i64, i64) = side.connection.query_row(sql, [], row).unwrap();
        assert_eq!(found, (1, 0, 0));
    }
}
