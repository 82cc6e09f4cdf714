//! TLS and HTTP/2, with a certificate that only the test knows.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::house::{House, envelope};

/// A house with a certificate for localhost, and that certificate.
fn encrypted() -> (House, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = certificate.self_signed(&key).unwrap().pem();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let tls = (file("cert.pem", &certificate), file("key.pem", &key.serialize_pem()));
    // They are read once, when the server binds its address.
    (House::open_with(|settings| settings.tls = Some(tls)), certificate)
}

fn trusting(certificate: &str) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

fn submit(token: &str, n: u64) -> hyper::Request<Full<Bytes>> {
    hyper::Request::post("https://localhost/v1/commands")
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(envelope("t1", n).to_string())))
        .unwrap()
}

/// Submits so many jobs at once on one HTTP/2 connection. How many were accepted, and how many jobs they are.
async fn submit_many<T>(stream: T, token: &str, count: u64) -> (usize, usize)
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let calls = (0..count).map(|n| {
        let mut sender = sender.clone();
        let call = submit(token, n);
        tokio::spawn(async move {
            sender.ready().await.unwrap();
            let answer = sender.send_request(call).await.unwrap();
            let status = answer.status().as_u16();
            (status, answer.into_body().collect().await.unwrap().to_bytes())
        })
    });
    let calls: Vec<_> = calls.collect();
    let mut jobs = std::collections::BTreeSet::new();
    let mut accepted = 0;
    for call in calls {
        let (status, body) = call.await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        accepted += usize::from(status == 202);
        jobs.insert(body["jobId"].as_str().unwrap_or_default().to_owned());
    }
    drop(sender);
    connection.abort();
    (accepted, jobs.len())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn many_calls_share_one_encrypted_http_2_connection() {
    let (house, certificate) = encrypted();
    assert!(house.url.starts_with("https://"), "{}", house.url);
    let (token, address) = (house.admin().token.unwrap(), house.address());
    runtime().block_on(async {
        let connector = TlsConnector::from(Arc::new(trusting(&certificate)));
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = connector.connect(name, stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        assert_eq!(submit_many(TokioIo::new(stream), &token, 200).await, (200, 200));
    });
    house.close();
}

#[test]
fn http_2_needs_no_tls_on_the_loopback() {
    let house = House::open();
    let (token, address) = (house.admin().token.unwrap(), house.address());
    runtime().block_on(async {
        let stream = TcpStream::connect(&address).await.unwrap();
        assert_eq!(submit_many(TokioIo::new(stream), &token, 50).await, (50, 50));
        let stream = TcpStream::connect(&address).await.unwrap();
        let (accepted, _) = submit_many(TokioIo::new(stream), "sprag_000000000000_00", 1).await;
        assert_eq!(accepted, 0, "a token is needed here too");
    });
    house.close();
}

#[test]
fn a_caller_that_does_not_know_the_certificate_is_not_talked_to() {
    let (house, _) = encrypted();
    let other = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let other = other.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
    let address = house.address();
    runtime().block_on(async {
        let connector = TlsConnector::from(Arc::new(trusting(&other)));
        let stream = TcpStream::connect(&address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        assert!(connector.connect(name, stream).await.is_err());
        // Neither is one that speaks in the clear.
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    });
    house.close();
}

#[test]
fn a_thousand_calls_on_one_connection_wait_for_their_turn() {
    let house = House::open();
    let (token, address) = (house.admin().token.unwrap(), house.address());
    runtime().block_on(async {
        let stream = TcpStream::connect(&address).await.unwrap();
        let (accepted, jobs) = submit_many(TokioIo::new(stream), &token, 1_000).await;
        assert_eq!((accepted, jobs), (1_000, 1_000));
    });
    house.close();
}
