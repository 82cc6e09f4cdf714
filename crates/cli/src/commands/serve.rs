//! `sprag serve`: an engine with its door open, until a signal ends it.
//!
//! A setting comes from a flag, else from the environment, else from the file that `--config` names, else
//! it is the default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;
use sprag_engine::duration;
use sprag_engine::engine::{EngineBuilder, EngineConfig};
use sprag_engine::protocol::Protocol;
use sprag_kernel::{Code, Refusal};
use sprag_server::app::App;
use sprag_server::folder::Folder;
use sprag_server::listen::{Door, Server};
use sprag_server::outbound;
use sprag_server::settings::Settings;
use sprag_stores::AnyStore;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::client::data_folder;
use crate::output::{Failure, Output, unreadable};

/// The exit code of a server that did not wait for its calls.
const FORCED: i32 = 130;

/// How many commands of `exec` steps run at a time.
const COMMANDS: usize = 8;

/// Arguments of `sprag serve`; in a file the names have underscores.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[command(after_help = "\
The first start creates the data folder with a root key and the admin's token; other commands find the server
and the token there. With --json it prints {\"url\", \"data\"} when it listens. SIGTERM and Ctrl-C let calls
end first, a second one does not wait. docs/configuration.md lists every setting by all its names.

Examples:
  sprag serve --protocols ./protocols
  sprag serve --store postgres://localhost/sprag --listen 0.0.0.0:7070 --tls-cert c.pem --tls-key k.pem")]
pub struct ServeArgs {
    /// The store: sqlite:FILE or postgres://... [default: sprag.db in the data folder]
    #[arg(long, value_name = "URL", env = "SPRAG_STORE", hide_env_values = true)]
    store: Option<String>,
    /// Where to listen [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDR", env = "SPRAG_LISTEN", hide_env_values = true)]
    listen: Option<SocketAddr>,
    /// The data folder [default: ./sprag-data]
    #[arg(long, value_name = "DIR", env = "SPRAG_DATA", hide_env_values = true)]
    data: Option<PathBuf>,
    /// Register every protocol (*.yaml, *.yml, *.json) of this folder at the start.
    #[arg(long, value_name = "DIR", env = "SPRAG_PROTOCOLS", hide_env_values = true)]
    protocols: Option<PathBuf>,
    /// A certificate chain, as PEM.
    #[arg(long, value_name = "FILE", env = "SPRAG_TLS_CERT", hide_env_values = true)]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, as PEM.
    #[arg(long, value_name = "FILE", env = "SPRAG_TLS_KEY", hide_env_values = true)]
    tls_key: Option<PathBuf>,
    /// A proxy with TLS stands before this server.
    #[arg(long, env = "SPRAG_BEHIND_PROXY", hide_env_values = true)]
    behind_proxy: bool,
    /// Names that the server answers to, besides its address.
    #[arg(
        long,
        value_name = "NAME",
        env = "SPRAG_HOSTS",
        hide_env_values = true,
        value_delimiter = ','
    )]
    hosts: Vec<String>,
    /// The largest body of a call [default: 4194304]
    #[arg(long, value_name = "BYTES", env = "SPRAG_MAX_BODY_BYTES", hide_env_values = true)]
    max_body_bytes: Option<usize>,
    /// The largest body of many envelopes [default: 67108864]
    #[arg(long, value_name = "BYTES", env = "SPRAG_MAX_BULK_BYTES", hide_env_values = true)]
    max_bulk_bytes: Option<usize>,
    /// The largest envelope; a call that brings it may be no larger [default: 1048576]
    #[arg(long, value_name = "BYTES", env = "SPRAG_MAX_ENVELOPE_BYTES", hide_env_values = true)]
    max_envelope_bytes: Option<usize>,
    /// The largest output of a step [default: 1048576]
    #[arg(long, value_name = "BYTES", env = "SPRAG_MAX_OUTPUT_BYTES", hide_env_values = true)]
    max_output_bytes: Option<usize>,
    /// Connections at a time [default: 1024]
    #[arg(long, value_name = "COUNT", env = "SPRAG_MAX_CONNECTIONS", hide_env_values = true)]
    max_connections: Option<usize>,
    /// Streams of events at a time [default: 64]
    #[arg(long, value_name = "COUNT", env = "SPRAG_MAX_STREAMS", hide_env_values = true)]
    max_streams: Option<usize>,
    /// Calls per second and tenant [default: 5000]
    #[arg(long, value_name = "COUNT", env = "SPRAG_RATE", hide_env_values = true)]
    rate: Option<u32>,
    /// Calls that a tenant may save up [default: 10000]
    #[arg(long, value_name = "COUNT", env = "SPRAG_BURST", hide_env_values = true)]
    burst: Option<u32>,
    /// Seconds that calls and handlers may take to end [default: 10]
    #[arg(long, value_name = "SECONDS", env = "SPRAG_GRACE", hide_env_values = true)]
    grace: Option<u64>,
    /// How long a finished job is kept, such as 30d; for ever if not given.
    #[arg(long, value_name = "DURATION", env = "SPRAG_RETENTION", hide_env_values = true)]
    #[arg(value_parser = duration::parse)]
    #[serde(with = "duration::optional")]
    retention: Option<u64>,
    /// How long the key of a job that is gone is still recognised; for ever if not given.
    #[arg(long, value_name = "DURATION", env = "SPRAG_KEY_RETENTION", hide_env_values = true)]
    #[arg(value_parser = duration::parse)]
    #[serde(with = "duration::optional")]
    key_retention: Option<u64>,
    /// A collector of OpenTelemetry, such as http://127.0.0.1:4318, that is told of callers' traces.
    #[arg(long, value_name = "URL", env = "SPRAG_TRACES", hide_env_values = true)]
    traces: Option<String>,
    /// Run the commands of `exec` steps on this machine; whoever may register a protocol may then run any.
    #[arg(long, env = "SPRAG_ALLOW_EXEC", hide_env_values = true)]
    #[serde(default)]
    allow_exec: bool,
    /// Let `http` steps call this machine and the networks it is in.
    #[arg(long, env = "SPRAG_ALLOW_PRIVATE_HTTP", hide_env_values = true)]
    #[serde(default)]
    allow_private_http: bool,
    /// How its log is written to stderr [default: text]
    #[arg(long, value_name = "FORM", value_enum, env = "SPRAG_LOG", hide_env_values = true)]
    log: Option<LogForm>,
    /// Settings in a YAML file, by the names of the flags with underscores.
    #[arg(long, value_name = "FILE", env = "SPRAG_CONFIG", hide_env_values = true)]
    #[serde(skip)]
    config: Option<PathBuf>,
}

