//! Codes of states that stand in SQL, against the kernel. A statement is text and cannot ask the kernel what 5
//! means; so every literal beside a column that holds a state is found here, in the files and in the queries that
//! stand in code, and must be listed with what the kernel says it is. A new one fails until it is listed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sprag_engine::store::{ending_code, ending_kind};
use sprag_kernel::decide::cancel::{cancel_waiting, close_unbegun};
use sprag_kernel::decide::request::rests;
use sprag_kernel::decide::rows::EndingKind;
use sprag_kernel::machine::State;
use sprag_kernel::{JobState, OutboxState, RequestStatus, StepState};

/// Columns that hold states.
const COLUMNS: [&str; 5] = ["state", "outbox", "status", "ending", "verdict"];
/// Domains of such columns, on Postgres.
const DOMAINS: [&str; 5] = ["job_state", "step_state", "outbox_state", "ending", "verdict"];
/// How a literal is compared.
const OPERATORS: [&str; 6] = ["=", "<>", "<", ">", "<=", ">="];

/// Words, numbers and signs, without comments. What stands before a dot belongs to the word.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let without = |line: &str| {
        line.split("--").next().unwrap_or("").split("//").next().unwrap_or("").to_owned()
    };
    let text: String = text.lines().map(|line| without(line) + "\n").collect();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        let end = if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if OPERATORS.iter().any(|operator| operator.len() == 2 && rest.starts_with(operator))
        {
            2
        } else {
            first.len_utf8()
        };
        tokens.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    tokens
}

fn is_number(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_digit())
}

/// The literal that a column at the start of these tokens is compared with or set to.
fn literal(tokens: &[String]) -> Option<String> {
    let column = tokens[0].rsplit('.').next()?;
    let mut rest = &tokens[1..];
    // `coalesce(ending, 0) <> 10` is a comparison too.
    if rest.len() > 4 && rest[0] == "," && is_number(&rest[1]) && rest[2] == ")" {
        rest = &rest[3..];
    }
    let is_denied = rest.first().is_some_and(|token| token == "NOT");
    let (not, rest) = if is_denied { (" NOT", &rest[1..]) } else { ("", rest) };
    let word = |n: usize| rest.get(n).map_or("", String::as_str);
    if OPERATORS.contains(&word(0)) && is_number(word(1)) {
        return Some(format!("{column} {} {}", word(0), word(1)));
    }
    if word(0) == "BETWEEN" && is_number(word(1)) {
        return Some(format!("{column}{not} BETWEEN {} AND {}", word(1), word(3)));
    }
    if (word(0), word(1)) == ("IN", "(") && is_number(word(2)) {
        let listed = rest[2..].iter().take_while(|token| *token != ")");
        let numbers: Vec<_> = listed.map(String::as_str).filter(|token| is_number(token)).collect();
        return Some(format!("{column}{not} IN ({})", numbers.join(", ")));
    }
    if word(0) == "WHEN" && is_number(word(1)) {
        // WHEN 0 THEN ' PENDING '
        let cases = rest.chunks(6).take_while(|case| case[0] == "WHEN");
        let cases: Vec<_> = cases.map(|case| format!("{} {}", case[1], case[4])).collect();
        return Some(format!("{column} is {}", cases.join(", ")));
    }
    None
}

/// The literal that a domain at the start of these tokens is checked with.
fn of_domain(tokens: &[String]) -> Option<String> {
    let name = tokens.get(1)?.rsplit('.').next()?;
    if tokens[0] != "DOMAIN" || !DOMAINS.contains(&name) {
        return None;
    }
    let value = tokens.iter().position(|token| token == "VALUE")?;
    literal(&tokens[value..]).map(|literal| literal.replacen("VALUE", name, 1))
}

/// Between the parenthesis at the start and its end, or up to a word at the same depth: parts between commas.
fn parts<'a>(tokens: &'a [String], ends: &[&str]) -> Vec<&'a [String]> {
    let (mut depth, mut parts, mut begin) = (0, Vec::new(), 0);
    for (n, token) in tokens.iter().enumerate() {
        let is_over = depth == 0 && ends.contains(&token.as_str());
        if is_over || (depth == 0 && token == ",") {
            parts.push(&tokens[begin..n]);
            begin = n + 1;
        }
        if is_over {
            break;
        }
        depth += i32::from(token == "(" || token == "[") - i32::from(token == ")" || token == "]");
    }
    parts
}

