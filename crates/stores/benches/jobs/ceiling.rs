//! What the disk and the database do without an engine: commits of a single row, and rows by bulk statements.

use std::path::Path;
use std::time::Instant;

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
