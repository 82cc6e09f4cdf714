//! A server's events as they happen. A stream that breaks is opened again behind the last event that was
//! heard, so that nothing is missed and nothing comes twice.

use std::io::BufRead;
use std::time::{Duration, Instant};

use serde_json::Value;
use sprag_kernel::Refusal;

use crate::client::{Client, passes, segment};

/// How long a server may be away.
pub const AWAY: Duration = Duration::from_secs(60);
/// How long to wait before it is called again.
const REST: Duration = Duration::from_millis(200);

/// Which events, and the place behind the last one that was heard.
pub struct Feed {
    client: Client,
    job_id: Option<String>,
    after: Option<String>,
    /// Whether each event says its own place, to go on behind it later.
    says_place: bool,
}

impl Feed {
    /// All events that the caller may see, or those of one job, from the first one.
    pub fn new(client: &Client, job_id: Option<&str>) -> Self {
        let job_id = job_id.map(str::to_owned);
        Self { client: client.clone(), job_id, after: None, says_place: false }
    }

    /// All events behind a place, each with its own as `id`.
    pub fn behind(client: &Client, job_id: Option<&str>, after: Option<String>) -> Self {
        Self { after, says_place: true, ..Self::new(client, job_id) }
    }

    /// Tells of every event until `heard` has heard enough. A server that is being started again is waited
    /// for.
    pub fn follow<E: From<Refusal>>(
        &mut self,
        mut heard: impl FnMut(&Value) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut last = Instant::now();
        loop {
            match self.client.stream(&self.path()) {
                Ok(stream) => {
                    last = Instant::now();
                    if self.listen(stream, &mut heard)? {
                        return Ok(());
                    }
                }
                Err(refusal) if passes(&refusal) && last.elapsed() < AWAY => {
                    self.client.waits(&refusal);
                }
                Err(refusal) => return Err(refusal.into()),
            }
            std::thread::sleep(REST);
        }
    }

    fn path(&self) -> String {
        let job = self.job_id.as_ref().map(|job_id| format!("job={}", segment(job_id)));
        let after = self.after.as_ref().map(|after| format!("after={}", segment(after)));
        let asked: Vec<String> = [job, after].into_iter().flatten().collect();
        format!("/v1/events?{}", asked.join("&"))
    }

    /// Reads a stream to its end. Whether enough was heard.
    fn listen<E>(
        &mut self,
        stream: impl BufRead,
        heard: &mut impl FnMut(&Value) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let mut id = None;
        // A line that cannot be read is the end of the stream; the next one begins where this one ended.
        for line in stream.lines().map_while(Result::ok) {
            if let Some(place) = line.strip_prefix("id: ") {
                id = Some(place.to_owned());
            } else if let Some(data) = line.strip_prefix("data: ")
                && let Ok(mut event) = serde_json::from_str::<Value>(data)
            {
                if self.says_place {
                    event["id"] = id.clone().into();
                }
                let is_enough = heard(&event)?;
                self.after = id.take().or(self.after.take());
                if is_enough {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
