//! Real processes, really killed. This program is both sides: run by the test command it is the killer,
//! and it starts itself again as the victim, an engine under load.

#![allow(clippy::unwrap_used)]

mod killer;
mod victim;

fn main() {
    match std::env::var("SPRAG_VICTIM") {
        Ok(folder) => victim::run(folder.as_ref()),
        Err(_) => killer::run(),
    }
}
