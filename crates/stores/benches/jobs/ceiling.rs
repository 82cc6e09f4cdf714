//! What the disk and the database do without an engine: commits of a single row, narrow rows by bulk statements,
//! and the rows that a round has left behind, copied by bulk statements into empty tables with the same indexes.

use std::path::Path;
use std::time::Instant;

use sprag_stores::sqlite::{Durability, SqliteStore};

/// Rows of a bulk statement, as many as a slice of the engine.
const SLICE: usize = 500;
const COMMITS: usize = 1_000;
const ROWS: usize = 200_000;

const TABLE: &str =
    "CREATE TABLE ceiling (a bigint PRIMARY KEY, b bigint NOT NULL, c bigint NOT NULL,
    d text NOT NULL, e text NOT NULL)";
const TEXT: &str = "sixty-four characters, about what the texts of one attempt's row are";

/// Per second.
pub(crate) struct Ceiling {
    pub(crate) commits: f64,
    pub(crate) rows: f64,
}

pub(crate) fn of_sqlite(path: &Path) -> Ceiling {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    connection.pragma_update(None, "synchronous", "FULL").unwrap();
    connection.execute_batch(TABLE).unwrap();
    let mut insert = connection.prepare("INSERT INTO ceiling VALUES (?1, ?1, ?1, ?2, ?2)").unwrap();
    let mut n = 0_i64;
    let mut rate = |rows: usize, total: usize| {
        let start = Instant::now();
        for _ in 0..total / rows {
            connection.execute_batch("BEGIN IMMEDIATE").unwrap();
            for _ in 0..rows {
                n += 1;
                insert.execute(rusqlite::params![n, TEXT]).unwrap();
            }
            connection.execute_batch("COMMIT").unwrap();
        }
        total as f64 / start.elapsed().as_secs_f64()
    };
    Ceiling { commits: rate(1, COMMITS), rows: rate(SLICE, ROWS) }
}

pub(crate) async fn of_postgres(url: &str) -> Ceiling {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(TABLE).await.unwrap();
    let sql = "INSERT INTO ceiling SELECT a, a, a, b, b FROM unnest($1::bigint[], $2::text[]) AS i (a, b)";
    let insert = client.prepare(sql).await.unwrap();
    let mut n = 0_i64;
    let mut rates = [0.0; 2];
    for (rate, (rows, total)) in rates.iter_mut().zip([(1, COMMITS), (SLICE, ROWS)]) {
        let start = Instant::now();
        for _ in 0..total / rows {
            let keys: Vec<i64> = (0..rows as i64).map(|i| n + i).collect();
            n += rows as i64;
            client.execute(&insert, &[&keys, &vec![TEXT; rows]]).await.unwrap();
        }
        *rate = total as f64 / start.elapsed().as_secs_f64();
    }
    Ceiling { commits: rates[0], rows: rates[1] }
}

/// Tables that hold all but a handful of the rows of a round.
const OWN: [&str; 3] = ["job", "attempt", "event"];

/// Rows per second when the rows of a store are written again, slice by slice, one commit for each table.
pub(crate) fn of_own_sqlite(done: &Path, copy: &Path) -> f64 {
    drop(SqliteStore::open(copy, Durability::Full).unwrap());
    let connection = rusqlite::Connection::open(copy).unwrap();
    connection.pragma_update(None, "synchronous", "FULL").unwrap();
    connection.execute("ATTACH ?1 AS done", [done.to_str().unwrap()]).unwrap();
    connection.execute_batch("INSERT INTO protocol SELECT * FROM done.protocol").unwrap();
    let mut slices: Vec<[u8; 16]> = {
        let sql = format!("{NUMBERED} FROM done.job) WHERE n % {SLICE} = 0 ORDER BY 1");
        let mut statement = connection.prepare(&sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    slices.push([0xff; 16]);
    let (mut rows, start) = (0, Instant::now());
    for bounds in slices.windows(2) {
        for table in OWN {
            let sql = format!(
                "INSERT INTO {table} SELECT * FROM done.{table} WHERE job_id >= ?1 AND job_id < ?2"
            );
            let mut copies = connection.prepare_cached(&sql).unwrap();
            rows += copies.execute(rusqlite::params![bounds[0], bounds[1]]).unwrap();
        }
    }
    rows as f64 / start.elapsed().as_secs_f64()
}

const NUMBERED: &str =
    "SELECT job_id FROM (SELECT job_id, row_number() OVER (ORDER BY job_id) - 1 AS n";

/// The same on the database of a round.
pub(crate) async fn of_own_postgres(url: &str) -> f64 {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("CREATE SCHEMA copy").await.unwrap();
    let mut copies = Vec::new();
    for table in OWN {
        let sql = format!("CREATE TABLE copy.{table} (LIKE sprag.{table} INCLUDING ALL)");
        client.batch_execute(&sql).await.unwrap();
        let sql = format!(
            "INSERT INTO copy.{table} OVERRIDING SYSTEM VALUE SELECT * FROM sprag.{table}
             WHERE job_id >= $1 AND job_id < $2"
        );
        copies.push(client.prepare(&sql).await.unwrap());
    }
    client.batch_execute("ANALYZE").await.unwrap();
    let sql = format!("{NUMBERED} FROM sprag.job) AS j WHERE n % {SLICE} = 0 ORDER BY 1");
    let mut slices: Vec<uuid::Uuid> =
        client.query(&sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    slices.push(uuid::Uuid::max());
    let (mut rows, start) = (0, Instant::now());
    for bounds in slices.windows(2) {
        for copy in &copies {
            rows += client.execute(copy, &[&bounds[0], &bounds[1]]).await.unwrap();
        }
    }
    rows as f64 / start.elapsed().as_secs_f64()
}
