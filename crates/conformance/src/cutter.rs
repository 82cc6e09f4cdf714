//! A way to a server that is cut at a request which a test names: on the way there, so that the server never
//! hears of it, or on the way back, so that it is done and nobody is told, be it before or after the client is cut off.
//!
//! A request is what a client waits for the end of: in the protocol of Postgres a query (`Q`) or a sync (`S`)
//! with all that was sent since the one before. Requests are counted over all connections. After the cut the
//! way is open again, for whoever connects anew.

#![allow(clippy::unwrap_used)] // a test that cannot have its way ends here

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::cluster::Cluster;

/// The name of a server's socket in its folder.
const SOCKET: &str = ".s.PGSQL.5432";
/// The longest message that is passed on: anything more is a fault of this file.
const MAX_MESSAGE: u32 = 1 << 26;

/// What a client asks before anything else if it would rather have TLS: the number of that request.
const TLS_WANTED: [u8; 4] = 80_877_103_u32.to_be_bytes();

/// What a client says last.
const GOODBYE: [u8; 5] = [b'X', 0, 0, 0, 4];

/// Where the way is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The server never hears of the request.
    There,
    /// The server has done it.
    Back,
    /// The client is cut off at once. The server does not notice, and does what it has been sent in its own time.
    Late,
    /// Like [`Side::Late`], after a statement that has the request held up: the session is told so, and triggers of the
    /// test may look there.
    Held(&'static str),
}

/// Which request is the one.
enum Aim {
    /// That which so many are before, counted from 1.
    Nth(u32),
    /// The first that has this text in it.
    With(&'static str),
}

/// The way to a server.
pub struct Cutter {
    folder: TempDir,
    plan: Arc<Plan>,
    door: JoinHandle<()>,
}

impl Cutter {
    /// A way to this server.
    pub fn before(cluster: &Cluster) -> Self {
        let folder = tempfile::Builder::new().prefix("sprag-cut").tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let (plan, server) = (Arc::<Plan>::default(), cluster.folder().join(SOCKET));
        let shared = plan.clone();
        let door = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = UnixStream::connect(&server).await.unwrap();
                let plan = shared.clone();
                // Either side may go away at any time, which ends the relay.
                tokio::spawn(async move { drop(relay(client, server, &plan).await) });
            }
        });
        Self { folder, plan, door }
    }

    /// The URL of a database on this way.
    pub fn url(&self, database: &str) -> String {
        format!("host={} user=sprag dbname={database}", self.folder.path().display())
    }

    /// How many requests have gone this way.
    pub fn requests(&self) -> u64 {
        self.plan.requests.load(Ordering::SeqCst)
    }

    /// Cuts the way at the `request`th request from now on, counted from 1.
    pub fn arm(&self, request: u32, side: Side) {
        *self.plan.armed() = Some((Aim::Nth(request), side));
    }

    /// Cuts the way at the next request that has this text in it.
    pub fn arm_at(&self, text: &'static str, side: Side) {
        *self.plan.armed() = Some((Aim::With(text), side));
    }

    /// Whether the server still has to come to the end of what it was sent by a client that is cut off.
    pub fn is_at_work(&self) -> bool {
        self.plan.unheard.load(Ordering::SeqCst) > 0
    }

    /// Whether the way was cut since it was armed; from now on it is not.
    pub fn disarm(&self) -> bool {
        self.plan.armed().take().is_none()
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.door.abort();
    }
}

#[derive(Default)]
struct Plan {
    armed: Mutex<Option<(Aim, Side)>>,
    requests: AtomicU64,
    /// Requests that the server is at and nobody waits for.
    unheard: AtomicU64,
}

