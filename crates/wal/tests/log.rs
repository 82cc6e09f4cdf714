//! Commits in long pieces on real files, beside connections that know nothing of them.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use proptest::prelude::*;
use rusqlite::Connection;

/// Pages in the cache of a connection: so few that some leave it before their transaction commits.
const CACHED: u32 = 20;

/// The same table on one file, which only copies its log when it is told to.
fn prepared(connection: Connection) -> Connection {
    for (name, value) in [("journal_mode", "WAL"), ("synchronous", "NORMAL")] {
        connection.pragma_update(None, name, value).unwrap();
    }
    connection.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
    connection.pragma_update(None, "cache_size", CACHED).unwrap();
    let table = "CREATE TABLE IF NOT EXISTS page (n INTEGER PRIMARY KEY, content BLOB NOT NULL)";
    connection.execute_batch(table).unwrap();
    connection
}

fn long_pieces(path: &Path) -> Connection {
    prepared(sprag_wal::open(path).unwrap())
}

fn plain(path: &Path) -> Connection {
    prepared(Connection::open(path).unwrap())
}

/// Writes rows that take a page each.
fn put(connection: &Connection, from: u32, count: u32, mark: u8) {
    let sql = "INSERT OR REPLACE INTO page VALUES (?1, ?2)";
    let mut insert = connection.prepare_cached(sql).unwrap();
    for n in from..from + count {
        insert.execute((n, vec![mark; 3_900])).unwrap();
    }
}

fn commit(connection: &Connection) {
    sprag_wal::in_long_pieces(|| connection.execute_batch("COMMIT")).unwrap();
}

/// All rows, of a file that is whole.
fn content(connection: &Connection) -> Vec<(u32, Vec<u8>)> {
    let sql = "PRAGMA integrity_check";
    assert_eq!(connection.query_row(sql, [], |row| row.get(0)), Ok("ok".to_owned()));
    let mut rows = connection.prepare("SELECT n, content FROM page ORDER BY n").unwrap();
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

/// How often this thread has asked the system to write.
#[cfg(target_os = "linux")]
fn writes() -> u64 {
    let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let count = counts.lines().find_map(|line| line.strip_prefix("syscw: ")).unwrap();
    count.parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn a_commit_of_many_pages_is_a_few_writes() {
    let folder = tempfile::tempdir().unwrap();
    let of_commit = |connection: Connection| {
        connection.pragma_update(None, "cache_size", 1_000).unwrap();
        connection.execute_batch("BEGIN").unwrap();
        put(&connection, 0, 200, 1);
        let before = writes();
        commit(&connection);
        writes() - before
    };
    let many = of_commit(plain(&folder.path().join("plain.db")));
    assert!(many > 400, "{many}");
    let few = of_commit(long_pieces(&folder.path().join("long.db")));
    assert!(few < 20, "{few}");
}

/// Pages that leave the cache are written before their transaction commits. SQLite tells nobody when that is rolled back
/// instead, and the next transaction, whoever makes it, begins in the same place of the log.
#[test]
fn what_was_rolled_back_is_not_written_over_a_commit_of_somebody_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.db");
    let (own, other) = (long_pieces(&path), plain(&path));
    put(&other, 0, 3 * CACHED, 1);
    for begun in 1..=3 * CACHED {
        // Nothing is read from the log, and so nothing has to be written to it for that.
        other.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
        own.execute_batch("BEGIN IMMEDIATE").unwrap();
        put(&own, 0, begun, 2);
        own.execute_batch("ROLLBACK").unwrap();
        put(&other, 0, 3 * CACHED, 3);
        assert_eq!(content(&own), content(&other));
        assert!(content(&plain(&path)).iter().all(|(_, row)| row[0] == 3));
    }
}

/// What a script does to a file, through a connection that commits in long pieces or beside it.
#[derive(Clone, Debug)]
enum Step {
    /// Rows in the transaction that is open, of which some are written to the log before it commits.
    Put(u32, u32),
    /// The same, and back again.
    PutAndTakeBack(u32, u32),
    Delete(u32, u32),
    Commit,
    Rollback,
    /// Somebody else's commit, if no transaction is open.
    Beside(u32, u32),
    /// Somebody else copies the log, if no transaction is open, and it begins anew.
    Copy,
}

fn step() -> impl Strategy<Value = Step> {
    let rows = || (0..200_u32, 1..80_u32);
    prop_oneof![
        4 => rows().prop_map(|(from, count)| Step::Put(from, count)),
        2 => rows().prop_map(|(from, count)| Step::PutAndTakeBack(from, count)),
        1 => rows().prop_map(|(from, count)| Step::Delete(from, count)),
        3 => Just(Step::Commit),
        2 => Just(Step::Rollback),
        2 => rows().prop_map(|(from, count)| Step::Beside(from, count)),
        1 => Just(Step::Copy),
    ]
}

/// Does a step on the file of these two connections.
fn play(own: &Connection, other: &Connection, step: &Step, mark: u8) {
    let begin = || {
        if own.is_autocommit() {
            own.execute_batch("BEGIN IMMEDIATE").unwrap();
        }
    };
    match *step {
        Step::Put(from, count) => {
            begin();
            put(own, from, count, mark);
        }
        Step::PutAndTakeBack(from, count) => {
            begin();
            own.execute_batch("SAVEPOINT part").unwrap();
            put(own, from, count, mark);
            own.execute_batch("ROLLBACK TO part; RELEASE part").unwrap();
        }
        Step::Delete(from, count) => {
            begin();
            own.execute("DELETE FROM page WHERE n >= ?1 AND n < ?2", [from, from + count]).unwrap();
        }
        Step::Commit if !own.is_autocommit() => commit(own),
        Step::Rollback if !own.is_autocommit() => own.execute_batch("ROLLBACK").unwrap(),
        Step::Beside(from, count) if own.is_autocommit() => {
            other.execute_batch("BEGIN IMMEDIATE").unwrap();
            put(other, from, count, mark);
            other.execute_batch("COMMIT").unwrap();
        }
        Step::Copy if own.is_autocommit() => {
            other.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
        }
        Step::Commit | Step::Rollback | Step::Beside(..) | Step::Copy => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// After each commit others find the same as in a file that was written as SQLite does it.
    #[test]
    fn others_see_what_they_would_see_without(steps in prop::collection::vec(step(), 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let (path, twin) = (folder.path().join("long.db"), folder.path().join("plain.db"));
        let (own, other) = (long_pieces(&path), plain(&path));
        let (twin, beside_twin) = (plain(&twin), plain(&twin));
        for (step, mark) in steps.iter().zip(1..) {
            play(&own, &other, step, mark);
            play(&twin, &beside_twin, step, mark);
            // Its own connection is not asked: what it reads it finds, however late that is written.
            prop_assert_eq!(content(&other), content(&beside_twin));
            prop_assert_eq!(content(&plain(&path)), content(&beside_twin));
        }
        prop_assert_eq!(content(&own), content(&twin));
    }
}
