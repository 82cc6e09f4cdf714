//! Hints between engines, by LISTEN and NOTIFY, on one connection for each engine that listens. Whoever leaves work
//! for others rings; the listener notifies, in a transaction of its own after the one that left the work, at most
//! every few milliseconds for all that was left meanwhile, and not at all while no other engine is there:
//! commits that notify follow each other one by one on the whole server, and a transaction that has notified
//! cannot be prepared. So `sprag.submit` does not ring either, in the user's transaction; beats look into the inbox.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use sprag_engine::hints::Hint;
use sprag_engine::store::{Answer, StoreError};
use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Client};

use super::failure::failed;
use super::pools::Pools;
use super::tls;

/// How long others are not told again.
const QUIET: Duration = Duration::from_millis(5);
/// A connection that lies idle is looked after by the system, so that one that is gone is noticed.
const KEEPALIVE: Duration = Duration::from_secs(30);
const RING: &str = "SELECT pg_notify('sprag', '')";
/// A hint that is lost in a crash of the server is no loss, so that it is not waited for on disk.
const LISTEN: &str =
    "SET application_name = 'sprag listener'; SET synchronous_commit = off; LISTEN sprag";

/// What there is to tell others.
pub(super) struct Bell {
    rung: Notify,
    /// Whether a listener tells; else whoever rings does it.
    is_attended: AtomicBool,
    /// Whether other engines were there at the last beat.
    has_peers: AtomicBool,
}

impl Default for Bell {
    fn default() -> Self {
        let (is_attended, has_peers) = (AtomicBool::new(false), AtomicBool::new(true));
        Self { rung: Notify::new(), is_attended, has_peers }
    }
}

impl Bell {
    /// Whoever has come since the last beat was told of nothing so far.
    pub(super) fn note_peers(&self, has_peers: bool) {
        if !self.has_peers.swap(has_peers, Ordering::Relaxed) && has_peers {
            self.rung.notify_one();
        }
    }
}

/// Tells other engines that there may be work. What was left is committed, and found without it.
pub(super) async fn ring(pools: &Pools) {
    if pools.test_now().is_some() {
        // Nobody listens where a test owns the time.
    } else if pools.bell.is_attended.load(Ordering::Relaxed) {
        pools.bell.rung.notify_one();
    } else if let Err(error) = pools.run(RING, &[]).await {
        tracing::debug!(%error, "nobody is told");
    }
}

/// Listens on a connection of its own until that is lost, and tells others meanwhile.
pub(super) async fn listen(pools: &Pools, hint: Hint) -> StoreError {
    if pools.test_now().is_some() {
        return std::future::pending().await;
    }
    let attended = Attended(&pools.bell);
    match attended.listen(&pools.url, &hint).await {
        Err(error) => error,
    }
}

/// A bell that is attended until this is dropped.
struct Attended<'a>(&'a Bell);

impl Drop for Attended<'_> {
    fn drop(&mut self) {
        self.0.is_attended.store(false, Ordering::Relaxed);
    }
}

impl Attended<'_> {
    async fn listen(&self, url: &str, hint: &Hint) -> Answer<Infallible> {
        let (mut config, tls) = tls::configure(url)?;
        config.keepalives_idle(KEEPALIVE);
        let (client, mut connection) = config.connect(tls).await.map_err(|error| failed(&error))?;
        let own = AtomicI32::new(0);
        let hear = async {
            loop {
                match poll_fn(|context| connection.poll_message(context)).await {
                    Some(Ok(AsyncMessage::Notification(note))) => {
                        if note.process_id() != own.load(Ordering::Relaxed) {
                            hint();
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(failed(&error)),
                    None => {
                        let reason = "the server has ended the connection of the listener";
                        return Err(StoreError::Unavailable(reason.to_owned()));
                    }
                }
            }
        };
        tokio::select! {
            lost = hear => lost,
            lost = self.tell(&client, &own, hint) => Err(failed(&lost.unwrap_err())),
        }
    }

    /// Begins to listen, and then tells others whenever somebody has rung.
    async fn tell(
        &self,
        client: &Client,
        own: &AtomicI32,
        hint: &Hint,
    ) -> Result<Infallible, tokio_postgres::Error> {
        client.batch_execute(LISTEN).await?;
        own.store(
            client.query_one("SELECT pg_backend_pid()", &[]).await?.try_get(0)?,
            Ordering::Relaxed,
        );
        let ring = client.prepare(RING).await?;
        self.0.is_attended.store(true, Ordering::Relaxed);
        hint();
        loop {
            self.0.rung.notified().await;
            if self.0.has_peers.load(Ordering::Relaxed) {
                client.query(&ring, &[]).await?;
            }
            tokio::time::sleep(QUIET).await;
        }
    }
}
