//! The caller of `http` steps, with a guard: a name is resolved once, every address it resolves to must be one
//! of the world outside, and the connection goes to those very addresses. So neither a name that points inside,
//! nor one that points elsewhere a moment later, nor a redirect reaches what stands behind this server: loopback,
//! private networks, link-local addresses and with them the metadata services of clouds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use sprag_engine::directive::Failure;
use sprag_engine::outbound::{Answer, Call, Caller};
use sprag_kernel::Cause;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Body, Error, http};

/// Makes calls to the world outside; with `allow_private` to this machine and its networks too.
pub fn caller(allow_private: bool) -> Caller {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        // A proxy of the environment would resolve names by itself.
        .proxy(None)
        // Nothing is kept open: each call looks at its address anew.
        .max_idle_connections(0)
        .build();
    let resolver = Guard { allow_private, resolver: DefaultResolver::default() };
    let agent = Agent::with_parts(config, DefaultConnector::default(), resolver);
    Arc::new(move |call| make(&agent, call))
}

fn make(agent: &Agent, call: &Call) -> Result<Answer, Failure> {
    let request = http::Request::builder()
        .method(call.method.as_str())
        .uri(&call.url)
        .header("idempotency-key", &call.effect_key)
        .header("content-type", "application/json");
    let invalid = |error: http::Error| Failure::fatal(Cause::HttpInvalid.name(), error);
    let timeout = Some(call.timeout);
    let answer = if let Some(body) = &call.body {
        let request = request.body(body.as_bytes()).map_err(invalid)?;
        agent.run(agent.configure_request(request).timeout_global(timeout).build())
    } else {
        let request = request.body(()).map_err(invalid)?;
        agent.run(agent.configure_request(request).timeout_global(timeout).build())
    };
    let mut answer: http::Response<Body> = answer.map_err(|error| failure(&error))?;
    let status = answer.status().as_u16();
    let body = answer.body_mut().with_config().limit(call.max_bytes).read_to_vec();
    Ok(Answer { status, body: body.map_err(|error| failure(&error))? })
}

/// A call without an answer. Only what will be the same next time is final.
fn failure(error: &Error) -> Failure {
    match error {
        Error::BodyExceedsLimit(_) => Failure::fatal(Cause::HttpAnswerTooLarge.name(), error),
        Error::BadUri(_) | Error::RequireHttpsOnly(_) => {
            Failure::fatal(Cause::HttpInvalid.name(), error)
        }
        Error::Other(inner) if inner.is::<Inside>() => {
            Failure::fatal(Cause::HttpAddressRefused.name(), inner)
        }
        Error::Timeout(_) => Failure::retryable(Cause::HttpTimeout.name(), error),
        _ => Failure::retryable(Cause::HttpUnreachable.name(), error),
    }
}

/// An address that is not of the world outside.
#[derive(Debug)]
struct Inside(IpAddr);

impl std::fmt::Display for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the name resolves to {}, which is not outside of this network", self.0)
    }
}

impl std::error::Error for Inside {}

#[derive(Debug)]
struct Guard {
    allow_private: bool,
    resolver: DefaultResolver,
}

impl Resolver for Guard {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let found = self.resolver.resolve(uri, config, timeout)?;
        // One that points inside refuses all: which one is used is up to the connection.
        match found.iter().map(std::net::SocketAddr::ip).find(|ip| !is_outside(*ip)) {
            Some(ip) if !self.allow_private => Err(Error::Other(Box::new(Inside(ip)))),
            Some(_) | None => Ok(found),
        }
    }
}

/// Whether an address is one of the world outside.
fn is_outside(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_outside_v4(ip),
        IpAddr::V6(ip) => is_outside_v6(ip),
    }
}

fn is_outside_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_protocol = (a, b, c) == (192, 0, 0) || (a, b, c) == (192, 88, 99);
    let is_benchmark = a == 198 && (18..20).contains(&b);
    !(a == 0
        || a >= 224
        || ip.is_loopback()
        || ip.is_private()
        || ip.is_link_local()
        || ip.is_documentation()
        || is_shared
        || is_protocol
        || is_benchmark)
}

