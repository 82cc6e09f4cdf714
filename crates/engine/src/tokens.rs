//! Tokens: who may do what, for whom, until when. A store keeps their hashes, never their text; the text is
//! shown once, to whoever made it.

use std::fmt;
use std::future::Future;
use std::str::FromStr;

use sprag_kernel::keys::Hash;
use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal};

use crate::names::check_name;
use crate::store::{Answer, Store};

/// What a token allows. Each allows its own and nothing else, but `admin`, which allows everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// To submit, cancel and rerun jobs, and every verb of a request.
    Submit,
    /// To claim work and report on it.
    Work,
    /// To look.
    Read,
    /// Everything, tokens, protocols and services included.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 4] = [Self::Submit, Self::Work, Self::Read, Self::Admin];

    /// The name on every surface.
    pub fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Work => "work",
            Self::Read => "read",
            Self::Admin => "admin",
        }
    }

    /// Its bit in a store.
    pub fn bit(self) -> u8 {
        match self {
            Self::Submit => 1,
            Self::Work => 2,
            Self::Read => 4,
            Self::Admin => 8,
        }
    }
}

impl FromStr for Scope {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let named = Self::ALL.into_iter().find(|scope| scope.name() == text);
        named.ok_or_else(|| {
            let shown: String = text.chars().take(64).collect();
            Refusal::new(Code::TokenInvalid).with("scope", shown)
        })
    }
}

/// A set of scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// From the bits that a store keeps.
    pub fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The bits that a store keeps.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Whether something of this scope is allowed.
    pub fn allow(self, scope: Scope) -> bool {
        self.0 & (scope.bit() | Scope::Admin.bit()) != 0
    }

    /// The names, in order.
    pub fn names(self) -> Vec<&'static str> {
        let held = Scope::ALL.into_iter().filter(|scope| self.0 & scope.bit() != 0);
        held.map(Scope::name).collect()
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |bits, scope| bits | scope.bit()))
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(","))
    }
}

/// A token as it is kept.
#[derive(Clone, Debug)]
pub struct TokenView {
    /// Names it; not secret.
    pub token_id: String,
    /// The hash of its text.
    pub hash: Hash,
    /// What it allows.
    pub scopes: Scopes,
    /// For whom; every tenant if absent.
    pub tenant_id: Option<String>,
    /// What it is for, in words.
    pub label: String,
    /// When it was made.
    pub created_at: Millis,
    /// From when on it is not accepted.
    pub expires_at: Option<Millis>,
    /// When it was taken back.
    pub revoked_at: Option<Millis>,
}

/// A token to make.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Names it.
    pub token_id: String,
    /// The hash of its text.
    pub hash: Hash,
    /// What it allows.
    pub scopes: Scopes,
    /// For whom.
    pub tenant_id: Option<String>,
    /// What it is for.
    pub label: String,
    /// How long it is accepted from now on.
    pub lifetime_ms: Option<Millis>,
}

impl NewToken {
    /// Refuses a token that allows nothing, or that could not keep what it promises: whoever may do
    /// everything may do it for everyone.
    pub fn check(&self) -> Result<(), Refusal> {
        let invalid = |reason| Err(Refusal::new(Code::TokenInvalid).with("reason", reason));
        if self.scopes.bits() == 0 {
            return invalid("it has no scope");
        }
        if let Some(tenant_id) = &self.tenant_id {
            check_name("tenant_id", tenant_id)?;
            if self.scopes.allow(Scope::Admin) {
                return invalid("the scope admin is not bound to a tenant");
            }
        }
        if self.label.is_empty() { Ok(()) } else { check_name("label", &self.label) }
    }
}

/// Where tokens are kept.
pub trait TokenStore: Store {
    /// Keeps a token. The same id with the same hash again is a no-op.
    fn put_token(&self, token: NewToken) -> impl Future<Output = Answer<TokenView>> + Send;

    /// One token.
    fn token(&self, token_id: &str) -> impl Future<Output = Answer<Option<TokenView>>> + Send;

    /// All tokens, the oldest first.
    fn tokens(&self) -> impl Future<Output = Answer<Vec<TokenView>>> + Send;

    /// Takes a token back, for good. Again is a no-op. `None` if there is no such token.
    fn revoke_token(
        &self,
        token_id: &str,
    ) -> impl Future<Output = Answer<Option<TokenView>>> + Send;
}