impl Plan {
    fn armed(&self) -> std::sync::MutexGuard<'_, Option<(Aim, Side)>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request; says whether it is the one, once.
    fn strikes(&self, request: &[u8]) -> Option<Side> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let mut armed = self.armed();
        let (aim, _) = armed.as_mut()?;
        let is_it = match aim {
            Aim::Nth(left) => {
                *left -= 1;
                *left == 0
            }
            Aim::With(text) => request.windows(text.len()).any(|part| part == text.as_bytes()),
        };
        is_it.then(|| armed.take()).flatten().map(|(_, side)| side)
    }
}

async fn relay(mut client: UnixStream, mut server: UnixStream, plan: &Plan) -> io::Result<()> {
    let mut hello = read(&mut client, None).await?;
    if hello[4..8] == TLS_WANTED {
        client.write_all(b"N").await?;
        hello = read(&mut client, None).await?;
    }
    server.write_all(&hello).await?;
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let back = Arc::new(Back::default());
    let way_back = tokio::spawn(answer(from_server, to_client, back.clone()));
    let asked = ask(&mut from_client, &mut to_server, (plan, &back)).await;
    way_back.abort();
    asked
}

/// What the way back is told, and tells.
#[derive(Default)]
struct Back {
    is_cut: AtomicBool,
    /// The client is to be cut off before the server is done.
    cut_now: Notify,
    done: Notify,
}

/// Passes requests on, each as a whole.
async fn ask(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    (plan, back): (&Plan, &Back),
) -> io::Result<()> {
    let mut request = Vec::new();
    loop {
        let kind = from.read_u8().await?;
        request.extend(read(from, Some(kind)).await?);
        if !b"QSX".contains(&kind) {
            continue;
        }
        let strikes = if kind == b'X' { None } else { plan.strikes(&request) };
        match strikes {
            None => to.write_all(&request).await?,
            Some(Side::There) => return Ok(()),
            Some(Side::Back) => {
                back.is_cut.store(true, Ordering::SeqCst);
                to.write_all(&request).await?;
                back.done.notified().await;
                return Ok(());
            }
            Some(side @ (Side::Late | Side::Held(_))) => {
                plan.unheard.fetch_add(1, Ordering::SeqCst);
                if let Side::Held(statement) = side {
                    // Its answer would be taken for that of the request.
                    back.cut_now.notify_one();
                    to.write_all(&query(statement)).await?;
                }
                to.write_all(&request).await?;
                // It ends when it has come to this.
                to.write_all(&GOODBYE).await?;
                back.cut_now.notify_one();
                back.done.notified().await;
                plan.unheard.fetch_sub(1, Ordering::SeqCst);
                return Ok(());
            }
        }
        request.clear();
    }
}

/// A request with nothing but this statement.
fn query(statement: &str) -> Vec<u8> {
    let length = u32::try_from(statement.len() + 5).unwrap().to_be_bytes();
    [b"Q", &length[..], statement.as_bytes(), &[0]].concat()
}

/// Passes answers on until the way is cut, and then waits for the end of what the server does.
async fn answer(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, back: Arc<Back>) {
    loop {
        let kind = tokio::select! {
            biased;
            () = back.cut_now.notified() => {
                drop(to);
                let mut unheard = Vec::new();
                let _ = from.read_to_end(&mut unheard).await;
                break;
            }
            kind = from.read_u8() => kind,
        };
        let Ok(kind) = kind else { break };
        let Ok(message) = read(&mut from, Some(kind)).await else { break };
        if !back.is_cut.load(Ordering::SeqCst) {
            if to.write_all(&message).await.is_err() {
                break;
            }
        } else if kind == b'Z' {
            break;
        }
    }
    back.done.notify_one();
}

/// A message with its kind, which only the first one of a connection lacks.
async fn read(from: &mut (impl AsyncRead + Unpin), kind: Option<u8>) -> io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    assert!((4..MAX_MESSAGE).contains(&length), "a message of the protocol");
    let mut message: Vec<u8> = kind.into_iter().chain(length.to_be_bytes()).collect();
    let head = message.len();
    message.resize(head + length as usize - 4, 0);
    from.read_exact(&mut message[head..]).await?;
    Ok(message)
}
