//! Group Q: requests. Left to the stores and surfaces: that a refused write leaves the row (Q9's two
//! writers), the scheduled time (Q7), stored jobs (Q5, Q11) and reading a message (Q29's missing job
//! and unreadable store). Q30 is by design: there is one kernel, and `pairs` holds it.

use sprag_kernel::decide::request::{
    RequestRow, Verb, cancel, confirm, draft, project, retry, run,
};
use sprag_kernel::keys::{RequestKey, normalise_space};
use sprag_kernel::{Code, JobState, Refusal, RequestStatus, State};

use RequestStatus::{Confirmed, Created, DraftReady, Failed, Queued, Running, Succeeded};

const ALL: [RequestStatus; 7] =
    [Created, DraftReady, Confirmed, Queued, Running, Succeeded, Failed];

/// A request in this status, with version 5 and the run that the status implies.
fn request(status: RequestStatus) -> RequestRow {
    let run_no = u32::from(!matches!(status, Created | DraftReady | Confirmed));
    RequestRow { status, version: 5, run_no }
}

/// The statuses after each move, the version, and the run that is created.
fn moves(answer: Result<Verb, Refusal>) -> (Vec<RequestStatus>, u64, Option<u32>) {
    match answer.expect("a move") {
        Verb::Moved { changes, version, creates_run } => {
            (changes.iter().map(sprag_kernel::Change::to).collect(), version, creates_run)
        }
        other => panic!("{other:?}"),
    }
}

fn code(answer: Result<Verb, Refusal>) -> Code {
    answer.expect_err("a refusal").code()
}

#[test]
fn q1_each_legal_verb_moves_the_request_and_its_version() {
    assert_eq!(RequestRow::new(), RequestRow { status: Created, version: 1, run_no: 0 });
    assert_eq!(moves(draft(&request(Created), Some(5), true)), (vec![DraftReady], 6, None));
    let confirmed = moves(confirm(&request(DraftReady), Some(5), false, None));
    assert_eq!(confirmed, (vec![Confirmed], 6, None));
    assert_eq!(moves(run(&request(Confirmed), Some(5))), (vec![Queued], 6, Some(1)));
    assert_eq!(moves(retry(&request(Failed), Some(5), 1)), (vec![Queued], 6, Some(2)));
}

#[test]
fn q4_run_or_confirm_in_created_is_illegal() {
    let answers = [
        (run(&request(Created), None), "queued"),
        (confirm(&request(Created), None, true, None), "confirmed"),
    ];
    for (answer, to) in answers {
        let refusal = answer.unwrap_err();
        assert_eq!(refusal.code(), Code::JobIllegalTransition);
        assert_eq!(refusal.field("from").unwrap().to_string(), "created");
        assert_eq!(refusal.field("to").unwrap().to_string(), to);
    }
    assert_eq!(code(run(&request(Created), Some(99))), Code::JobIllegalTransition);
}

#[test]
fn q5_confirm_goes_through_confirmed_to_queued_in_one_decision_and_creates_run_1() {
    let answer = moves(confirm(&request(DraftReady), None, true, None));
    assert_eq!(answer, (vec![Confirmed, Queued], 7, Some(1)));
    let resting = moves(confirm(&request(Confirmed), Some(5), true, None));
    assert_eq!(resting, (vec![Queued], 6, Some(1)));
}

#[test]
fn a_blocked_draft_cannot_be_confirmed_and_names_its_check() {
    for run in [true, false] {
        let refusal = confirm(&request(DraftReady), Some(5), run, Some("budget")).unwrap_err();
        assert_eq!(refusal.code(), Code::DraftBlocked);
        assert_eq!(refusal.field("check").unwrap().to_string(), "budget");
    }
}

#[test]
fn q7_run_is_a_no_op_once_queued_and_illegal_in_draft_ready_and_failed() {
    for status in [Queued, Running, Succeeded] {
        assert_eq!(run(&request(status), Some(1)).unwrap(), Verb::NoOp);
        assert_eq!(confirm(&request(status), Some(1), true, None).unwrap(), Verb::NoOp);
    }
    for status in [DraftReady, Failed] {
        assert_eq!(code(run(&request(status), None)), Code::JobIllegalTransition);
    }
    assert_eq!(code(confirm(&request(Failed), None, true, None)), Code::JobIllegalTransition);
    assert_eq!(confirm(&request(Confirmed), None, false, None).unwrap(), Verb::NoOp);
}

#[test]
fn q9_a_stale_version_is_a_conflict_with_expected_and_actual() {
    let answers = [
        draft(&request(Created), Some(4), true),
        draft(&request(DraftReady), Some(4), true),
        confirm(&request(DraftReady), Some(4), true, None),
        run(&request(Confirmed), Some(4)),
        retry(&request(Failed), Some(4), 1),
    ];
    for answer in answers {
        let refusal = answer.unwrap_err();
        assert_eq!(refusal.code(), Code::JobVersionConflict);
        assert_eq!(refusal.field("expected").unwrap().to_string(), "4");
        assert_eq!(refusal.field("actual").unwrap().to_string(), "5");
    }
}

