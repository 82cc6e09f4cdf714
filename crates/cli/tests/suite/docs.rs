//! The reference pages in `docs/` are those that the code makes.

use std::fs;
use std::path::Path;

use super::sprag;

#[test]
fn reference_pages_are_fresh() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let made = tempfile::tempdir().unwrap();
    let said = sprag(&["docs", made.path().to_str().unwrap()], "");
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(said.stdout.lines().count() >= 3);
    for entry in fs::read_dir(made.path()).unwrap() {
        let name = entry.unwrap().file_name();
        let fresh = fs::read_to_string(made.path().join(&name)).unwrap();
        let kept = fs::read_to_string(folder.join(&name)).unwrap_or_default();
        assert!(fresh == kept, "docs/{} is stale: run `cargo run -- docs`", name.display());
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_refused() {
    sprag(&["docs", "/dev/null/docs"], "").refused("INPUT_UNREADABLE");
}
