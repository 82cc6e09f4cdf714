//! Secrets: the root key, the text of tokens, and what is made from them. Compared in constant time,
//! never printed by accident.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use sprag_kernel::keys::Hash;
use sprag_kernel::{Code, Refusal};

/// Fresh random bytes.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system has random numbers");
    bytes
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
        text
    })
}

/// Fresh random bytes, as text.
pub(crate) fn random_hex<const N: usize>() -> String {
    hex(&random::<N>())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs
        .map(|pair| std::str::from_utf8(pair).ok().and_then(|p| u8::from_str_radix(p, 16).ok()))
        .collect()
}

/// A key of 32 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// A fresh one.
    #[allow(clippy::new_without_default)] // a key is never a default
    pub fn new() -> Self {
        Self(random())
    }

    fn mac(&self, parts: &[&str]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length");
        for part in parts {
            // The length first, so that no part can run into the next.
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        mac
    }

    /// The code of these parts.
    pub fn sign(&self, parts: &[&str]) -> String {
        hex(&self.mac(parts).finalize().into_bytes())
    }

    /// Whether this is the code of these parts, in constant time.
    pub fn verify(&self, parts: &[&str], code: &str) -> bool {
        unhex(code).is_some_and(|code| self.mac(parts).verify_slice(&code).is_ok())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

/// As its file keeps it.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl FromStr for Key {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let bytes = unhex(text).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| {
            Refusal::new(Code::ConfigInvalid)
                .with("field", "root key")
                .with("reason", "is not 64 hexadecimal digits")
        })
    }
}

/// The text of a token: `sprag_<id>_<secret>`.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenText {
    id: String,
    text: String,
}

impl TokenText {
    /// A fresh one.
    #[allow(clippy::new_without_default)] // a secret is never a default
    pub fn new() -> Self {
        let id = hex(&random::<6>());
        let text = format!("sprag_{id}_{}", hex(&random::<32>()));
        Self { id, text }
    }

    /// The part that names it and is not secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What a store keeps.
    pub fn hash(&self) -> Hash {
        Hash::of(self.text.as_bytes())
    }

    /// Whether a kept hash is that of this text. Both sides are hashes of 256 random bits, so how long
    /// the comparison takes tells nothing of use.
    pub fn matches(&self, kept: &Hash) -> bool {
        self.hash() == *kept
    }
}

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenText({}, secret)", self.id)
    }
}

/// As it is shown once.
impl fmt::Display for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for TokenText {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let is_hex = |part: &str, length: usize| {
            part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let parts = text.strip_prefix("sprag_").and_then(|rest| rest.split_once('_'));
        match parts {
            Some((id, secret)) if is_hex(id, 12) && is_hex(secret, 64) => {
                Ok(Self { id: id.to_owned(), text: text.to_owned() })
            }
            Some(_) | None => Err(Refusal::new(Code::Unauthenticated)),
        }
    }
}

/// What a worker shows to prove that an attempt was handed to it: a code over tenant, job, step, attempt
/// and lease. It names the tenant, so that it can be checked before the store is asked. The store's fence
/// stays the truth.
#[derive(Clone, Copy, Debug)]
pub struct Lease<'a> {
    /// The job.
    pub job_id: &'a str,
    /// The step's name.
    pub step_id: &'a str,
    /// The branch of a fan-out.
    pub branch: u64,
    /// The turn of a cycle.
    pub turn: u32,
    /// The attempt.
    pub attempt_no: u32,
    /// The lease.
    pub lease_id: u64,
}

impl Lease<'_> {
    fn with<T>(&self, tenant_id: &str, run: impl FnOnce(&[&str]) -> T) -> T {
        let numbers = [
            self.branch.to_string(),
            self.turn.to_string(),
            self.attempt_no.to_string(),
            self.lease_id.to_string(),
        ];
        let [branch, turn, attempt_no, lease_id] = numbers.each_ref().map(String::as_str);
        run(&["lease", tenant_id, self.job_id, self.step_id, branch, turn, attempt_no, lease_id])
    }

    /// Its token.
    pub fn token(&self, key: &Key, tenant_id: &str) -> String {
        let code = self.with(tenant_id, |parts| key.sign(parts));
        format!("{}.{code}", hex(tenant_id.as_bytes()))
    }

    /// The tenant of a token that was made for this lease.
    pub fn tenant(&self, key: &Key, token: &str) -> Result<String, Refusal> {
        let read = || {
            let (tenant, code) = token.split_once('.')?;
            let tenant = String::from_utf8(unhex(tenant)?).ok()?;
            self.with(&tenant, |parts| key.verify(parts, code)).then_some(tenant)
        };
        read().ok_or_else(|| Refusal::new(Code::LeaseTokenInvalid))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_token_is_good_for_its_own_attempt_alone() {
        let key = Key::new();
        let lease =
            Lease { job_id: "j", step_id: "s", branch: 0, turn: 0, attempt_no: 1, lease_id: 7 };
        let token = lease.token(&key, "t1");
        assert_eq!(lease.tenant(&key, &token).unwrap(), "t1");
        let others = [
            Lease { job_id: "k", ..lease },
            Lease { step_id: "t", ..lease },
            Lease { branch: 1, ..lease },
            Lease { turn: 1, ..lease },
            Lease { attempt_no: 2, ..lease },
            Lease { lease_id: 8, ..lease },
        ];
        for other in others {
            let refusal = other.tenant(&key, &token).unwrap_err();
            assert_eq!(refusal.code(), Code::LeaseTokenInvalid, "{other:?}");
        }
        assert!(lease.tenant(&Key::new(), &token).is_err(), "another key");
        let forged = format!("{}{}", hex(b"t2"), &token[token.find('.').unwrap()..]);
        assert!(lease.tenant(&key, &forged).is_err(), "another tenant");
        for nonsense in ["", ".", "zz.zz", &token[..token.len() - 1]] {
            assert!(lease.tenant(&key, nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn secrets_are_read_as_they_are_written_and_shown_to_nobody() {
        let (key, token) = (Key::new(), TokenText::new());
        assert_eq!(key.to_string().parse::<Key>().unwrap(), key);
        assert_eq!(token.to_string().parse::<TokenText>().unwrap(), token);
        assert!(!format!("{key:?} {token:?}").contains(&key.to_string()));
        assert!(!format!("{token:?}").contains(&token.to_string()));
        for nonsense in ["", "sprag_", "sprag_00_00", "Bearer x"] {
            assert!(nonsense.parse::<TokenText>().is_err(), "{nonsense}");
        }
    }
}
