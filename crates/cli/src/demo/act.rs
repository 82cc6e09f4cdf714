//! What the demo's workers run, once per directive: real commands that read JSON, answer JSON, and fail
//! where the script says so.
//!
//! The script is a function of the document's number and of the attempt, so that the summary can be checked
//! against it. A command that runs leaves a file named for its worker in the folder, so that the demo can
//! kill a worker that certainly has work in hand.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Value, json};

/// How many pages the smallest document has; the largest has two more.
const MIN_PAGES: u64 = 2;
/// How long a step takes, so that there is something to see.
const WORK: Duration = Duration::from_millis(60);
/// The exit code of a step that another attempt may mend.
const SHAKY: u8 = 1;
/// The exit code of a step that no attempt can mend, as sysexits.h has it.
const BROKEN: u8 = 65;

/// The part that a command plays.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Part {
    /// Splits a document into pages.
    Splitter,
    /// Reads a page.
    Reader,
    /// Publishes a document, once.
    Publisher,
}

#[derive(Deserialize)]
struct Told {
    payload: Document,
    attempt_no: u32,
    effect_key: String,
    #[serde(default)]
    item: Value,
    #[serde(default)]
    inputs: Value,
}

#[derive(Deserialize)]
struct Document {
    number: u64,
}

/// Whether the document cannot be read by anyone: its job is meant to fail.
pub(super) fn is_broken(number: u64) -> bool {
    number % 50 == 17
}

/// Whether splitting it fails the first time.
pub(super) fn is_shaky(number: u64) -> bool {
    number % 8 == 3 && !is_broken(number)
}

/// Whether its publisher dies the first time, after the effect and before the report.
pub(super) fn dies_after_its_effect(number: u64) -> bool {
    number % 10 == 5 && !is_broken(number)
}

/// How many pages it has.
pub(super) fn pages(number: u64) -> u64 {
    MIN_PAGES + number % 3
}

/// How many steps its job has when it is over: split, its pages, publish.
pub(super) fn steps(number: u64) -> u64 {
    if is_broken(number) { 0 } else { pages(number) + 2 }
}

/// Whether a command of this worker runs.
pub(super) fn is_busy(folder: &Path, worker: u32) -> io::Result<bool> {
    let prefix = busy(worker);
    for entry in fs::read_dir(folder)? {
        if entry?.file_name().to_string_lossy().starts_with(&prefix) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn busy(worker: u32) -> String {
    format!("busy.{worker}.")
}

/// Where published documents are.
pub(super) fn published(folder: &Path) -> PathBuf {
    folder.join("published")
}

/// Where it is noted that an effect was there already.
pub(super) fn recognised(folder: &Path) -> PathBuf {
    folder.join("recognised")
}

/// Plays a part; how it went is the exit code, as of any command of a worker.
pub(super) fn play(part: Part, folder: &Path) -> ExitCode {
    let worker = std::os::unix::process::parent_id();
    let mark = folder.join(format!("{}{}", busy(worker), std::process::id()));
    let played = File::create(&mark).and_then(|_| {
        let mut told = String::new();
        io::stdin().read_to_string(&mut told)?;
        let told: Told = serde_json::from_str(&told)?;
        std::thread::sleep(WORK);
        match part {
            Part::Splitter => Ok(split(&told)),
            Part::Reader => Ok(read(&told)),
            Part::Publisher => publish(&told, folder),
        }
    });
    // A mark that is left behind misleads nobody: its worker was killed, or asks for work again.
    let _ = fs::remove_file(&mark);
    // Whoever was to read this may have been killed.
    let (code, why) = match played {
        Ok(Played::Done(output)) => {
            let _ = writeln!(io::stdout(), "{output}");
            return ExitCode::SUCCESS;
        }
        Ok(Played::Failed(code, why)) => (code, why.to_owned()),
        Err(error) => (SHAKY, error.to_string()),
    };
    let _ = writeln!(io::stderr(), "{why}");
    ExitCode::from(code)
}

enum Played {
    Done(Value),
    Failed(u8, &'static str),
}

fn split(told: &Told) -> Played {
    let number = told.payload.number;
    if is_broken(number) {
        return Played::Failed(BROKEN, "the document is damaged (on purpose)");
    }
    if is_shaky(number) && told.attempt_no == 1 {
        return Played::Failed(SHAKY, "the scanner was busy (on purpose)");
    }
    let pages: Vec<_> = (1..=pages(number)).map(|page| json!({"page": page})).collect();
    Played::Done(json!({"pages": pages}))
}

fn read(told: &Told) -> Played {
    let page = told.item["page"].as_u64().unwrap_or_default();
    Played::Done(json!({"page": page, "words": 100 + told.payload.number * page % 37}))
}

/// The effect is a file named for the effect, so that the second of two attempts finds the first one's.
fn publish(told: &Told, folder: &Path) -> io::Result<Played> {
    let pages = told.inputs["pages"].as_array().map_or(0, Vec::len);
    let name = told.effect_key.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let place = published(folder).join(&name);
    match OpenOptions::new().write(true).create_new(true).open(&place) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            File::create(recognised(folder).join(&name))?;
        }
        Err(error) => return Err(error),
        Ok(_) if dies_after_its_effect(told.payload.number) && told.attempt_no == 1 => {
            return Ok(Played::Failed(
                SHAKY,
                "died after its effect, before its report (on purpose)",
            ));
        }
        Ok(_) => {}
    }
    Ok(Played::Done(json!({"published": told.payload.number, "pages": pages})))
}
