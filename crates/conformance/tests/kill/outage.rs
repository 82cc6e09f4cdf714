//! The Postgres server itself is stopped in the middle of the work of two engines, twice by an immediate stop and
//! then by the death of all its processes, again and again, and started again. The engines live on: after each start
//! both have new jobs accepted before the next stop.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use sprag_conformance::cluster::Cluster;
use sprag_stores::postgres::{PostgresOptions, PostgresStore};

use super::effects;
use super::killer::{Life, Place, Random, kills, look, runtime};
use super::victim::LOAD;

/// Of so many stops, one is the death of all processes.
const CRASH_EVERY: u32 = 3;
/// How long engines may take to go on with a server that is back. Theirs is bounded, the machine is not.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let (cluster, runtime) = (Cluster::start(), runtime());
    let url = runtime.block_on(cluster.database());
    let place = Place { folder: folder.path(), url: Some(&url) };
    let start = |name: &str| Life::start(place.victim(LOAD).env("SPRAG_ROUND", name));
    let mut engines = [start("one"), start("two")];
    let mut random = Random(0x0ff);
    let (stops, mut crashes) = (kills("SPRAG_STOPS", 30), 0);
    for stop in 0..stops {
        std::thread::sleep(Duration::from_millis(100 + random.below(200)));
        if stop % CRASH_EVERY == CRASH_EVERY - 1 {
            cluster.crash();
            crashes += 1;
        } else {
            cluster.kill();
        }
        // Whatever was accepted before is told by now, or was never.
        let before = engines.each_ref().map(Life::said);
        cluster.restart();
        until_more(&mut engines, before, stop);
    }
    let mut accepted = BTreeSet::new();
    for (n, mut engine) in engines.into_iter().enumerate() {
        engine.child.kill().unwrap();
        accepted.extend(engine.end_by_kill(&format!("engine {n}")));
    }
    place.drain();
    print!("{} immediate stops of the server and {crashes} of its deaths, ", stops - crashes);
    runtime.block_on(async {
        let store = PostgresStore::open(&PostgresOptions::new(&url)).await.unwrap();
        let due = look(&store, folder.path(), &accepted).await;
        due.expect(effects::count_postgres(&url).await);
    });
}

/// Waits until each engine has had more jobs accepted than before.
fn until_more(engines: &mut [Life; 2], before: [usize; 2], stop: u32) {
    let begun = Instant::now();
    while engines.iter().zip(before).any(|(engine, before)| engine.said() <= before) {
        for engine in engines.iter_mut() {
            let ended = engine.child.try_wait().unwrap();
            assert!(ended.is_none(), "an engine outlives its server, instead: {ended:?}");
        }
        assert!(begun.elapsed() < PATIENCE, "stop {stop}: nothing is accepted any more");
        std::thread::sleep(Duration::from_millis(5));
    }
}
