//! Slots: an engine takes no more from the queue than it has free hands for, so that the rest is there for others
//! and priorities act late.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::Store;
use sprag_engine::worker::{Context, Handler};
use sprag_kernel::JobState;
use tokio::sync::Semaphore;

use crate::graphs::{GRACE, closed};
use crate::on_both_stores;
use crate::play::Play;
use crate::world::World;

const SLOTS: usize = 3;
const JOBS: usize = 20;

/// Two request types: `SLOW` for a service whose handlers wait to be let go, `QUICK` for one that does not.
async fn builder<W: World>(play: &Play<W>) -> EngineBuilder<W::Store> {
    let config = EngineConfig { poll: Duration::from_millis(5), ..EngineConfig::default() };
    let graph = "protocol_id: fan.v1\nrequest_types: [FAN]\nsteps:\n  \
        - {step_id: each, for_each: input.list, service: slow}\n";
    EngineBuilder::new(play.world.reopen().await.unwrap())
        .config(config)
        .protocol(Protocol::new("slow.v1", "SLOW").step("only", "slow"))
        .protocol(Protocol::new("quick.v1", "QUICK").step("only", "quick"))
        .protocol(Protocol::read(graph).unwrap())
}

async fn worker<W: World>(play: &Play<W>, go: Arc<Semaphore>) -> Engine<W::Store> {
    let slow = Handler::new(move |_: Value, _: Directive, _: Context| {
        let go = go.clone();
        async move {
            let permit = go.acquire().await.map_err(|e| Failure::fatal("CLOSED", e))?;
            permit.forget();
            Ok::<_, Failure>(Value::Null)
        }
    });
    let quick = Handler::new(|_: Value, _: Directive, _: Context| async { Ok::<_, Failure>(1) });
    let builder = builder(play).await.service("slow", SLOTS, slow).service("quick", 1, quick);
    builder.start().await.unwrap()
}

async fn submit<S: Store>(engine: &Engine<S>, request_type: &str, payload: Value) -> JobId {
    let envelope = json!({"tenant_id": "t1", "request_type": request_type, "input_ref": "in",
        "output_ref": "out", "payload": payload, "schema_version": "1",
        "idempotency_key": JobId::new().to_string()});
    engine.submit(envelope.to_string().as_bytes()).await.unwrap().job_id
}

/// How many attempts of the slow service an engine has, and how many are in the queue.
async fn held_and_queued<W: World>(play: &Play<W>) -> (usize, usize) {
    let count = async |what: &str| {
        let sql = format!(
            "SELECT CAST(count(*) AS text) FROM attempt WHERE service = 'slow' AND {what} IS NOT NULL"
        );
        play.world.query(&sql).await.unwrap()[0][0].as_ref().unwrap().parse().unwrap()
    };
    (count("owner").await, count("ready_at").await)
}

/// Waits until so many are held, then has the engine claim a few times more.
async fn expect_held<W: World>(play: &Play<W>, engine: &Engine<W::Store>, queued: usize) {
    while held_and_queued(play).await.0 < SLOTS.min(queued) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for _ in 0..5 {
        let quick = submit(engine, "QUICK", json!({})).await;
        assert_eq!(closed(play.store(), quick).await.row.state, JobState::Succeeded);
    }
    assert_eq!(held_and_queued(play).await, (SLOTS, queued - SLOTS));
}

on_both_stores! {
    async fn an_engine_claims_no_more_than_it_has_free_slots<W>(play: &Play<W>) {
        let idle = builder(play).await.start().await.unwrap();
        let mut jobs = Vec::new();
        for _ in 0..JOBS {
            jobs.push(submit(&idle, "SLOW", json!({})).await);
        }
        let go = Arc::new(Semaphore::new(0));
        let engine = worker(play, go.clone()).await;
        expect_held(play, &engine, JOBS).await;
        // What is submitted to the engine itself waits behind the others too.
        jobs.push(submit(&engine, "SLOW", json!({})).await);
        expect_held(play, &engine, JOBS + 1).await;
        go.add_permits(2);
        while held_and_queued(play).await.1 > JOBS + 1 - SLOTS - 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        expect_held(play, &engine, JOBS + 1 - 2).await;
        go.add_permits(JOBS);
        for job_id in jobs {
            assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        }
        engine.shutdown(GRACE).await.unwrap();
        idle.shutdown(GRACE).await.unwrap();
    }

    async fn nor_does_it_for_the_branches_of_a_fan_out<W>(play: &Play<W>) {
        let go = Arc::new(Semaphore::new(0));
        let engine = worker(play, go.clone()).await;
        let list: Vec<usize> = (0..JOBS).collect();
        let job_id = submit(&engine, "FAN", json!({"list": list})).await;
        while held_and_queued(play).await.1 < JOBS - SLOTS {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        expect_held(play, &engine, JOBS).await;
        go.add_permits(JOBS);
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }
}
