//! The two legs of an attempt, and what belongs to their commits: a job, a child, a message, the work of a handler.

use sprag_engine::ids::{AttemptKey, JobId};
use sprag_engine::plan;
use sprag_engine::store::{
    DispatchOutcome, DispatchWrite, EndOutcome, FinishOutcome, Held, NewChild, NewJob, Store,
    Tells, Worked,
};
use sprag_engine::upkeep::Upkeep;
use sprag_kernel::decide::callback::Report;

use super::{LIMIT, Stage, of_job, wish};
use crate::deeds::Then;
use crate::play::Play;
use crate::world::{Postgres, World};

pub(super) async fn legs(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let of_held = |held: &Held| of_job(&held.key.job_id);
    let submit = async |job: &NewJob, _| {
        let answer = cut.submit(engine, vec![job.clone()]).await?;
        assert!(answer[0].as_ref().unwrap().created, "it is this very job");
        Ok(())
    };
    let of_new = |job: &NewJob| of_job(&job.facts.job_id);
    stage.survives("submit", async || Stage::job("t1"), submit, of_new).await;
    play.store().limit_tenant("t2", Some(1_000)).await.unwrap();
    stage.survives("submit", async || Stage::job("t2"), submit, of_new).await;

    let claim = async |(_, service): &(JobId, String), _| cut.claim(engine, wish(service)).await;
    stage.survives("claim", async || stage.queued().await, claim, |(job, _)| of_job(job)).await;

    let dispatching = async || {
        let mut held = stage.entered().await;
        play.dispatch_write(&mut held).unwrap()
    };
    let dispatch = async |write: &DispatchWrite, repeats| {
        let write = DispatchWrite { repeats, ..write.clone() };
        let outcomes = cut.dispatch(engine, vec![write]).await?;
        assert!(matches!(outcomes[0], DispatchOutcome::Done { .. }), "{outcomes:?}");
        Ok(())
    };
    stage.survives("dispatch", dispatching, dispatch, |write| of_job(&write.key.job_id)).await;

    let end = async |held: &Held, repeats| {
        let mut write = Play::<Postgres>::result_write(held, Report::Succeeded);
        write.repeats = repeats;
        let outcomes = cut.end(engine, vec![write]).await?;
        assert!(matches!(outcomes[0], EndOutcome::Entered { .. }), "{outcomes:?}");
        Ok(())
    };
    stage.survives("end", async || stage.running().await, end, of_held).await;

    let end_with = async |held: &Held, repeats| {
        let mut write = Play::<Postgres>::result_write(held, Report::Succeeded);
        write.repeats = repeats;
        let work = Postgres::work(&held.key.job_id.to_string(), Then::Ends);
        let worked = cut.end_with(engine, write, work, LIMIT).await?;
        assert!(matches!(worked, Worked::Entered { .. }), "{worked:?}");
        Ok(())
    };
    let with_effect = |held: &Held| {
        let job_id = &held.key.job_id;
        let effect = format!("SELECT 'effect' FROM public.effect WHERE name = '{job_id}'");
        format!("{effect} UNION ALL {}", of_job(job_id))
    };
    stage.survives("end_with", async || stage.running().await, end_with, with_effect).await;

    let finish = async |held: &Held, repeats| {
        let mut write = play.finish_write(held, false).unwrap();
        write.repeats = repeats;
        let outcomes = cut.finish(engine, vec![write]).await?;
        assert!(matches!(outcomes[0], FinishOutcome::Done { .. }), "{outcomes:?}");
        Ok(())
    };
    stage.survives("finish", async || stage.ended().await, finish, of_held).await;

    let beginning = async || {
        let job = NewJob { enter: true, ..Stage::job("t1") };
        let mut held = plan::born(&job);
        let write = play.dispatch_write(&mut held).unwrap();
        (job, write)
    };
    let begin = async |(job, write): &(NewJob, DispatchWrite), repeats| {
        let write = DispatchWrite { repeats, ..write.clone() };
        let begun = cut.submit_and_dispatch(engine, vec![(job.clone(), Some(write))]).await?;
        assert!(begun[0].0.as_ref().unwrap().created, "it is this very job");
        assert!(matches!(begun[0].1, Some(DispatchOutcome::Done { .. })), "{begun:?}");
        Ok(())
    };
    let of_both = |(job, _): &(NewJob, DispatchWrite)| of_job(&job.facts.job_id);
    stage.survives("submit_and_dispatch", beginning, begin, of_both).await;

    let end_and_finish = async |held: &Held, repeats| {
        let mut end = Play::<Postgres>::result_write(held, Report::Succeeded);
        let mut finish = play.finish_write(&plan::entered(held.clone(), &end), false).unwrap();
        (end.repeats, finish.repeats) = (repeats, repeats);
        let over = cut.end_and_finish(engine, vec![(end, finish)]).await?;
        assert!(matches!(over[0].0, EndOutcome::Entered { .. }), "{over:?}");
        assert!(matches!(over[0].1, Some(FinishOutcome::Done { .. })), "{over:?}");
        Ok(())
    };
    stage.survives("end_and_finish", async || stage.running().await, end_and_finish, of_held).await;

    let cancel = async |held: &Held, _| {
        let decide = Box::new(|held: &Held, _| plan::cancel(held, None));
        cut.amend(engine, held.key.job_id, None, decide).await
    };
    stage.survives("amend", async || stage.running().await, cancel, of_held).await;
}

