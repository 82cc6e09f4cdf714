//! Calling a server: found by flag, environment or data folder, with a token that is found the same way. The token
//! of a folder is for the server of that folder; no other server is shown it.
//!
//! A command that waits for a server says so on stderr, once, and again when the server is back.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use sprag_kernel::{Code, Refusal};
use sprag_server::folder::Folder;
use ureq::http::Uri;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::output::unreadable;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The largest answer that is read.
const MAX_ANSWER_BYTES: u64 = 256 << 20;
/// Where a server keeps its data unless it is told otherwise.
pub const DATA_FOLDER: &str = "sprag-data";

/// Where the server is.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// The server's URL; found in the data folder if not given.
    #[arg(long, global = true, value_name = "URL", env = "SPRAG_SERVER", hide_env_values = true)]
    server: Option<String>,
    /// The token; the admin's, from the data folder, if not given. Needed with a server that is not the
    /// folder's own.
    #[arg(long, global = true, value_name = "TOKEN", env = "SPRAG_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The server's data folder [default: ./sprag-data]
    #[arg(long, global = true, value_name = "DIR", env = "SPRAG_DATA", hide_env_values = true)]
    data: Option<PathBuf>,
    /// Who may sign the server's certificate, as PEM; the well-known authorities if not given.
    #[arg(long, global = true, value_name = "FILE", env = "SPRAG_CA", hide_env_values = true)]
    ca: Option<PathBuf>,
}

/// The folder that was given, or the one below the current folder.
pub fn data_folder(given: Option<&PathBuf>) -> PathBuf {
    given.cloned().unwrap_or_else(|| PathBuf::from(DATA_FOLDER))
}

/// A server to call.
#[derive(Clone)]
pub struct Client {
    agent: ureq::Agent,
    url: String,
    token: String,
    /// Whether somebody was told that the server does not answer.
    is_away: Arc<AtomicBool>,
}

impl Client {
    /// Finds the server and a token.
    pub fn find(args: &ServerArgs) -> Result<Self, Refusal> {
        let folder = data_folder(args.data.as_ref());
        let (url, token) = Folder::find(&folder).server().unzip();
        let missing = |what: &'static str| {
            Refusal::new(Code::ServerUnreachable)
                .with("reason", format!("no {what} was given, and {} has none", folder.display()))
        };
        let (url, own) = (args.server.clone().or_else(|| url.clone()), url);
        let url = url.ok_or_else(|| missing("server"))?;
        let place = place(&url)?;
        let is_own = own.is_some_and(|own| self::place(&own).is_ok_and(|own| own == place));
        let token = match (&args.token, token) {
            (Some(given), _) => given.clone(),
            (None, Some(token)) if is_own => token,
            (None, Some(_)) => return Err(foreign(&url, &folder)),
            (None, None) => return Err(missing("token")),
        };
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE));
        if let Some(path) = &args.ca {
            config = config.tls_config(TlsConfig::builder().root_certs(authorities(path)?).build());
        }
        let url = url.trim_end_matches('/').to_owned();
        Ok(Self { agent: config.build().into(), url, token, is_away: Arc::default() })
    }

    /// A server whose address and token are known.
    pub fn at(url: &str, token: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE));
        let (url, token) = (url.to_owned(), token.to_owned());
        Self { agent: config.build().into(), url, token, is_away: Arc::default() }
    }

    /// Calls, and reads the answer. Problem details become the refusal that they were.
    pub fn call(&self, method: &str, path: &str, body: &[u8]) -> Result<Value, Refusal> {
        self.call_if(method, path, None, body)
    }

    /// The same, if what the path names has this version.
    pub fn call_if(
        &self,
        method: &str,
        path: &str,
        version: Option<&str>,
        body: &[u8],
    ) -> Result<Value, Refusal> {
        let text = self.read(self.send(method, path, "application/json", version, body)?)?;
        serde_json::from_str(&text).map_err(|error| self.unreachable(error.to_string()))
    }

    /// Says that the server does not answer and is asked again; once, until it is back.
    pub fn waits(&self, refusal: &Refusal) {
        if !self.is_away.swap(true, Ordering::Relaxed) {
            // Nothing can be done for a caller that has closed stderr.
            let _ = writeln!(std::io::stderr(), "{refusal}\nTrying again until it answers.");
        }
    }

    fn is_back(&self) {
        if self.is_away.swap(false, Ordering::Relaxed) {
            let _ = writeln!(std::io::stderr(), "{} answers again.", self.url);
        }
    }

    /// Submits many envelopes, one per line, and reads one answer per line.
    pub fn submit_lines(&self, lines: &[u8]) -> Result<String, Refusal> {
        self.read(self.send("POST", "/v1/commands", "application/x-ndjson", None, lines)?)
    }

    /// An answer that is read as it comes.
    pub fn stream(&self, path: &str) -> Result<impl BufRead + use<>, Refusal> {
        let response = self.send("GET", path, "application/json", None, b"")?;
        Ok(BufReader::new(response.into_body().into_reader()))
    }

    /// Calls, and hands over a good answer as it begins.
    fn send(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        version: Option<&str>,
        body: &[u8],
    ) -> Result<Heard, Refusal> {
        let mut call = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", kind);
        if let Some(version) = version {
            call = call.header("if-match", format!("\"{version}\""));
        }
        let call = call.body(body).map_err(|error| self.unreachable(error.to_string()))?;
        let response = self.agent.run(call).map_err(|error| self.unreachable(error.to_string()))?;
        if response.status().is_success() {
            self.is_back();
            return Ok(response);
        }
        let text = self.read(response)?;
        let problem = serde_json::from_str(&text).map_err(|e| self.unreachable(e.to_string()))?;
        Err(refused(&problem))
    }

    fn read(&self, mut response: Heard) -> Result<String, Refusal> {
        let text = response.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_string();
        text.map_err(|error| self.unreachable(error.to_string()))
    }

    fn unreachable(&self, reason: String) -> Refusal {
        Refusal::new(Code::ServerUnreachable)
            .with("server", self.url.clone())
            .with("reason", reason)
    }
}

