//! The acceptance cases of jobs, steps, outbox, idempotency, requests, ledgers and all of it together against the
//! tests that name them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Every case of these groups, by number.
const CASES: &str = "
    J1 J2 J3 J4 J5 J8 J9 J10 J13 J15 J17 J18 J20 J21 J22 J23 J24 J26 J28
    T1 T2 T3 T4 T6 T7 T8 T10 T11 T12 T13 T14 T17 T19 T23 T24 T26 T28 T29 T30 T31 T32
    O1 O3 O4 O6 O8 O9
    I36 I37 I39 I40 I42
    Q1 Q2 Q3 Q4 Q5 Q7 Q9 Q10 Q11 Q13 Q15 Q18 Q19 Q20 Q22 Q23 Q24 Q25 Q27 Q28 Q29 Q30
    E1 E5 E6 E9 E10
    L1 L2 L3 L6 L8 L11 L14 L15 L17 L18 L19 L20 L21 L24 L25 L31 L32 L34 L36 L38 L39 L40 L41 L43 L44 L46
    L48 L49";
/// Rules that have no store in them: pairs of states, the shape of a RESULT, the number of a dimension, the keys
/// of requests.
const OF_THE_KERNEL: &str = "J10 T11 T23 T24 O3 L36 Q19 Q20 Q22 Q23 Q24 Q25 Q27";

/// The numbers that the tests below a folder name: in the name of a function, or as `T7` in a comment or
/// a message.
fn named(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(named(&path));
        } else if path.file_name().is_some_and(|name| name != "cases.rs") {
            let text = fs::read_to_string(&path).unwrap();
            let names = text.split("fn ").skip(1).filter_map(|rest| rest.split(['<', '(']).next());
            found.extend(names.flat_map(|name| name.split('_')).map(str::to_uppercase));
            let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
            let is_number = |word: &&str| {
                word.len() > 1 && word[1..].bytes().all(|digit| digit.is_ascii_digit())
            };
            found.extend(words.filter(is_number).map(ToOwned::to_owned));
        }
    }
    found
}

fn list(cases: &str) -> BTreeSet<String> {
    cases.split_whitespace().map(ToOwned::to_owned).collect()
}

#[test]
fn every_case_is_named_by_a_test() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let kernel = list(OF_THE_KERNEL);
    let here = named(&crates.join("conformance/tests"));
    let missing: Vec<_> = list(CASES)
        .into_iter()
        .filter(|case| !kernel.contains(case) && !here.contains(case))
        .collect();
    assert!(missing.is_empty(), "no test on the stores names {missing:?}");
    let there = named(&crates.join("kernel/tests"));
    assert!(kernel.is_subset(&there), "the kernel's suite names them");
}
