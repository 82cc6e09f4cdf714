//! What a path names, found for its caller: a job or a request that is there, and is the caller's to see. Whoever
//! looks needs the scope `read`, whoever wants something of it `submit`. Another tenant's is not there.

use std::str::FromStr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::request::Parts;
use sprag_engine::ids::{JobId, RequestId};
use sprag_engine::requests::{RequestStore, RequestView};
use sprag_engine::store::{Answer, JobView, Store};
use sprag_engine::tokens::Scope;
use sprag_kernel::{Code, Refusal};
use sprag_stores::AnyStore;

use crate::app::App;
use crate::call::Named;
use crate::guests::Caller;
use crate::problem::{Answered, Refused};

/// What can be found by its id.
pub(crate) trait Thing: Sized + Send {
    /// Names it.
    type Id: FromStr<Err = Refusal> + Copy + Send;

    /// Whoever has it.
    fn look(store: &AnyStore, id: Self::Id) -> impl Future<Output = Answer<Option<Self>>> + Send;

    /// Whose it is.
    fn tenant_id(&self) -> &str;

    /// It is not there.
    fn unknown(id: Self::Id) -> Refusal;

    /// Finds it for a caller.
    fn find(
        app: &App,
        caller: &Caller,
        id: Self::Id,
    ) -> impl Future<Output = Answered<Self>> + Send {
        async move {
            let found = Self::look(app.engine.store(), id).await?;
            let seen = found.filter(|thing| caller.sees(thing.tenant_id()));
            seen.ok_or_else(|| Refused(Self::unknown(id)))
        }
    }
}

impl Thing for JobView {
    type Id = JobId;

    fn look(store: &AnyStore, id: JobId) -> impl Future<Output = Answer<Option<Self>>> + Send {
        store.job(id)
    }

    fn tenant_id(&self) -> &str {
        &self.facts.tenant_id
    }

    fn unknown(id: JobId) -> Refusal {
        Refusal::new(Code::JobUnknown).with("job_id", id.to_string())
    }
}

impl Thing for RequestView {
    type Id = RequestId;

    fn look(store: &AnyStore, id: RequestId) -> impl Future<Output = Answer<Option<Self>>> + Send {
        store.request(id)
    }

    fn tenant_id(&self) -> &str {
        &self.facts.tenant_id
    }

    fn unknown(id: RequestId) -> Refusal {
        Refusal::new(Code::RequestUnknown).with("request_id", id.to_string())
    }
}

/// The thing that the first name in the path is the id of.
pub(crate) struct Found<T>(pub(crate) T);

impl<T: Thing> FromRequestParts<Arc<App>> for Found<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Answered<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        caller.expect(if parts.method == Method::GET { Scope::Read } else { Scope::Submit })?;
        let Named(id) = Named::<T::Id>::from_request_parts(parts, app).await?;
        Ok(Self(T::find(app, &caller, id).await?))
    }
}
