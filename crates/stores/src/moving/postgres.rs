//! One side of a move: a Postgres database on which no engine works.

use std::fmt::Write as _;

use deadpool_postgres::Object;
use sprag_engine::store::{Answer, Check, Store, StoreError};
use sprag_kernel::{Code, Refusal};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::refused;
use super::table::{Cell, Column, Table};
use crate::postgres::{PostgresOptions, PostgresStore, failed, plain};

/// How long ago an engine must have beaten to count as stopped; longer than any beats apart.
const SILENT_MS: i64 = 15_000;
/// Makes this process the only one that moves the store, as long as its connection lives; the number is `move` in
/// ASCII. The server may take a moment to notice that a process which had it was killed.
const OWN_MOVE: &str =
    "SET lock_timeout = '5s'; SELECT pg_advisory_lock(x'6d6f7665'::bigint); RESET lock_timeout";

/// Nobody joins meanwhile, and who works is waited for, though not for ever.
const LOCK_ENGINES: &str = "SET LOCAL lock_timeout = '5s';
    LOCK TABLE sprag.engine IN SHARE ROW EXCLUSIVE MODE";
/// The lock first: it waits for the write that an engine may have under way. One that has left writes no more.
const END_ENGINES: &str = "SELECT 1 FROM sprag.engine WHERE dead = 0 AND beat_at > 0 FOR UPDATE;
    UPDATE sprag.engine SET dead = 1 WHERE dead = 0 AND beat_at > 0";
/// Waits for those who have submitted in transactions of their own; see `sprag.expect_open`.
const REFUSE_OTHERS: &str = "DELETE FROM sprag.meta WHERE key = $1";

pub(super) struct PostgresSide {
    store: PostgresStore,
    client: Object,
}

