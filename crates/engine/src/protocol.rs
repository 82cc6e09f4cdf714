//! Protocols: a workflow as data, read from YAML or JSON or built in Rust, pinned by version on each
//! job.
//!
//! A protocol is checked when it is read: a mistake is refused with the place it is at, before any job
//! can meet it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal};

use crate::batch::keys::Batch;
use crate::duration;
use crate::gate::LimitKey;
use crate::graph::keys::{Child, Exec, Http, OnFailure, Repeat, Wait};
use crate::graph::{Graph, MAX_ITEMS, MAX_TURNS, RESERVED};
use crate::names::check_name;
use crate::places::Places;
use crate::policy::{Policy, check_priority};

pub use crate::policy::{MAX_ATTEMPTS, Retry, ServiceDefaults, Timeouts};

/// How many steps a protocol may have.
pub const MAX_STEPS: usize = 1_000;

/// A workflow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protocol {
    /// Its name and version, such as `ocr-embedding.v1`. Content never changes under one id.
    pub protocol_id: String,
    /// The request types that it serves.
    pub request_types: Vec<String>,
    /// What the steps of a service have in common, unless they say otherwise.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, ServiceDefaults>,
    /// Its steps, in the order they run.
    pub steps: Vec<Step>,
    /// Hooks that are called when a job has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_end: Vec<String>,
}

/// One activity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its name in the protocol.
    pub step_id: String,
    /// What kind of work it is; the step's name if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_type: Option<String>,
    /// Who does the work; empty if one of the keys below says what the step is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// A JSON Schema for the payload that it is handed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_schema: Option<Value>,
    /// The steps it waits for; the one before it if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<Vec<String>>,
    /// It is skipped unless this holds; what follows it runs all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// One branch for each item of this list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_each: Option<String>,
    /// The most items of `for_each`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_items: Option<u32>,
    /// How many branches of `for_each` may be open at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
    /// What a failed branch of `for_each` means.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
    /// Runs again while a condition holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<Repeat>,
    /// What `for_each` or `repeat` runs, if it is more than the step itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// Waits for a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// Waits for its time.
    #[serde(default, with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub sleep: Option<Millis>,
    /// A child job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Child>,
    /// A command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<Exec>,
    /// An HTTP request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
    /// Many items in one step, for a batch service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
    /// How many may run at a time, and how fast they may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitKey>,
    /// When to try again.
    #[serde(default)]
    pub retry: Retry,
    /// How long things may take.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Higher goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

impl Protocol {
    /// A protocol built in Rust; [`Self::step`] adds steps, [`Self::check`] checks it.
    pub fn new(protocol_id: &str, request_type: &str) -> Self {
        Self {
            protocol_id: protocol_id.to_owned(),
            request_types: vec![request_type.to_owned()],
            services: BTreeMap::new(),
            steps: Vec::new(),
            on_end: Vec::new(),
        }
    }

    /// Adds a step that `service` does.
    #[must_use]
    pub fn step(mut self, step_id: &str, service: &str) -> Self {
        self.steps.push(Step {
            step_id: step_id.to_owned(),
            service: service.to_owned(),
            ..Step::default()
        });
        self
    }

    /// Says what the steps of a service have in common.
    #[must_use]
    pub fn service(mut self, service: &str, defaults: ServiceDefaults) -> Self {
        self.services.insert(service.to_owned(), defaults);
        self
    }

    /// Reads and checks a protocol in YAML or JSON (which is YAML). A mistake is named by its path, its line and
    /// its column.
    pub fn read(text: &str) -> Result<Self, Refusal> {
        let protocol: Self =
            serde_saphyr::from_str(text).map_err(|error| unreadable(text, &error))?;
        protocol.check().map_err(|refusal| Places::of(text).locate(refusal))?;
        Ok(protocol)
    }

    /// Refuses a protocol that no job could follow, naming the place.
    pub fn check(&self) -> Result<(), Refusal> {
        self.graph().map(|_| ())
    }

    /// Checks the protocol and compiles it.
    pub fn graph(&self) -> Result<Graph, Refusal> {
        named("protocol_id", &self.protocol_id, "protocol_id")?;
        if self.request_types.is_empty() {
            return Err(invalid("request_types", "is empty".to_owned()));
        }
        for (index, request_type) in self.request_types.iter().enumerate() {
            named("request_types", request_type, &format!("request_types[{index}]"))?;
        }
        let count: usize = self.steps.iter().map(Step::count).sum();
        if self.steps.is_empty() || count > MAX_STEPS {
            let reason = format!("has {count} steps, 1 to {MAX_STEPS} are allowed");
            return Err(invalid("steps", reason));
        }
        for (index, hook) in self.on_end.iter().enumerate() {
            named("on_end", hook, &format!("on_end[{index}]"))?;
            if self.on_end[..index].contains(hook) {
                return Err(invalid(&format!("on_end[{index}]"), format!("{hook} is there twice")));
            }
        }
        check_list(&self.steps, "steps", &mut BTreeSet::new())?;
        for (service, defaults) in &self.services {
            let place = format!("services.{service}");
            if !self.steps.iter().any(|step| step.is_done_by(service)) {
                return Err(invalid(&place, "is the service of no step".to_owned()));
            }
            defaults.retry.check(&place)?;
            defaults.timeouts.check(&place)?;
            check_priority(defaults.priority, &place)?;
        }
        Graph::of(self)
    }

