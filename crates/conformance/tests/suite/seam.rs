//! The store seam as its source declares it, for tests that must leave no primitive out.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The one trait of the engine that is no part of the seam: transports are beside it.
const OTHER: &str = "Bus";

/// Every function of every trait of the engine that a store implements.
pub fn declared() -> BTreeSet<String> {
    let engine = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("engine/src");
    let mut names = BTreeSet::new();
    read(&engine, &mut names);
    assert!(names.contains("submit") && names.contains("put_token"), "the source was found");
    names
}

fn read(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, names);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for body in text.split("\npub trait ").skip(1).filter(|body| !body.starts_with(OTHER)) {
            let body = body.split("\n}\n").next().unwrap_or(body);
            let functions = body.lines().filter_map(|line| line.strip_prefix("    fn "));
            names.extend(functions.filter_map(|f| f.split(['(', '<']).next().map(str::to_owned)));
        }
    }
}
