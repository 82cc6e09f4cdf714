//! Real processes, really killed. This program is both sides: run by the test command it is the killer,
//! and it starts itself again as the victim, an engine under load.

#![allow(clippy::unwrap_used)]

mod crashes;
mod killer;
mod victim;

fn main() {
    if let Ok(folder) = std::env::var("SPRAG_VICTIM") {
        victim::run(folder.as_ref());
        return;
    }
    crashes::run();
    killer::on_sqlite();
    killer::on_postgres();
    println!("3 passed, 0 failed");
}
