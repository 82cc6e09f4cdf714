//! The demo's workers: started like anybody's, and one of them killed with work in hand.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sprag_kernel::{Code, Refusal};

use super::act::{self, Part};
use crate::output::unreadable;
use crate::stage::{Stage, signal};

/// How long a worker may be without work before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(5);

/// Makes the folders that the commands of the workers write to.
pub(super) fn prepare(stage: &Stage) -> Result<(), Refusal> {
    for folder in [act::published(stage.folder()), act::recognised(stage.folder())] {
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| unreadable(folder.display(), &error))?;
    }
    Ok(())
}

/// Starts a worker, and says its process.
pub(super) fn start(stage: &Stage, service: &str, part: Part, lanes: u16) -> Result<u32, Refusal> {
    let part = clap::ValueEnum::to_possible_value(&part).expect("every part has a name");
    let exec = format!("exec {} demo --act {}", stage.program(), part.get_name());
    let mut command = stage.command();
    command.args(["worker", "--service", service, "--exec", &exec]);
    command.args(["-j", &lanes.to_string()]).arg("--data").arg(stage.data());
    stage.start(command.env(super::FOLDER, stage.folder()))
}

/// SIGKILL to a worker while it has work in hand. It is stopped first: what runs under a stopped worker
/// has not been reported, and never will be.
pub(super) fn kill_at_work(stage: &Stage, worker: u32) -> Result<(), Refusal> {
    let begun = Instant::now();
    loop {
        signal(worker, Signal::STOP);
        let is_busy = act::is_busy(stage.folder(), worker);
        if is_busy.map_err(|error| unreadable(stage.folder().display(), &error))? {
            signal(worker, Signal::KILL);
            return Ok(());
        }
        signal(worker, Signal::CONT);
        if begun.elapsed() > PATIENCE {
            return Err(failed("the worker that was to be killed had nothing to do"));
        }
        std::thread::sleep(LOOK);
    }
}

/// The demo did not go as its script says.
pub(super) fn failed(reason: &str) -> Refusal {
    Refusal::new(Code::DemoFailed).with("reason", reason.to_owned())
}
