//! What must have been found before the test may end, and what cannot be found there.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

use sprag_kernel::Code;

/// The name of a command and what its answer shows: each succeeds, and each refuses in every way it has. With `=` it
/// is the whole answer, the name of a code is a refusal with it, and anything else stands in the answer by itself, not
/// as a part of a longer word or number.
pub const SEEN: &[(&str, &str)] = &[
    ("Join", "EngineNo"),
    ("Beat", "has_mail: false"),
    ("Beat", "has_mail: true"),
    ("Beat", "silent: [EngineNo"),
    ("Beat", "Err(Fenced)"),
    ("TakeOver", "Held"),
    ("TakeOver", "Err(Fenced)"),
    ("Due", "promoted (1"),
    ("Due", "Held"),
    ("Due", "Err(Fenced)"),
    ("Leave", "=()"),
    ("PutProtocol", "=()"),
    ("PutProtocol", "ProtocolChanged"),
    ("Submit", "created: true"),
    ("Submit", "created: false"),
    ("Submit", "IdempotencyKeyReused"),
    ("Submit", "TenantLimit"),
    ("Submit", "Poison"),
    ("Submit", "Err(Fenced)"),
    ("Rerun", "created: true"),
    ("Rerun", "created: false"),
    ("Rerun", "JobNotFailed"),
    ("Rerun", "JobNotPlain"),
    ("Rerun", "Err(Fenced)"),
    ("Claim", "Held"),
    ("Claim", "Err(Fenced)"),
    ("Release", "=()"),
    ("Release", "Err(Fenced)"),
    ("Dispatch", "Done"),
    ("Dispatch", "Ending"),
    ("Dispatch", "Moved"),
    ("Dispatch", "Gone"),
    ("Dispatch", "Err(Fenced)"),
    ("Unpublished", "Held"),
    ("Unpublished", "Err(Fenced)"),
    ("Renew", "Done"),
    ("Renew", "Gone"),
    ("Renew", "Err(Fenced)"),
    ("RecordStale", "=()"),
    ("RecordStale", "Err(Fenced)"),
    ("Pulse", "=()"),
    ("Pulse", "Err(Fenced)"),
    ("End", "Entered"),
    ("End", "Stale"),
    ("End", "Err(Fenced)"),
    ("EndWith", "Entered"),
    ("EndWith", "Stale"),
    ("EndWith", "BUSY"),
    ("EndWith", "Err(Fenced)"),
    ("Finish", "job: Succeeded"),
    ("Finish", "job: FailedFinal"),
    ("Finish", "job: Cancelled"),
    ("Finish", "entered_next: true"),
    ("Finish", "Gone"),
    ("Finish", "job: InProgress"),
    ("Finish", "Err(Fenced)"),
    ("Begin", "Done"),
    ("Begin", "created: true }), None"),
    ("Begin", "created: false }), None"),
    ("Begin", "Gone"),
    ("Begin", "Err(Fenced)"),
    ("Over", "job: Succeeded"),
    ("Over", "job: FailedFinal"),
    ("Over", "job: Cancelled"),
    ("Over", "entered_next: true"),
    ("Over", "Stale, None"),
    ("Over", "Err(Fenced)"),
    ("Cancel", "Ok(Cancelling, None)"),
    ("Cancel", "Ok(Cancelling, Some"),
    ("Cancel", "Ok(Succeeded"),
    ("Cancel", "JobVersionConflict"),
    ("Cancel", "Err(Fenced)"),
    ("RefuseLeg1", "kind: Cancel"),
    ("RefuseLeg1", "=Ok(None)"),
    ("RefuseLeg1", "StepNotCurrent"),
    ("RefuseLeg1", "StepIllegalTransition"),
    ("RefuseLeg1", "Err(Fenced)"),
    ("SkipLeg1", "kind: Skip"),
    ("FailLeg1", "Leg1Failed(MessagePoison)"),
    ("FailLeg1", "Err(Fenced)"),
    ("Publish", "=Ok(())"),
    ("Publish", "JobVersionConflict"),
    ("Publish", "OutboxIllegalTransition"),
    ("Publish", "NotYet"),
    ("PublishFailed", "=Ok(None)"),
    ("PublishFailed", "kind: PublishFailed"),
    ("CloseUnpublished", "=Ok(None)"),
    ("CloseUnpublished", "kind: Cancel"),
    ("Ack", "=Ok(())"),
    ("Ack", "StaleFence"),
    ("Ack", "NotYet"),
    ("PoisonMessage", "kind: NonRetryable"),
    ("PoisonMessage", "=Ok(None)"),
    ("PoisonMessage", "Err(Fenced)"),
    ("OpenBatch", "Some(BatchPoint"),
    ("OpenBatch", "Err(Fenced)"),
    ("CommitBatch", "cancelling: false"),
    ("CommitBatch", "Stale"),
    ("CommitBatch", "Err(Fenced)"),
    ("CommitBatchWith", "cancelling: false"),
    ("CommitBatchWith", "Stale"),
    ("CommitBatchWith", "BUSY"),
    ("Signal", "created: true, taken_by: Some"),
    ("Signal", "created: true, taken_by: None"),
    ("Signal", "created: false"),
    ("Signal", "SignalIdReused"),
    ("Signal", "JobEnding"),
    ("Signal", "=None"),
    ("Signal", "Err(Fenced)"),
    ("Wait", "Runs"),
    ("Wait", "Parked"),
    ("Wait", "Gone"),
    ("Wait", "Err(Fenced)"),
    ("Admit", "=1"),
    ("Admit", "=0"),
    ("Admit", "Err(Fenced)"),
    ("Pause", "=()"),
    ("Resume", "=()"),
    ("Serve", "=()"),
    ("Serve", "Err(Fenced)"),
    ("LimitTenant", "=()"),
    ("ClaimTasks", "delivery: 1"),
    ("ClaimTasks", "delivery: 2"),
    ("ClaimTasks", "Err(Fenced)"),
    ("SettleTasks", "=()"),
    ("SettleTasks", "Err(Fenced)"),
    ("Retire", "deleted: 1"),
    ("Retire", "Err(Fenced)"),
    ("Forget", "=1"),
    ("Forget", "Err(Fenced)"),
    ("TakeIn", "=1"),
    ("TakeIn", "=0"),
    ("TakeIn", "Err(Fenced)"),
    ("PutSchedule", "version: "),
    ("RemoveSchedule", "=true"),
    ("RemoveSchedule", "=false"),
    ("RestSchedule", "=()"),
    ("Tick", "=true"),
    ("Tick", "=false"),
    ("CreateRequest", "run_no: 0"),
    ("AmendRequest", "=Some(Ok(\"moved\"))"),
    ("AmendRequest", "=Some(Ok(\"run\"))"),
    ("AmendRequest", "=Some(Ok(\"nothing\"))"),
    ("AmendRequest", "=None"),
    ("AmendRequest", "JobVersionConflict"),
    ("AmendRequest", "DraftFrozen"),
    ("AmendRequest", "DraftBlocked"),
    ("AmendRequest", "RunMismatch"),
    ("AmendRequest", "JobIllegalTransition"),
    ("AmendRequest", "Err(Fenced)"),
    ("PutToken", "TokenView"),
    ("RevokeToken", "revoked_at: Some"),
    ("RevokeToken", "=None"),
    ("Read", "JobView"),
    ("Look", "ScheduleView"),
];

