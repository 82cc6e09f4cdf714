//! What somebody else has locked or just written when a statement on Postgres looks: the statement's snapshot is
//! older than its locks, and it must notice. SQLite has one writer and none of this.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_conformance::cluster::Cluster;
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::Engine;
use sprag_engine::protocol::Protocol;
use sprag_engine::signals::Signal;
use sprag_engine::worker::{Context, Handler};
use sprag_kernel::{JobState, StepState};
use sprag_stores::postgres::PostgresStore;
use tokio::sync::Notify;
use tokio_postgres::{Client, NoTls};

use crate::graphs::{GRACE, closed, echo, engine, submit};
use crate::play::Play;
use crate::pull::{builder, until};
use crate::world::{Postgres, World};

/// A connection of one's own to the play's database.
async fn connect(play: &Play<Postgres>) -> Client {
    let name = play.world.query("SELECT current_database()::text").await.unwrap();
    let folder = Cluster::shared().folder().display().to_string();
    let url = format!("host={folder} user=sprag dbname={}", name[0][0].as_ref().unwrap());
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Waits until so many statements of this database wait for a lock.
async fn waiting(play: &Play<Postgres>, count: usize) {
    let sql = "SELECT pid::text FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    for _ in 0..4_000 {
        if play.world.query(sql).await.unwrap().len() == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("{count} statements do not wait for a lock");
}

/// `good` opens a sleep of an hour, `bad` fails the job; each has an engine of its own.
const STEPS: &str = "
  - {step_id: good, needs: [], service: good}
  - {step_id: nap, needs: [good], sleep: 1h}
  - {step_id: bad, needs: [], service: bad, retry: {max_attempts: 1}}
";

async fn serve(play: &Play<Postgres>, service: &str, go: Arc<Notify>) -> Engine<PostgresStore> {
    let text = format!("protocol_id: graph.v1\nrequest_types: [GRAPH]\nsteps:{STEPS}");
    let handler = Handler::new(move |_: Value, directive: Directive, _: Context| {
        let go = go.clone();
        async move {
            go.notified().await;
            match directive.step_id.as_str() {
                "bad" => Err(Failure::fatal("TOLD", "on purpose")),
                _ => Ok(json!(1)),
            }
        }
    });
    let builder = builder(play).await.protocol(Protocol::read(&text).unwrap());
    builder.service(service, 1, handler).start().await.unwrap()
}

/// The failure's statement had its snapshot from before the sleep was opened, closed nothing, and left the job to
/// wait for an hour with its verdict.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_another_engine_opens_while_a_failure_waits_for_the_job_is_closed_with_it() {
    let play = Play::<Postgres>::begin().await;
    let (good, bad) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let opens = serve(&play, "good", good.clone()).await;
    let fails = serve(&play, "bad", bad.clone()).await;
    let job_id = submit(&opens, json!({})).await;
    for step in ["good", "bad"] {
        let runs = |state| state == StepState::InProgress;
        until(&play, job_id, |attempt| attempt.step_id == step && runs(attempt.row.state)).await;
    }
    let mut other = connect(&play).await;
    let tx = other.transaction().await.unwrap();
    let lock = "SELECT 1 FROM sprag.job WHERE job_id = $1 FOR NO KEY UPDATE";
    tx.execute(lock, &[&job_id.uuid()]).await.unwrap();
    good.notify_one();
    waiting(&play, 1).await;
    bad.notify_one();
    waiting(&play, 2).await;
    tx.commit().await.unwrap();

    let job = closed(play.store(), job_id).await;
    assert_eq!(job.row.state, JobState::FailedFinal);
    let attempts = play.attempts(job_id).await;
    let nap = attempts.iter().find(|attempt| attempt.step_id == "nap").unwrap();
    assert_eq!(nap.row.state, StepState::Cancelled);
    opens.shutdown(GRACE).await.unwrap();
    fails.shutdown(GRACE).await.unwrap();
    play.expect_sound().await;
}

/// Whoever had locked the wait was taken for one that brings it back to an engine: if it left it as it was, as a
/// cancel does whose version is stale, the signal was kept and nobody woke up.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_signal_whose_wait_is_locked_by_somebody_who_leaves_it_is_not_lost() {
    let play = Play::<Postgres>::begin().await;
    let engine = engine(&play, "  - {step_id: ask, wait: {signal: go}}\n", echo()).await;
    let job_id = submit(&engine, json!({})).await;
    until(&play, job_id, |attempt| attempt.waits_for.is_some() && attempt.owner.is_none()).await;
    let mut other = connect(&play).await;
    let tx = other.transaction().await.unwrap();
    let lock = "SELECT 1 FROM sprag.attempt WHERE job_id = $1 FOR UPDATE";
    tx.execute(lock, &[&job_id.uuid()]).await.unwrap();
    let signal = engine.signal(job_id, Signal::new("s1", "go", &json!({})));
    let leave = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        tx.rollback().await.unwrap();
    };
    let (signalled, ()) = tokio::join!(signal, leave);
    assert!(signalled.unwrap().taken_by.is_some());
    assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
    engine.shutdown(GRACE).await.unwrap();
    play.expect_sound().await;
}
