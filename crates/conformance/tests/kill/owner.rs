//! One SQLite file, two processes: the second is refused, and the lock of the first dies with it.

use super::killer::{Life, Place};
use super::victim::{DRAIN, GONE, LOAD};

pub(crate) fn one_process_owns_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place { folder: folder.path(), url: None };
    let mut owner = Life::start(place.victim(LOAD).env("SPRAG_ROUND", "owner"));
    let second = place.victim(DRAIN).output().unwrap();
    let complaint = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(GONE), "{complaint}");
    assert!(complaint.contains("STORE_IN_USE") && complaint.contains("store.db"), "{complaint}");
    owner.child.kill().unwrap();
    let accepted = owner.end_by_kill("the owner");
    // At once: the operating system has let go of the lock.
    place.drain();
    let store = sprag_stores::sqlite::SqliteStore::look(&folder.path().join("store.db")).unwrap();
    super::killer::runtime().block_on(super::killer::look(&store, folder.path(), &accepted));
}