/// Refusals that no random command comes to, and where they are tried.
const UNSEEN: &[(&str, &str)] = &[
    ("SignalLimit", "after ten thousand signals; signals.rs"),
    ("Leg1AttemptsExhausted", "after 999 entries, d1 in ledgers.rs"),
    ("Leg2EntriesExhausted", "after 99,999,999 entries, d2 in ledgers.rs"),
    ("Leg1Incomplete", "no plan ends what has no directive; l11 in ledgers.rs"),
    ("StepOutOfOrder", "no plan asks for a step twice; the kernel's own tests"),
    ("ResultInvalid", "of a worker's text, before a store is asked; the kernel's own tests"),
    ("AuditBroken", "of a store whose rows contradict each other; job.rs of the command line"),
    ("DocIdMissing", "of an envelope, before a store is asked; hostile.rs"),
    ("InputUnreadable", "of a file that is not there; move_store.rs of the command line"),
    ("LedgerDigits", "of digits that no store has given out; the kernel's ledgers.rs"),
    ("LedgerImpossible", "of digits that no store has given out; the kernel's ledgers.rs"),
    ("MoveRefused", "of a store that moves; move_store.rs of the command line"),
    ("SemaphoreRange", "no plan has so many children; the kernel's ledgers.rs"),
    ("SeqIllegalTransition", "of lanes, which have no store; the kernel's pairs.rs"),
    ("SeqNotCursor", "of lanes, which have no store; seq_cases.rs"),
    ("SeqStaleOwner", "of lanes, which have no store; seq_cases.rs"),
    ("StoreClosed", "of a store that has moved; move_store.rs of the command line"),
    ("StoreInUse", "of a file that another process has open; job.rs of the command line"),
    ("StoreUrlInvalid", "of a URL; tls.rs and job.rs of the command line"),
    ("SchemaTooNew", "of a store that a newer binary has opened; upgrades.rs"),
];

