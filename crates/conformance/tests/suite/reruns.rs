//! Reruns: a job that ended badly runs again as another one, unless its runs are decided by whoever made it.

use sprag_engine::control::rerun;
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{JobFacts, JobFilter, NewJob, Store};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::{Code, JobState};

use crate::on_both_stores;
use crate::play::{Play, facts, new_job};
use crate::world::World;

/// Where jobs come from, by the first letters of their keys, and whether they may be run again by themselves.
const ORIGINS: [(&str, bool); 6] =
    [("k:", true), ("h:", true), ("s:", true), ("x:", true), ("r:", false), ("c:", false)];
/// Of each origin.
const JOBS: usize = 4;

/// A job of this origin.
fn job(origin: &str) -> NewJob {
    let dedup_key = format!("{origin}{}:1", JobId::new());
    let facts = facts("t1", None, &dedup_key);
    new_job(JobFacts { dedup_key, protocol_id: "again.v1".to_owned(), ..facts }, 1)
}

async fn expect_refused<W: World>(play: &Play<W>, job_id: JobId, expected: (JobState, Code)) {
    let state = play.job(job_id).await.row.state;
    let refusal = rerun(play.store(), play.engine, job_id, None).await.unwrap_err();
    assert_eq!((state, refusal.code()), expected);
}

/// A job that ended badly is run again, once however often that is asked for; or its origin forbids it.
async fn expect_rerun<W: World>(
    play: &Play<W>,
    job_id: JobId,
    (ended, is_plain): (JobState, bool),
) {
    if !is_plain {
        return expect_refused(play, job_id, (ended, Code::JobNotPlain)).await;
    }
    assert_eq!(play.job(job_id).await.row.state, ended);
    let again = rerun(play.store(), play.engine, job_id, None).await.unwrap();
    assert!(again.created);
    let facts = play.job(again.job_id).await.facts;
    assert_eq!((facts.rerun_of, facts.dedup_key), (Some(job_id), format!("x:{job_id}:1")));
    let twice = rerun(play.store(), play.engine, job_id, None).await.unwrap();
    assert_eq!((twice.job_id, twice.created), (again.job_id, false));
}

on_both_stores! {
    async fn a_job_runs_again_if_it_ended_badly_and_nobody_else_decides_on_its_runs<W>(play: &Play<W>) {
        // What runs again is left alone by those that claim here.
        let definition = Protocol::new("again.v1", "TEST").step("s0", "elsewhere").to_json();
        play.store().put_protocol("again.v1", &definition).await.unwrap();
        for (origin, is_plain) in ORIGINS {
            let open = if is_plain { Code::JobNotFailed } else { Code::JobNotPlain };
            let submit = async || play.submit(job(origin)).await.unwrap().job_id;

            let job_id = submit().await;
            expect_refused(play, job_id, (JobState::Queued, open)).await;
            let mut held = play.claim().await;
            play.dispatch(&mut held).await;
            expect_refused(play, job_id, (JobState::InProgress, open)).await;
            play.cancel(job_id).await.unwrap();
            expect_refused(play, job_id, (JobState::Cancelling, open)).await;
            play.report(&mut held, Report::Retryable).await;
            play.finish(&held).await;
            expect_rerun(play, job_id, (JobState::Cancelled, is_plain)).await;

            let job_id = submit().await;
            let held = play.claim().await;
            play.write_directive(&held).await;
            expect_refused(play, job_id, (JobState::Dispatching, open)).await;

            let job_id = submit().await;
            play.run_step(Report::Succeeded).await;
            expect_refused(play, job_id, (JobState::Succeeded, open)).await;

            let job_id = submit().await;
            play.run_step(Report::NonRetryable).await;
            expect_rerun(play, job_id, (JobState::FailedFinal, is_plain)).await;
        }
        let nobody = rerun(play.store(), play.engine, JobId::new(), None).await.unwrap_err();
        assert_eq!(nobody.code(), Code::JobUnknown);
        let all = play.store().jobs(JobFilter { limit: 100, ..JobFilter::default() }).await.unwrap();
        let plain = ORIGINS.iter().filter(|(_, is_plain)| *is_plain).count();
        assert_eq!(all.len(), ORIGINS.len() * JOBS + plain * 2, "who was refused has left nothing");
    }
}
