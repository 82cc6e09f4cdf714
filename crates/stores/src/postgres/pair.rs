//! Two phases with one call, each a commit of its own. The statement of the second is on its way before the first is
//! answered: a lone job waits for the server twice instead of four times.
//!
//! Why the second does no harm if the first came to nothing: a directive is for a job whose id nobody else has, in the
//! version that it is born with; and a message that enters leaves a mark in the session, which its Steps 1 to 3 ask for.
//! What has not been done ahead although its first has gone through is done after it, as its phase does it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use sprag_engine::ids::EngineNo;
use sprag_engine::pairs::{Beginning, Begun, Over, Seconds};
use sprag_engine::store::{Answer, DispatchWrite, EndWrite, FinishWrite};
use sprag_kernel::JobState;

use super::pools::Pools;
use super::slice::sorted;
use super::submit::{self, Slot};
use super::{finish, legs};

pub(super) async fn submit_and_dispatch(
    pools: &Pools,
    engine: EngineNo,
    beginnings: Vec<Beginning>,
) -> Answer<Vec<Begun>> {
    let (jobs, writes): (Vec<_>, Vec<_>) = beginnings.into_iter().unzip();
    let mut ahead: Vec<(usize, &DispatchWrite)> = writes
        .iter()
        .enumerate()
        .filter_map(|(place, write)| Some((place, write.as_ref()?)))
        .filter(|(_, write)| write.child.is_none())
        .collect();
    ahead.sort_by_key(|(_, write)| write.key);
    let at = (engine, pools.test_now());
    let insertion = submit::insertion(at, &jobs, Slot::Unlimited);
    let both = [&insertion, &legs::dispatching(at, &ahead)];
    let [created, dispatched] = pools.run_both(both).await?;

    let created = submit::created(&created)?;
    let mut submitted = submit::submitted(pools, engine, &jobs, &created).await?;
    // A second one of a job that is new is answered as the first is: by what its submit has left.
    for twin in submitted.iter_mut().flatten().filter(|answer| created.contains(&answer.job_id)) {
        twin.state = JobState::Queued;
    }
    let mut outcomes = vec![None; jobs.len()];
    for (place, outcome) in legs::dispatched(&dispatched, &ahead)? {
        outcomes[place] = Some(outcome);
    }
    let left = Seconds::of_created(&submitted, &writes).except(&outcomes);
    let later = left.spread(legs::dispatch(pools, engine, &left.writes).await?);
    let outcomes = outcomes.into_iter().zip(later).map(|(ahead, later)| ahead.or(later));
    Ok(submitted.into_iter().zip(outcomes).collect())
}

pub(super) async fn end_and_finish(
    pools: &Pools,
    engine: EngineNo,
    messages: Vec<(EndWrite, FinishWrite)>,
) -> Answer<Vec<Over>> {
    let (ends, finishes): (Vec<_>, Vec<_>) = messages.into_iter().unzip();
    let slice = sorted(&ends, |write| (write.key, write.version));
    let ahead: Vec<_> = slice.iter().map(|(place, _)| (*place, &finishes[*place])).collect();
    let (at, mark) = ((engine, pools.test_now()), mark(engine));
    let [entered, over] = if is_plain(&ahead) {
        let ending = legs::ending(at, &slice, Some(&mark));
        pools.run_both([&ending, &finish::finishing(at, &ahead, Some(&mark))]).await?
    } else {
        let ending = legs::ending(at, &slice, None);
        [pools.run(ending.sql, &ending.params()).await?, Vec::new()]
    };

    let ended = legs::ended(pools, engine, (&ends, &slice), &entered).await?;
    let mut outcomes = vec![None; ends.len()];
    for (place, outcome) in finish::finished(&over, &ahead)? {
        outcomes[place] = Some(outcome);
    }
    let done = finishes.iter().zip(&outcomes).filter_map(|(write, done)| Some((write, (*done)?)));
    finish::tell_of_work(pools, done).await;
    let left = Seconds::of_entered(&ended, &finishes).except(&outcomes);
    let later = left.spread(finish::finish(pools, engine, &left.writes).await?);
    let outcomes = outcomes.into_iter().zip(later).map(|(ahead, later)| ahead.or(later));
    Ok(ended.into_iter().zip(outcomes).collect())
}

/// Whether these are messages of sequences that tell nobody, each of another job.
fn is_plain(slice: &[(usize, &FinishWrite)]) -> bool {
    let mut jobs = HashSet::new();
    slice.iter().all(|(_, write)| {
        write.graph.is_none() && write.tells.is_none() && jobs.insert(write.key.job_id)
    })
}

/// What no other call, of whichever engine, marks its messages with.
fn mark(engine: EngineNo) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{}/{}", engine.0, NEXT.fetch_add(1, Ordering::Relaxed))
}