/// The literal that an INSERT at the start of these tokens gives a state.
fn born(tokens: &[String]) -> Option<String> {
    let table = tokens.get(2)?.rsplit('.').next()?;
    if tokens[0] != "INSERT" || tokens.get(3)? != "(" {
        return None;
    }
    let columns = parts(&tokens[4..], &[")"]);
    let place = columns.iter().position(|column| COLUMNS.contains(&column[0].as_str()))?;
    let after = tokens.iter().position(|token| token == "VALUES" || token == "SELECT")?;
    let values = match tokens[after].as_str() {
        "VALUES" => parts(&tokens[after + 2..], &[")"]),
        _ => parts(&tokens[after + 1..], &["FROM"]),
    };
    let value = values.get(place)?;
    let is_literal = value.len() == 1 && is_number(&value[0]);
    is_literal.then(|| format!("{table} is born in {} {}", columns[place][0], value[0]))
}

/// Every literal of a text, and how often it is there.
fn literals(text: &str) -> BTreeMap<String, usize> {
    let tokens = tokens(text);
    let mut found = BTreeMap::new();
    for n in 0..tokens.len() {
        let is_state = COLUMNS.contains(&tokens[n].rsplit('.').next().unwrap_or_default());
        let here = &tokens[n..];
        let told = if is_state { literal(here) } else { born(here).or_else(|| of_domain(here)) };
        if let Some(told) = told {
            *found.entry(told).or_default() += 1;
        }
    }
    found
}

/// Every literal in the files of a folder, by file.
fn scan(folder: &Path, root: &Path, found: &mut BTreeMap<(String, String), usize>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            scan(&path, root, found);
            continue;
        }
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        for (literal, count) in literals(&fs::read_to_string(&path).unwrap()) {
            found.insert((name.clone(), literal), count);
        }
    }
}

// What the kernel says.

fn codes<S: State>(which: impl Fn(S) -> bool) -> Vec<u8> {
    S::machine().states.iter().copied().filter(|state| which(*state)).map(State::code).collect()
}

/// States that are all those from one on, or all those between two.
fn range(column: &str, codes: &[u8]) -> String {
    let (first, last) = (codes[0], codes[codes.len() - 1]);
    assert!(codes.iter().copied().eq(first..=last), "{codes:?} have no gap");
    format!("{column} BETWEEN {first} AND {last}")
}

fn among(column: &str, codes: &[u8]) -> String {
    let codes: Vec<_> = codes.iter().map(u8::to_string).collect();
    format!("{column} IN ({})", codes.join(", "))
}

fn terminal_jobs() -> String {
    let terminal = codes(JobState::is_terminal);
    let last = codes(|_: JobState| true).pop();
    assert_eq!(terminal.last().copied(), last, "nothing open comes after them");
    assert!(terminal.iter().copied().eq(terminal[0]..=last.unwrap()));
    format!("state >= {}", terminal[0])
}

/// Neither over nor being cancelled.
fn jobs_that_go_on() -> String {
    let going = codes(|state: JobState| !state.is_terminal() && state != JobState::Cancelling);
    let after = JobState::Cancelling.code();
    assert!(going.iter().copied().eq(0..after), "{going:?} come first");
    format!("state < {after}")
}

fn names<S: State>(column: &str) -> String {
    let name = |state: &S| format!("{} {}", state.code(), state.name());
    let names: Vec<_> = S::machine().states.iter().map(name).collect();
    format!("{column} is {}", names.join(", "))
}

fn born_in<S: State>(table: &str, column: &str) -> String {
    format!("{table} is born in {column} {}", S::machine().initial.code())
}

fn step(operator: &str, state: StepState) -> String {
    format!("state {operator} {}", state.code())
}

