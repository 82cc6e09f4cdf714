//! The error codes: each is unique, spelled for programs, explained for people, and used.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sprag_kernel::error::Class;
use sprag_kernel::{Cause, Code, Refusal};

/// Codes whose user is still to come, with who that is.
const AWAITED: [(&str, &str); 1] = [("SeqUnknown", "the runtime's seq ledger")];

#[test]
fn every_code_is_unique_and_in_screaming_snake_case() {
    let codes = Code::ALL.iter().map(|code| code.name());
    let names: BTreeSet<&str> = codes.chain(Cause::ALL.iter().map(|cause| cause.name())).collect();
    assert_eq!(names.len(), Code::ALL.len() + Cause::ALL.len());
    for name in names {
        let parts = || name.split('_');
        assert!(parts().all(|part| !part.is_empty()), "{name}");
        let is_loud = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit();
        assert!(parts().all(|part| part.chars().all(is_loud)), "{name}");
        assert!(name.starts_with(|c: char| c.is_ascii_uppercase()), "{name}");
    }
}

#[test]
fn every_code_says_what_happened_what_to_do_and_a_fitting_http_status() {
    for code in Code::ALL {
        for text in [code.what(), code.todo()] {
            assert!(text.len() > 5 && text.trim() == text && !text.ends_with('.'), "{code}");
        }
        assert_ne!(code.what(), code.todo(), "{code}");
        let status = code.http_status();
        let fits = match code.class() {
            Class::Rejected => (400..500).contains(&status),
            Class::Conflict => status == 409,
            Class::Unavailable | Class::Corrupt => status >= 422,
        };
        assert!(fits, "{code} is {} with status {status}", code.class().name());
    }
}

#[test]
fn every_cause_says_what_happened_and_what_to_do() {
    for cause in Cause::ALL {
        for text in [cause.what(), cause.todo()] {
            assert!(text.len() > 5 && text.trim() == text && !text.ends_with('.'), "{cause}");
        }
    }
    assert_eq!(Cause::Exit.numbered(3), "EXIT_3");
    assert_eq!(Cause::HttpStatus.numbered(404), "HTTP_404");
}

/// Every source file outside of this registry.
fn sources_but(registry: &str) -> Vec<(PathBuf, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut sources = Vec::new();
    collect_sources(&crates, &mut sources);
    let registry = Path::new("kernel").join("src").join(registry);
    sources.retain(|path| !path.ends_with(&registry));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a source file");
        (path, text)
    };
    sources.into_iter().map(read).collect()
}

#[test]
fn every_code_is_used_somewhere_besides_its_registry_line() {
    let text: String = sources_but("error.rs").into_iter().map(|(_, text)| text).collect();
    let words: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
    for code in Code::ALL {
        let variant = format!("{code:?}");
        let is_awaited = AWAITED.iter().any(|(awaited, _)| *awaited == variant);
        assert!(words.contains(variant.as_str()) || is_awaited, "nobody uses {code}");
    }
}

#[test]
fn every_cause_is_used_somewhere_besides_its_registry_line() {
    let text: String = sources_but("cause.rs").into_iter().map(|(_, text)| text).collect();
    let words: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric() && c != ':').collect();
    for cause in Cause::ALL {
        assert!(words.contains(format!("Cause::{cause:?}").as_str()), "nobody uses {cause}");
    }
}

/// What takes the code of a failed attempt.
const TAKE_A_CODE: [&str; 6] =
    ["Failure::fatal(", "Failure::retryable(", "panicked(", "caught(", "failed(", "code: "];
/// Names of other things that are spelled like a cause: a state, a class of errors, what a check compares.
const SPELLED_ALIKE: [&str; 3] = ["kernel/src/machines", "kernel/src/retry.rs", "worker_check"];

/// Codes of failed attempts once stood at each place that gave one, and in no document.
#[test]
fn no_code_of_a_failed_attempt_stands_outside_of_the_registries() {
    let is_code = |text: &str| text.starts_with(|c: char| c.is_ascii_uppercase());
    for (path, text) in sources_but("cause.rs") {
        let shown = path.display().to_string();
        let own = text.split("#[cfg(test)]").next().expect("a first part");
        let lines = own.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        let code = lines.collect::<String>();
        for takes in TAKE_A_CODE {
            for given in code.split(takes).skip(1) {
                let literal = given.strip_prefix("&format!(").unwrap_or(given).strip_prefix('"');
                let is_class = |text: &str| {
                    text.starts_with("RETRYABLE\"") || text.starts_with("NON_RETRYABLE\"")
                };
                let is_bad = literal.is_some_and(|text| is_code(text) && !is_class(text));
                assert!(!is_bad, "{shown} has a code of its own: {takes}{given:.40}");
            }
        }
        if SPELLED_ALIKE.iter().any(|other| shown.contains(other)) {
            continue;
        }
        for cause in Cause::ALL {
            assert!(!code.contains(&format!("\"{cause}\"")), "{shown} spells {cause} itself");
        }
    }
}

/// Every file below a `src` folder.
fn collect_sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let is_source = path.components().any(|part| part.as_os_str() == "src");
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            collect_sources(&path, found);
        } else if is_source && path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn a_refusal_reads_the_same_as_text_and_as_json() {
    let refusal =
        Refusal::new(Code::JobVersionConflict).with("expected", 4_u64).with("actual", 5_u64);
    let text = refusal.to_string();
    assert!(text.starts_with("JOB_VERSION_CONFLICT: "), "{text}");
    assert!(text.contains("(expected: 4, actual: 5)"), "{text}");
    let json = serde_json::to_value(&refusal).unwrap();
    assert_eq!(json["error_code"], "JOB_VERSION_CONFLICT");
    assert_eq!(json["fields"], serde_json::json!({"expected": 4, "actual": 5}));
    assert_eq!(json["message"], refusal.message());
}
