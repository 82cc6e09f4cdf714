//! Deeds: what the work of a transactional handler may do to a table of its user, well and badly, said once
//! and done on either store.

use sprag_engine::directive::Failure;
use sprag_stores::postgres::PostgresWork;
use sprag_stores::sqlite::SqliteWork;

/// The table that deeds write to, and one whose rows must be in the first by the time of the COMMIT.
pub const SQLITE_TABLES: &str = "CREATE TABLE effect (name TEXT PRIMARY KEY);
    CREATE TABLE debt (name TEXT REFERENCES effect DEFERRABLE INITIALLY DEFERRED)";
pub const POSTGRES_TABLES: &str = "CREATE TABLE public.effect (name text PRIMARY KEY);
    CREATE TABLE public.debt (name text REFERENCES public.effect DEFERRABLE INITIALLY DEFERRED)";

/// What work does after it has written its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It is done.
    Ends,
    /// It says that it failed, for now.
    Fails,
    /// It writes the same row again.
    Violates,
    /// It does so, and pretends that nothing happened.
    Swallows,
    /// It panics.
    Panics,
    /// It runs a statement that never ends.
    Dawdles,
    /// It leaves a deferred constraint broken.
    Owes,
    /// It commits.
    Commits,
    /// It rolls back.
    RollsBack,
}

const INSERT: &str = "INSERT INTO effect VALUES ('";

pub fn on_sqlite(effect: &str, then: Then) -> SqliteWork {
    let insert = format!("{INSERT}{effect}')");
    SqliteWork::new(move |connection| {
        connection.execute(&insert, [])?;
        match then {
            Then::Ends => {}
            Then::Fails => return Err(Failure::retryable("BUSY", "not now").into()),
            Then::Violates => drop(connection.execute(&insert, [])?),
            Then::Swallows => drop(connection.execute(&insert, [])),
            Then::Panics => panic!("this one panics"),
            Then::Dawdles => drop(connection.execute(
                "INSERT INTO effect WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n)
                 SELECT n FROM n WHERE n < 0",
                [],
            )?),
            Then::Owes => drop(connection.execute("INSERT INTO debt VALUES ('nobody')", [])?),
            Then::Commits => connection.execute_batch("COMMIT")?,
            Then::RollsBack => connection.execute_batch("ROLLBACK")?,
        }
        Ok(())
    })
}

pub fn on_postgres(effect: &str, then: Then) -> PostgresWork {
    let insert = format!("{INSERT}{effect}')");
    PostgresWork::new(move |tx| {
        let insert = insert.clone();
        Box::pin(async move {
            tx.execute(&insert, &[]).await?;
            match then {
                Then::Ends => {}
                Then::Fails => return Err(Failure::retryable("BUSY", "not now").into()),
                Then::Violates => drop(tx.execute(&insert, &[]).await?),
                Then::Swallows => drop(tx.execute(&insert, &[]).await),
                Then::Panics => panic!("this one panics"),
                Then::Dawdles => drop(tx.execute("SELECT pg_sleep(600)", &[]).await?),
                Then::Owes => drop(tx.execute("INSERT INTO debt VALUES ('nobody')", &[]).await?),
                Then::Commits => tx.batch_execute("COMMIT").await?,
                Then::RollsBack => tx.batch_execute("ROLLBACK").await?,
            }
            Ok(())
        })
    })
}
