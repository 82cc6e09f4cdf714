//! Which protocol serves a request type: first those that this engine was built with, the last one added
//! first; then those that the store holds, the newest first, as they were a moment ago.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sprag_kernel::{Code, Refusal};

use crate::engine::{Engine, Pinned};
use crate::heart::Op;
use crate::protocol::Protocol;
use crate::store::Store;

/// How old the known list may be: so long may another server's new version of a protocol go unnoticed.
const FRESH: Duration = Duration::from_secs(1);

/// What the store held when it was last asked.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Known>);

#[derive(Default)]
struct Known {
    read_at: Option<Instant>,
    protocols: Vec<Arc<Pinned>>,
}

impl Registry {
    fn find(&self, wanted: impl Fn(&Protocol) -> bool, fresh: bool) -> Option<Arc<Pinned>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = known.read_at.is_some_and(|read_at| read_at.elapsed() < FRESH);
        let found = known.protocols.iter().find(|pinned| wanted(&pinned.protocol));
        found.filter(|_| is_fresh || !fresh).cloned()
    }

    fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).read_at = None;
    }
}

impl<S: Store> Engine<S> {
    /// Registers a protocol. The same content again is a no-op, other content under its id is refused. So is a
    /// hook that this engine does not have: its tasks would wait for ever, and keep their jobs from being deleted.
    pub async fn put_protocol(&self, protocol: &Protocol) -> Result<(), Refusal> {
        self.abilities.expect(protocol)?;
        if let Some(hook) = protocol.on_end.iter().find(|hook| !self.hooks.contains(*hook)) {
            return Err(Refusal::new(Code::HookUnknown).with("hook", hook.clone()));
        }
        self.store().put_protocol(&protocol.protocol_id, &protocol.to_json()).await?;
        self.registry.forget();
        Ok(())
    }

    /// The protocol that serves a request type.
    pub(crate) async fn serving(&self, request_type: &str) -> Result<Arc<Pinned>, Refusal> {
        let serves = |protocol: &Protocol| protocol.serves(request_type);
        if let Some(own) = self.protocols.iter().rev().find(|pinned| serves(&pinned.protocol)) {
            return Ok(own.clone());
        }
        if let Some(known) = self.registry.find(serves, true) {
            return Ok(known);
        }
        self.refresh().await?;
        self.registry.find(serves, false).ok_or_else(|| {
            Refusal::new(Code::ProtocolUnknown).with("request_type", request_type.to_owned())
        })
    }

    /// The protocol with this id.
    pub(crate) async fn pinned(&self, protocol_id: &str) -> Result<Arc<Pinned>, Refusal> {
        let named = |protocol: &Protocol| protocol.protocol_id == protocol_id;
        let own = self.protocols.iter().find(|pinned| named(&pinned.protocol)).cloned();
        if let Some(known) = own.or_else(|| self.registry.find(named, false)) {
            return Ok(known);
        }
        self.refresh().await?;
        self.registry.find(named, false).ok_or_else(|| {
            Refusal::new(Code::ProtocolUnknown).with("protocol_id", protocol_id.to_owned())
        })
    }

    /// Reads the store's list. The heart hears of what is new before any job that follows it.
    async fn refresh(&self) -> Result<(), Refusal> {
        let definitions = self.store().protocols().await?;
        let mut known = self.registry.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut known.protocols);
        for definition in definitions {
            // One that this binary cannot read serves nothing here.
            let Ok(protocol) = Protocol::read(&definition) else { continue };
            let same = before.iter().find(|pinned| pinned.protocol == protocol).cloned();
            let pinned = same.unwrap_or_else(|| {
                let pinned = Arc::new(Pinned::new(protocol));
                self.tell(Op::Learn { pinned: pinned.clone() });
                pinned
            });
            known.protocols.push(pinned);
        }
        known.read_at = Some(Instant::now());
        Ok(())
    }
}
