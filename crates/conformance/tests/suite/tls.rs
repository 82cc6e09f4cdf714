//! TLS to Postgres: a server whose certificate is signed by a root that only the test knows.

use std::net::TcpListener;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sprag_conformance::cluster::Cluster;
use sprag_engine::store::{Answer, Store, StoreError};
use sprag_kernel::Code;
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use tempfile::TempDir;

/// A server that speaks TLS on a port, with a certificate for `localhost`, and the root that signed it.
struct Encrypted {
    _cluster: Cluster,
    port: u16,
    folder: TempDir,
}

impl Encrypted {
    fn start() -> Self {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = authority.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(authority, key);
        let key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let server = server.signed_by(&key, &issuer).unwrap().pem();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("root.pem"), root).unwrap();

        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings = [
            "listen_addresses=127.0.0.1",
            "ssl=on",
            "ssl_cert_file=../server.pem",
            "ssl_key_file=../server.key",
        ];
        let files = [("server.pem", server.as_str()), ("server.key", &key.serialize_pem())];
        Self {
            _cluster: Cluster::start_with(port, settings.map(str::to_owned).to_vec(), &files),
            port,
            folder,
        }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root.pem")
    }

    async fn open(&self, host: &str, words: &str) -> Answer<PostgresStore> {
        let url = format!("postgres://sprag@{host}:{}/postgres?{words}", self.port);
        PostgresStore::open(&PostgresOptions::new(&url)).await
    }

    /// Whether the connections of this store are encrypted, by the server's own account.
    async fn sees(&self) -> Vec<bool> {
        let url = format!("host=127.0.0.1 port={} user=sprag dbname=postgres", self.port);
        let (client, connection) =
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let sql = "SELECT s.ssl FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
            WHERE a.application_name = 'sprag'";
        client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sslmode_in_the_url_decides_whether_and_whom_to_trust() {
    let server = Encrypted::start();
    let root = format!("sslrootcert={}", server.root().display());

    let plain = server.open("localhost", "sslmode=disable").await.unwrap();
    assert_eq!(server.sees().await, [false]);
    drop(plain);
    for words in ["", "sslmode=prefer", "sslmode=require", &format!("sslmode=verify-full&{root}")] {
        let store = server.open("localhost", words).await.unwrap();
        store.join("an engine").await.unwrap();
        let encrypted = server.sees().await;
        assert!(!encrypted.is_empty() && encrypted.iter().all(|is| *is), "{words}");
    }
    // The address is not the name that the certificate is made out to.
    let full = server.open("127.0.0.1", &format!("sslmode=verify-full&{root}")).await;
    assert!(matches!(full, Err(StoreError::Unavailable(_))));
    for words in [format!("sslmode=verify-ca&{root}"), format!("{root}&sslmode=require")] {
        server.open("127.0.0.1", &words).await.unwrap();
    }
    // Nobody whom this system trusts has signed it.
    for mode in ["verify-ca", "verify-full"] {
        let stranger = server.open("localhost", &format!("sslmode={mode}")).await;
        assert!(stranger.is_err(), "{mode}");
    }
}

#[tokio::test]
async fn a_url_that_asks_for_what_does_not_exist_is_refused() {
    for words in ["sslmode=perhaps", "sslmode=verify-full&sslrootcert=/no/such/file", "nonsense=1"]
    {
        let url = format!("postgres://sprag@localhost:1/postgres?{words}");
        let Err(StoreError::Refused(refusal)) =
            PostgresStore::open(&PostgresOptions::new(&url)).await
        else {
            panic!("{words} is refused")
        };
        assert_eq!(refusal.code(), Code::StoreUrlInvalid, "{words}");
    }
}
