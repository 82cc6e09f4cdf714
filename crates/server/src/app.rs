//! What all calls share, and which handler answers which path.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use sprag_engine::engine::Engine;
use sprag_engine::tokens::{NewToken, Scope, TokenStore};
use sprag_kernel::{Code, Refusal};
use sprag_stores::AnyStore;
use tokio::sync::{Semaphore, watch};
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Content, Ref, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;

use crate::guard::guard;
use crate::guests::{Guests, Rates};
use crate::metrics::Metrics;
use crate::problem::{Problem, Refused};
use crate::routes;
use crate::secret::{Key, TokenText};
use crate::settings::Settings;
use crate::steps;
use crate::traces::Traces;

/// What all calls share.
pub struct App {
    pub(crate) engine: Engine<AnyStore>,
    pub(crate) key: Key,
    pub(crate) settings: Settings,
    pub(crate) guests: Guests,
    pub(crate) rates: Rates,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traces: Arc<Traces>,
    pub(crate) streams: Arc<Semaphore>,
    /// True once the server ends: streams and waiting calls end too.
    pub(crate) stopping: watch::Sender<bool>,
}

impl App {
    /// A server's state on an engine. The admin's token is accepted from here on.
    pub async fn new(
        engine: Engine<AnyStore>,
        key: Key,
        admin: &TokenText,
        settings: Settings,
    ) -> Result<Self, Refusal> {
        let token = NewToken {
            token_id: admin.id().to_owned(),
            hash: admin.hash(),
            scopes: [Scope::Admin].into_iter().collect(),
            tenant_id: None,
            label: "admin".to_owned(),
            lifetime_ms: None,
        };
        engine.store().put_token(token).await?;
        let metrics = Arc::<Metrics>::default();
        let traces = Arc::new(Traces::to(settings.traces.as_deref())?);
        let books = (metrics.clone(), traces.clone());
        engine.watch(move |ran| steps::measure(ran, &books.0, &books.1));
        Ok(Self {
            engine,
            key,
            guests: Guests::default(),
            rates: Rates::new(settings.rate, settings.burst),
            metrics,
            traces,
            streams: Arc::new(Semaphore::new(settings.max_streams)),
            stopping: watch::Sender::new(false),
            settings,
        })
    }

    /// The engine, once nobody uses it any more.
    pub(crate) fn into_engine(self) -> Engine<AnyStore> {
        self.engine
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Sprag",
        description = "A durable job engine whose state can only move forward. Times are milliseconds since \
            1970. A call that is repeated with the same content is answered as the first one was.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    components(schemas(Problem)),
    security(("token" = []))
)]
struct Api;

fn routes() -> OpenApiRouter<Arc<App>> {
    let mut api = Api::openapi();
    let components = api.components.get_or_insert_default();
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    components.add_security_scheme("token", bearer);
    OpenApiRouter::with_openapi(api)
        .merge(routes::commands::routes())
        .merge(routes::jobs::routes())
        .merge(routes::signals::routes())
        .merge(routes::requests::routes())
        .merge(routes::workers::routes())
        .merge(routes::events::routes())
        .merge(routes::protocols::routes())
        .merge(routes::services::routes())
        .merge(routes::schedules::routes())
        .merge(routes::tokens::routes())
        .merge(routes::health::routes())
}

/// The OpenAPI document of this very binary. Every call may be refused, and all refusals look alike.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut api = routes().into_openapi();
    let problem = Content::new(Some(Ref::from_schema_name("Problem")));
    let refused = ResponseBuilder::new()
        .description("A problem")
        .content("application/problem+json", problem)
        .build();
    for path in api.paths.paths.values_mut() {
        let operations = [&mut path.get, &mut path.put, &mut path.post, &mut path.delete];
        for operation in operations.into_iter().flatten() {
            operation.responses.responses.insert("default".to_owned(), refused.clone().into());
        }
    }
    api
}

/// All routes, behind the guard.
pub(crate) fn router(app: Arc<App>) -> Router {
    let (router, _) = routes().split_for_parts();
    router
        .fallback(async || Refused(Refusal::new(Code::RouteUnknown)))
        .method_not_allowed_fallback(async || Refused(Refusal::new(Code::MethodRefused)))
        .layer(from_fn_with_state(app.clone(), guard))
        .with_state(app)
}
