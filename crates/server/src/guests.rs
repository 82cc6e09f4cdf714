//! Who calls: the token of a call, looked up and remembered for a moment, and how often its tenant may
//! call. A token that was revoked is refused within [`REMEMBERED`] by every server.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sprag_engine::tokens::{Scope, Scopes, TokenStore, TokenView};
use sprag_kernel::{Code, Refusal};

use crate::problem::Refused;
use crate::secret::TokenText;

/// How long a token is remembered, so that not every call asks the store.
pub const REMEMBERED: Duration = Duration::from_secs(1);
/// How many tokens and tenants are remembered; beyond that all are forgotten and looked up again.
const MAX_REMEMBERED: usize = 10_000;

/// Whoever calls.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The token's name.
    pub token_id: String,
    scopes: Scopes,
    tenant_id: Option<String>,
    text: TokenText,
}

impl Caller {
    /// What it showed, to be asked about again by whoever serves it for longer than a moment.
    pub(crate) fn text(&self) -> &TokenText {
        &self.text
    }

    /// Refuses a caller whose token does not allow this.
    pub fn expect(&self, scope: Scope) -> Result<(), Refused> {
        if self.scopes.allow(scope) {
            return Ok(());
        }
        Err(Refused(Refusal::new(Code::ScopeMissing).with("scope", scope.name())))
    }

    /// Refuses a caller that may not do this for every tenant.
    pub fn expect_everyone(&self, scope: Scope) -> Result<(), Refused> {
        self.expect(scope)?;
        match &self.tenant_id {
            None => Ok(()),
            Some(_) => Err(Refused(Refusal::new(Code::ScopeMissing).with("scope", "every tenant"))),
        }
    }

    /// Refuses a tenant that is named and not the token's.
    pub fn expect_tenant(&self, named: Option<&str>) -> Result<(), Refused> {
        match (&self.tenant_id, named) {
            (Some(own), Some(named)) if own != named => {
                Err(Refused(Refusal::new(Code::TenantMismatch).with("tenant_id", named.to_owned())))
            }
            (Some(_) | None, _) => Ok(()),
        }
    }

    /// Whether something of this tenant is there for the caller.
    pub fn sees(&self, tenant_id: &str) -> bool {
        self.tenant_id.as_deref().is_none_or(|own| own == tenant_id)
    }

    /// The one tenant it sees.
    pub fn tenant_id(&self) -> Option<&str> {
        self.tenant_id.as_deref()
    }

    /// Whose calls are counted together.
    fn purse(&self) -> String {
        self.tenant_id.clone().map_or_else(|| format!("#{}", self.token_id), |t| format!("@{t}"))
    }
}

/// Tokens seen a moment ago.
#[derive(Default)]
pub(crate) struct Guests(Mutex<HashMap<String, (Instant, TokenView)>>);

impl Guests {
    /// The caller that a token names.
    pub(crate) async fn admit<S: TokenStore>(
        &self,
        store: &S,
        text: &TokenText,
    ) -> Result<Caller, Refusal> {
        let refused = || Refusal::new(Code::Unauthenticated);
        let known = if let Some(known) = self.recall(text.id()) {
            known
        } else {
            let found = store.token(text.id()).await?.ok_or_else(refused)?;
            self.remember(&found);
            found
        };
        if !text.matches(&known.hash) || known.revoked_at.is_some() {
            return Err(refused());
        }
        if let Some(expires_at) = known.expires_at
            && store.now().await? >= expires_at
        {
            return Err(refused());
        }
        Ok(Caller {
            token_id: known.token_id,
            scopes: known.scopes,
            tenant_id: known.tenant_id,
            text: text.clone(),
        })
    }

    fn recall(&self, token_id: &str) -> Option<TokenView> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, view) = known.get(token_id)?;
        (at.elapsed() < REMEMBERED).then(|| view.clone())
    }

    fn remember(&self, view: &TokenView) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        known.insert(view.token_id.clone(), (Instant::now(), view.clone()));
    }

    /// Forgets a token, so that its revocation counts at once on this server.
    pub(crate) fn forget(&self, token_id: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(token_id);
    }
}

/// How many calls each tenant has left: a bucket that fills at a rate up to a burst.
pub(crate) struct Rates {
    rate: f64,
    burst: f64,
    left: Mutex<HashMap<String, (Instant, f64)>>,
}

impl Rates {
    pub(crate) fn new(rate: u32, burst: u32) -> Self {
        Self { rate: rate.into(), burst: burst.max(1).into(), left: Mutex::default() }
    }

    /// Takes one call, or one line of a call, out of the caller's bucket.
    pub(crate) fn take(&self, caller: &Caller) -> Result<(), Refusal> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.len() >= MAX_REMEMBERED {
            left.clear();
        }
        let now = Instant::now();
        let (at, calls) = left.entry(caller.purse()).or_insert((now, self.burst));
        *calls = (*calls + now.duration_since(*at).as_secs_f64() * self.rate).min(self.burst);
        *at = now;
        if *calls < 1.0 {
            return Err(Refusal::new(Code::RateLimited).with("per_second", self.rate.to_string()));
        }
        *calls -= 1.0;
        Ok(())
    }
}
