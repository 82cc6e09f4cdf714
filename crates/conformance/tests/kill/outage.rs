//! The Postgres server itself is stopped in the middle of the work of two engines, by an immediate stop and
//! by the death of all its processes in turn, and started again. The engines live on.

use std::time::Duration;

use sprag_conformance::cluster::Cluster;
use sprag_stores::postgres::{PostgresOptions, PostgresStore};

use super::effects;
use super::killer::{Life, Place, Random, kills, look, runtime};
use super::victim::LOAD;

pub(crate) fn of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let (cluster, runtime) = (Cluster::start(), runtime());
    let url = runtime.block_on(cluster.database());
    let place = Place { folder: folder.path(), url: Some(&url) };
    let start = |name: &str| Life::start(place.victim(LOAD).env("SPRAG_ROUND", name));
    let mut engines = [start("one"), start("two")];
    let mut random = Random(0x0ff);
    let stops = kills("SPRAG_STOPS", 20);
    for stop in 0..stops {
        std::thread::sleep(Duration::from_millis(100 + random.below(200)));
        if stop % 2 == 0 {
            cluster.kill();
        } else {
            cluster.crash();
        }
        cluster.restart();
    }
    std::thread::sleep(Duration::from_millis(300));
    let mut accepted = std::collections::BTreeSet::new();
    for engine in &mut engines {
        let ended = engine.child.try_wait().unwrap();
        assert!(ended.is_none(), "an engine outlives its server, instead: {ended:?}");
        engine.child.kill().unwrap();
    }
    for engine in engines {
        accepted.extend(engine.end().accepted);
    }
    place.drain();
    print!("{stops} stops of the server, ");
    runtime.block_on(async {
        let store = PostgresStore::open(&PostgresOptions::new(&url)).await.unwrap();
        let due = look(&store, folder.path(), &accepted).await;
        due.expect(effects::count_postgres(&url).await);
    });
}
