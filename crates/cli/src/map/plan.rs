//! What a command line asks for: which command, which items, which run this is.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use sprag_kernel::planner::PlanHasher;
use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal};
use sprag_lanes::journal::{self, Identity, MAX_NOTE, Replay, RunId};
use sprag_lanes::{Backoff, Config, Source};

use super::args::RunArgs;
use super::items::{Item, Items};
use super::lanes::{Again, ItemSource};
use super::template::{self, Template};
use crate::output::{Failure, Output, unreadable};

/// Bytes of results in one batch.
const MAX_BATCH_BYTES: u64 = 4 << 20;
/// The lanes give up on a command this much later than it is ended: what has ended by then is handed
/// over, however short the grace.
const HAND_OVER_MS: Millis = 1_000;
/// What stands between the command and its items.
const SEPARATOR: &str = ":::";

/// The command line, taken apart.
pub(super) struct Plan<'a> {
    pub(super) args: &'a RunArgs,
    pub(super) template: Template,
    pub(super) config: Config,
    pub(super) identity: Identity,
    words: Option<Vec<OsString>>,
    /// The run whose failed items are to run again.
    again: Option<Replay>,
}

#[derive(Serialize)]
struct Planned {
    seq: u64,
    item: String,
    command: String,
}

impl<'a> Plan<'a> {
    pub(super) fn new(args: &'a RunArgs) -> Result<Self, Refusal> {
        let (command, words) = split(args)?;
        let shell = if args.shell { Some(true) } else { args.no_shell.then_some(false) };
        let template = Template::new(command, shell);
        let earlier = |path: &std::path::PathBuf| journal::inspect(path).map(|(found, _)| found);
        let again = args.retry_failed.as_ref().map(earlier).transpose()?;
        let config = config(args)?;
        let identity = identity(args, command, again.as_ref(), &template, &config);
        Ok(Self { args, template, config, identity, words, again })
    }

    /// The items, from the first.
    pub(super) fn source(
        &self,
        stop: &Arc<AtomicBool>,
        cut_short: &Arc<AtomicBool>,
    ) -> Result<ItemSource, Refusal> {
        let separator = if self.args.null { 0 } else { b'\n' };
        let items = match (&self.words, &self.args.arg_file) {
            (Some(words), _) => Items::Words(words.clone().into()),
            (None, Some(path)) => Items::file(path, separator, Arc::clone(stop))
                .map_err(|error| unreadable(path.display(), &error))?,
            (None, None) if std::io::stdin().is_terminal() => {
                return Err(usage(
                    "there are no items: pipe them in, or give -a FILE or ':::' ITEMS",
                ));
            }
            (None, None) => Items::stdin(separator, Arc::clone(stop))
                .map_err(|error| unreadable("standard input", &error))?,
        };
        Ok(ItemSource {
            items,
            again: self.again.as_ref().map(|found| Again::new(&found.state, &self.config.plan)),
            read: 0,
            stop: Arc::clone(stop),
            cut_short: Arc::clone(cut_short),
        })
    }

    /// Prints what would run from where the journal is, and runs nothing.
    pub(super) fn print(&self, output: &mut Output) -> Result<(), Failure> {
        let committed = match self.args.journal.as_deref().filter(|path| path.exists()) {
            Some(path) => journal::inspect(path)?.0.state.cursor(),
            None => 0,
        };
        let mut source = self.source(&Arc::default(), &Arc::default())?;
        let mut seq = 0;
        while let Some(item) = source.next().map_err(source_failed)? {
            if seq >= committed {
                self.print_one(seq, &item, output)?;
            }
            seq += 1;
        }
        Ok(())
    }

    fn print_one(&self, seq: u64, item: &Item, output: &mut Output) -> Result<(), Failure> {
        let command = self.template.line(item);
        if !output.is_json() {
            return output.line(command);
        }
        let item = String::from_utf8_lossy(&item.text).into_owned();
        output.json(&Planned { seq, item, command })
    }
}

fn source_failed(reason: String) -> Refusal {
    Refusal::new(Code::SourceFailed).with("reason", reason)
}

fn usage(reason: &'static str) -> Refusal {
    Refusal::new(Code::Usage).with("reason", reason)
}

/// The words of the command, and of the items if they are given as words.
fn split(args: &RunArgs) -> Result<(&[OsString], Option<Vec<OsString>>), Refusal> {
    let is_separator = |word: &OsString| word == SEPARATOR;
    let Some(at) = args.words.iter().position(is_separator) else { return Ok((&args.words, None)) };
    let (command, items) = (&args.words[..at], &args.words[at + 1..]);
    if command.is_empty() {
        return Err(usage("there is no command before ':::'"));
    }
    if items.iter().any(is_separator) {
        return Err(usage("only one list of items behind ':::' is supported"));
    }
    if args.arg_file.is_some() {
        return Err(usage("items come either from ':::' or from --arg-file"));
    }
    Ok((command, Some(items.to_vec())))
}

fn config(args: &RunArgs) -> Result<Config, Refusal> {
    let default = Config::default();
    let config = Config {
        threads: args.jobs.map_or(default.threads, usize::from),
        max_retries: u32::from(args.retries),
        backoff: Backoff::new(args.backoff.clone()).expect("the argument has a value"),
        grace_ms: args.grace + HAND_OVER_MS,
        // A command takes longer than any hand-over; none waits in the queue of a busy worker.
        max_claim: 1,
        max_batch_bytes: MAX_BATCH_BYTES,
        ..default
    };
    config.check()?;
    Ok(config)
}

/// Two command lines are the same run if they would write the same results for the same input.
/// How many run at a time, how often they are tried and how long they may take can change.
fn identity(
    args: &RunArgs,
    command: &[OsString],
    again: Option<&Replay>,
    template: &Template,
    config: &Config,
) -> Identity {
    let plan = PlanHasher::new(&config.plan);
    let mut run = plan.clone();
    run.content(b"sprag map 1");
    for word in command {
        run.content(word.as_bytes());
    }
    let format = [template.is_shell(), args.tag, args.jsonl, args.keep_failed];
    run.content(&format.map(u8::from));
    if let Some(found) = again {
        run.content(&found.identity.run_id.0);
    }
    let digest = run.digest();
    let run_id = RunId(digest[..16].try_into().expect("sixteen of thirty-two bytes"));
    let words: Vec<_> = command.iter().map(|word| template::quote(word.as_bytes())).collect();
    let mut note = words.join(&b' ');
    note.truncate(MAX_NOTE);
    Identity { run_id, plan_hash: plan.digest(), note }
}

/// Whether two names are, or would become, the same file.
pub(super) fn same_file(left: &Path, right: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    real(left) == real(right)
}
