//! A lost call that the server is still at when it is made again. It is held up at two places: before a statement,
//! when all that it has is a look at the rows from before, and at its end, when it has all its locks. The call is
//! repeated beside it, until it is done or waits for the one that was lost; then that goes on as well.

use std::fmt::Debug;
use std::time::Duration;

use sprag_conformance::cutter::Side;
use sprag_engine::store::{Answer, StoreError};

use super::{MOST, Stage};
use crate::world::World;

/// Calls that pass over rows which somebody else has locked: beside the first one they find nothing to do. If that comes
/// to nothing then, it is a later look of the engine that does it.
const LOOK_AGAIN: &[&str] = &["claim", "claim_tasks", "take_in"];

/// Has the session that is told so wait for the test.
const GATES: &str = "
    CREATE FUNCTION sprag.held_up() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('test.held_up', true) = TG_ARGV[0] THEN
            PERFORM pg_advisory_xact_lock_shared(1);
        END IF;
        RETURN NULL;
    END $$;
    DO $$ DECLARE it regclass; BEGIN
        FOR it IN SELECT oid FROM pg_class
            WHERE relkind = 'r' AND relnamespace = 'sprag'::regnamespace
        LOOP
            EXECUTE format('CREATE TRIGGER held_before BEFORE INSERT OR UPDATE OR DELETE ON %s
                EXECUTE FUNCTION sprag.held_up(''before'')', it);
            EXECUTE format('CREATE CONSTRAINT TRIGGER held_at_end AFTER INSERT OR UPDATE OR DELETE ON %s
                DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION sprag.held_up(''at end'')', it);
        END LOOP;
    END $$";
const WAITING: &str = "SELECT l.pid::text FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE a.datname = current_database() AND NOT l.granted";
/// The gate is a lock by one number. Those that the store takes are by two.
const AT_GATE: &str = "(l.locktype = 'advisory' AND l.objsubid = 1)";
/// Between two looks at what the server does.
const PAUSE: Duration = Duration::from_millis(1);
const PLACES: [(&str, Side); 2] = [
    ("before", Side::Held("SET test.held_up = 'before'")),
    ("at its end", Side::Held("SET test.held_up = 'at end'")),
];

impl Stage {
    pub(super) async fn build_gates(&self) {
        self.play.world.execute(GATES).await.unwrap();
    }

    /// As [`Stage::survives`], with the lost call beside the one that repeats it.
    pub(super) async fn survives_itself<C, T: Debug>(
        &self,
        name: &str,
        prepare: &impl AsyncFn() -> C,
        act: &impl AsyncFn(&C, bool) -> Answer<T>,
        (rows, expected): (&impl Fn(&C) -> String, &[String]),
    ) {
        for (place, side) in PLACES {
            let (mut held_up, mut request) = (0, 1);
            for calls in 1.. {
                assert!(calls < 2 * MOST, "{name} makes too many requests");
                let scene = prepare().await;
                self.close_gate().await;
                self.cutter.arm(request, side);
                let first = act(&scene, false).await;
                let is_cut = self.cutter.disarm();
                let is_done = first.is_ok();
                match first {
                    Ok(_) => self.open_gate().await,
                    Err(StoreError::Unavailable(_)) => {
                        let is_held_up = self.is_held_up().await;
                        let is_told = self.repeat_beside(&scene, act).await;
                        held_up += u32::from(is_held_up && is_told);
                    }
                    Err(error) => panic!("{name}, request {request}, {place}: {error}"),
                }
                self.work_is_done().await;
                if LOOK_AGAIN.contains(&name) {
                    act(&scene, true).await.unwrap();
                }
                let found = self.rows(&rows(&scene)).await;
                assert_eq!(found, expected, "{name}, held up {place} at request {request}");
                // What was not cut and yet fails has found out about the cut before; it is made again.
                if is_cut {
                    request += 1;
                } else if is_done {
                    break;
                }
            }
            assert!(
                held_up > 0,
                "{name} was never held up {place} beside the call that repeats it"
            );
        }
    }

    /// The call again while the first is held up; that goes on when this is done, or waits for it. Whether it came to
    /// that, and was not given up before.
    async fn repeat_beside<C, T: Debug>(
        &self,
        scene: &C,
        act: &impl AsyncFn(&C, bool) -> Answer<T>,
    ) -> bool {
        let mut repeats = Box::pin(async {
            for _ in 0..4 {
                match act(scene, true).await {
                    Err(StoreError::Unavailable(_)) => {}
                    answer => {
                        answer.unwrap();
                        return true;
                    }
                }
            }
            false
        });
        let answered = tokio::select! {
            answered = &mut repeats => {
                self.open_gate().await;
                answered
            }
            () = self.is_waited_for() => {
                self.open_gate().await;
                repeats.await
            }
        };
        if !answered {
            self.insist(scene, act).await;
        }
        answered
    }

    async fn close_gate(&self) {
        self.play.world.execute("SELECT pg_advisory_lock(1)").await.unwrap();
    }

    async fn open_gate(&self) {
        self.play.world.execute("SELECT pg_advisory_unlock(1)").await.unwrap();
    }

    /// Whether the lost call comes to the gate; if not, it is over.
    async fn is_held_up(&self) -> bool {
        let held_up = format!("{WAITING} AND {AT_GATE}");
        loop {
            // In this order: whoever is at work now may be at the gate or over by then.
            let is_at_work = self.cutter.is_at_work();
            if !self.rows(&held_up).await.is_empty() {
                return true;
            }
            if !is_at_work {
                return false;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Until somebody waits for rows that the lost call has locked.
    async fn is_waited_for(&self) {
        let waiting = format!("{WAITING} AND NOT {AT_GATE}");
        while self.rows(&waiting).await.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn work_is_done(&self) {
        while self.cutter.is_at_work() {
            tokio::time::sleep(PAUSE).await;
        }
        self.locks_are_gone().await;
    }
}
