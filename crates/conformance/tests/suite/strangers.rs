//! Protocols that an engine cannot read: one that a newer version has registered, or one that is damaged. The jobs wait, and
//! go on as soon as anybody can read it; the engine's other work goes on meanwhile.

use std::time::Duration;

use serde_json::json;
use sprag_engine::engine::EngineConfig;
use sprag_engine::protocol::Protocol;
use sprag_kernel::JobState;

use crate::graphs::{GRACE, echo};
use crate::on_both_stores;
use crate::play::{Play, SERVICE};
use crate::pull::{builder, closed, until};
use crate::world::World;

/// How long an engine keeps what it cannot read.
const PATIENCE: Duration = Duration::from_millis(100);

fn envelope(request_type: &str, n: usize) -> Vec<u8> {
    let envelope = json!({
        "tenant_id": "t1", "request_type": request_type, "input_ref": "in", "output_ref": "out",
        "payload": {"n": n}, "schema_version": "1",
    });
    envelope.to_string().into_bytes()
}

async fn rewrite<W: World>(play: &Play<W>, from: &str, to: &str) {
    let sql = format!(
        "UPDATE protocol SET definition = replace(definition, '{from}', '{to}')
         WHERE protocol_id = 'later.v1'"
    );
    play.world.execute(&sql).await.unwrap();
}

on_both_stores! {
    /// It kept them until it died, and claimed more with each look.
    async fn jobs_of_a_protocol_that_cannot_be_read_go_back_and_wait_until_it_can<W>(play: &Play<W>) {
        let later = Protocol::new("later.v1", "LATER").step("only", SERVICE);
        let first = builder(play).await.protocol(later).start().await.unwrap();
        let job_id = first.submit(&envelope("LATER", 0)).await.unwrap().job_id;
        first.shutdown(GRACE).await.unwrap();
        rewrite(play, "\"steps\"", "\"stairs\"").await;

        let config = EngineConfig {
            poll: Duration::from_millis(5),
            takeover: PATIENCE,
            ..EngineConfig::default()
        };
        let known = Protocol::new("known.v1", "KNOWN").step("only", SERVICE);
        let engine = builder(play).await.config(config).protocol(known);
        let engine = engine.service(SERVICE, 4, echo()).start().await.unwrap();
        until(play, job_id, |attempt| attempt.row.ledger.leg1_entries() == 2).await;
        for n in 0..20 {
            let beside = engine.submit(&envelope("KNOWN", n)).await.unwrap().job_id;
            assert_eq!(closed(play, beside).await, JobState::Succeeded);
        }
        tokio::time::sleep(PATIENCE * 5).await;
        let waiting = &play.attempts(job_id).await[0];
        assert_eq!(waiting.row.ledger.leg1_entries(), 2, "it is no suspect of anything");
        assert_eq!(play.job(job_id).await.row.state, JobState::Queued);

        rewrite(play, "\"stairs\"", "\"steps\"").await;
        assert_eq!(closed(play, job_id).await, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }
}