/// Every primitive that writes, and the commands that call it.
const WRITING: &[(&str, &[&str])] = &[
    ("join", &["Join"]),
    ("beat", &["Beat"]),
    ("take_over", &["TakeOver"]),
    ("due", &["Due"]),
    ("put_protocol", &["PutProtocol"]),
    ("leave", &["Leave"]),
    ("submit", &["Submit", "Rerun"]),
    ("claim", &["Claim"]),
    ("dispatch", &["Dispatch"]),
    ("renew", &["Renew"]),
    ("record_stale", &["RecordStale"]),
    ("release", &["Release"]),
    ("unpublished", &["Unpublished"]),
    ("end", &["End"]),
    ("end_with", &["EndWith"]),
    ("commit_batch_with", &["CommitBatchWith"]),
    ("pulse", &["Pulse"]),
    ("finish", &["Finish"]),
    ("submit_and_dispatch", &["Begin"]),
    ("end_and_finish", &["Over"]),
    ("take_in", &["TakeIn"]),
    (
        "amend",
        &[
            "Cancel",
            "RefuseLeg1",
            "SkipLeg1",
            "FailLeg1",
            "Publish",
            "PublishFailed",
            "CloseUnpublished",
            "Ack",
            "PoisonMessage",
        ],
    ),
    ("pause", &["Pause"]),
    ("resume", &["Resume"]),
    ("serve", &["Serve"]),
    ("limit_tenant", &["LimitTenant"]),
    ("claim_tasks", &["ClaimTasks"]),
    ("settle_tasks", &["SettleTasks"]),
    ("retire", &["Retire"]),
    ("forget", &["Forget"]),
    ("open_batch", &["OpenBatch"]),
    ("commit_batch", &["CommitBatch"]),
    ("signal", &["Signal"]),
    ("wait", &["Wait"]),
    ("admit", &["Admit"]),
    ("put_schedule", &["PutSchedule"]),
    ("remove_schedule", &["RemoveSchedule"]),
    ("rest_schedule", &["RestSchedule"]),
    ("tick", &["Tick"]),
    ("create_request", &["CreateRequest"]),
    ("amend_request", &["AmendRequest"]),
    ("put_token", &["PutToken"]),
    ("revoke_token", &["RevokeToken"]),
];

/// Primitives that only read. All but the first five are compared by `Read` and `Look`: those tell a process, or
/// give an order that is each store's own.
const READING: &[&str] = &[
    "is_exclusive",
    "listen",
    "feed",
    "audit",
    "held_by",
    "find",
    "protocol",
    "protocols",
    "now",
    "claimed",
    "cancelling",
    "inbox_waiting",
    "inbox",
    "children",
    "ends",
    "job",
    "attempts",
    "attempts_by",
    "events",
    "events_after",
    "jobs",
    "open_jobs",
    "services",
    "tenants",
    "undelivered",
    "tasks",
    "backlog",
    "counts",
    "batch",
    "batch_journal",
    "signals",
    "signal_of",
    "lines",
    "gate",
    "schedule",
    "schedules",
    "next_schedules",
    "request",
    "requests",
    "request_events",
    "token",
    "tokens",
];

/// Where the traits of the seam are.
const SEAM: [&str; 8] = [
    include_str!("../../../../engine/src/store.rs"),
    include_str!("../../../../engine/src/upkeep.rs"),
    include_str!("../../../../engine/src/batch/store.rs"),
    include_str!("../../../../engine/src/signals.rs"),
    include_str!("../../../../engine/src/gate.rs"),
    include_str!("../../../../engine/src/schedules.rs"),
    include_str!("../../../../engine/src/requests/store.rs"),
    include_str!("../../../../engine/src/tokens.rs"),
];

