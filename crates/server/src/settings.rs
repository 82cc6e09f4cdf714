//! What a server is told: where it listens, and its limits. Every limit is on by default.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use sprag_kernel::{Code, Refusal};

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Certificate chain and private key, as PEM files.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// A proxy with TLS stands before it.
    pub behind_proxy: bool,
    /// Names that it answers to, besides its address.
    pub hosts: Vec<String>,
    /// The largest body.
    pub max_body_bytes: usize,
    /// The largest body of many envelopes.
    pub max_bulk_bytes: usize,
    /// How many connections are open at a time.
    pub max_connections: usize,
    /// How many streams of events are open at a time.
    pub max_streams: usize,
    /// How long the head of a call may take.
    pub head_timeout: Duration,
    /// How long the body of a call may take.
    pub body_timeout: Duration,
    /// How long a caller may leave an answer unread.
    pub unread_timeout: Duration,
    /// Calls per second and tenant.
    pub rate: u32,
    /// Calls that a tenant may save up.
    pub burst: u32,
    /// How long calls and handlers may take to end when the server stops.
    pub grace: Duration,
    /// The URL of a collector of OpenTelemetry that spans of callers' traces are sent to.
    pub traces: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7070)),
            tls: None,
            behind_proxy: false,
            hosts: Vec::new(),
            max_body_bytes: 4 << 20,
            max_bulk_bytes: 64 << 20,
            max_connections: 1_024,
            max_streams: 64,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            unread_timeout: Duration::from_secs(30),
            rate: 5_000,
            burst: 10_000,
            grace: Duration::from_secs(10),
            traces: None,
        }
    }
}

impl Settings {
    /// Refuses an address that others can reach without TLS.
    pub fn check(&self) -> Result<(), Refusal> {
        if !self.listen.ip().is_loopback() && self.tls.is_none() && !self.behind_proxy {
            return Err(Refusal::new(Code::ListenUnsafe).with("listen", self.listen.to_string()));
        }
        Ok(())
    }

    /// Whether a call by this name is meant for this server. A server that only this machine reaches
    /// answers to loopback names alone, so that no web page can talk to it by a name of its own.
    pub(crate) fn answers_to(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            Some(_) | None => host,
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        if self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            return true;
        }
        let is_loopback = name.eq_ignore_ascii_case("localhost")
            || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        is_loopback || (!self.listen.ip().is_loopback() && self.hosts.is_empty())
    }
}
