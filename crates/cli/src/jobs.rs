//! Where the jobs are that a command is about: at a server, found as every command finds it, or in a store that
//! is named. Both show the same shapes, as JSON values, so that whoever prints them need not know.

use clap::Args;
use serde_json::{Value, json};
use sprag_engine::ids::JobId;
use sprag_engine::store::{AttemptView, JobFilter, JobView};
use sprag_kernel::{Code, JobState, Refusal, State};
use sprag_server::shapes::{EventShape, Items, JobShape, List, SignalShape};

use crate::client::{Client, ServerArgs, segment};
use crate::stores::{Acting, Looking};

/// A server or a store.
#[derive(Clone, Debug, Args)]
pub struct AtArgs {
    /// Look straight into a store instead of asking a server: sqlite:FILE or postgres://...
    #[arg(long, global = true, value_name = "URL")]
    store: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Where the jobs are.
pub enum Jobs {
    /// At a server.
    Server(Client),
    /// In a store, by its URL.
    Store(String),
}

/// Which jobs are listed.
#[derive(Debug, Default)]
pub struct Wanted {
    /// Of this tenant.
    pub tenant: Option<String>,
    /// In this state.
    pub state: Option<JobState>,
    /// Of this request type.
    pub request_type: Option<String>,
    /// Submitted at this time or later.
    pub from: Option<u64>,
    /// Submitted before this time.
    pub to: Option<u64>,
    /// With this text in correlation id, document, key or error.
    pub text: Option<String>,
    /// Behind this job.
    pub before: Option<String>,
    /// At most so many.
    pub limit: u32,
}

impl Jobs {
    /// Finds the server, unless a store is named.
    pub fn find(args: &AtArgs) -> Result<Self, Refusal> {
        match &args.store {
            Some(url) => Ok(Self::Store(url.clone())),
            None => Client::find(&args.server).map(Self::Server),
        }
    }

    /// The store's URL, for what no server does.
    pub fn expect_store(&self) -> Result<&str, Refusal> {
        match self {
            Self::Store(url) => Ok(url),
            Self::Server(_) => Err(Refusal::new(Code::Usage)
                .with("reason", "only a store can be asked for this: name it with --store")),
        }
    }

    /// `{items, next}`, the newest first.
    pub fn list(&self, wanted: Wanted) -> Result<Value, Refusal> {
        match self {
            Self::Server(client) => {
                let limit = Some(wanted.limit.to_string());
                let state = wanted.state.map(|state| state.name().to_owned());
                let asked = [
                    ("tenant", wanted.tenant),
                    ("state", state),
                    ("type", wanted.request_type),
                    ("from", wanted.from.map(|at| at.to_string())),
                    ("to", wanted.to.map(|at| at.to_string())),
                    ("text", wanted.text),
                    ("cursor", wanted.before),
                    ("limit", limit),
                ];
                client.call("GET", &asking("/v1/jobs", asked), b"")
            }
            Self::Store(url) => {
                let filter = JobFilter {
                    tenant_id: wanted.tenant,
                    state: wanted.state,
                    request_type: wanted.request_type,
                    from: wanted.from,
                    to: wanted.to,
                    text: wanted.text,
                    before: wanted.before.as_deref().map(str::parse).transpose()?,
                    limit: wanted.limit,
                };
                let jobs = Looking::open(url)?.jobs(filter)?;
                let is_full = jobs.len() == wanted.limit as usize;
                let next = jobs.last().filter(|_| is_full).map(|job| job.facts.job_id.to_string());
                let items = jobs.iter().map(|job| JobShape::of(job, &[])).collect();
                Ok(value(&List::<JobShape> { items, next }))
            }
        }
    }

    /// A job, with every attempt as `steps`.
    pub fn show(&self, job_id: &str) -> Result<Value, Refusal> {
        match self {
            Self::Server(client) => {
                let mut job = client.call("GET", &path(job_id, ""), b"")?;
                job["steps"] = all(client, &path(job_id, "/ledger?outputs=all&limit=50"))?.into();
                Ok(job)
            }
            Self::Store(url) => {
                let (job, attempts) = look(&Looking::open(url)?, job_id)?;
                Ok(value(&JobShape::of(&job, &attempts)))
            }
        }
    }

