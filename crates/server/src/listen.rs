//! Connections: accepted up to a limit, over TLS if there is a certificate, each with a time for its head;
//! and the end, when what is under way may finish and the rest is closed.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sprag_kernel::{Code, Refusal};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::app::{App, router};
use crate::patience::{Patience, Patient};
use crate::settings::Settings;

/// The most headers of a call.
const MAX_HEADERS: usize = 64;
/// The largest head of a call.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// The most calls at a time on one HTTP/2 connection.
const MAX_STREAMS: u32 = 128;
/// How long the server waits after it could not accept a connection: it may be out of files.
const REST: Duration = Duration::from_millis(50);

/// An address that is bound and a certificate that was read: what can fail before an engine is started. Callers can
/// connect and wait.
pub struct Door {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl Door {
    /// Binds the address of the settings.
    pub async fn bind(settings: &Settings) -> Result<Self, Refusal> {
        settings.check()?;
        let tls = settings.tls.as_ref().map(|(chain, key)| acceptor(chain, key)).transpose()?;
        let listener = TcpListener::bind(settings.listen).await.map_err(|error| {
            Refusal::new(Code::ConfigInvalid)
                .with("listen", settings.listen.to_string())
                .with("reason", error.to_string())
        })?;
        Ok(Self { listener, tls })
    }
}

/// A server that listens.
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl Server {
    /// Binds the address. From here on callers can connect; they are served by [`Self::run`].
    pub async fn bind(app: App) -> Result<Self, Refusal> {
        let door = Door::bind(&app.settings).await?;
        Ok(Self::behind(door, app))
    }

    /// A server behind a door that is open already.
    pub fn behind(door: Door, app: App) -> Self {
        Self { app: Arc::new(app), listener: door.listener, tls: door.tls }
    }

    /// The URL that it is reached by from this machine.
    pub fn url(&self) -> String {
        let mut address = self.listener.local_addr().unwrap_or(self.app.settings.listen);
        // "Every address" is not one that can be called; from this machine the loopback is.
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            IpAddr::V4(_) | IpAddr::V6(_) => {}
        }
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{address}")
    }

    /// Serves until `stop` is ready, then lets calls and handlers end, and stops the engine.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), Refusal> {
        let settings = self.app.settings.clone();
        let connections = self.accept(&settings, stop).await;
        tracing::info!(code = "SERVER_STOPPING", "no new connections; calls may end");
        // Streams and waiting calls end by themselves when they hear it.
        self.app.stopping.send_replace(true);
        let Connections { graceful, mut tasks } = connections;
        if tokio::time::timeout(settings.grace, graceful.shutdown()).await.is_err() {
            tracing::warn!(code = "CALLS_CUT", "some calls did not end in time");
        }
        tasks.shutdown().await;
        let stopped = match Arc::try_unwrap(self.app) {
            Ok(app) => app.into_engine().shutdown(settings.grace).await.map_err(Refusal::from),
            // A call that still holds it is cut with the process; the engine's work is taken up again.
            Err(_) => Ok(()),
        };
        tracing::info!(code = "SERVER_STOPPED", "the engine has left its store");
        stopped
    }

    async fn accept(&self, settings: &Settings, stop: impl Future<Output = ()>) -> Connections {
        let router = router(self.app.clone());
        let builder = Arc::new(builder(settings));
        let slots = Arc::new(Semaphore::new(settings.max_connections));
        let mut connections =
            Connections { graceful: GracefulShutdown::new(), tasks: JoinSet::new() };
        let mut stop = std::pin::pin!(stop);
        loop {
            // The slot first: beyond the limit connections wait in the operating system's queue.
            let slot = slots.clone().acquire_owned();
            let (slot, accepted) = tokio::select! {
                biased;
                () = &mut stop => return connections,
                Some(_) = connections.tasks.join_next() => continue,
                accepted = async { (slot.await, self.listener.accept().await) } => accepted,
            };
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(REST).await;
                continue;
            };
            let serve = Serve {
                builder: builder.clone(),
                router: router.clone(),
                watcher: connections.graceful.watcher(),
                patience: Patience {
                    greeting: settings.head_timeout,
                    unread: settings.unread_timeout,
                },
            };
            let tls = self.tls.clone();
            connections.tasks.spawn(async move {
                serve.connection(stream, tls).await;
                drop(slot);
            });
        }
    }
}

/// Every open connection.
struct Connections {
    graceful: GracefulShutdown,
    tasks: JoinSet<()>,
}

fn builder(settings: &Settings) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.head_timeout)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX))
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .keep_alive_timeout(settings.head_timeout);
    builder
}

/// What serving one connection takes.
struct Serve {
    builder: Arc<auto::Builder<TokioExecutor>>,
    router: axum::Router,
    watcher: hyper_util::server::graceful::Watcher,
    patience: Patience,
}

impl Serve {
    async fn connection(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        // Small answers go out at once.
        let _ = stream.set_nodelay(true);
        match tls {
            None => self.calls(stream).await,
            Some(tls) => {
                let shaken = tokio::time::timeout(self.patience.greeting, tls.accept(stream)).await;
                if let Ok(Ok(stream)) = shaken {
                    self.calls(stream).await;
                }
            }
        }
    }

    async fn calls(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let router = self.router;
        let service = hyper::service::service_fn(move |call: hyper::Request<Incoming>| {
            router.clone().oneshot(call)
        });
        let stream = TokioIo::new(Patient::new(stream, self.patience));
        let connection = self.builder.serve_connection(stream, service);
        // A connection that breaks is the caller's business; its calls are durable or were not answered.
        let _ = self.watcher.watch(connection.into_owned()).await;
    }
}

fn acceptor(chain: &Path, key: &Path) -> Result<TlsAcceptor, Refusal> {
    let unusable = |path: &Path, reason: String| {
        Refusal::new(Code::ConfigInvalid)
            .with("file", path.display().to_string())
            .with("reason", reason)
    };
    let read = |path: &Path| fs::read(path).map_err(|error| unusable(path, error.to_string()));
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&read(chain)?)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(chain, error.to_string()))?;
    let private = PrivateKeyDer::from_pem_slice(&read(key)?)
        .map_err(|error| unusable(key, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(chain, error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(certificates, private)
        .map_err(|error| unusable(chain, error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
