//! Moving a stopped store from one kind to the other.
//!
//! Every table of the schema is copied in slices by its key, so that a new table is moved without new code; a
//! type of column that is not known here stops the move before it begins. How far it came is noted in the
//! target, in the transaction that writes the slice: after a kill the same command goes on. From the first
//! slice on both stores are closed, so that no engine works on either; in the end the counts of all tables are
//! compared and the target is audited, and only then is it opened. The source stays closed.
//!
//! Tables that the schema does not have are the user's, and stay where they are. Positions in the feed are not copied
//! but given anew, in the same order: a cursor belongs to its store.

mod postgres;
mod sqlite;
mod table;

use std::collections::BTreeMap;

use sprag_engine::crash::crash_point;
use sprag_engine::store::{Answer, Check, StoreError};
use sprag_kernel::{Code, Refusal};

use crate::any::{Place, place};
use crate::sqlite::known_version;
use postgres::PostgresSide;
use sqlite::SqliteSide;
use table::{Cell, Table, key_from, key_text};

/// How many rows one transaction moves. A row may hold a payload of a mebibyte or more.
const SLICE: u32 = 250;
/// The key in `meta` that closes a store to engines; its value says why.
pub(crate) const CLOSED: &str = "closed";
/// The keys in `meta` of the target that say how far each table came.
const PROGRESS: &str = "move ";
/// Tables that are not copied: the store's own, and what it makes of the others.
const OWN: [&str; 2] = ["meta", "job_count"];

/// How far a move is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The table.
    pub table: String,
    /// Rows of it that are in the target.
    pub moved: u64,
    /// Rows of it in the source.
    pub total: u64,
}

/// What was moved.
#[derive(Clone, Debug)]
pub struct Moved {
    /// Rows by table.
    pub rows: BTreeMap<String, u64>,
}

/// Either side of a move.
enum Side {
    Sqlite(SqliteSide),
    Postgres(PostgresSide),
}

/// Asks whichever side it is.
macro_rules! ask {
    ($this:ident.$call:ident($($argument:expr),*)) => {
        match $this {
            Self::Sqlite(side) => side.$call($($argument),*),
            Self::Postgres(side) => side.$call($($argument),*).await,
        }
    };
}

impl Side {
    async fn open(url: &str, must_exist: bool) -> Answer<Self> {
        match place(url)? {
            Place::File(path) => SqliteSide::open(path, must_exist).map(Self::Sqlite),
            Place::Database(url) => PostgresSide::open(url).await.map(Self::Postgres),
        }
    }

    async fn tables(&self) -> Answer<Vec<Table>> {
        ask!(self.tables())
    }

    async fn meta(&self, key: &str) -> Answer<Option<String>> {
        ask!(self.meta(key))
    }

    async fn set_meta(&mut self, key: &str, value: Option<&str>) -> Answer<()> {
        ask!(self.set_meta(key, value))
    }

    /// Closes the store, unless an engine works on it.
    async fn close(&mut self, why: &str) -> Answer<()> {
        ask!(self.close(why))
    }

    async fn count(&self, table: &str) -> Answer<u64> {
        ask!(self.count(table))
    }

    /// The next rows of a table, each with its key.
    async fn read(
        &self,
        table: &Table,
        after: Option<&[Cell]>,
    ) -> Answer<Vec<(Vec<Cell>, Vec<Cell>)>> {
        ask!(self.read(table, after, SLICE))
    }

    /// Writes rows and the note of how far that is, in one transaction.
    async fn write(&mut self, table: &Table, rows: &[Vec<Cell>], note: (&str, &str)) -> Answer<()> {
        ask!(self.write(table, rows, note))
    }

    /// Lets counters go on behind what was copied, and counts it.
    async fn settle(&self, tables: &[Table]) -> Answer<()> {
        match self {
            // Its numbers go on from the highest by themselves.
            Self::Sqlite(side) => side.count_jobs(),
            Self::Postgres(side) => side.settle(tables).await,
        }
    }

    async fn audit(&self) -> Answer<Vec<Check>> {
        ask!(self.audit())
    }
}