fn outbox(state: OutboxState) -> String {
    format!("outbox = {}", state.code())
}

/// File, literal, and how often it is there; the literal is made of what the kernel says.
type Listed = (&'static str, String, usize);

/// Steps that wait to begin, or to begin again.
fn waits(step: StepState) -> bool {
    cancel_waiting(step).is_some()
}

/// What an ending graph closes: nobody has begun it.
fn is_unbegun(step: StepState) -> bool {
    close_unbegun(step).is_some()
}

/// Or that are to be published: their time is their publisher's business.
fn waits_or_is_unsent(step: StepState) -> bool {
    waits(step) || step == StepState::Dispatching
}

fn confirmed() -> u8 {
    codes(rests).pop().unwrap()
}

fn in_schemas() -> Vec<Listed> {
    let endings: Vec<u8> =
        (0..=u8::MAX).filter(|code| ending_kind((*code).into(), None).is_some()).collect();
    let verdicts = [JobState::FailedFinal.code(), JobState::Cancelled.code()];
    let mut listed = Vec::new();
    let schemas = [
        ("sql/sqlite/schema_1.sql", ["state", "state", "outbox"]),
        ("sql/postgres/schema_1.sql", ["job_state", "step_state", "outbox_state"]),
    ];
    for (schema, [of_job, of_step, of_outbox]) in schemas {
        listed.push((schema, range(of_job, &codes(|_: JobState| true)), 1));
        listed.push((schema, range(of_step, &codes(|_: StepState| true)), 1));
        listed.push((schema, range("state", &codes(JobState::is_terminal)), 1));
        listed.push((schema, range(of_outbox, &codes(|_: OutboxState| true)), 1));
        listed.push((schema, range("status", &codes(rests)), 1));
        listed.push((schema, format!("status = {}", confirmed()), 1));
        listed.push((schema, terminal_jobs(), 1));
        listed.push((schema, range("ending", &endings), 1));
        listed.push((schema, among("verdict", &verdicts), 1));
    }
    // On SQLite what ends a sequence and what ends a step of a graph are triggers.
    let schema = "sql/sqlite/schema_1.sql";
    listed.push((schema, among("state", &codes(waits)), 1));
    listed.push((schema, among("state", &codes(is_unbegun)), 1));
    listed.push((schema, born_in::<StepState>("attempt", "state"), 1));
    listed
}

fn in_graphs() -> Vec<Listed> {
    let started = |state: StepState| !state.is_terminal() && !is_unbegun(state);
    let (waiting, unbegun) = (among("state", &codes(waits)), among("state", &codes(is_unbegun)));
    let mut listed = vec![
        ("src/sqlite/graph.rs", unbegun.clone(), 1),
        ("sql/postgres/finish_graph.sql", unbegun, 1),
        ("sql/postgres/finish_graph.sql", born_in::<StepState>("attempt", "state"), 1),
    ];
    for obligation in ["sql/sqlite/any_obligation.sql", "sql/postgres/any_obligation.sql"] {
        listed.push((obligation, waiting.clone(), 1));
        listed.push((obligation, step("=", StepState::Dispatching), 1));
        listed.push((obligation, among("state", &codes(started)), 1));
    }
    listed
}

fn in_statements() -> Vec<Listed> {
    let cancel = ending_code(EndingKind::Cancel);
    let waiting = among("state", &codes(waits));
    let mut listed = Vec::new();
    for views in ["sql/sqlite/views.sql", "sql/postgres/views.sql"] {
        listed.push((views, names::<JobState>("state"), 1));
        listed.push((views, names::<StepState>("state"), 1));
        listed.push((views, names::<OutboxState>("outbox"), 1));
        listed.push((views, outbox(OutboxState::Pending), 1));
        listed.push((views, outbox(OutboxState::FailedFinal), 1));
        listed.push((views, format!("ending = {cancel}"), 1));
    }
    listed.extend([
        ("sql/sqlite/insert_job.sql", born_in::<JobState>("job", "state"), 1),
        ("sql/sqlite/insert_attempt.sql", born_in::<StepState>("attempt", "state"), 1),
        ("sql/sqlite/insert_request.sql", born_in::<RequestStatus>("request", "status"), 1),
        ("sql/postgres/submit.sql", born_in::<JobState>("job", "state"), 1),
        ("sql/postgres/submit.sql", born_in::<StepState>("attempt", "state"), 1),
        ("sql/postgres/insert_request.sql", born_in::<RequestStatus>("request", "status"), 1),
        ("sql/sqlite/promote_due.sql", waiting.clone(), 1),
        ("sql/postgres/due.sql", waiting.clone(), 1),
        ("sql/postgres/due.sql", among("state NOT", &codes(waits_or_is_unsent)), 1),
        ("sql/sqlite/parked_wait.sql", waiting.clone(), 1),
        ("sql/postgres/parked_wait.sql", waiting.clone(), 1),
        ("sql/postgres/finish.sql", waiting, 1),
        ("sql/postgres/dispatch.sql", outbox(OutboxState::Sent), 1),
        ("sql/postgres/dispatch_many.sql", outbox(OutboxState::Sent), 1),
    ]);
    for publishers in [
        "sql/sqlite/take_unpublished.sql",
        "sql/postgres/take_unpublished.sql",
        "sql/upkeep/backlog.sql",
    ] {
        listed.push((publishers, step("=", StepState::Dispatching), 1));
        listed.push((publishers, outbox(OutboxState::Pending), 1));
    }
    listed.push(("sql/postgres/take_over.sql", outbox(OutboxState::Pending), 1));
    listed.push(("src/sqlite/engines.rs", outbox(OutboxState::Pending), 1));
    for due in ["src/sqlite/engines.rs", "src/postgres/engines.rs"] {
        listed.push((due, step("<>", StepState::Dispatching), 1));
    }
    for inputs in ["src/sqlite/rows.rs", "src/postgres/rows.rs"] {
        listed.push((inputs, step("=", StepState::Succeeded), 1));
    }
    listed
}

fn in_the_audit() -> Vec<Listed> {
    let audit = |check: &'static str, literal: String| (check, literal, 1);
    let by_message = |state: StepState| state.is_terminal() && state != StepState::Cancelled;
    let [cancel, skip] = [EndingKind::Cancel, EndingKind::Skip].map(ending_code);
    vec![
        audit("sql/audit/01_terminal_job_with_open_obligations.sql", terminal_jobs()),
        audit(
            "sql/audit/02_semaphore_is_not_the_number_of_live_obligations.sql",
            step("<>", StepState::Cancelled),
        ),
        audit("sql/audit/04_not_exactly_one_closing_message.sql", terminal_jobs()),
        audit(
            "sql/audit/09_outbox_row_without_its_digit.sql",
            format!("ending NOT IN ({cancel}, {skip})"),
        ),
        audit(
            "sql/audit/10_terminal_step_without_its_message.sql",
            among("state", &codes(by_message)),
        ),
        audit(
            "sql/audit/11_cancelled_job_with_an_open_step.sql",
            format!("state = {}", JobState::Cancelled.code()),
        ),
        audit(
            "sql/audit/11_cancelled_job_with_an_open_step.sql",
            among("state", &codes(|state: StepState| !state.is_terminal())),
        ),
        audit(
            "sql/audit/13_obligation_that_nothing_will_touch.sql",
            step("<>", StepState::Cancelled),
        ),
        audit(
            "sql/audit/13_obligation_that_nothing_will_touch.sql",
            among("state", &codes(waits)).replace("IN", "NOT IN"),
        ),
        audit(
            "sql/audit/29_signal_and_wait_that_miss_each_other.sql",
            among("state", &codes(waits)),
        ),
        audit("sql/audit/14_two_steps_in_progress.sql", step("=", StepState::InProgress)),
        audit("sql/audit/18_request_without_its_run.sql", format!("status <> {}", confirmed())),
        audit("sql/audit/24_parked_but_claimable.sql", step("<>", StepState::machine().initial)),
        audit("sql/audit/24_parked_but_claimable.sql", terminal_jobs()),
        audit(
            "sql/audit/28_countdown_is_not_the_unfinished_predecessors.sql",
            among("state", &codes(by_message)),
        ),
        audit("sql/audit/28_countdown_is_not_the_unfinished_predecessors.sql", jobs_that_go_on()),
        audit("sql/audit/34_waits_for_a_child_that_is_over.sql", terminal_jobs()),
    ]
}

/// What the audit says of how steps begin and end.
fn in_the_audit_of_ends() -> Vec<Listed> {
    let job = |state: JobState| format!("state = {}", state.code());
    let messages = "sql/audit/10_terminal_step_without_its_message.sql";
    let countdowns = "sql/audit/28_countdown_is_not_the_unfinished_predecessors.sql";
    let ending = "sql/audit/41_ending_job_of_which_all_waits.sql";
    let ends = "sql/audit/42_end_that_its_steps_do_not_bear_out.sql";
    vec![
        (messages, step("=", StepState::Cancelled), 1),
        (messages, outbox(OutboxState::FailedFinal), 1),
        (countdowns, step("=", StepState::machine().initial), 1),
        (ending, step("<>", StepState::Cancelled), 1),
        (ending, job(JobState::Cancelling), 1),
        (ending, jobs_that_go_on(), 1),
        (ends, job(JobState::Succeeded), 2),
        (ends, job(JobState::FailedFinal), 1),
        (ends, step("=", StepState::Succeeded), 1),
        (ends, step("<>", StepState::Succeeded), 1),
        (ends, step("=", StepState::Skipped), 1),
        (ends, step("=", StepState::FailedFinal), 2),
    ]
}

#[test]
fn every_literal_beside_a_state_in_sql_is_what_the_kernel_says() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../stores"));
    let mut found = BTreeMap::new();
    scan(&root.join("sql"), root, &mut found);
    scan(&root.join("src"), root, &mut found);
    let mut expected = BTreeMap::new();
    let audit = [in_the_audit(), in_the_audit_of_ends()].concat();
    let listed = [in_schemas(), in_graphs(), in_statements(), audit].concat();
    for (file, literal, count) in listed {
        *expected.entry((file.to_owned(), literal)).or_default() += count;
    }
    let unlisted: Vec<_> =
        found.iter().filter(|entry| expected.get(entry.0) != Some(entry.1)).collect();
    assert!(unlisted.is_empty(), "not what the kernel says, or not listed: {unlisted:#?}");
    let missing: Vec<_> = expected.keys().filter(|entry| !found.contains_key(*entry)).collect();
    assert!(missing.is_empty(), "listed and not there: {missing:#?}");
}

