//! Tokens, by the hash of their text.

use rusqlite::{Row, params};
use sprag_engine::store::{Answer, StoreError};
use sprag_engine::tokens::{NewToken, Scopes, TokenStore, TokenView};
use sprag_kernel::keys::Hash;

use super::SqliteStore;
use super::rows::failed;
use super::writer::Tx;

impl TokenStore for SqliteStore {
    async fn put_token(&self, token: NewToken) -> Answer<TokenView> {
        self.writer.run(move |tx| put(tx, &token)).await
    }

    async fn token(&self, token_id: &str) -> Answer<Option<TokenView>> {
        let token_id = token_id.to_owned();
        self.readers.run(move |tx| one(tx, &token_id)).await
    }

    async fn tokens(&self) -> Answer<Vec<TokenView>> {
        self.readers
            .run(|tx| tx.all(&format!("{SELECT} ORDER BY created_at, token_id"), [], view))
            .await
    }

    async fn revoke_token(&self, token_id: &str) -> Answer<Option<TokenView>> {
        let token_id = token_id.to_owned();
        self.writer
            .run(move |tx| {
                let sql =
                    "UPDATE token SET revoked_at = ?2 WHERE token_id = ?1 AND revoked_at IS NULL";
                tx.execute(sql, params![token_id, tx.now])?;
                one(tx, &token_id)
            })
            .await
    }
}

const SELECT: &str = "SELECT token_id, hash, scopes, tenant_id, label, created_at, expires_at, \
    revoked_at FROM token";

fn view(row: &Row<'_>) -> Answer<TokenView> {
    let read = || -> rusqlite::Result<TokenView> {
        Ok(TokenView {
            token_id: row.get(0)?,
            hash: Hash::from_bytes(row.get(1)?),
            scopes: Scopes::from_bits(row.get(2)?),
            tenant_id: row.get(3)?,
            label: row.get(4)?,
            created_at: row.get(5)?,
            expires_at: row.get(6)?,
            revoked_at: row.get(7)?,
        })
    };
    read().map_err(|error| failed(&error))
}

fn one(tx: &Tx<'_>, token_id: &str) -> Answer<Option<TokenView>> {
    Ok(tx.all(&format!("{SELECT} WHERE token_id = ?1"), [token_id], view)?.pop())
}

fn put(tx: &Tx<'_>, token: &NewToken) -> Answer<TokenView> {
    let lifetime = token.lifetime_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
    tx.execute(
        "INSERT INTO token (token_id, hash, scopes, tenant_id, label, created_at, expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (token_id) DO NOTHING",
        params![
            token.token_id,
            token.hash.as_bytes(),
            token.scopes.bits(),
            token.tenant_id,
            token.label,
            tx.now,
            lifetime.map(|ms| tx.now.saturating_add(ms)),
        ],
    )?;
    let kept = one(tx, &token.token_id)?.filter(|kept| kept.hash == token.hash);
    kept.ok_or_else(|| StoreError::Poison("the id of the token belongs to another".to_owned()))
}