impl PostgresSide {
    pub(super) async fn open(url: &str, must_exist: bool) -> Answer<Self> {
        let options = PostgresOptions::new(url);
        let store = if must_exist {
            PostgresStore::look(&options).await?
        } else {
            PostgresStore::open(&options).await?
        };
        let client = plain(&store).await?;
        if let Err(error) = client.batch_execute(OWN_MOVE).await {
            if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
                return Err(refused("another process moves this store".to_owned()));
            }
            return Err(failed(&error));
        }
        Ok(Self { store, client })
    }

    pub(super) async fn tables(&self) -> Answer<Vec<Table>> {
        let sql = "SELECT c.relname::text, a.attname::text, t.typname::text, a.attidentity <> '',
                array_position(i.indkey::smallint[], a.attnum)
            FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
                JOIN pg_type d ON d.oid = a.atttypid
                JOIN pg_type t ON t.oid = CASE d.typtype WHEN 'd' THEN d.typbasetype ELSE d.oid END
                LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
            WHERE c.relnamespace = 'sprag'::regnamespace AND c.relkind = 'r'
                AND a.attnum > 0 AND NOT a.attisdropped
            ORDER BY c.relname COLLATE \"C\", a.attnum";
        let rows = self.client.query(sql, &[]).await.map_err(|error| failed(&error))?;
        let mut all: Vec<(String, Vec<Column>)> = Vec::new();
        for row in &rows {
            let (table, column) = column(row).map_err(|error| failed(&error))?;
            match all.last_mut() {
                Some((name, columns)) if *name == table => columns.push(column),
                Some(_) | None => all.push((table, vec![column])),
            }
        }
        let tables: Vec<Table> =
            all.into_iter().filter_map(|(name, columns)| Table::new(&name, columns)).collect();
        for column in tables.iter().flat_map(|table| table.copied.iter().chain(&table.order)) {
            Kind::of(column)?;
        }
        Ok(tables)
    }

    pub(super) async fn meta(&self, key: &str) -> Answer<Option<String>> {
        let sql = "SELECT value FROM sprag.meta WHERE key = $1";
        let found = self.client.query_opt(sql, &[&key]).await.map_err(|error| failed(&error))?;
        found.map(|row| row.try_get(0).map_err(|error| failed(&error))).transpose()
    }

    /// Closes the store and writes notes, in one transaction. Whoever joins waits for the lock, and then finds the store
    /// closed. Engines that are silent are dead from here on: one that was only paused changes nothing any more.
    pub(super) async fn close(&mut self, notes: &[(&str, &str)], open: &str) -> Answer<()> {
        let tx = self.client.transaction().await.map_err(|error| failed(&error))?;
        let close = async {
            tx.batch_execute(LOCK_ENGINES).await?;
            let sql = "SELECT count(*) FROM sprag.engine
                WHERE dead = 0 AND beat_at > sprag.now_ms(NULL) - $1";
            let alive: i64 = tx.query_one(sql, &[&SILENT_MS]).await?.try_get(0)?;
            if alive == 0 {
                tx.batch_execute(END_ENGINES).await?;
                tx.execute(REFUSE_OTHERS, &[&open]).await?;
            }
            for (key, value) in notes {
                tx.execute(NOTE, &[key, value]).await?;
            }
            Ok(alive)
        };
        let alive = close.await.map_err(|error: Error| {
            if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
                let reason = "a transaction that has written to the store is not over";
                return StoreError::Refused(Refusal::new(Code::StoreInUse).with("reason", reason));
            }
            failed(&error)
        })?;
        if alive > 0 {
            let refusal = Refusal::new(Code::StoreInUse).with("engines", alive);
            return Err(StoreError::Refused(refusal));
        }
        tx.commit().await.map_err(|error| failed(&error))
    }

    /// Opens the store: deletes notes, and all that begin so, in one statement.
    pub(super) async fn open_again(
        &mut self,
        keys: &[&str],
        beginning: &str,
        open: &str,
    ) -> Answer<()> {
        let sql = "WITH forgotten AS
                (DELETE FROM sprag.meta WHERE key = ANY ($1) OR starts_with(key, $2))
            INSERT INTO sprag.meta VALUES ($3, '') ON CONFLICT DO NOTHING";
        let forgotten = self.client.execute(sql, &[&keys, &beginning, &open]).await;
        forgotten.map(|_| ()).map_err(|error| failed(&error))
    }

    /// Deletes all rows of these tables, and the notes that begin so, in one transaction.
    pub(super) async fn empty(&mut self, tables: &[&str], beginning: &str) -> Answer<()> {
        let names: Vec<String> = tables.iter().map(|table| format!("sprag.{table}")).collect();
        let run = async {
            let tx = self.client.transaction().await?;
            tx.batch_execute(&format!("TRUNCATE {} RESTART IDENTITY", names.join(", "))).await?;
            tx.execute("DELETE FROM sprag.meta WHERE starts_with(key, $1)", &[&beginning]).await?;
            tx.commit().await
        };
        run.await.map_err(|error| failed(&error))
    }

    pub(super) async fn count(&self, table: &str) -> Answer<u64> {
        let sql = format!("SELECT count(*) FROM sprag.{table}");
        let row = self.client.query_one(&sql, &[]).await.map_err(|error| failed(&error))?;
        row.try_get::<_, i64>(0).map(i64::cast_unsigned).map_err(|error| failed(&error))
    }

    pub(super) async fn read(
        &self,
        table: &Table,
        after: Option<&[Cell]>,
        limit: u32,
    ) -> Answer<Vec<(Vec<Cell>, Vec<Cell>)>> {
        let columns: Vec<&Column> = table.order.iter().chain(&table.copied).collect();
        let mut shown = Vec::with_capacity(columns.len());
        for column in &columns {
            shown.push(Kind::of(column)?.shown(&column.name));
        }
        let order: Vec<&str> = table.order.iter().map(|column| column.name.as_str()).collect();
        let (mut sql, by) =
            (format!("SELECT {} FROM sprag.{}", shown.join(", "), table.name), order.join(", "));
        let mut key = Vec::new();
        if let Some(after) = after {
            let mut places = Vec::with_capacity(order.len());
            for (n, column) in table.order.iter().enumerate() {
                places.push(Kind::of(column)?.given(&format!("${}", n + 1)));
            }
            write!(sql, " WHERE ({by}) > ({})", places.join(", ")).expect("text takes text");
            key = after.iter().map(parameter).collect();
        }
        write!(sql, " ORDER BY {by} LIMIT {limit}").expect("text takes text");
        let key: Vec<&(dyn ToSql + Sync)> =
            key.iter().map(|p| &**p as &(dyn ToSql + Sync)).collect();
        let rows = self.client.query(&sql, &key).await.map_err(|error| failed(&error))?;
        rows.iter()
            .map(|row| {
                let mut cells = Vec::with_capacity(columns.len());
                for (n, column) in columns.iter().enumerate() {
                    cells.push(Kind::of(column)?.cell(row, n).map_err(|error| failed(&error))?);
                }
                let copied = cells.split_off(table.order.len());
                Ok((cells, copied))
            })
            .collect()
    }

    pub(super) async fn write(
        &mut self,
        table: &Table,
        rows: &[Vec<Cell>],
        (note, value): (&str, &str),
    ) -> Answer<()> {
        let (mut arrays, mut given, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for (n, column) in table.copied.iter().enumerate() {
            let kind = Kind::of(column)?;
            arrays.push(format!("${}::{}[]", n + 1, kind.carried()));
            given.push(kind.given(&format!("u.c{n}")));
            values.push(kind.array(rows.iter().map(|row| &row[n])));
        }
        let names: Vec<String> = (0..table.copied.len()).map(|n| format!("c{n}")).collect();
        let sql = format!(
            "INSERT INTO sprag.{} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM unnest({})
             WITH ORDINALITY AS u ({}, n) ORDER BY u.n",
            table.name,
            table.columns().join(", "),
            given.join(", "),
            arrays.join(", "),
            names.join(", ")
        );
        let run = async {
            let tx = self.client.transaction().await?;
            let values: Vec<_> = values.iter().map(|v| &**v as &(dyn ToSql + Sync)).collect();
            tx.execute(&sql, &values).await?;
            tx.execute(NOTE, &[&note, &value]).await?;
            tx.commit().await
        };
        run.await.map_err(|error| failed(&error))
    }

    pub(super) async fn settle(&self, tables: &[Table]) -> Answer<()> {
        for table in tables {
            for column in table.copied.iter().filter(|column| column.is_counted) {
                let (table, column) = (&table.name, &column.name);
                let sql = format!(
                    "SELECT setval(pg_get_serial_sequence('sprag.{table}', '{column}'),
                         max({column})) FROM sprag.{table} HAVING max({column}) IS NOT NULL"
                );
                self.client.query(&sql, &[]).await.map_err(|error| failed(&error))?;
            }
        }
        Ok(())
    }

    pub(super) async fn audit(&self) -> Answer<Vec<Check>> {
        self.store.audit().await
    }
}

