//! Calling a server: found by flag, environment or data folder, with a token that is found the same way.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use sprag_kernel::{Code, Refusal};
use sprag_server::folder::Folder;
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
    /// The token; the admin's, from the data folder, if not given.
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
        let url = args.server.clone().or(url).ok_or_else(|| missing("server"))?;
        let token = args.token.clone().or(token).ok_or_else(|| missing("token"))?;
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE));
        if let Some(path) = &args.ca {
            config = config.tls_config(TlsConfig::builder().root_certs(authorities(path)?).build());
        }
        let url = url.trim_end_matches('/').to_owned();
        Ok(Self { agent: config.build().into(), url, token })
    }

    /// A server whose address and token are known.
    pub fn at(url: &str, token: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE));
        Self { agent: config.build().into(), url: url.to_owned(), token: token.to_owned() }
    }

    /// Calls, and reads the answer. Problem details become the refusal that they were.
    pub fn call(&self, method: &str, path: &str, body: &[u8]) -> Result<Value, Refusal> {
        let text = self.read(self.send(method, path, "application/json", body)?)?;
        serde_json::from_str(&text).map_err(|error| self.unreachable(error.to_string()))
    }

    /// Submits many envelopes, one per line, and reads one answer per line.
    pub fn submit_lines(&self, lines: &[u8]) -> Result<String, Refusal> {
        self.read(self.send("POST", "/v1/commands", "application/x-ndjson", lines)?)
    }

    /// An answer that is read as it comes.
    pub fn stream(&self, path: &str) -> Result<impl BufRead + use<>, Refusal> {
        let response = self.send("GET", path, "application/json", b"")?;
        Ok(BufReader::new(response.into_body().into_reader()))
    }

    /// Calls, and hands over a good answer as it begins.
    fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Result<Heard, Refusal> {
        let call = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", kind)
            .body(body);
        let call = call.map_err(|error| self.unreachable(error.to_string()))?;
        let response = self.agent.run(call).map_err(|error| self.unreachable(error.to_string()))?;
        if response.status().is_success() {
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
    let said: Vec<String> = fields
        .map(|(name, value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            format!("{name}: {text}")
        })
        .collect();
    let refusal = Refusal::new(*code);
    if said.is_empty() { refusal } else { refusal.with("detail", said.join(", ")) }
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
