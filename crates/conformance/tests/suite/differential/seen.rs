//! What must have been found before the test may end, and what cannot be found there.

/// The name of a command and a part of its answer: each succeeds, and each refuses in every way it has.
pub const SEEN: &[(&str, &str)] = &[
    ("Join", "EngineNo"),
    ("Beat", "has_mail: false"),
    ("Beat", "has_mail: true"),
    ("Beat", "silent: [EngineNo"),
    ("Beat", "Fenced"),
    ("TakeOver", "Held"),
    ("TakeOver", "Fenced"),
    ("Due", "promoted (1"),
    ("Due", "Held"),
    ("Due", "Fenced"),
    ("Leave", "()"),
    ("PutProtocol", "()"),
    ("PutProtocol", "ProtocolChanged"),
    ("Submit", "created: true"),
    ("Submit", "created: false"),
    ("Submit", "IdempotencyKeyReused"),
    ("Submit", "TenantLimit"),
    ("Submit", "Poison"),
    ("Submit", "Fenced"),
    ("Claim", "Held"),
    ("Claim", "Fenced"),
    ("Release", "()"),
    ("Release", "Fenced"),
    ("Dispatch", "Done"),
    ("Dispatch", "Ending"),
    ("Dispatch", "Moved"),
    ("Dispatch", "Gone"),
    ("Dispatch", "Fenced"),
    ("Unpublished", "Held"),
    ("Unpublished", "Fenced"),
    ("Renew", "Done"),
    ("Renew", "Gone"),
    ("Renew", "Fenced"),
    ("RecordStale", "()"),
    ("RecordStale", "Fenced"),
    ("Pulse", "()"),
    ("Pulse", "Fenced"),
    ("End", "Entered"),
    ("End", "Stale"),
    ("End", "Fenced"),
    ("EndWith", "Entered"),
    ("EndWith", "Stale"),
    ("EndWith", "BUSY"),
    ("EndWith", "Fenced"),
    ("Finish", "job: Succeeded"),
    ("Finish", "job: FailedFinal"),
    ("Finish", "job: Cancelled"),
    ("Finish", "entered_next: true"),
    ("Finish", "Gone"),
    ("Finish", "job: InProgress"),
    ("Finish", "Fenced"),
    ("Begin", "Done"),
    ("Begin", "created: true }), None"),
    ("Begin", "created: false }), None"),
    ("Begin", "Gone"),
    ("Begin", "Fenced"),
    ("Over", "job: Succeeded"),
    ("Over", "job: FailedFinal"),
    ("Over", "job: Cancelled"),
    ("Over", "entered_next: true"),
    ("Over", "Stale, None"),
    ("Over", "Fenced"),
    ("Cancel", "Ok(Cancelling, None)"),
    ("Cancel", "Ok(Cancelling, Some"),
    ("Cancel", "Ok(Succeeded"),
    ("Cancel", "JobVersionConflict"),
    ("Cancel", "Fenced"),
    ("RefuseLeg1", "Cancel"),
    ("RefuseLeg1", "Ok(None)"),
    ("RefuseLeg1", "StepNotCurrent"),
    ("RefuseLeg1", "StepIllegalTransition"),
    ("RefuseLeg1", "Fenced"),
    ("SkipLeg1", "Skip"),
    ("FailLeg1", "MessagePoison"),
    ("FailLeg1", "Fenced"),
    ("Publish", "Ok(())"),
    ("Publish", "JobVersionConflict"),
    ("Publish", "OutboxIllegalTransition"),
    ("Publish", "NotYet"),
    ("PublishFailed", "Ok(None)"),
    ("PublishFailed", "PublishFailed"),
    ("CloseUnpublished", "Ok(None)"),
    ("CloseUnpublished", "Cancel"),
    ("Ack", "Ok(())"),
    ("Ack", "StaleFence"),
    ("Ack", "NotYet"),
    ("PoisonMessage", "NonRetryable"),
    ("PoisonMessage", "Ok(None)"),
    ("PoisonMessage", "Fenced"),
    ("OpenBatch", "Some(BatchPoint"),
    ("OpenBatch", "Fenced"),
    ("CommitBatch", "cancelling: false"),
    ("CommitBatch", "Stale"),
    ("CommitBatch", "Fenced"),
    ("CommitBatchWith", "cancelling: false"),
    ("CommitBatchWith", "Stale"),
    ("CommitBatchWith", "BUSY"),
    ("Signal", "created: true, taken_by: Some"),
    ("Signal", "created: true, taken_by: None"),
    ("Signal", "created: false"),
    ("Signal", "SignalIdReused"),
    ("Signal", "JobEnding"),
    ("Signal", "None"),
    ("Signal", "Fenced"),
    ("Wait", "Runs"),
    ("Wait", "Parked"),
    ("Wait", "Gone"),
    ("Wait", "Fenced"),
    ("Admit", "1"),
    ("Admit", "0"),
    ("Admit", "Fenced"),
    ("Pause", "()"),
    ("Resume", "()"),
    ("Serve", "()"),
    ("Serve", "Fenced"),
    ("LimitTenant", "()"),
    ("ClaimTasks", "delivery: 1"),
    ("ClaimTasks", "delivery: 2"),
    ("ClaimTasks", "Fenced"),
    ("SettleTasks", "()"),
    ("SettleTasks", "Fenced"),
    ("Retire", "deleted: 1"),
    ("Retire", "Fenced"),
    ("Forget", "1"),
    ("Forget", "Fenced"),
    ("TakeIn", "1"),
    ("TakeIn", "0"),
    ("TakeIn", "Fenced"),
    ("PutSchedule", "version: "),
    ("RemoveSchedule", "true"),
    ("RemoveSchedule", "false"),
    ("RestSchedule", "()"),
    ("Tick", "true"),
    ("Tick", "false"),
    ("CreateRequest", "run_no: 0"),
    ("AmendRequest", "moved"),
    ("AmendRequest", "run"),
    ("AmendRequest", "nothing"),
    ("AmendRequest", "None"),
    ("AmendRequest", "JobVersionConflict"),
    ("AmendRequest", "DraftFrozen"),
    ("AmendRequest", "DraftBlocked"),
    ("AmendRequest", "RunMismatch"),
    ("AmendRequest", "JobIllegalTransition"),
    ("AmendRequest", "Fenced"),
    ("PutToken", "TokenView"),
    ("RevokeToken", "revoked_at: Some"),
    ("RevokeToken", "None"),
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
    ("submit", &["Submit"]),
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

/// What decides under a store's locks, and what a store refuses by itself.
const REFUSING: [&str; 8] = [
    include_str!("../../../../kernel/src/decide/submit.rs"),
    include_str!("../../../../kernel/src/decide/signal.rs"),
    include_str!("../../../../kernel/src/decide/request.rs"),
    include_str!("../../../../kernel/src/decide/rows.rs"),
    include_str!("../../../../kernel/src/decide/callback.rs"),
    include_str!("../../../../kernel/src/ledger/activity.rs"),
    include_str!("../../../../stores/src/sqlite/submit.rs"),
    include_str!("../../../../stores/src/versions.rs"),
];

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
fn every_refusal_that_a_store_can_give_is_awaited_or_tried_elsewhere() {
    for source in REFUSING {
        for text in source.split("Code::").skip(1) {
            let code: String = text.chars().take_while(|c| c.is_alphanumeric()).collect();
            let is_seen = SEEN.iter().any(|(_, answer)| answer.contains(&code));
            let is_elsewhere = UNSEEN.iter().any(|(unseen, _)| *unseen == code);
            let is_code = sprag_kernel::Code::ALL.iter().any(|known| format!("{known:?}") == code);
            assert!(!is_code || is_seen != is_elsewhere, "{code}");
        }
    }
}
