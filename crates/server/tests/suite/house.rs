//! A server in a temporary folder, and callers with tokens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sprag_engine::engine::{EngineBuilder, EngineConfig};
use sprag_engine::protocol::Protocol;
use sprag_server::app::App;
use sprag_server::folder::Folder;
use sprag_server::listen::Server;
use sprag_server::settings::Settings;
use sprag_stores::AnyStore;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

pub(crate) struct House {
    pub(crate) folder: TempDir,
    pub(crate) url: String,
    admin: String,
    stop: Option<oneshot::Sender<()>>,
    runtime: Option<Runtime>,
    served: Option<tokio::task::JoinHandle<()>>,
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) etag: Option<String>,
    pub(crate) kind: String,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// Asserts problem details with this code.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) {
        assert_eq!(
            (self.status, self.kind.as_str()),
            (status, "application/problem+json"),
            "{self:?}"
        );
        let problem = self.json();
        assert_eq!(problem["error_code"], code, "{self:?}");
        assert_eq!(problem["status"], status);
        assert!(problem["fields"].is_object() && problem["detail"].is_string(), "{self:?}");
    }

    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        self.json()
    }
}

/// Whoever calls.
#[derive(Clone)]
pub(crate) struct Caller {
    agent: ureq::Agent,
    pub(crate) url: String,
    pub(crate) token: Option<String>,
}

impl Caller {
    pub(crate) fn new(url: &str, token: Option<&str>) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(30)))
            .allow_non_standard_methods(true)
            .build();
        Self { agent: config.into(), url: url.to_owned(), token: token.map(str::to_owned) }
    }

    pub(crate) fn call(&self, method: &str, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.call_with(method, path, &[], body)
    }

    pub(crate) fn call_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Answer {
        let mut call =
            ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.url));
        if let Some(token) = &self.token {
            call = call.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            call = call.header(*name, *value);
        }
        let mut response = self.agent.run(call.body(body.as_ref()).unwrap()).unwrap();
        let header = |name: &str| {
            response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
        };
        Answer {
            status: response.status().as_u16(),
            etag: header("etag"),
            kind: header("content-type").unwrap_or_default(),
            text: response.body_mut().read_to_string().unwrap(),
        }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.call("GET", path, "")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, body.to_string())
    }
}

pub(crate) fn envelope(tenant: &str, n: u64) -> Value {
    json!({
        "tenant_id": tenant, "request_type": "PAGES", "input_ref": "in", "output_ref": "out",
        "payload": {"n": n}, "schema_version": "1",
    })
}

impl House {
    pub(crate) fn open() -> Self {
        Self::open_with(|_| {})
    }

    pub(crate) fn open_with(change: impl FnOnce(&mut Settings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = Folder::open(&folder.path().join("data")).unwrap();
        let (key, admin) = (data.root_key().unwrap(), data.admin_token().unwrap());
        let mut settings = Settings { listen: ([127, 0, 0, 1], 0).into(), ..Settings::default() };
        change(&mut settings);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(async {
            let url = format!("sqlite:{}", data.path("sprag.db").display());
            let store = AnyStore::open(&url).await.unwrap();
            let config = EngineConfig {
                poll: Duration::from_millis(5),
                exec: Some(1),
                ..EngineConfig::default()
            };
            let engine = EngineBuilder::new(store).config(config).start();
            let engine = engine.await.unwrap();
            let mut protocol =
                Protocol::new("pages.v1", "PAGES").step("read", "reader").step("print", "printer");
            for step in &mut protocol.steps {
                step.retry.backoff = Some(vec![1]);
            }
            engine.put_protocol(&protocol).await.unwrap();
            Server::bind(App::new(engine, key, &admin, settings).await.unwrap()).await.unwrap()
        });
        let url = server.url();
        let (stop, stopped) = oneshot::channel();
        let task = runtime.spawn(async move {
            server.run(async move { drop(stopped.await) }).await.unwrap();
        });
        Self {
            folder,
            url,
            admin: admin.to_string(),
            stop: Some(stop),
            runtime: Some(runtime),
            served: Some(task),
        }
    }

    /// Where it listens, without the scheme.
    pub(crate) fn address(&self) -> String {
        self.url.split_once("://").unwrap().1.to_owned()
    }

    pub(crate) fn admin(&self) -> Caller {
        Caller::new(&self.url, Some(&self.admin))
    }

    pub(crate) fn nobody(&self) -> Caller {
        Caller::new(&self.url, None)
    }

    pub(crate) fn caller(&self, scopes: &[&str], tenant: Option<&str>) -> Caller {
        let made = self.admin().post("/v1/tokens", &json!({"scopes": scopes, "tenant_id": tenant}));
        Caller::new(&self.url, made.ok()["token"].as_str())
    }

    /// Stops the server as a signal would, and audits what it leaves.
    pub(crate) fn close(mut self) {
        let runtime = self.runtime.take().unwrap();
        let begun = Instant::now();
        drop(self.stop.take());
        runtime.block_on(self.served.take().unwrap()).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(9), "streams and waiting calls end at once");
        let url = format!("sqlite:{}", self.folder.path().join("data/sprag.db").display());
        runtime.block_on(async {
            use sprag_engine::store::Store;
            let store = AnyStore::open(&url).await.unwrap();
            for check in store.audit().await.unwrap() {
                assert!(check.violations.is_empty(), "{}: {:?}", check.name, check.violations);
            }
        });
    }
}

/// Runs the same at once on so many threads.
pub(crate) fn at_once<T: Send + 'static>(
    count: usize,
    run: impl Fn(usize) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let run = Arc::new(run);
    let gate = Arc::new(std::sync::Barrier::new(count));
    let thread = |n| {
        let (run, gate) = (run.clone(), gate.clone());
        std::thread::spawn(move || {
            gate.wait();
            run(n)
        })
    };
    let threads: Vec<_> = (0..count).map(thread).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}