const NOTE: &str = "INSERT INTO sprag.meta VALUES ($1, $2)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value";

fn column(row: &Row) -> Result<(String, Column), Error> {
    let (name, kind) = (row.try_get(1)?, row.try_get(2)?);
    let (is_counted, key) = (row.try_get(3)?, row.try_get(4)?);
    Ok((row.try_get(0)?, Column { name, kind, is_counted, key }))
}

/// How values of a type travel.
#[derive(Clone, Copy)]
enum Kind {
    Int,
    Text,
    Bytes,
    Uuid,
    Transaction,
}

impl Kind {
    fn of(column: &Column) -> Answer<Self> {
        match column.kind.as_str() {
            "int2" | "int4" | "int8" => Ok(Self::Int),
            "text" => Ok(Self::Text),
            "bytea" => Ok(Self::Bytes),
            "uuid" => Ok(Self::Uuid),
            "xid8" => Ok(Self::Transaction),
            other => Err(refused(format!("column {} is of type {other}", column.name))),
        }
    }

    /// The column as it is selected.
    fn shown(self, name: &str) -> String {
        match self {
            Self::Int => format!("{name}::bigint"),
            Self::Text | Self::Bytes => name.to_owned(),
            Self::Uuid => format!("uuid_send({name})"),
            Self::Transaction => format!("{name}::text"),
        }
    }

    /// What a parameter or a carried value is made of.
    fn given(self, value: &str) -> String {
        match self {
            Self::Int => format!("{value}::bigint"),
            Self::Text => format!("{value}::text"),
            Self::Bytes => format!("{value}::bytea"),
            Self::Uuid => format!("encode({value}::bytea, 'hex')::uuid"),
            Self::Transaction => format!("{value}::text::xid8"),
        }
    }

    /// The type that values are carried in.
    fn carried(self) -> &'static str {
        match self {
            Self::Int => "bigint",
            Self::Text | Self::Transaction => "text",
            Self::Bytes | Self::Uuid => "bytea",
        }
    }

    fn cell(self, row: &Row, n: usize) -> Result<Cell, Error> {
        Ok(match self {
            Self::Int => row.try_get::<_, Option<i64>>(n)?.map_or(Cell::Null, Cell::Int),
            Self::Text | Self::Transaction => {
                row.try_get::<_, Option<String>>(n)?.map_or(Cell::Null, Cell::Text)
            }
            Self::Bytes | Self::Uuid => {
                row.try_get::<_, Option<Vec<u8>>>(n)?.map_or(Cell::Null, Cell::Bytes)
            }
        })
    }

    /// The cells of a column as one parameter. A cell of another kind is sent as nothing, which the column
    /// refuses or the comparison of the audit finds.
    fn array<'a>(self, cells: impl Iterator<Item = &'a Cell>) -> Box<dyn ToSql + Sync + Send> {
        match self {
            Self::Int => Box::new(
                cells
                    .map(|cell| if let Cell::Int(n) = cell { Some(*n) } else { None })
                    .collect::<Vec<_>>(),
            ),
            Self::Text | Self::Transaction => Box::new(
                cells
                    .map(|cell| if let Cell::Text(text) = cell { Some(text.clone()) } else { None })
                    .collect::<Vec<_>>(),
            ),
            Self::Bytes | Self::Uuid => Box::new(
                cells
                    .map(
                        |cell| {
                            if let Cell::Bytes(bytes) = cell { Some(bytes.clone()) } else { None }
                        },
                    )
                    .collect::<Vec<_>>(),
            ),
        }
    }
}

fn parameter(cell: &Cell) -> Box<dyn ToSql + Sync + Send> {
    match cell {
        Cell::Null => Box::new(None::<i64>),
        Cell::Int(n) => Box::new(*n),
        Cell::Text(text) => Box::new(text.clone()),
        Cell::Bytes(bytes) => Box::new(bytes.clone()),
    }
}