#[test]
fn q10_a_stale_caller_whose_wish_is_fulfilled_gets_the_latest_state() {
    assert_eq!(run(&request(Running), Some(2)).unwrap(), Verb::NoOp);
    assert_eq!(confirm(&request(Queued), Some(2), true, None).unwrap(), Verb::NoOp);
    assert_eq!(draft(&request(DraftReady), Some(2), false).unwrap(), Verb::NoOp);
    assert_eq!(retry(&request(Queued), Some(2), 1).unwrap(), Verb::NoOp);
}

#[test]
fn q11_a_retry_names_the_failed_run_and_creates_the_next() {
    let failed = RequestRow { status: Failed, version: 9, run_no: 3 };
    assert_eq!(moves(retry(&failed, None, 3)), (vec![Queued], 10, Some(4)));
    assert_eq!(retry(&failed, None, 2).unwrap(), Verb::NoOp, "a delayed repeat starts nothing");
    for unknown in [0, 4] {
        assert_eq!(code(retry(&failed, None, unknown)), Code::RunMismatch);
    }
}

#[test]
fn q13_a_retry_of_a_success_is_a_no_op_and_the_explicit_pair_is_illegal() {
    assert_eq!(retry(&request(Succeeded), None, 1).unwrap(), Verb::NoOp);
    assert_eq!(Succeeded.wish(Queued).unwrap_err().code(), Code::JobIllegalTransition);
    for status in [Created, DraftReady, Confirmed] {
        assert_eq!(code(retry(&request(status), None, 1)), Code::JobIllegalTransition);
    }
}

#[test]
fn q15_each_job_state_projects_to_its_status() {
    let expected = [
        (JobState::Queued, Queued),
        (JobState::Dispatching, Running),
        (JobState::InProgress, Running),
        (JobState::Cancelling, Running),
        (JobState::Succeeded, Succeeded),
        (JobState::FailedFinal, Failed),
        (JobState::Cancelled, Failed),
    ];
    assert_eq!(expected.len(), JobState::machine().states.len());
    for (job, status) in expected {
        assert_eq!(project(job), status);
    }
}

#[test]
fn q18_a_cancel_before_there_is_a_job_is_illegal() {
    for status in ALL {
        let has_job = !matches!(status, Created | DraftReady | Confirmed);
        match cancel(&request(status)) {
            Ok(()) => assert!(has_job, "{status}"),
            Err(refusal) => {
                assert!(!has_job, "{status}");
                assert_eq!(refusal.code(), Code::JobIllegalTransition);
            }
        }
    }
}

#[test]
fn q19_white_space_is_trimmed_and_collapsed() {
    for (text, normal) in
        [("  hello   world  ", "hello world"), ("hello\tworld\r\n", "hello world"), ("\n\n", "")]
    {
        assert_eq!(normalise_space(text), normal);
    }
}

#[test]
fn q20_every_unicode_white_space_counts_and_nothing_else_does() {
    let cases = [
        ("a\u{a0}b", "a b"),
        ("a\u{3000}\u{3000}b", "a b"),
        ("a\u{2028}b", "a b"),
        ("a\u{85}b", "a b"),
        ("one\u{b}\u{c}two", "one two"),
        ("\u{2003}lead\u{2003}", "lead"),
        ("a\u{200b}b", "a\u{200b}b"),
        ("\u{feff}a", "\u{feff}a"),
    ];
    for (text, normal) in cases {
        assert_eq!(normalise_space(text), normal);
    }
}

fn key(fingerprint: &str, requirement: &str, plan_revision: &str) -> String {
    RequestKey { fingerprint, requirement, plan_revision }.hash().to_string()
}

#[test]
fn q22_to_q27_request_keys_are_stable() {
    let plain = "45c8d0daa4de4c9d36cd6a57a06abff6c6cd29625cdbb5208ad7bee2443b6fef";
    assert_eq!(key("abc", "hello world", ""), plain, "Q22");
    assert_eq!(key("abc", "  hello \n  world ", ""), plain, "Q22");
    let empty = "6169916179a02785986ce16f2de977bd3b2dad2ecfb1cf92294f5def72967919";
    assert_eq!(RequestKey::default().hash().to_string(), empty, "Q23");
    assert_eq!(key("", "", ""), empty, "Q23");
    let one = "23530c747cdd7dd69fd50c301ab29f1da53db52155455a92618d0386c65733c6";
    assert_eq!(key("abc", "hello world", "1"), one, "Q24");
    let two = "5f183e12de33d22ae59f41d0a3ce58ef190631781d5d56a35272ec7206ea1c5e";
    assert_eq!(key("abc", "hello world", "2"), two, "Q24");
    let case = "e39d0d3b83d5fdefb375cf768aa69bf3c08ad8860d1c891f07d7e9fc0215775b";
    assert_eq!(key("abc", "Hello world", ""), case, "Q25");
    let space = "3ce9c1d3c0cd5cca4c136728e0774e98c98054eb50c9f5295a91393ccb3f4332";
    assert_eq!(key("abc", "a\u{a0} b", ""), space, "Q27");
}

#[test]
fn q28_a_draft_is_edited_in_draft_ready_and_frozen_later() {
    let edited = draft(&request(DraftReady), Some(5), true).unwrap();
    assert_eq!(edited, Verb::Edited { version: 6 });
    for status in [Confirmed, Queued, Running, Succeeded, Failed] {
        assert_eq!(code(draft(&request(status), None, true)), Code::DraftFrozen, "{status}");
    }
}