/// Where rules decide, and the stores, which refuse some things by themselves.
const REFUSING: [&str; 5] = [
    "kernel/src/decide",
    "kernel/src/ledger",
    "kernel/src/machines",
    "kernel/src/keys.rs",
    "stores/src",
];

/// Whether an answer shows this case.
pub fn shows(answer: &str, case: &str) -> bool {
    if let Some(whole) = case.strip_prefix('=') {
        return answer == whole;
    }
    if is_code(case) {
        return stands_in(answer, &format!("code: {case}"));
    }
    stands_in(answer, case)
}

fn is_code(text: &str) -> bool {
    static NAMES: LazyLock<BTreeSet<String>> =
        LazyLock::new(|| Code::ALL.iter().map(|code| format!("{code:?}")).collect());
    NAMES.contains(text)
}

/// Whether the text has this part, and no word of the part goes on beyond it.
fn stands_in(text: &str, part: &str) -> bool {
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(part).any(|(at, _)| {
        let (before, behind) = (&text[..at], &text[at + part.len()..]);
        let begins = is_word(part.chars().next()) && is_word(before.chars().next_back());
        let goes_on = is_word(part.chars().next_back()) && is_word(behind.chars().next());
        !begins && !goes_on
    })
}

/// The sources below a path.
fn sources(path: &Path) -> Vec<String> {
    if path.is_file() {
        return vec![std::fs::read_to_string(path).unwrap()];
    }
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| sources(&path)).collect()
}

/// The names of the functions of the traits in a source.
fn functions(source: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for part in source.split("\npub trait ").skip(1) {
        let body = part.split("\n}").next().unwrap();
        let functions = body.split("\n    fn ").skip(1);
        names.extend(functions.map(|text| text.split(['(', '<']).next().unwrap()));
    }
    names
}

#[test]
fn every_primitive_of_the_seam_is_a_command_or_only_reads() {
    let mut known: Vec<&str> = WRITING.iter().map(|(name, _)| *name).collect();
    known.extend(READING);
    known.sort_unstable();
    let mut there: Vec<&str> = SEAM.iter().flat_map(|source| functions(source)).collect();
    there.sort_unstable();
    assert_eq!(there, known);
    for (name, commands) in WRITING {
        for command in *commands {
            assert!(
                SEEN.iter().any(|(seen, _)| seen == command),
                "{command} of {name} is not awaited"
            );
        }
    }
}

#[test]
fn every_refusal_that_a_rule_or_a_store_can_give_is_awaited_or_tried_elsewhere() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut there = BTreeSet::new();
    for source in REFUSING.iter().flat_map(|path| sources(&crates.join(path))) {
        // A machine says which code it refuses as.
        for text in source.split("Code::").flat_map(|text| text.split(" as ")) {
            let code: String = text.chars().take_while(|c| c.is_alphanumeric()).collect();
            there.extend(Some(code).filter(|code| is_code(code)));
        }
    }
    assert!(there.len() > 25, "the sources are found: {there:?}");
    let seen = SEEN.iter().map(|(_, case)| (*case).to_owned()).filter(|case| is_code(case));
    let seen: BTreeSet<String> = seen.collect();
    let unseen: BTreeSet<String> = UNSEEN.iter().map(|(code, _)| (*code).to_owned()).collect();
    assert_eq!(seen.intersection(&unseen).collect::<Vec<_>>(), [""; 0], "one or the other");
    assert_eq!(seen.union(&unseen).cloned().collect::<BTreeSet<_>>(), there);
}

#[test]
fn a_case_is_the_whole_answer_or_stands_in_it_by_itself() {
    assert!(shows("None", "=None") && !shows("Some(None)", "=None"));
    assert!(shows("promoted (1, 5)", "promoted (1") && !shows("promoted (12, 5)", "promoted (1"));
    assert!(shows("kind: Cancel }", "kind: Cancel") && !shows("to: Cancelling", "Cancel"));
    assert!(shows("Refusal { code: NotYet, .. }", "NotYet") && !shows("NotYet", "NotYet"));
}
