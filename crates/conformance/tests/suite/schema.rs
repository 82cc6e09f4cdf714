//! The tables against the kernel: their CHECKs allow the codes of its machines and no others. And the views against
//! what a worker is told.

use std::time::Duration;

use sprag_engine::protocol::Protocol;
use sprag_engine::store::ending_kind;
use sprag_kernel::machine::State;
use sprag_kernel::{JobState, OutboxState, StepState};

use crate::on_both_stores;
use crate::play::Play;
use crate::pull::{builder, claim, done};
use crate::world::World;

/// The codes of a machine, and whether they are those of `BETWEEN 0 AND n`.
fn last_code<S: State>() -> u8 {
    let codes: Vec<u8> = S::machine().states.iter().map(|state| state.code()).collect();
    assert!(codes.iter().copied().eq(0..=codes[codes.len() - 1]), "codes are dense");
    codes[codes.len() - 1]
}

/// Which values of a column the table takes, of those from -2 to 20.
async fn taken<W: World>(play: &Play<W>, table: &str, column: &str, and: &str) -> Vec<i64> {
    let mut taken = Vec::new();
    for value in -2..=20 {
        let sql = format!("BEGIN; UPDATE {table} SET {column} = {value}{and}; ROLLBACK");
        match play.world.execute(&sql).await {
            Ok(()) => taken.push(value),
            Err(_) => drop(play.world.execute("ROLLBACK").await),
        }
    }
    taken
}

/// The only row of a view, with these columns as text.
async fn row<W: World>(play: &Play<W>, view: &str, columns: &[&str]) -> Vec<Option<String>> {
    let columns: Vec<String> = columns.iter().map(|c| format!("CAST({c} AS text)")).collect();
    let sql = format!("SELECT {} FROM {view}", columns.join(", "));
    let mut rows = play.world.query(&sql).await.unwrap();
    assert_eq!(rows.len(), 1, "{view}");
    rows.remove(0)
}

fn texts(values: &[&dyn std::fmt::Display]) -> Vec<Option<String>> {
    values.iter().map(|value| Some(value.to_string())).collect()
}

on_both_stores! {
    /// With names that are not parts of a path as they are.
    async fn a_row_of_each_view_says_what_the_directive_says<W>(play: &Play<W>) {
        let protocol = Protocol::new("views.v1", "VIEWS").step(".first.step", "outside");
        let engine = builder(play).await.protocol(protocol).start().await.unwrap();
        let envelope = serde_json::json!({"tenant_id": "a/b c.d-\u{fc}~", "request_type": "VIEWS",
            "input_ref": "in", "output_ref": "out", "payload": {"n": 1}, "schema_version": "1"});
        let job_id = engine.submit(envelope.to_string().as_bytes()).await.unwrap().job_id;
        let told = engine.claim(claim("c", 1)).await.unwrap().remove(0);
        assert_eq!(
            told.workspace_ref,
            format!("workspace/a%2fb%20c.d-%c3%bc~/{job_id}/%2efirst.step/1")
        );

        let columns = [
            "step_id", "step_index", "step_type", "attempt_no", "lease_id", "lease_expires_at",
            "input_ref", "'workspace/' || workspace_ref", "output_ref", "payload", "state",
        ];
        let lease = told.lease_id.0.cast_signed();
        let expected: [&dyn std::fmt::Display; 11] = [
            &told.step_id, &told.step_index, &told.step_type, &told.attempt_no, &lease,
            &told.lease_expires_at, &told.input_ref, &told.workspace_ref, &told.output_ref,
            &told.payload, &"IN_PROGRESS",
        ];
        assert_eq!(row(play, "step", &columns).await, texts(&expected));

        let columns = [
            "outbox_id", "step_id", "attempt_no", "lease_id", "topic", "partition", "payload",
            "state",
        ];
        let outbox_id = format!("{}/{}", told.effect_key, told.attempt_no);
        let lane = play.job(job_id).await.facts.route.lane;
        let expected: [&dyn std::fmt::Display; 8] = [
            &outbox_id, &told.step_id, &told.attempt_no, &lease, &"outside", &lane, &told.payload,
            &"SENT",
        ];
        assert_eq!(row(play, "outbox", &columns).await, texts(&expected));

        let columns =
            ["tenant_id", "protocol_id", "state", "current_step_id", "current_step_index"];
        let expected: [&dyn std::fmt::Display; 5] =
            [&told.tenant_id, &told.protocol_id, &"IN_PROGRESS", &told.step_id, &told.step_index];
        assert_eq!(row(play, "job_view", &columns).await, texts(&expected));
        engine.result(told.fence(), done()).await.unwrap();
        engine.shutdown(Duration::from_secs(5)).await.unwrap();
    }

    async fn checks_of_states_allow_what_the_machines_have<W>(play: &Play<W>) {
        play.create(1).await;
        let codes = |last: u8| (0..=i64::from(last)).collect::<Vec<_>>();
        let at = ", completed_at = CASE WHEN 1 = 1 THEN completed_at END";
        let open = taken(play, "job", "state", at).await;
        let closed = taken(play, "job", "state", ", completed_at = 1").await;
        let terminal = |state: &&JobState| state.is_terminal();
        let (ended, going): (Vec<_>, Vec<_>) =
            JobState::machine().states.iter().partition(terminal);
        let codes_of = |states: Vec<&JobState>| -> Vec<i64> {
            states.iter().map(|state| state.code().into()).collect()
        };
        assert_eq!((open, closed), (codes_of(going), codes_of(ended)), "completed_at says terminal");
        assert_eq!(taken(play, "attempt", "state", "").await, codes(last_code::<StepState>()));
        assert_eq!(taken(play, "attempt", "outbox", "").await, codes(last_code::<OutboxState>()));
    }

    async fn checks_of_endings_allow_what_the_seam_can_read<W>(play: &Play<W>) {
        play.create(1).await;
        let known: Vec<i64> = (-2..=20).filter(|code| ending_kind(*code, None).is_some()).collect();
        assert_eq!(taken(play, "attempt", "ending", "").await, known);
    }

    async fn checks_of_counts_allow_no_nonsense<W>(play: &Play<W>) {
        play.create(1).await;
        let from = |least: i64| (least..=20).collect::<Vec<_>>();
        assert_eq!(taken(play, "job", "semaphore", "").await, from(0));
        assert_eq!(taken(play, "job", "initial", "").await, from(1));
        assert_eq!(taken(play, "job", "steps", "").await, from(1));
        assert_eq!(taken(play, "job", "lane", "").await, (0..=15).collect::<Vec<_>>());
        assert_eq!(taken(play, "attempt", "attempt_no", "").await, from(1));
        assert_eq!(taken(play, "engine", "dead", "").await, [0, 1]);
        assert_eq!(taken(play, "job", "mode", "").await, [0, 1]);
    }
}