/// A directive that creates a child, and the end of a child that its parent is told of: several statements each.
pub(super) async fn family(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let with_child = async || {
        let mut held = stage.entered().await;
        let write = play.dispatch_write(&mut held).unwrap();
        let mut job = Stage::job("t1");
        let mut facts = (*job.facts).clone();
        facts.dedup_key = format!("c:{}:0:0:0:1:1", held.key.job_id);
        job.facts = facts.into();
        DispatchWrite { child: Some(NewChild { job, timeout_ms: Some(5) }.into()), ..write }
    };
    let child_of = |write: &DispatchWrite| write.child.as_ref().unwrap().job.clone();
    let both = |parent: &JobId, child: &JobId| {
        let waits = format!(
            "SELECT 'waits ' || waits_until FROM attempt
             WHERE job_id = '{parent}' AND child_id = '{child}'"
        );
        let of_child = of_job(child).replace(" ORDER BY 1", "");
        let all = format!("{waits} UNION ALL {of_child} UNION ALL {}", of_job(parent));
        // What a parent is told names the child, which is another in each scene.
        all.replace("content, ", "")
    };
    let dispatch = async |write: &DispatchWrite, repeats| {
        let write = DispatchWrite { repeats, ..write.clone() };
        let outcomes = cut.dispatch(engine, vec![write]).await?;
        assert!(matches!(outcomes[0], DispatchOutcome::Done { .. }), "{outcomes:?}");
        Ok(())
    };
    let family = |write: &DispatchWrite| both(&write.key.job_id, &child_of(write).facts.job_id);
    stage.survives("dispatch", with_child, dispatch, family).await;

    let closing = async || {
        let write = with_child().await;
        play.store().dispatch(engine, vec![write.clone()]).await.unwrap();
        let wishes = wish(&child_of(&write).steps[0].service);
        let mut held = play.store().claim(engine, wishes).await.unwrap().remove(0);
        play.dispatch(&mut held).await;
        play.report(&mut held, Report::NonRetryable).await;
        (held, write.key)
    };
    let finish = async |(held, parent): &(Held, AttemptKey), repeats| {
        let mut write = play.finish_write(held, false).unwrap();
        write.tells = Some(Tells { parent: *parent, results: [].into(), max_bytes: 1_000 });
        write.repeats = repeats;
        let outcomes = cut.finish(engine, vec![write]).await?;
        assert!(matches!(outcomes[0], FinishOutcome::Done { .. }), "{outcomes:?}");
        Ok(())
    };
    let told = |(held, parent): &(Held, AttemptKey)| both(&parent.job_id, &held.key.job_id);
    stage.survives("finish", closing, finish, told).await;
}