    /// What happened, what holds the job now, and what comes next.
    pub fn explain(&self, job_id: &str) -> Result<Value, Refusal> {
        match self {
            Self::Server(client) => client.call("GET", &path(job_id, "/explain"), b""),
            Self::Store(url) => {
                let store = Looking::open(url)?;
                let job = find(&store, job_id)?;
                Ok(value(&store.explain(&job)?))
            }
        }
    }

    /// The history of a job.
    pub fn events(&self, job_id: &str) -> Result<Vec<Value>, Refusal> {
        match self {
            Self::Server(client) => all(client, &path(job_id, "/events?limit=500")),
            Self::Store(url) => {
                let store = Looking::open(url)?;
                let (job, _) = look(&store, job_id)?;
                let events = store.events(job.facts.job_id)?;
                Ok(events.iter().map(|event| value(&EventShape::of(event))).collect())
            }
        }
    }

    /// What was said to a job.
    pub fn signals(&self, job_id: &str) -> Result<Value, Refusal> {
        match self {
            Self::Server(client) => client.call("GET", &path(job_id, "/signals"), b""),
            Self::Store(url) => {
                let store = Looking::open(url)?;
                let (job, _) = look(&store, job_id)?;
                let signals = store.signals(job.facts.job_id)?;
                Ok(value(&Items { items: signals.iter().map(SignalShape::of).collect() }))
            }
        }
    }

    /// Asks a job to stop, if it has this version.
    pub fn cancel(&self, job_id: &str, version: Option<u64>) -> Result<Value, Refusal> {
        match self {
            Self::Server(client) => {
                let version = version.map(|version| version.to_string());
                client.call_if("POST", &path(job_id, "/cancel"), version.as_deref(), b"")
            }
            Self::Store(url) => {
                let job_id: JobId = job_id.parse()?;
                let state = Acting::open(url)?.cancel(job_id, version)?;
                Ok(json!({"jobId": job_id.to_string(), "state": state.name()}))
            }
        }
    }

    /// Runs a job that ended badly again, if it has this version.
    pub fn rerun(
        &self,
        job_id: &str,
        n: Option<u32>,
        version: Option<u64>,
    ) -> Result<Value, Refusal> {
        match self {
            Self::Server(client) => {
                let body = json!({"n": n}).to_string();
                let version = version.map(|version| version.to_string());
                let path = path(job_id, "/rerun");
                client.call_if("POST", &path, version.as_deref(), body.as_bytes())
            }
            Self::Store(url) => {
                // One that may be run again is over, so its version does not change any more.
                look(&Looking::open(url)?, job_id)?.0.row.expect_version(version)?;
                let rerun = Acting::open(url)?.rerun(job_id.parse()?, n)?;
                let (job_id, state) = (rerun.job_id.to_string(), rerun.state.name());
                Ok(json!({"jobId": job_id, "state": state, "created": rerun.created}))
            }
        }
    }
}

/// A job and its attempts, or the refusal that there is none.
pub fn look(store: &Looking, job_id: &str) -> Result<(JobView, Vec<AttemptView>), Refusal> {
    let job = find(store, job_id)?;
    let attempts = store.attempts(job.facts.job_id)?;
    Ok((job, attempts))
}

fn find(store: &Looking, job_id: &str) -> Result<JobView, Refusal> {
    let job_id: JobId = job_id.parse()?;
    let unknown = || Refusal::new(Code::JobUnknown).with("job_id", job_id.to_string());
    store.job(job_id)?.ok_or_else(unknown)
}

/// All parts of a list; the path has a question mark already.
fn all(client: &Client, path: &str) -> Result<Vec<Value>, Refusal> {
    let mut items = Vec::new();
    let mut next = path.to_owned();
    loop {
        let mut part = client.call("GET", &next, b"")?;
        items.extend(part["items"].as_array_mut().map(std::mem::take).unwrap_or_default());
        let Some(cursor) = part["next"].as_str() else { return Ok(items) };
        next = format!("{path}&cursor={}", segment(cursor));
    }
}

/// A path with those parameters that have a value.
pub fn asking<const N: usize>(path: &str, asked: [(&str, Option<String>); N]) -> String {
    let asked: Vec<String> = asked
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", segment(&value?))))
        .collect();
    format!("{path}?{}", asked.join("&"))
}

fn path(job_id: &str, below: &str) -> String {
    format!("/v1/jobs/{}{below}", segment(job_id))
}

fn value(shape: &impl serde::Serialize) -> Value {
    serde_json::to_value(shape).expect("shapes have string keys")
}