/// Moves a store, or goes on with a move that was interrupted.
pub async fn move_store(from: &str, to: &str, mut tell: impl FnMut(&Progress)) -> Answer<Moved> {
    let mut source = Side::open(from, true).await?;
    let mut target = Side::open(to, false).await?;
    let tables = same_tables(&source, &target).await?;
    begin(&mut source, &mut target, &tables).await?;
    for table in &tables {
        copy(&source, &mut target, table, &mut tell).await?;
    }
    target.settle(&tables.iter().map(|(_, there)| there.clone()).collect::<Vec<_>>()).await?;
    let rows = verify(&source, &target, &tables).await?;
    source.set_meta(CLOSED, Some("it was moved")).await?;
    crash_point("move.before_opening");
    for (table, _) in &tables {
        target.set_meta(&format!("{PROGRESS}{}", table.name), None).await?;
    }
    target.set_meta(CLOSED, None).await?;
    Ok(Moved { rows })
}

/// The refusal of a store that is closed to engines.
pub(crate) fn closed(why: String) -> StoreError {
    StoreError::Refused(Refusal::new(Code::StoreClosed).with("reason", why))
}

fn refused(reason: String) -> StoreError {
    StoreError::Refused(Refusal::new(Code::MoveRefused).with("reason", reason))
}

/// The tables of both sides, which must be the same, and all that there are in this version of the schema. Positions
/// are the target's own.
async fn same_tables(source: &Side, target: &Side) -> Answer<Vec<(Table, Table)>> {
    let known = Some(known_version().to_string());
    for side in [source, target] {
        if side.meta("schema_version").await? != known {
            let reason =
                "a store has a newer schema than this version of sprag: move it with the newest";
            return Err(refused(reason.to_owned()));
        }
    }
    let (here, there) = (source.tables().await?, target.tables().await?);
    let names = |tables: &[Table]| -> Vec<String> {
        tables.iter().map(|table| format!("{} {}", table.name, table.columns().join(" "))).collect()
    };
    if names(&here) != names(&there) {
        return Err(refused("the tables of the two stores are not the same".to_owned()));
    }
    Ok(here.into_iter().zip(there).collect())
}

/// Closes both stores, and refuses a target that holds anything but what this source has put there.
async fn begin(source: &mut Side, target: &mut Side, tables: &[(Table, Table)]) -> Answer<()> {
    let state = target.meta(CLOSED).await?;
    let is_resumed = state.as_deref() == Some(FILLING);
    if !is_resumed {
        for (table, _) in tables {
            if target.count(&table.name).await? > 0 {
                return Err(refused(format!("the target holds rows of {}", table.name)));
            }
        }
        if source.meta(CLOSED).await?.as_deref() == Some("it was moved") {
            return Err(refused("the source was moved before".to_owned()));
        }
        sound(&source.audit().await?)?;
    }
    source.close("it is being moved").await?;
    if !is_resumed {
        target.close(FILLING).await?;
    }
    Ok(())
}

/// Why a target is closed until it is whole.
const FILLING: &str = "it is being filled by a move";

async fn copy(
    source: &Side,
    target: &mut Side,
    (here, there): &(Table, Table),
    tell: &mut impl FnMut(&Progress),
) -> Answer<()> {
    let note = format!("{PROGRESS}{}", here.name);
    let mut after = target.meta(&note).await?.as_deref().map(key_from).transpose()?;
    let total = source.count(&here.name).await?;
    let mut moved = target.count(&here.name).await?;
    loop {
        tell(&Progress { table: here.name.clone(), moved, total });
        let slice = source.read(here, after.as_deref()).await?;
        let Some((last, _)) = slice.last() else { return Ok(()) };
        let last = last.clone();
        let rows: Vec<Vec<Cell>> = slice.into_iter().map(|(_, row)| row).collect();
        target.write(there, &rows, (&note, &key_text(&last))).await?;
        crash_point("move.after_slice");
        moved += rows.len() as u64;
        after = Some(last);
    }
}

/// As many rows there as here, and no invariant broken.
async fn verify(
    source: &Side,
    target: &Side,
    tables: &[(Table, Table)],
) -> Answer<BTreeMap<String, u64>> {
    let mut rows = BTreeMap::new();
    for (table, _) in tables {
        let (here, there) = (source.count(&table.name).await?, target.count(&table.name).await?);
        if here != there {
            let name = &table.name;
            return Err(refused(format!("{here} rows of {name} became {there}")));
        }
        rows.insert(table.name.clone(), there);
    }
    sound(&target.audit().await?)?;
    Ok(rows)
}

fn sound(checks: &[Check]) -> Answer<()> {
    let broken: usize = checks.iter().map(|check| check.violations.len()).sum();
    if broken == 0 {
        return Ok(());
    }
    Err(StoreError::Refused(Refusal::new(Code::AuditBroken).with("violations", broken)))
}