#[test]
fn the_scan_sees_every_way_to_write_a_literal() {
    let seen = |sql: &str| literals(sql).into_keys().collect::<Vec<_>>();
    assert_eq!(seen("WHERE a.state IN (0, 5) AND x = 1"), ["state IN (0, 5)"]);
    assert_eq!(seen("CHECK (state BETWEEN 0 AND 8)"), ["state BETWEEN 0 AND 8"]);
    assert_eq!(seen("WHERE j.state>=4 -- state = 3"), ["state >= 4"]);
    assert_eq!(seen("coalesce(ending, 0) <> 10"), ["ending <> 10"]);
    assert_eq!(seen("coalesce(ending, 0) NOT IN (1, 2)"), ["ending NOT IN (1, 2)"]);
    assert_eq!(seen("CASE a.outbox WHEN 0 THEN 'A' WHEN 1 THEN 'B' END"), ["outbox is 0 A, 1 B"]);
    assert_eq!(seen("INSERT INTO t (a, state) SELECT f(1, 2), 3 FROM u"), ["t is born in state 3"]);
    assert_eq!(seen("INSERT INTO s.t (status, a) VALUES (1, ?2)"), ["t is born in status 1"]);
    assert_eq!(seen("SET state = $1, ready_at = 3"), Vec::<String>::new());
    let domain = "CREATE DOMAIN sprag.step_state AS smallint CHECK (VALUE BETWEEN 0 AND 8)";
    assert_eq!(seen(domain), ["step_state BETWEEN 0 AND 8"]);
}