/// How a log is written.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum LogForm {
    /// Lines for people.
    Text,
    /// An object per line; `code` is stable.
    Json,
}

impl ServeArgs {
    /// What is not set here as the file has it.
    fn with_file(self) -> Result<Self, Refusal> {
        let Some(path) = &self.config else { return Ok(self) };
        let text = std::fs::read_to_string(path).map_err(|e| unreadable(path.display(), &e))?;
        let file: Self = serde_saphyr::from_str(&text).map_err(|error| {
            let reason = error.to_string();
            Refusal::new(Code::ConfigInvalid)
                .with("file", path.display().to_string())
                .with("reason", reason.lines().next().unwrap_or_default().to_owned())
        })?;
        Ok(Self {
            store: self.store.or(file.store),
            listen: self.listen.or(file.listen),
            data: self.data.or(file.data),
            protocols: self.protocols.or(file.protocols),
            tls_cert: self.tls_cert.or(file.tls_cert),
            tls_key: self.tls_key.or(file.tls_key),
            behind_proxy: self.behind_proxy || file.behind_proxy,
            hosts: if self.hosts.is_empty() { file.hosts } else { self.hosts },
            max_body_bytes: self.max_body_bytes.or(file.max_body_bytes),
            max_bulk_bytes: self.max_bulk_bytes.or(file.max_bulk_bytes),
            max_envelope_bytes: self.max_envelope_bytes.or(file.max_envelope_bytes),
            max_output_bytes: self.max_output_bytes.or(file.max_output_bytes),
            max_connections: self.max_connections.or(file.max_connections),
            max_streams: self.max_streams.or(file.max_streams),
            rate: self.rate.or(file.rate),
            burst: self.burst.or(file.burst),
            grace: self.grace.or(file.grace),
            retention: self.retention.or(file.retention),
            key_retention: self.key_retention.or(file.key_retention),
            traces: self.traces.or(file.traces),
            allow_exec: self.allow_exec || file.allow_exec,
            allow_private_http: self.allow_private_http || file.allow_private_http,
            log: self.log.or(file.log),
            config: None,
        })
    }

    /// What is said of sizes has to fit through the door.
    fn engine(&self, settings: &Settings) -> Result<EngineConfig, Refusal> {
        let default = EngineConfig::default();
        let (body, most) = ("max_body_bytes", settings.max_body_bytes);
        for (name, given) in [
            ("max_envelope_bytes", self.max_envelope_bytes),
            ("max_output_bytes", self.max_output_bytes),
        ] {
            let reason = match given {
                Some(0) => format!("{name} is 0, so that nothing would fit"),
                Some(bytes) if bytes > most => format!(
                    "{name} is {bytes}, but no call may bring more than {body}, which is {most}: raise that, too"
                ),
                Some(_) | None => continue,
            };
            return Err(Refusal::new(Code::ConfigInvalid).with("reason", reason));
        }
        Ok(EngineConfig {
            name: "serve".to_owned(),
            max_envelope_bytes: self.max_envelope_bytes.unwrap_or(default.max_envelope_bytes),
            max_output_bytes: self.max_output_bytes.unwrap_or(default.max_output_bytes),
            exec: self.allow_exec.then_some(COMMANDS),
            retention: self.retention.map(Duration::from_millis),
            dedup_retention: self.key_retention.map(Duration::from_millis),
            ..default
        })
    }

