//! Statements that the writer keeps ready, found by where their text lies. The cache of the connection reads the
//! whole text twice for each use, which is dear beside a statement that writes one row; a text that is part of the
//! program is known by its address. Statements whose text is made at run time stay with the cache.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use rusqlite::{CachedStatement, Connection, Statement};

/// Where a call finds its statements.
pub(super) trait Prepared {
    /// Hands the statement of this text over. It is nobody else's meanwhile.
    fn lend(
        &self,
        sql: &'static str,
        to: &mut dyn FnMut(&mut Statement<'_>),
    ) -> rusqlite::Result<()>;
}

/// Those of a connection, by the address and the length of their texts, which are never freed.
pub(super) struct Statements<'a> {
    connection: &'a Connection,
    ready: RefCell<HashMap<(usize, usize), CachedStatement<'a>, BuildHasherDefault<Address>>>,
}

/// The hash of an address: there are some hundred, and nobody chooses them who could mean harm.
#[derive(Default)]
struct Address(u64);

impl Hasher for Address {
    fn write_usize(&mut self, word: usize) {
        self.0 = (self.0.rotate_left(5) ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_usize(usize::from(*byte));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl<'a> Statements<'a> {
    pub(super) fn of(connection: &'a Connection) -> Self {
        Self { connection, ready: RefCell::default() }
    }
}

impl Prepared for Statements<'_> {
    fn lend(
        &self,
        sql: &'static str,
        to: &mut dyn FnMut(&mut Statement<'_>),
    ) -> rusqlite::Result<()> {
        let key = (sql.as_ptr().addr(), sql.len());
        let ready = self.ready.borrow_mut().remove(&key);
        let mut statement = ready.map_or_else(|| self.connection.prepare_cached(sql), Ok)?;
        to(&mut statement);
        self.ready.borrow_mut().insert(key, statement);
        Ok(())
    }
}

/// A connection that is read now and then has its own cache.
impl Prepared for Connection {
    fn lend(
        &self,
        sql: &'static str,
        to: &mut dyn FnMut(&mut Statement<'_>),
    ) -> rusqlite::Result<()> {
        self.prepare_cached(sql).map(|mut statement| to(&mut statement))
    }
}