type Heard = ureq::http::Response<ureq::Body>;

/// A refusal that passes by itself: the same call may be sent again.
pub fn passes(refusal: &Refusal) -> bool {
    matches!(
        refusal.code(),
        Code::ServerUnreachable | Code::StoreUnavailable | Code::RateLimited | Code::NotYet
    )
}

/// A name as one segment of a path.
pub fn segment(name: &str) -> String {
    let escaped = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    name.bytes().map(escaped).collect()
}

/// The refusal that problem details tell of.
fn refused(problem: &Value) -> Refusal {
    let known = Code::ALL.iter().find(|code| problem["error_code"] == code.name());
    let Some(code) = known else {
        return Refusal::new(Code::ServerUnreachable).with("reason", problem.to_string());
    };
    let fields = problem["fields"].as_object().into_iter().flatten();
    fields.fold(Refusal::new(*code), |refusal, (name, value)| match value {
        Value::String(text) => refusal.with(name.clone(), text.clone()),
        Value::Number(number) if number.is_i64() => {
            refusal.with(name.clone(), number.as_i64().unwrap_or_default())
        }
        other => refusal.with(name.clone(), other.to_string()),
    })
}

/// What makes a server this server: scheme, host and port. A URL without them can never answer.
fn place(url: &str) -> Result<(bool, String, u16), Refusal> {
    let invalid = |reason: &'static str| {
        Refusal::new(Code::ConfigInvalid)
            .with("field", "server")
            .with("value", url.to_owned())
            .with("reason", reason)
    };
    let uri: Uri = url.parse().map_err(|_| invalid("is no URL"))?;
    let is_tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        Some(_) | None => return Err(invalid("does not begin with http:// or https://")),
    };
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| invalid("has no host"))?;
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    Ok((is_tls, host.to_ascii_lowercase(), port))
}

/// The refusal to show the token of a folder to another server than the folder's.
fn foreign(url: &str, folder: &Path) -> Refusal {
    let reason = format!(
        "the token in {} is for the server of that folder, which this is not; give the token of this server with \
         --token or SPRAG_TOKEN",
        folder.display()
    );
    Refusal::new(Code::Unauthenticated).with("server", url.to_owned()).with("reason", reason)
}

fn authorities(path: &Path) -> Result<RootCerts, Refusal> {
    let pem = fs::read(path).map_err(|error| unreadable(path.display(), &error))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => certificates.push(certificate),
            Ok(_) => {}
            Err(error) => {
                return Err(Refusal::new(Code::ConfigInvalid)
                    .with("file", path.display().to_string())
                    .with("reason", error.to_string()));
            }
        }
    }
    Ok(RootCerts::new_with_certs(&certificates))
}
