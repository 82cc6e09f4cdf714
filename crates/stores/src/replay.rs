//! Histories, folded: what events tell, move by move, must end in what the rows say. Every move must be one of the
//! kernel's tables and begin where the one before it ended.
//!
//! Three things are not told word by word, since they follow from what is: a directive is born PENDING when its step
//! becomes DISPATCHING; all steps that wait are cancelled when their job is; and once the end of a graph is certain,
//! what waits, also to be published, may be closed before the job has ended.

use std::collections::BTreeMap;

use sprag_kernel::decide::cancel::{cancel_waiting, close_unbegun};
use sprag_kernel::decide::request;
use sprag_kernel::machine::State;
use sprag_kernel::{JobState, OutboxState, RequestStatus, StepState};

/// Step, branch, turn and number of an attempt.
type Place = [i64; 4];
/// The step and the directive, as an attempt has them.
type Attempt = (StepState, Option<OutboxState>);

/// Compares `STATE HAS_VERDICT,PLACE STEP OUTBOX,...` with `PLACE CHANGES,...` of a job.
pub(crate) fn job(found: &str, told: &str) -> Result<(), String> {
    let mut history = History { job: JobState::machine().initial, attempts: BTreeMap::new() };
    for event in told.split(',').filter(|event| !event.is_empty()) {
        let (place, changes) = event.split_once(' ').ok_or_else(|| unreadable(event))?;
        let place = read_place(place)?;
        for change in
            changes.split_whitespace().filter(|change| !["created", "signal"].contains(change))
        {
            history.tell(place, change)?;
        }
    }
    let (head, rows) = found.split_once(',').unwrap_or((found, ""));
    let (state, has_verdict) = head.split_once(' ').ok_or_else(|| unreadable(head))?;
    if state != history.job.code().to_string() {
        return Err(format!("events end in {}, the job is in {state}", history.job));
    }
    let rows = rows.split(',').map(read_row).collect::<Result<_, _>>()?;
    history.expect(&rows, has_verdict == "1")
}

/// Compares `STATUS RUNS` with the changes of a request. What its runs do is told by their jobs.
pub(crate) fn request(found: &str, told: &str) -> Result<(), String> {
    let (mut at, mut runs) = (RequestStatus::machine().initial, 0_u32);
    let silent = |change: &&str| *change != "created" && *change != "edited";
    for change in told.split_whitespace().filter(silent) {
        let moved = change.strip_prefix('R').ok_or_else(|| unreadable(change))?;
        let (from, to) = pair::<RequestStatus>(moved)?;
        if request::rests(from) && from != at {
            return Err(format!("events move the request from {from} while it is in {at}"));
        }
        at = if request::rests(to) { to } else { at };
        runs += u32::from(to == RequestStatus::Queued);
    }
    let folded = format!("{} {runs}", at.code());
    let differ = || format!("events end in status and run {folded}, the row is in {found}");
    if folded == found { Ok(()) } else { Err(differ()) }
}

/// What events have told so far.
struct History {
    job: JobState,
    attempts: BTreeMap<Place, Attempt>,
}

impl History {
    /// An attempt that nothing was told of is where the one before it ended.
    fn at(&self, place: Place) -> Attempt {
        let before = self.attempts.range(..=place).next_back();
        match before.filter(|(other, _)| other[..3] == place[..3]) {
            Some((other, attempt)) if *other == place => *attempt,
            Some((_, (step, _))) => (*step, None),
            None => (StepState::machine().initial, None),
        }
    }

    fn tell(&mut self, place: Place, change: &str) -> Result<(), String> {
        let (step, outbox) = self.at(place);
        if let Some(change) = change.strip_prefix('J') {
            self.job = moved(self.job, change)?;
        } else if let Some(change) = change.strip_prefix('S') {
            let step = moved(step, change)?;
            let is_born = step == StepState::Dispatching;
            let outbox = if is_born { Some(OutboxState::machine().initial) } else { outbox };
            self.attempts.insert(place, (step, outbox));
        } else if let Some(change) = change.strip_prefix('O') {
            let outbox = outbox.ok_or_else(|| format!("`{change}` is told of no directive"))?;
            self.attempts.insert(place, (step, Some(moved(outbox, change)?)));
        } else {
            return Err(unreadable(change));
        }
        Ok(())
    }

    fn expect(
        &self,
        rows: &BTreeMap<Place, (String, String)>,
        has_verdict: bool,
    ) -> Result<(), String> {
        if let Some(place) = self.attempts.keys().find(|place| !rows.contains_key(*place)) {
            return Err(format!("events tell of attempt {place:?}, which is not there"));
        }
        for (place, (state, directive)) in rows {
            let (mut step, mut outbox) = self.at(*place);
            let next = rows.range(*place..).nth(1);
            let is_newest = next.is_none_or(|(other, _)| other[..3] != place[..3]);
            let closed = close_unbegun(step).filter(|_| is_newest && has_verdict);
            let is_closed = |to: StepState| to.code().to_string() == *state;
            if let Some((to, directive)) = closed.filter(|(change, _)| is_closed(change.to())) {
                (step, outbox) = (to.to(), directive.map_or(outbox, |change| Some(change.to())));
            } else if is_newest && self.job == JobState::Cancelled {
                step = cancel_waiting(step).map_or(step, |change| change.to());
            }
            let outbox = outbox.map_or_else(|| "-".to_owned(), |outbox| outbox.code().to_string());
            if (step.code().to_string(), &outbox) != (state.clone(), directive) {
                return Err(format!(
                    "events of attempt {place:?} end in {step} with directive {outbox}, \
                     the row is in {state} with {directive}"
                ));
            }
        }
        Ok(())
    }
}

/// The state after a move like `1>2` from this one.
fn moved<S: State + std::fmt::Display>(at: S, change: &str) -> Result<S, String> {
    let (from, to) = pair::<S>(change)?;
    if from == at {
        return Ok(to);
    }
    let machine = S::machine().name;
    Err(format!("events move the {machine} from {from} while it is in {at}"))
}

/// The two states of a move, which the table must have.
fn pair<S: State + std::fmt::Display>(change: &str) -> Result<(S, S), String> {
    let state = |code: &str| code.parse().ok().and_then(S::from_code);
    let read = change.split_once('>').and_then(|(from, to)| state(from).zip(state(to)));
    let (from, to) = read.ok_or_else(|| unreadable(change))?;
    let machine = S::machine();
    if machine.pair(from, to).is_none() {
        return Err(format!(
            "events move the {} from {from} to {to}, which is illegal",
            machine.name
        ));
    }
    Ok((from, to))
}

fn read_place(text: &str) -> Result<Place, String> {
    let numbers = text.split('/').map(str::parse).collect::<Result<Vec<i64>, _>>();
    let place = numbers.ok().and_then(|numbers| Place::try_from(numbers).ok());
    place.ok_or_else(|| unreadable(text))
}

fn read_row(text: &str) -> Result<(Place, (String, String)), String> {
    let (place, states) = text.split_once(' ').ok_or_else(|| unreadable(text))?;
    let (step, outbox) = states.split_once(' ').ok_or_else(|| unreadable(text))?;
    Ok((read_place(place)?, (step.to_owned(), outbox.to_owned())))
}

fn unreadable(text: &str) -> String {
    format!("`{text}` is no change of a state")
}
