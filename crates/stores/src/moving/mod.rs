//! Moving a stopped store from one kind to the other.
//!
//! Every table of the schema is copied in slices by its key, so that a new table is moved without new code; a
//! type of column that is not known here stops the move before it begins. How far it came is noted in the
//! target, in the transaction that writes the slice: after a kill the same command goes on. From the first
//! slice on both stores are closed, so that no engine works on either; in the end the counts of all tables are
//! compared and the target is audited, and only then is it opened. The source stays closed.
//!
//! Both stores note the id of the move, the target before the source. So a move that was interrupted goes on
//! between the same two stores only: another source would add its rows to those of the first, and another target
//! would be a second copy. Until the target is opened the source has everything: `abandon` empties the one and opens
//! the other again.
//!
//! Tables that the schema does not have are the user's, and stay where they are. Positions in the feed are not copied
//! but given anew, in the same order: a cursor belongs to its store. So does what names positions, the chain of events.

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
/// The key in `meta` that is there while the store takes what others than engines write. Closing deletes it.
pub(crate) const OPEN: &str = "open";
/// The key in `meta` of both stores that says which move they belong to.
const MOVE: &str = "move_id";
/// The keys in `meta` of the target that say how far each table came.
const PROGRESS: &str = "move ";
/// Why a source is closed while its rows are copied, and after that.
const MOVING: &str = "it is being moved";
const GONE: &str = "it was moved";
/// Why a target is closed until it is whole.
const FILLING: &str = "it is being filled by a move";
/// What a store makes of the other tables.
const COUNTS: [&str; 1] = ["job_count"];
/// Tables that are not copied: the store's own, and what it makes of the others.
const OWN: [&str; 3] = ["meta", COUNTS[0], "era"];

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

/// What a move notes in a store that it closes.
struct Mark {
    why: String,
    id: Option<String>,
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
            Place::Database(url) => PostgresSide::open(url, must_exist).await.map(Self::Postgres),
        }
    }

    async fn tables(&self) -> Answer<Vec<Table>> {
        ask!(self.tables())
    }

    async fn meta(&self, key: &str) -> Answer<Option<String>> {
        ask!(self.meta(key))
    }

    /// What a move has noted here: why the store is closed, and the move's id.
    async fn mark(&self) -> Answer<Option<Mark>> {
        let Some(why) = self.meta(CLOSED).await? else { return Ok(None) };
        Ok(Some(Mark { why, id: self.meta(MOVE).await? }))
    }

    /// Closes the store for a move, unless an engine works on it.
    async fn close(&mut self, why: &str, id: &str) -> Answer<()> {
        ask!(self.close(&[(CLOSED, why), (MOVE, id)], OPEN))
    }

    /// Opens the store to engines, and forgets the move.
    async fn open_again(&mut self) -> Answer<()> {
        ask!(self.open_again(&[CLOSED, MOVE], PROGRESS, OPEN))
    }

    /// Deletes all rows, and the notes of how far they came, in one transaction. The store stays closed.
    async fn empty(&mut self, tables: &[(Table, Table)]) -> Answer<()> {
        let names: Vec<&str> = tables.iter().map(|(table, _)| table.name.as_str()).collect();
        ask!(self.empty(&[names.as_slice(), &COUNTS].concat(), PROGRESS))
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
    async fn settle(&mut self, tables: &[Table]) -> Answer<()> {
        match self {
            // Its numbers go on from the highest by themselves.
            Self::Sqlite(side) => side.settle(),
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
    let id = begin(&mut source, &mut target, &tables).await?;
    for table in &tables {
        copy(&source, &mut target, table, &mut tell).await?;
    }
    target.settle(&tables.iter().map(|(_, there)| there.clone()).collect::<Vec<_>>()).await?;
    let rows = verify(&source, &target, &tables).await?;
    source.close(GONE, &id).await?;
    crash_point("move.before_opening");
    target.open_again().await?;
    Ok(Moved { rows })
}

/// Abandons a move that was interrupted: empties the target, and opens the source again. Without a target, because
/// it is lost, the source alone is opened.
pub async fn abandon_move(from: &str, to: Option<&str>) -> Answer<()> {
    let mut source = Side::open(from, true).await?;
    let here = source.mark().await?;
    let Some(to) = to else {
        return match here {
            Some(mark) if mark.why == MOVING => source.open_again().await,
            Some(_) => Err(refused("the source was moved, and its target is at work".to_owned())),
            None => Err(refused("no move of the source was begun".to_owned())),
        };
    };
    let mut target = Side::open(to, true).await?;
    let tables = same_tables(&source, &target).await?;
    let Some(there) = target.mark().await?.filter(|mark| mark.why == FILLING) else {
        let reason = match here {
            Some(mark) if mark.why == GONE => "the move is complete, and the target is open",
            Some(_) => "the target is not the one of this move; if that is lost, leave --to out",
            None => "no move between these two stores was begun",
        };
        return Err(refused(reason.to_owned()));
    };
    let is_ours = here.as_ref().is_some_and(|here| here.id == there.id);
    // An open source beside a target without rows: the move was interrupted before the source was closed, or
    // abandoning it after it was opened.
    if !is_ours && (here.is_some() || !is_empty(&target, &tables).await?) {
        return Err(not_ours());
    }
    target.empty(&tables).await?;
    crash_point("move.after_emptying");
    source.open_again().await?;
    crash_point("move.after_reopening");
    target.open_again().await
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

/// Closes both stores, or finds them closed by the same move. Returns the move's id.
async fn begin(source: &mut Side, target: &mut Side, tables: &[(Table, Table)]) -> Answer<String> {
    let (here, there) = (source.mark().await?, target.mark().await?);
    let is_filling = there.as_ref().is_some_and(|mark| mark.why == FILLING);
    let both = here.as_ref().zip(there.as_ref());
    let is_resumed = |(here, there): &(&Mark, &Mark)| is_filling && here.id == there.id;
    if let Some(id) = both.filter(is_resumed).and_then(|(here, _)| here.id.clone()) {
        source.close(MOVING, &id).await?;
        return Ok(id);
    }
    match here {
        Some(mark) if mark.why == GONE => {
            return Err(refused("the source was moved before".to_owned()));
        }
        Some(_) => {
            let reason = "the source is being moved to another store, or filled from one: go on with that, or \
                abandon it";
            return Err(refused(reason.to_owned()));
        }
        None => {}
    }
    if !is_empty(target, tables).await? {
        return Err(if is_filling {
            not_ours()
        } else {
            refused("the target holds rows".to_owned())
        });
    }
    sound(&source.audit().await?)?;
    let id = uuid::Uuid::now_v7().to_string();
    target.close(FILLING, &id).await?;
    crash_point("move.before_closing_source");
    if let Err(error) = source.close(MOVING, &id).await {
        target.open_again().await?;
        return Err(error);
    }
    Ok(id)
}

fn not_ours() -> StoreError {
    let reason = "the target is being filled from another store: go on with that, or abandon it";
    refused(reason.to_owned())
}

async fn is_empty(side: &Side, tables: &[(Table, Table)]) -> Answer<bool> {
    for (table, _) in tables {
        if side.count(&table.name).await? > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

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