    fn settings(&self) -> Result<Settings, Refusal> {
        let default = Settings::default();
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err(Refusal::new(Code::ConfigInvalid)
                    .with("reason", "tls_cert and tls_key are given together or not at all"));
            }
        };
        let settings = Settings {
            listen: self.listen.unwrap_or(default.listen),
            tls,
            behind_proxy: self.behind_proxy,
            hosts: self.hosts.clone(),
            max_body_bytes: self.max_body_bytes.unwrap_or(default.max_body_bytes),
            max_bulk_bytes: self.max_bulk_bytes.unwrap_or(default.max_bulk_bytes),
            max_connections: self.max_connections.unwrap_or(default.max_connections),
            max_streams: self.max_streams.unwrap_or(default.max_streams),
            rate: self.rate.unwrap_or(default.rate),
            burst: self.burst.unwrap_or(default.burst),
            grace: self.grace.map_or(default.grace, Duration::from_secs),
            traces: self.traces.clone(),
            ..default
        };
        settings.check()?;
        Ok(settings)
    }
}

/// Runs `sprag serve`.
pub fn run(args: &ServeArgs, output: &mut Output) -> Result<(), Failure> {
    let args = args.clone().with_file()?;
    let settings = args.settings()?;
    let config = args.engine(&settings)?;
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr);
    match args.log.unwrap_or(LogForm::Text) {
        LogForm::Text => log.init(),
        LogForm::Json => log.json().init(),
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| unreadable("a thread", &error))?;
    Ok(runtime.block_on(serve(&args, (settings, config), output))?)
}

async fn serve(
    args: &ServeArgs,
    (settings, config): (Settings, EngineConfig),
    output: &mut Output,
) -> Result<(), Refusal> {
    // Before the first caller can connect, so that no signal is missed.
    let stop = stop_signal()?;
    let path = data_folder(args.data.as_ref());
    let folder = Folder::open(&path)?;
    let (key, admin) = (folder.root_key()?, folder.admin_token()?);
    // An address that is taken is noticed before an engine joins the store.
    let door = Door::bind(&settings).await?;
    let beside = || format!("sqlite:{}", folder.path("sprag.db").display());
    let store = AnyStore::open(&args.store.clone().unwrap_or_else(beside)).await?;
    let protocols = args.protocols.as_deref().map(protocols).transpose()?.unwrap_or_default();
    let caller = outbound::caller(args.allow_private_http);
    let engine = EngineBuilder::new(store).config(config).http(caller).start().await?;
    for protocol in protocols {
        engine.put_protocol(&protocol).await?;
    }
    let server = Server::behind(door, App::new(engine, key, &admin, settings).await?);
    folder.tell_url(&server.url())?;
    tracing::info!(code = "SERVER_LISTENS", url = server.url(), "the server listens");
    // A server serves whether or not somebody reads this.
    let _ = announce(&server.url(), &path, output).and_then(|()| output.finish());
    server.run(stop).await
}

/// Ready at the first signal; a second one ends the process as a crash would, which loses nothing.
fn stop_signal() -> Result<impl Future<Output = ()>, Refusal> {
    let unusable = |error: std::io::Error| unreadable("signals", &error);
    let mut terminate = signal(SignalKind::terminate()).map_err(unusable)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(unusable)?;
    let (stop, stopped) = oneshot::channel();
    tokio::spawn(async move {
        either(&mut terminate, &mut interrupt).await;
        let _ = stop.send(());
        either(&mut terminate, &mut interrupt).await;
        tracing::warn!(code = "SERVER_FORCED", "a second signal: not waiting");
        std::process::exit(FORCED);
    });
    Ok(async move { drop(stopped.await) })
}

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}

fn announce(url: &str, data: &Path, output: &mut Output) -> Result<(), Failure> {
    let data = std::path::absolute(data).unwrap_or_else(|_| data.to_owned());
    if output.is_json() {
        return output.json(&serde_json::json!({"url": url, "data": data.display().to_string()}));
    }
    output.line(format_args!(
        "Sprag listens on {url}\n\nIn another terminal:\n\
         \x20 export SPRAG_DATA={}\n\
         \x20 sprag protocol put FILE                      what the jobs of a request type consist of\n\
         \x20 sprag worker --service NAME --exec CMD       do the steps of a service\n\
         \x20 sprag submit FILE --wait                     a job, and how it ended",
        data.display()
    ))
}

/// Every protocol of a folder, by name of file.
fn protocols(folder: &Path) -> Result<Vec<Protocol>, Refusal> {
    let failed = |error: std::io::Error| unreadable(folder.display(), &error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json") {
            files.push(path);
        }
    }
    files.sort();
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).map_err(|e| unreadable(path.display(), &e))?;
        Protocol::read(&text).map_err(|refusal| refusal.with("file", path.display().to_string()))
    };
    files.iter().map(read).collect()
}
