//! The server dies: what was committed is there, what was not is not, and the store goes on.

use std::time::Duration;

use sprag_engine::store::{FinishOutcome, Pick, Store, StoreError, Wish};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::rows::LeaseId;
use sprag_kernel::retry::RetryPolicy;
use sprag_stores::postgres::{PostgresOptions, PostgresStore};

use crate::play::{SERVICE, facts, new_job};
use sprag_conformance::cluster::Cluster;

/// Makes a call until the store is there again. Guards make the repeat safe, so nothing else is needed.
macro_rules! insist {
    ($call:expr) => {
        loop {
            match $call.await {
                Err(StoreError::Unavailable(_)) => {
                    tokio::time::sleep(Duration::from_millis(20)).await
                }
                answer => break answer.unwrap(),
            }
        }
    };
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l25_a_server_that_is_killed_in_the_middle_loses_nothing_and_doubles_nothing() {
    let cluster = std::sync::Arc::new(Cluster::start());
    let store =
        PostgresStore::open(&PostgresOptions::new(&cluster.database().await)).await.unwrap();
    store.put_protocol("test.v1", "{}").await.unwrap();
    let engine = store.join("first").await.unwrap();
    let policy = RetryPolicy::default();
    let killer = cluster.clone();
    let kills = std::thread::spawn(move || {
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(400));
            killer.kill();
            killer.restart();
        }
    });

    let mut submitted = 0;
    let mut lease = 0;
    while !kills.is_finished() {
        let jobs: Vec<_> =
            (0..20).map(|n| new_job(facts("t1", None, &format!("{submitted} {n}")), 2)).collect();
        insist!(store.submit(engine, jobs.clone()));
        submitted += 20;
        let wish = Wish { service: SERVICE.to_owned(), max: 50, pick: Pick::Any, tenant_id: None };
        for mut held in insist!(store.claim(engine, vec![wish.clone()])) {
            lease += 1;
            let write = sprag_engine::plan::dispatch(&mut held, LeaseId(lease), &policy).unwrap();
            held.attempt.version = write.version + 1;
            insist!(store.dispatch(engine, vec![write.clone()]));
            let output = Some("1".to_owned());
            let write = sprag_engine::plan::result(&held, Report::Succeeded, output, None)
                .unwrap()
                .unwrap();
            held.attempt.version = write.version + 1;
            held.attempt.ledger = write.ledger;
            held.attempt.ending = Some(write.ending);
            insist!(store.end(engine, vec![write.clone()]));
            let write = sprag_engine::plan::finish(&held, &policy, false).unwrap();
            let outcome: Vec<FinishOutcome> = insist!(store.finish(engine, vec![write.clone()]));
            assert_eq!(outcome.len(), 1);
        }
    }
    kills.join().unwrap();

    // A claim whose answer was lost is held by this engine; a second one takes it over.
    let heir = insist!(store.join("heir"));
    insist!(store.take_over(engine, heir));
    let filter = sprag_engine::store::JobFilter { limit: 100_000, ..Default::default() };
    assert_eq!(store.jobs(filter).await.unwrap().len(), submitted, "no accepted job is lost");
    for check in store.audit().await.unwrap() {
        assert!(check.violations.is_empty(), "{}: {:?}", check.name, check.violations);
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let answer = PostgresStore::open(&PostgresOptions::new("host=/nowhere user=nobody")).await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))));
}
