//! TLS to the server, as `sslmode` and `sslrootcert` in the URL ask for it.
//!
//! | `sslmode` | encrypted | the server's certificate |
//! |---|---|---|
//! | `disable` | no | |
//! | `prefer` (default) | if the server can | not looked at |
//! | `require` | yes | not looked at, unless `sslrootcert` is given: then as `verify-ca` |
//! | `verify-ca` | yes | signed by a root that is trusted |
//! | `verify-full` | yes | that, and made out to this host |
//!
//! Trusted are the roots of the file `sslrootcert`, or those of the system. The driver knows neither the two
//! strict modes nor the file, so both words are taken out of the URL before the driver reads it.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use sprag_engine::store::{Answer, StoreError};
use sprag_kernel::{Code, Refusal};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// How the certificate is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verify {
    Nothing,
    Root,
    RootAndName,
}

/// The driver's configuration and the TLS to use with it.
pub(super) fn configure(url: &str) -> Answer<(tokio_postgres::Config, MakeRustlsConnect)> {
    let (url, mode, root) = take_words(url);
    let mut config = url
        .parse::<tokio_postgres::Config>()
        .map_err(|error| invalid(super::failure::told(&error)))?;
    let (ssl_mode, verify) = match (mode.as_deref(), &root) {
        (None | Some("prefer" | "allow"), _) => (SslMode::Prefer, Verify::Nothing),
        (Some("disable"), _) => (SslMode::Disable, Verify::Nothing),
        (Some("require"), None) => (SslMode::Require, Verify::Nothing),
        (Some("require"), Some(_)) | (Some("verify-ca"), _) => (SslMode::Require, Verify::Root),
        (Some("verify-full"), _) => (SslMode::Require, Verify::RootAndName),
        (Some(other), _) => return Err(invalid(format!("sslmode {other} does not exist"))),
    };
    config.ssl_mode(ssl_mode);
    let tls = client_config(verify, root.as_deref())?;
    Ok((config, MakeRustlsConnect::new(tls)))
}

fn invalid(reason: String) -> StoreError {
    StoreError::Refused(Refusal::new(Code::StoreUrlInvalid).with("reason", reason))
}

/// The URL without `sslmode` and `sslrootcert`, and the two.
fn take_words(url: &str) -> (String, Option<String>, Option<String>) {
    let is_url = url.contains("://");
    let separators: &[char] = if is_url { &['?', '&'] } else { &[' ', '\n', '\t'] };
    let (mut rest, mut mode, mut root) = (url.to_owned(), None, None);
    for word in url.split(separators) {
        let Some((key, value)) = word.split_once('=') else { continue };
        let value = if is_url {
            percent_encoding::percent_decode_str(value).decode_utf8_lossy().into_owned()
        } else {
            value.trim_matches('\'').to_owned()
        };
        match key {
            "sslmode" => mode = Some(value),
            "sslrootcert" => root = Some(value),
            _ => continue,
        }
        // What stays behind is an empty word, which the driver does not like in a URL.
        rest = rest.replacen(word, "", 1).replace("?&", "?").replace("&&", "&");
    }
    (rest.trim_end_matches(['?', '&']).to_owned(), mode, root)
}

fn client_config(verify: Verify, root: Option<&str>) -> Answer<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(error.to_string()))?;
    let chain = match verify {
        Verify::Nothing => None,
        Verify::Root | Verify::RootAndName => {
            let roots = Arc::new(trusted(root)?);
            let chain = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
            Some(chain.build().map_err(|error| invalid(error.to_string()))?)
        }
    };
    let verifier: Arc<dyn ServerCertVerifier> = match (verify, chain) {
        (Verify::RootAndName, Some(chain)) => chain,
        (_, chain) => Arc::new(Lenient { chain, provider }),
    };
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// The roots of a file, or of the system.
fn trusted(root: Option<&str>) -> Answer<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match root.filter(|root| *root != "system") {
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        }
        Some(path) => {
            let unreadable = |error: &dyn std::fmt::Display| {
                invalid(format!("sslrootcert {path} cannot be read: {error}"))
            };
            let found = CertificateDer::pem_file_iter(Path::new(path));
            for certificate in found.map_err(|error| unreadable(&error))? {
                let certificate = certificate.map_err(|error| unreadable(&error))?;
                roots.add(certificate).map_err(|error| unreadable(&error))?;
            }
        }
    }
    if roots.is_empty() {
        return Err(invalid("there is no root certificate to verify the server with".to_owned()));
    }
    Ok(roots)
}

/// Takes any certificate, or any that a trusted root has signed, whatever its name. The handshake itself is
/// always checked: the server must have the key of the certificate that it shows.
#[derive(Debug)]
struct Lenient {
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::take_words;

    #[test]
    fn the_words_of_tls_are_taken_out_of_either_form_and_nothing_else() {
        let taken = |url| {
            let (rest, mode, root) = take_words(url);
            (rest, mode.unwrap_or_default(), root.unwrap_or_default())
        };
        let is = |rest: &str, mode: &str, root: &str| (rest.into(), mode.into(), root.into());
        assert_eq!(taken("postgres://h/d"), is("postgres://h/d", "", ""));
        let url = "postgres://h/d?sslmode=verify-full&user=u&sslrootcert=%2Fa%20b";
        assert_eq!(taken(url), is("postgres://h/d?user=u", "verify-full", "/a b"));
        let url = "postgres://h/d?connect_timeout=3&sslmode=require";
        assert_eq!(taken(url), is("postgres://h/d?connect_timeout=3", "require", ""));
        assert_eq!(
            taken("host=h sslmode=disable password='a  b' sslrootcert='/c'"),
            is("host=h  password='a  b' ", "disable", "/c")
        );
    }
}
