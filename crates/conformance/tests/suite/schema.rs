//! The tables against the kernel: their CHECKs allow the codes of its machines and no others.

use sprag_engine::store::ending_kind;
use sprag_kernel::machine::State;
use sprag_kernel::{JobState, OutboxState, StepState};

use crate::on_both_stores;
use crate::play::Play;
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

on_both_stores! {
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
