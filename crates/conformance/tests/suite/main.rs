//! One suite for both stores. Every test runs on SQLite and on Postgres, and ends with an audit that must
//! be empty. Numbers in names are those of the acceptance cases.

#![allow(clippy::unwrap_used, unreachable_pub)]

mod deeds;
mod firsts;
mod play;
mod seam;
mod world;

mod ahead;
mod atomic;
mod audit;
mod batch;
mod batch_out;
mod built_in;
mod bus;
mod cases;
mod clock;
mod cuts;
mod cycles;
mod differential;
mod endings;
mod engines;
mod eras;
mod family;
mod faults;
mod feed;
mod gates;
mod given_back;
mod graphs;
mod histories;
mod hostile;
mod jobs;
mod ledgers;
mod literals;
mod lives;
mod locks;
mod pairs;
mod payloads;
mod plans;
mod poison;
mod pull;
mod races;
mod random;
mod readers;
mod requests;
mod reruns;
mod schedules;
mod schema;
mod sights;
mod signals;
mod slots;
mod strangers;
mod submit;
mod time_limits;
mod timers;
mod tls;
mod unpublished;
mod upkeep;
mod works;

#[path = "../kill/points.rs"]
#[allow(dead_code)]
mod points;

#[test]
fn every_crash_point_is_listed_for_the_test_that_ends_processes_there() {
    points::expect_complete();
}

/// Writes a test once and runs it on both stores, with the audit after it.
macro_rules! on_both_stores {
    ($($(#[$meta:meta])* async fn $name:ident<W>($play:ident: &Play<W>) $body:block)+) => {$(
        $(#[$meta])*
        mod $name {
            #[allow(clippy::wildcard_imports)]
            use super::*;

            async fn run<W: World>($play: &Play<W>) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn sqlite() {
                let play = Play::<crate::world::Sqlite>::begin().await;
                run(&play).await;
                play.expect_sound().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn postgres() {
                let play = Play::<crate::world::Postgres>::begin().await;
                run(&play).await;
                play.expect_sound().await;
            }
        }
    )+};
}
pub(crate) use on_both_stores;
