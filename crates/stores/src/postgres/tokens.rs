//! Tokens, by the hash of their text.

use sprag_engine::store::{Answer, StoreError};
use sprag_engine::tokens::{NewToken, Scopes, TokenStore, TokenView};
use tokio_postgres::Row;

use super::PostgresStore;
use super::pools::Pools;
use super::rows::{get, hash, time, unsigned_long};

impl TokenStore for PostgresStore {
    async fn put_token(&self, token: NewToken) -> Answer<TokenView> {
        put(&self.pools, &token).await
    }

    async fn token(&self, token_id: &str) -> Answer<Option<TokenView>> {
        one(&self.pools, token_id).await
    }

    async fn tokens(&self) -> Answer<Vec<TokenView>> {
        let sql = format!("{SELECT} ORDER BY created_at, token_id");
        self.pools.read(&sql, &[]).await?.iter().map(view).collect()
    }

    async fn revoke_token(&self, token_id: &str) -> Answer<Option<TokenView>> {
        let sql = "UPDATE sprag.token SET revoked_at = sprag.now_ms($2)
            WHERE token_id = $1 AND revoked_at IS NULL";
        self.pools.run(sql, &[&token_id, &self.pools.test_now()]).await?;
        one(&self.pools, token_id).await
    }
}

const SELECT: &str = "SELECT token_id, hash, scopes, tenant_id, label, created_at, expires_at, \
    revoked_at FROM sprag.token";

fn view(row: &Row) -> Answer<TokenView> {
    Ok(TokenView {
        token_id: get(row, 0)?,
        hash: hash(get(row, 1)?)?,
        scopes: Scopes::from_bits(u8::try_from(get::<i16>(row, 2)?).unwrap_or_default()),
        tenant_id: get(row, 3)?,
        label: get(row, 4)?,
        created_at: unsigned_long(row, 5)?,
        expires_at: time(row, 6)?,
        revoked_at: time(row, 7)?,
    })
}

async fn one(pools: &Pools, token_id: &str) -> Answer<Option<TokenView>> {
    let sql = format!("{SELECT} WHERE token_id = $1");
    pools.read(&sql, &[&token_id]).await?.first().map(view).transpose()
}

async fn put(pools: &Pools, token: &NewToken) -> Answer<TokenView> {
    // Far from the largest number, so that the sum is one too.
    let lifetime =
        token.lifetime_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX).min(i64::MAX / 2));
    pools
        .run(
            "INSERT INTO sprag.token (token_id, hash, scopes, tenant_id, label, created_at, expires_at)
             SELECT $1, $2, $3, $4, $5, clock.now, clock.now + $6::bigint
             FROM sprag.now_ms($7) AS clock (now) ON CONFLICT (token_id) DO NOTHING",
            &[
                &token.token_id,
                &token.hash.as_bytes().as_slice(),
                &i16::from(token.scopes.bits()),
                &token.tenant_id,
                &token.label,
                &lifetime,
                &pools.test_now(),
            ],
        )
        .await?;
    let kept = one(pools, &token.token_id).await?.filter(|kept| kept.hash == token.hash);
    kept.ok_or_else(|| StoreError::Poison("the id of the token belongs to another".to_owned()))
}