    /// Whether it serves a request type.
    pub fn serves(&self, request_type: &str) -> bool {
        self.request_types.iter().any(|served| served == request_type)
    }

    /// The text that is stored and pinned.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a protocol has string keys")
    }
}

/// Checks each step of a list by itself, and those inside of them.
fn check_list<'a>(
    steps: &'a [Step],
    place: &str,
    seen: &mut BTreeSet<&'a str>,
) -> Result<(), Refusal> {
    for (index, step) in steps.iter().enumerate() {
        let place = format!("{place}[{index}]");
        step.check(&place)?;
        step.check_keys(&place)?;
        if !seen.insert(&step.step_id) {
            return Err(invalid(&place, format!("step_id {} is there twice", step.step_id)));
        }
        check_list(&step.steps, &format!("{place}.steps"), seen)?;
    }
    Ok(())
}

impl Step {
    fn check(&self, place: &str) -> Result<(), Refusal> {
        named("step_id", &self.step_id, &format!("{place}.step_id"))?;
        check_priority(self.priority, place)?;
        self.retry.check(place)?;
        self.timeouts.check(place)?;
        self.check_scope(place)
    }

    /// Around a list of steps the engine does no more than open and close it, so what is said of attempts there is of no
    /// effect, but for how often the engine may be lost with it.
    fn check_scope(&self, place: &str) -> Result<(), Refusal> {
        let (retry, timeouts) = (&self.retry, &self.timeouts);
        let idle = [
            ("step_type", self.step_type.is_some()),
            ("retry.max_attempts", retry.max_attempts.is_some()),
            ("retry.backoff", retry.backoff.is_some()),
            ("retry.ack_backoff", retry.ack_backoff.is_some()),
            ("timeouts.ack", timeouts.ack.is_some()),
            ("timeouts.lease", timeouts.lease.is_some()),
            ("timeouts.step", timeouts.step.is_some()),
            ("priority", self.priority.is_some()),
        ];
        match idle.iter().find(|(_, is_said)| *is_said && !self.steps.is_empty()) {
            Some((key, _)) => {
                let reason = "has no effect around a list of steps: say it of the steps inside";
                Err(invalid(&format!("{place}.{key}"), reason.to_owned()))
            }
            None => Ok(()),
        }
    }

    /// A step is one thing, and its keys belong to what it is.
    fn check_keys(&self, place: &str) -> Result<(), Refusal> {
        let kinds = self.kinds();
        if kinds.len() != 1 {
            let reason = match &kinds[..] {
                [] => "has neither a service nor another key that says who does it".to_owned(),
                kinds => format!("is several things at once: {}", kinds.join(", ")),
            };
            return Err(invalid(place, reason));
        }
        if kinds[0] == "service" {
            named("service", &self.service, &format!("{place}.service"))?;
            if self.service.starts_with(RESERVED) {
                let reason = format!("begins with {RESERVED}, which belongs to Sprag");
                return Err(invalid(&format!("{place}.service"), reason));
            }
        }
        let opens = (self.for_each.is_some(), self.repeat.is_some());
        let of_fan_out =
            self.max_items.is_some() || self.max_parallel.is_some() || self.on_failure.is_some();
        let reason = match opens {
            (true, true) => "has for_each and repeat: put one into the steps of the other",
            (false, false) if !self.steps.is_empty() => "has steps without for_each or repeat",
            (false, _) if of_fan_out => {
                "has max_items, max_parallel or on_failure without for_each"
            }
            (_, _) if self.limit.is_some() && !self.is_work() => {
                "has a limit, but nobody works on it"
            }
            (_, _) => return self.check_limits(place),
        };
        Err(invalid(place, reason.to_owned()))
    }

