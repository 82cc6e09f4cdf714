//! The server on Postgres: the same as on a file.

use std::sync::Arc;

use sprag_conformance::cluster::Cluster;

use super::{House, PATIENCE, Running, appears, envelope, keyed, kills, single};

/// A house whose store is a database of its own, for as long as the cluster is held.
pub(super) fn house() -> (House, Arc<Cluster>) {
    let cluster = Cluster::shared();
    (house_on(&cluster), cluster)
}

fn house_on(cluster: &Cluster) -> House {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = runtime.block_on(cluster.database());
    let name = database.rsplit("dbname=").next().unwrap();
    let host = cluster.folder().display().to_string().replace('/', "%2F");
    House::open_on(Some(format!("postgres://sprag@{host}/{name}")))
}

#[test]
fn jobs_tokens_and_workers_are_served_from_postgres() {
    let (mut house, _cluster) = house();
    house.json(&["protocol", "put", &house.write("p.yaml", &single("reader"))], "");
    let worker = house.worker("reader", "cat");
    let job = house.json(&["submit", "-", "--wait"], &envelope("READER", 1));
    assert_eq!(job["state"], "SUCCEEDED");
    let token = house.json(&["token", "create", "--scope", "submit,read", "--tenant", "t2"], "");
    let (id, text) = (token["token_id"].as_str().unwrap(), token["token"].as_str().unwrap());
    let path = ["job", "show", job["jobId"].as_str().unwrap(), "--token", text];
    house.sprag(&path, "").refused("JOB_UNKNOWN");
    house.server.take().unwrap().kill();
    house.serve();
    assert_eq!(house.sprag(&["job", "list", "--token", text], "").stdout, "", "it is still known");
    house.sprag(&["token", "revoke", id], "");
    let begun = std::time::Instant::now();
    while house.sprag(&["job", "list", "--token", text], "").code == 0 {
        assert!(begun.elapsed() < PATIENCE, "a revoked token is refused");
    }
    let again = house.json(&["submit", "-"], &envelope("READER", 1));
    assert_eq!((&again["jobId"], &again["created"]), (&job["jobId"], &false.into()));
    assert!(worker.stop().success());
    house.close();
}

#[test]
fn two_servers_on_one_postgres_share_the_work() {
    let (house, _cluster) = house();
    house.json(&["protocol", "put", &house.write("p.yaml", &single("reader"))], "");
    // The same folder, so the same root key; another port.
    let mut second = house.command(&["serve", "--json", "--listen", "127.0.0.1:0"]);
    second.env("SPRAG_STORE", house.store()).stdout(std::process::Stdio::piped());
    let mut second = Running::start(second.stderr(std::process::Stdio::null()));
    let url = super::announced(&mut second).unwrap();
    let lines: Vec<String> = (0..40).map(|n| keyed("READER", &format!("k{n}"))).collect();
    let file = house.write("all.ndjson", &lines.join("\n"));
    assert_eq!(house.sprag(&["submit", "--bulk", &file, "--server", &url], "").code, 0);
    let exec = ["worker", "--service", "reader", "--exec", "cat", "-j", "4"];
    let token = std::fs::read_to_string(house.data().join("admin.token")).unwrap();
    let at = |server: &str| {
        let mut worker = house.command(&exec);
        Running::start(worker.env("SPRAG_SERVER", server).env("SPRAG_TOKEN", token.trim()))
    };
    let workers = [at(&url), at(&house.url())];
    let begun = std::time::Instant::now();
    let list = ["job", "list", "--state", "SUCCEEDED", "--limit", "100"];
    while house.json(&list, "")["items"].as_array().unwrap().len() < 40 {
        assert!(begun.elapsed() < PATIENCE, "not all jobs end");
    }
    for worker in workers {
        assert!(worker.stop().success());
    }
    assert!(second.stop().success());
    house.close();
}

#[test]
fn q29_what_a_worker_reports_while_the_store_cannot_be_read_is_kept_for_later_and_counts_once() {
    let cluster = Cluster::start();
    let house = house_on(&cluster);
    let protocol = "protocol_id: slow.v1\nrequest_types: [SLOW]\nsteps:\n  - step_id: only\n    service: slow\n\
                    \x20   timeouts: {lease: 10m}\n";
    house.json(&["protocol", "put", &house.write("p.yaml", protocol)], "");
    let job = house.json(&["submit", "-"], &envelope("SLOW", 1));
    let exec = "echo once >> runs; touch begun; until [ -e go ]; do sleep 0.05; done; touch done";
    let worker = house.worker("slow", exec);
    appears(&house.file("begun"));
    cluster.kill();
    house.write("go", "");
    appears(&house.file("done"));
    house.sprag(&["job", "list"], "").refused("STORE_UNAVAILABLE");
    cluster.restart();
    let begun = std::time::Instant::now();
    let show = ["job", "show", job["jobId"].as_str().unwrap(), "--json"];
    let ended = loop {
        let said = house.sprag(&show, "");
        if said.code == 0 && said.json()["state"] == "SUCCEEDED" {
            break said.json();
        }
        assert!(begun.elapsed() < PATIENCE, "the report is not taken: {}", said.stderr);
    };
    assert_eq!(ended["attempts_total"], 1);
    assert_eq!(std::fs::read_to_string(house.file("runs")).unwrap(), "once\n");
    assert!(worker.stop().success());
    house.close();
}

#[test]
fn no_answer_is_forgotten_by_a_server_on_postgres_that_is_killed_under_load() {
    let (house, _cluster) = house();
    kills::kill_under_load(house, 10);
}