fn is_outside_v6(ip: Ipv6Addr) -> bool {
    let parts = ip.segments();
    // An address of version 4 in the clothes of version 6: mapped, translated, or tunnelled.
    let last = Ipv4Addr::from(u32::from(parts[6]) << 16 | u32::from(parts[7]));
    let tunnelled = Ipv4Addr::from(u32::from(parts[1]) << 16 | u32::from(parts[2]));
    match parts[0] {
        0 if parts[..5] == [0; 5] && parts[5] == 0xffff => is_outside_v4(last),
        0x64 if parts[1] == 0xff9b && parts[2..6] == [0; 4] => is_outside_v4(last),
        0x2002 => is_outside_v4(tunnelled),
        // Global unicast, but for what is set aside for documents, benchmarks and Teredo.
        0x2001 => !(parts[1] == 0x0db8 || parts[1] < 0x0200),
        first => (0x2000..0x4000).contains(&first) && first != 0x3fff,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_world_outside_is_outside() {
        for inside in [
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.100.100.200",
            "0.0.0.0",
            "0.1.2.3",
            "192.0.0.192",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::ffff:10.1.2.3",
            "::ffff:169.254.169.254",
            "fe80::1",
            "fd00:ec2::254",
            "fc00::1",
            "ff02::1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "::127.0.0.1",
        ] {
            assert!(!is_outside(inside.parse().unwrap()), "{inside}");
        }
        for outside in
            ["93.184.216.34", "8.8.8.8", "172.32.0.1", "2606:4700::1111", "64:ff9b::808:808"]
        {
            assert!(is_outside(outside.parse().unwrap()), "{outside}");
        }
    }

    /// A server that answers every call with this, and says what it was asked.
    fn server(answer: &'static str) -> (String, std::sync::mpsc::Receiver<String>) {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let (asked, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut text = [0; 4096];
                let length = stream.read(&mut text).unwrap();
                let _ = asked.send(String::from_utf8_lossy(&text[..length]).to_lowercase());
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        (url, heard)
    }

    fn call(url: &str, max_bytes: u64) -> Call {
        Call {
            method: "POST".to_owned(),
            url: url.to_owned(),
            body: Some(r#"{"a":1}"#.to_owned()),
            effect_key: "effect-1".to_owned(),
            timeout: std::time::Duration::from_secs(10),
            max_bytes,
        }
    }

    #[test]
    fn this_machine_is_not_called_unless_that_is_allowed() {
        let (url, heard) = server("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntrue");
        let named = url.replace("127.0.0.1", "localhost");
        for url in [&url, &named] {
            let failure = caller(false)(&call(url, 100)).unwrap_err();
            assert_eq!((failure.retryable, failure.code.as_str()), (false, "HTTP_ADDRESS_REFUSED"));
        }
        assert!(heard.try_recv().is_err(), "nothing has reached it");
        let answer = caller(true)(&call(&url, 100)).unwrap();
        assert_eq!(answer, Answer { status: 200, body: b"true".to_vec() });
        assert!(heard.recv().unwrap().contains("idempotency-key: effect-1"));
        let failure = caller(true)(&call(&url, 3)).unwrap_err();
        assert_eq!(failure.code, "HTTP_ANSWER_TOO_LARGE");
    }

    #[test]
    fn a_redirect_is_an_answer_and_is_not_followed() {
        let (target, heard) = server("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        let answer =
            format!("HTTP/1.1 302 Found\r\nlocation: {target}\r\ncontent-length: 0\r\n\r\n");
        let (url, _asked) = server(answer.leak());
        assert_eq!(caller(true)(&call(&url, 100)).unwrap().status, 302);
        assert!(heard.try_recv().is_err(), "nobody has gone there");
    }
}