    fn check_limits(&self, place: &str) -> Result<(), Refusal> {
        if let Some((key, reason)) = self.batch.as_ref().and_then(Batch::fault) {
            return Err(invalid(&format!("{place}.{key}"), reason));
        }
        if self.batch.is_some() && self.service.is_empty() && self.exec.is_none() {
            let reason = "has neither a service nor a command that computes its items".to_owned();
            return Err(invalid(&format!("{place}.batch"), reason));
        }
        let is_handed_one = self.exec.is_some() || self.http.is_some() || !self.service.is_empty();
        if self.payload_schema.is_some() && !is_handed_one {
            let reason = "stands where no payload is handed to anybody".to_owned();
            return Err(invalid(&format!("{place}.payload_schema"), reason));
        }
        let turns = self.repeat.as_ref().map(|repeat| repeat.max);
        for (field, given, most) in [
            ("max_items", self.max_items, MAX_ITEMS),
            ("max_parallel", self.max_parallel, MAX_ITEMS),
            ("repeat.max", turns, MAX_TURNS),
        ] {
            if given.is_some_and(|given| given == 0 || given > most) {
                let reason = format!("is not from 1 to {most}");
                return Err(invalid(&format!("{place}.{field}"), reason));
            }
        }
        if let Some(wait) = &self.wait {
            named("signal", &wait.signal, &format!("{place}.wait.signal"))?;
        }
        if self.exec.as_ref().is_some_and(|exec| exec.command.is_empty()) {
            return Err(invalid(&format!("{place}.exec.command"), "is empty".to_owned()));
        }
        if self.http.as_ref().is_some_and(|http| !is_url(&http.url)) {
            let reason = "is not a URL that begins with http:// or https://".to_owned();
            return Err(invalid(&format!("{place}.http.url"), reason));
        }
        let methods = ["GET", "POST", "PUT", "PATCH", "DELETE"];
        if self.http.as_ref().is_some_and(|http| !methods.contains(&http.method.as_str())) {
            let reason = format!("is not one of {}", methods.join(", "));
            return Err(invalid(&format!("{place}.http.method"), reason));
        }
        Ok(())
    }

    /// The keys that say what a step is; one of them is right.
    fn kinds(&self) -> Vec<&'static str> {
        [
            ("service", !self.service.is_empty()),
            ("steps", !self.steps.is_empty()),
            ("wait", self.wait.is_some()),
            ("sleep", self.sleep.is_some()),
            ("job", self.job.is_some()),
            ("exec", self.exec.is_some()),
            ("http", self.http.is_some()),
        ]
        .into_iter()
        .filter_map(|(key, is_there)| is_there.then_some(key))
        .collect()
    }

    /// What does a step that was checked: one of the keys above, or the batch that they are for.
    pub(crate) fn done_by(&self) -> &'static str {
        if self.batch.is_some() {
            "batch"
        } else {
            self.kinds().first().copied().unwrap_or("steps")
        }
    }

    /// Whether a worker does it, of a service or of Sprag's own.
    pub(crate) fn is_work(&self) -> bool {
        !self.service.is_empty() || self.exec.is_some() || self.http.is_some()
    }

    /// Whether it has none of the keys of a graph.
    pub(crate) fn is_plain(&self) -> bool {
        self.needs.is_none()
            && self.when.is_none()
            && self.for_each.is_none()
            && self.repeat.is_none()
            && !self.service.is_empty()
    }

    /// Whether it, or a step inside of it, is done by a service.
    fn is_done_by(&self, service: &str) -> bool {
        self.service == service || self.steps.iter().any(|step| step.is_done_by(service))
    }

    /// It and all steps inside of it.
    fn count(&self) -> usize {
        1 + self.steps.iter().map(Self::count).sum::<usize>()
    }

    /// The kind of work.
    pub fn kind(&self) -> &str {
        self.step_type.as_deref().unwrap_or(&self.step_id)
    }

    /// What holds for it, given what its protocol says of its service.
    pub(crate) fn policy(&self, service: Option<&ServiceDefaults>) -> Policy {
        let (retry, timeouts) = (self.retry.clone(), self.timeouts.clone());
        Policy::of(&ServiceDefaults { retry, timeouts, priority: self.priority }, service)
    }
}

fn is_url(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    rest.is_some_and(|rest| !rest.is_empty() && !text.contains(char::is_whitespace))
}

/// Checks a name; a refusal says where it stands.
fn named(field: &'static str, name: &str, place: &str) -> Result<(), Refusal> {
    check_name(field, name).map_err(|refusal| refusal.with("place", place.to_owned()))
}

/// A text that is no protocol: it cannot be read at all, or has something where something else should be.
fn unreadable(text: &str, error: &serde_saphyr::Error) -> Refusal {
    let reason = error.to_string();
    let reason = reason.lines().next().unwrap_or_default().to_owned();
    let Some(at) = error.location() else { return invalid("file", reason) };
    let point = (at.line(), at.column());
    let places = Places::of(text);
    let place = places.at(point).unwrap_or("file");
    invalid(place, reason).with("line", point.0).with("column", point.1)
}

pub(crate) fn invalid(place: &str, reason: String) -> Refusal {
    Refusal::new(Code::ProtocolInvalid).with("place", place.to_owned()).with("reason", reason)
}
