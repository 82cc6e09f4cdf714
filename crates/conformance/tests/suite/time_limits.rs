//! The time that one attempt may take in all, for workers outside: however alive they are, the lease ends with it.

use std::time::Duration;

use serde_json::json;
use sprag_engine::callback::{AckMode, Claim, Completion};
use sprag_engine::engine::Engine;
use sprag_engine::protocol::Protocol;
use sprag_kernel::{Code, JobState, StepState};

use crate::graphs::GRACE;
use crate::on_both_stores;
use crate::play::{BEGIN_MS, Play};
use crate::pull::{builder, claim, closed, until};
use crate::world::World;

const MINUTE: u64 = 60_000;
/// After the begin of a test.
const NOON: u64 = BEGIN_MS.cast_unsigned();

/// Two attempts of ten minutes each; a lease is fifteen.
async fn engine<W: World>(play: &Play<W>) -> Engine<W::Store> {
    let mut protocol = Protocol::new("pull.v1", "PULL").step("only", "outside");
    protocol.steps[0].timeouts.step = Some(10 * MINUTE);
    protocol.steps[0].retry.max_attempts = Some(2);
    protocol.steps[0].retry.backoff = Some(vec![MINUTE]);
    builder(play).await.protocol(protocol).start().await.unwrap()
}

on_both_stores! {
    /// Only handlers in the process were held to it: a worker that beat could take for ever.
    async fn an_attempt_of_a_worker_outside_is_over_with_its_time_though_it_beats<W>(play: &Play<W>) {
        let engine = engine(play).await;
        let job_id = crate::pull::submit(&engine, 1).await;
        let directive = engine.claim(claim("c", 1)).await.unwrap().remove(0);
        assert_eq!(directive.lease_expires_at, NOON + 10 * MINUTE, "no lease goes beyond");
        for ms in [4 * MINUTE, 6 * MINUTE - 1] {
            play.clock.advance(ms.cast_signed());
            let alive = engine.heartbeat(directive.fence(), None).await.unwrap();
            assert_eq!(alive.lease_expires_at, NOON + 10 * MINUTE);
        }
        play.clock.advance(1);
        let first = until(play, job_id, |attempt| attempt.row.state == StepState::FailedRetry && attempt.error.is_some()).await;
        assert_eq!((first.key.attempt_no, first.error.unwrap().code.as_str()), (1, "STEP_TIMEOUT"));
        let late = engine.heartbeat(directive.fence(), None).await.unwrap_err();
        assert_eq!(late.code(), Code::StaleFence);

        play.clock.advance(MINUTE.cast_signed());
        let again = engine.claim(claim("d", 1)).await.unwrap().remove(0);
        assert_eq!((again.attempt_no, again.lease_expires_at), (2, NOON + 21 * MINUTE), "it begins anew");
        engine.result(again.fence(), Completion::succeeded(json!(2))).await.unwrap();
        assert_eq!(closed(play, job_id).await, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn its_time_begins_with_the_acknowledgement<W>(play: &Play<W>) {
        let engine = engine(play).await;
        let job_id = crate::pull::submit(&engine, 1).await;
        let explicit = Claim { ack: AckMode::Explicit, wait: Duration::from_secs(20), ..claim("c", 1) };
        let directive = engine.claim(explicit).await.unwrap().remove(0);
        play.clock.advance(20_000);
        engine.ack(directive.fence()).await.unwrap();
        let acked = until(play, job_id, |attempt| attempt.acked_at.is_some()).await;
        assert_eq!(acked.timer_at, Some(NOON + 20_000 + 10 * MINUTE));
        play.clock.advance(10 * MINUTE.cast_signed() - 1);
        let alive = engine.heartbeat(directive.fence(), None).await.unwrap();
        assert_eq!(alive.lease_expires_at, NOON + 20_000 + 10 * MINUTE);
        engine.result(directive.fence(), Completion::succeeded(json!(1))).await.unwrap();
        assert_eq!(closed(play, job_id).await, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }
}
