//! A bus with workers behind it that loses, repeats, delays and reorders in both directions, by a seed.
//!
//! Letters and callbacks lie in two heaps, and any of them may come next. Time is the test's: what is lost is
//! found by the engine's timers once the test moves the clock. On demand nothing goes on by itself: each letter and
//! each callback is held until the test lets go of it, in the order of its choice, and late if it has moved the
//! clock meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sprag_engine::bus::{Bus, Delivery, Later, Letter, Settled};
use sprag_engine::callback::{Callback, Completion, Fence};
use tokio::sync::{Notify, oneshot};

/// How often things go wrong, in a hundred.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A letter is refused by the transport.
    pub refuse: u64,
    /// A letter or a callback vanishes.
    pub lose: u64,
    /// A letter or a callback comes again.
    pub repeat: u64,
}

/// The bus and its workers in one.
#[derive(Clone)]
pub struct TestBus(Arc<Shared>);

struct Shared {
    faults: Faults,
    inner: Mutex<Inner>,
    is_there: Notify,
    is_held: Notify,
}

struct Inner {
    random: u64,
    callbacks: Vec<(Fence, Callback)>,
    published: HashMap<String, usize>,
    /// What lies still by its name, if things do.
    held: Option<Vec<(String, Item)>>,
}

/// What a bus carries.
enum Item {
    Letter(Box<Letter>),
    Callback(Fence, Callback),
}

fn name(what: &str, fence: &Fence) -> String {
    format!("{what} {}/{}/{}", fence.job_id, fence.step_id, fence.attempt_no)
}

impl Inner {
    fn roll(&mut self, sides: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % sides
    }

    fn happens(&mut self, in_a_hundred: u64) -> bool {
        self.roll(100) < in_a_hundred
    }
}

impl TestBus {
    /// A bus with these faults.
    pub fn new(seed: u64, faults: Faults) -> Self {
        let inner = Inner {
            random: seed * 2 + 1,
            callbacks: Vec::new(),
            published: HashMap::new(),
            held: None,
        };
        let (is_there, is_held) = (Notify::new(), Notify::new());
        Self(Arc::new(Shared { faults, inner: Mutex::new(inner), is_there, is_held }))
    }

    /// A bus on which everything is held from the start.
    pub fn holding() -> Self {
        let bus = Self::new(0, Faults::default());
        bus.0.inner().held = Some(Vec::new());
        bus
    }

    /// Waits until something is held: a `letter`, an `ack`, a `heartbeat` or a `result`, and ` JOB/STEP/ATTEMPT`.
    pub async fn holds(&self, name: &str) {
        loop {
            let changed = self.0.is_held.notified();
            if self.0.inner().held.iter().flatten().any(|(held, _)| held == name) {
                return;
            }
            changed.await;
        }
    }

    /// Lets go of something that is held. Whoever gets a letter answers at once, and the answers are held.
    pub fn let_go(&self, name: &str) {
        let mut inner = self.0.inner();
        let held = inner.held.as_mut().expect("things are held");
        let place = held.iter().position(|(held, _)| held == name);
        let (_, item) = held.remove(place.unwrap_or_else(|| panic!("{name} is not held")));
        self.0.carry(&mut inner, item);
    }

    /// Lets go of everything that is held, and holds nothing any more.
    pub fn flow(&self) {
        let mut inner = self.0.inner();
        for (_, item) in inner.held.take().unwrap_or_default() {
            self.0.carry(&mut inner, item);
        }
    }

    /// How often the directive of an attempt was taken, by `job/step/attempt`.
    pub fn published(&self) -> HashMap<String, usize> {
        self.0.inner().published.clone()
    }
}

impl Shared {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Any of the callbacks that lie there.
    fn draw(&self) -> Option<(Fence, Callback)> {
        let mut inner = self.inner();
        let count = inner.callbacks.len() as u64;
        if count == 0 {
            return None;
        }
        let place = usize::try_from(inner.roll(count)).unwrap_or_default();
        Some(inner.callbacks.swap_remove(place))
    }

    /// A worker gets the letter: it acknowledges, shows that it is alive, and reports; all of that is on
    /// its way at once.
    fn work(&self, inner: &mut Inner, letter: &Letter) {
        let directive = &letter.directive;
        let output = serde_json::json!({"effect": directive.effect_key});
        let callbacks = [
            Callback::Ack,
            Callback::Heartbeat(None),
            Callback::Result(Completion::succeeded(output)),
        ];
        for callback in callbacks {
            if !inner.happens(self.faults.lose) {
                self.send(inner, Item::Callback(directive.fence(), callback.clone()));
            }
            if inner.happens(self.faults.repeat) {
                self.send(inner, Item::Callback(directive.fence(), callback));
            }
        }
    }

    /// Holds it, or carries it on.
    fn send(&self, inner: &mut Inner, item: Item) {
        let Some(held) = &mut inner.held else { return self.carry(inner, item) };
        let name = match &item {
            Item::Letter(letter) => name("letter", &letter.directive.fence()),
            Item::Callback(fence, Callback::Ack) => name("ack", fence),
            Item::Callback(fence, Callback::Heartbeat(_)) => name("heartbeat", fence),
            Item::Callback(fence, Callback::Result(_)) => name("result", fence),
        };
        held.push((name, item));
        self.is_held.notify_waiters();
    }

    fn carry(&self, inner: &mut Inner, item: Item) {
        match item {
            Item::Letter(letter) => self.work(inner, &letter),
            Item::Callback(fence, callback) => {
                inner.callbacks.push((fence, callback));
                self.is_there.notify_one();
            }
        }
    }
}

impl Bus for TestBus {
    fn publish(&self, letter: Letter) -> Later<'_, Result<(), String>> {
        Box::pin(async move {
            let shared = &self.0;
            let mut inner = shared.inner();
            if inner.happens(shared.faults.refuse) {
                return Err("the test bus refuses".to_owned());
            }
            let Letter { directive, .. } = &letter;
            let name =
                format!("{}/{}/{}", directive.job_id, directive.step_id, directive.attempt_no);
            *inner.published.entry(name).or_default() += 1;
            if !inner.happens(shared.faults.lose) {
                shared.send(&mut inner, Item::Letter(Box::new(letter.clone())));
            }
            if inner.happens(shared.faults.repeat) {
                shared.send(&mut inner, Item::Letter(Box::new(letter)));
            }
            Ok(())
        })
    }

    fn receive(&self) -> Later<'_, Option<Delivery>> {
        Box::pin(async move {
            let (fence, callback) = loop {
                match self.0.draw() {
                    Some(drawn) => break drawn,
                    None => self.0.is_there.notified().await,
                }
            };
            let (settle, settled) = oneshot::channel();
            let (shared, again) = (self.0.clone(), (fence.clone(), callback.clone()));
            tokio::spawn(async move {
                // What came too early, or to an engine that ended, lies there again.
                if settled.await != Ok(Settled::Done) {
                    shared.inner().callbacks.push(again);
                    shared.is_there.notify_one();
                }
            });
            Some(Delivery { fence, callback, settle })
        })
    }
}
