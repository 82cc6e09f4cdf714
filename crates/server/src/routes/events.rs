//! The feed as server-sent events. A reader that was cut off names the last event it has seen and misses
//! nothing: `Last-Event-ID` or `?after=`. A stream outlives the call that opened it, so its token is asked about at
//! every look: one that is taken back or expires ends its streams.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use sprag_engine::feed::Cursor;
use sprag_engine::ids::JobId;
use sprag_engine::store::{JobView, Store};
use sprag_engine::tokens::Scope;
use sprag_kernel::{Code, Refusal};
use tokio::sync::OwnedSemaphorePermit;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::found::Thing;
use crate::app::App;
use crate::call::Asked;
use crate::guests::Caller;
use crate::problem::{Answered, Refused};
use crate::shapes::EventShape;

/// How many events one look takes.
const AT_A_TIME: u32 = 500;
/// How long a stream waits before it looks again.
const LOOK: Duration = Duration::from_millis(250);
/// After so many looks without an event a comment keeps the connection alive.
const SILENT_LOOKS: u32 = 40;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(feed))
}

/// An event of the feed.
#[derive(Serialize)]
struct Told {
    #[serde(rename = "jobId")]
    job_id: String,
    tenant_id: Option<String>,
    #[serde(flatten)]
    event: EventShape,
}

/// Events as they happen, as server-sent events. The `id` of each is the place to go on after.
#[utoipa::path(
    get, path = "/v1/events", tag = "events", security(("token" = ["read"])),
    params(
        ("job" = Option<String>, Query, description = "Only of this job"),
        ("after" = Option<String>, Query, description = "After the event with this id; from the beginning if absent"),
        ("Last-Event-ID" = Option<String>, Header, description = "As `after`; browsers send it by themselves"),
    ),
    responses(
        (status = 200, description = "A stream that does not end by itself", body = String, content_type = "text/event-stream"),
    )
)]
async fn feed(
    State(app): State<Arc<App>>,
    caller: Caller,
    mut asked: Asked,
    headers: HeaderMap,
) -> Answered<Response> {
    caller.expect(Scope::Read)?;
    let job_id = asked.take("job").map(|job| job.parse::<JobId>()).transpose()?;
    let last = headers.get("last-event-id").and_then(|v| v.to_str().ok()).map(str::to_owned);
    let after = last.or_else(|| asked.take("after"));
    asked.finish()?;
    if let Some(job_id) = job_id {
        JobView::find(&app, &caller, job_id).await?;
    }
    let after = after.map_or(Ok(Cursor::START), |after| after.parse())?;
    let busy = || Refused(Refusal::new(Code::RateLimited).with("what", "streams of events"));
    let permit = app.streams.clone().try_acquire_owned().map_err(|_| busy())?;
    let reader = Reader { app, caller, job_id, after, silent: 0, is_first: true, _permit: permit };
    let body = Body::from_stream(stream::unfold(reader, Reader::next));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((headers, body).into_response())
}

/// One reader of the feed.
struct Reader {
    app: Arc<App>,
    caller: Caller,
    job_id: Option<JobId>,
    after: Cursor,
    silent: u32,
    is_first: bool,
    _permit: OwnedSemaphorePermit,
}

impl Reader {
    /// The next piece of the stream; none when the server stops, or the token is not good any more.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if std::mem::take(&mut self.is_first) {
            // Something at once, so that the reader knows that it is connected.
            return Some((Ok(Bytes::from_static(b": sprag\n\n")), self));
        }
        let mut stopping = self.app.stopping.subscribe();
        loop {
            if *stopping.borrow() || self.is_refused().await {
                return None;
            }
            // A store that is away is asked again: the place is kept.
            let (text, is_full) = self.look().await.unwrap_or_default();
            if !text.is_empty() {
                self.silent = 0;
                return Some((Ok(Bytes::from(text)), self));
            }
            if is_full {
                continue;
            }
            self.silent += 1;
            if self.silent >= SILENT_LOOKS {
                self.silent = 0;
                return Some((Ok(Bytes::from_static(b": alive\n\n")), self));
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                _ = stopping.wait_for(|stop| *stop) => return None,
            }
        }
    }

    /// Whether the token that opened the stream has been taken back, or has expired. A store that is away
    /// does not say so.
    async fn is_refused(&self) -> bool {
        let store = self.app.engine.store();
        let asked = self.app.guests.admit(store, self.caller.text()).await;
        asked.is_err_and(|refusal| refusal.code() == Code::Unauthenticated)
    }

    /// What is new for this reader, as text, and whether there may be more at once.
    async fn look(&mut self) -> Result<(String, bool), Refused> {
        let events = self.app.engine.store().feed(self.after, AT_A_TIME).await?;
        let mut text = String::new();
        for fed in &events {
            self.after = fed.cursor;
            let is_wanted = self.job_id.is_none_or(|job_id| job_id == fed.job_id);
            // An event whose job is gone has no tenant any more; only those who see all are told.
            let sees = match &fed.tenant_id {
                Some(tenant_id) => self.caller.sees(tenant_id),
                None => self.caller.tenant_id().is_none(),
            };
            if is_wanted && sees {
                let told = Told {
                    job_id: fed.job_id.to_string(),
                    tenant_id: fed.tenant_id.clone(),
                    event: EventShape::of(&fed.event),
                };
                let data = serde_json::to_string(&told).expect("events have string keys");
                write!(text, "id: {}\nevent: change\ndata: {data}\n\n", fed.cursor)
                    .expect("writing to a string does not fail");
            }
        }
        Ok((text, events.len() == AT_A_TIME as usize))
    }
}
