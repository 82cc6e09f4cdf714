//! Items in, results out.

use std::io::Write;
use std::time::{Duration, Instant};

use super::super::sprag;
use super::{Bench, run};

fn map(words: &[&str], stdin: &str) -> super::Said {
    let words: Vec<&str> = std::iter::once("map").chain(words.iter().copied()).collect();
    sprag(&words, stdin)
}

#[test]
fn items_come_from_stdin_a_file_zero_bytes_or_words() {
    assert_eq!(map(&["echo", "<{}>"], "a b\n\nc").stdout, "<a b>\n<>\n<c>\n");
    assert_eq!(map(&["-0", "echo", "{}"], "a\nb\0c\0").stdout, "a\nb\nc\n");
    assert_eq!(map(&["echo", ":::", "x", "y z"], "").stdout, "x\ny z\n");
    assert_eq!(map(&["echo"], "").stdout, "");
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"1\n2\n").unwrap();
    assert_eq!(map(&["-a", file.path().to_str().unwrap(), "--", "echo"], "no").stdout, "1\n2\n");
    map(&["-a", "/does/not/exist", "echo"], "").refused("INPUT_UNREADABLE");
}

#[test]
fn results_keep_the_order_of_the_items_whatever_takes_longer() {
    let said = map(&["-j4", "sleep 0.{}; echo {}; echo {}"], "4\n1\n3\n0\n2\n");
    assert_eq!(said.stdout, "4\n4\n1\n1\n3\n3\n0\n0\n2\n2\n");
    assert_eq!((said.code, said.stderr.as_str()), (0, ""));
}

#[test]
fn shell_syntax_runs_in_a_shell_and_words_do_not() {
    assert_eq!(map(&["echo $((1 + {})) | tr 3 x", ":::", "2"], "").stdout, "x\n");
    assert_eq!(map(&["echo", "$HOME", "{}", ":::", "a; b"], "").stdout, "$HOME a; b\n");
    assert_eq!(map(&["--shell", "echo", "$((1+1))", ":::", "a"], "").stdout, "2 a\n");
    assert_eq!(map(&["echo", "{}", "|", "tr", "a", "b", ":::", "a"], "").stdout, "b\n");
    assert_eq!(map(&["--no-shell", "echo", "{}", "|", ":::", "a"], "").stdout, "a |\n");
}

#[test]
fn a_failed_item_leaves_no_output_and_the_exit_code_says_so() {
    let script = "echo {}; echo oops {} >&2; [ {} != b ]";
    let said = map(&[script, ":::", "a", "b", "c"], "");
    assert_eq!((said.stdout.as_str(), said.code), ("a\nc\n", 1));
    assert!(said.stderr.starts_with("oops a\noops b\noops c\nITEMS_FAILED: "), "{}", said.stderr);
    assert_eq!(map(&["--keep-failed", script, ":::", "a", "b"], "").stdout, "a\nb\n");
    let only = map(&["--stderr", "failed", script, ":::", "a", "b"], "");
    assert!(only.stderr.starts_with("oops b\nITEMS_FAILED"), "{}", only.stderr);
    assert!(map(&["--stderr", "drop", script, ":::", "b"], "").stderr.starts_with("ITEMS_FAILED"));
    assert!(map(&["--stderr", "pass", script, ":::", "b"], "").stderr.starts_with("oops b\n"));
}

#[test]
fn tag_begins_every_line_with_its_item() {
    let said = map(&["--tag", "echo 1; printf 2", ":::", "a", "b"], "");
    assert_eq!(said.stdout, "a\t1\na\t2b\t1\nb\t2");
}

#[test]
fn jsonl_has_one_record_per_item() {
    let script = "echo {}; [ {} = a ] || exit 4";
    let said = map(&["--jsonl", "--retries", "1", "--backoff", "1ms", script, ":::", "a", "b"], "");
    let records: Vec<serde_json::Value> =
        said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = serde_json::json!([
        {"seq": 0, "item": "a", "outcome": "success", "attempts": 0, "exit_code": 0, "output": "a\n"},
        {"seq": 1, "item": "b", "outcome": "fail", "attempts": 1, "exit_code": 4, "output": "b\n"},
    ]);
    assert_eq!(serde_json::Value::from(records), expected);
    let odd = map(&["--jsonl", r"printf '\377'; kill -9 $$", ":::", "a"], "");
    assert_eq!((&odd.json()["output_hex"], &odd.json()["signal"]), (&"ff".into(), &9.into()));
}

#[test]
fn retries_are_bounded_waited_for_and_limited_to_the_codes_named() {
    let bench = Bench::new(1);
    let tries = |options: &[&str]| {
        std::fs::write(bench.path("tries"), "").unwrap();
        let mut command = bench.bare(options);
        let script = "echo x >> tries; [ $(wc -l < tries) -gt 2 ] || exit 75";
        let said = run({
            command.args(["--", script, ":::", "a"]);
            command
        });
        (std::fs::read_to_string(bench.path("tries")).unwrap().lines().count(), said.code)
    };
    assert_eq!(tries(&[]), (1, 1));
    assert_eq!(tries(&["--retries", "1", "--backoff", "1ms"]), (2, 1));
    let begun = Instant::now();
    assert_eq!(tries(&["--retries", "5", "--backoff", "100ms,300ms"]), (3, 0));
    assert!(begun.elapsed() >= Duration::from_millis(400));
    assert_eq!(tries(&["--retries", "5", "--backoff", "1ms", "--retry-exit", "70-80"]), (3, 0));
    assert_eq!(tries(&["--retries", "5", "--backoff", "1ms", "--retry-exit", "1,timeout"]), (1, 1));
}

#[test]
fn a_command_that_takes_too_long_is_ended() {
    let begun = Instant::now();
    let said = map(&["--jsonl", "--timeout", "200ms", "echo begun {}; sleep 67", ":::", "a"], "");
    assert!(begun.elapsed() < Duration::from_secs(20));
    let record = said.json();
    assert_eq!(record["outcome"], "fail");
    assert_eq!(
        (&record["timeout"], &record["exit_code"]),
        (&true.into(), &serde_json::Value::Null)
    );
    assert_eq!(record["output"], "begun a\n");
}

#[test]
fn dry_run_prints_commands_and_runs_none() {
    let said = map(&["--dry-run", "touch", "/does/not/exist/{#}", "{}", ":::", "a b", "c"], "");
    assert_eq!(said.stdout, "touch /does/not/exist/1 'a b'\ntouch /does/not/exist/2 c\n");
    let said = map(&["--dry-run", "--json", "echo", ":::", "a"], "");
    assert_eq!(said.json(), serde_json::json!({"seq": 0, "item": "a", "command": "echo a"}));
    let bench = Bench::new(9);
    run(bench.command(&[]));
    std::fs::write(bench.path("items"), "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n").unwrap();
    assert_eq!(
        run(bench.command(&["--dry-run"])).stdout,
        "/bin/sh work 10\n",
        "from the cursor on"
    );
}

#[test]
fn the_summary_is_the_same_for_any_number_of_jobs() {
    let summary = |jobs: &str| {
        let script = "echo {}; [ {} != 9 ]";
        let said = map(&["--summary", jobs, "--stderr", "drop", script], "1\n9\n3\n4\n5\n");
        let line = said.stderr.lines().next().unwrap().to_owned();
        let mut summary: serde_json::Value = serde_json::from_str(&line).unwrap();
        summary.as_object_mut().unwrap().remove("elapsed_ms").unwrap();
        summary
    };
    let one = summary("-j1");
    assert_eq!(one["counts"], serde_json::json!({"success": 4, "skip": 0, "fail": 1, "cancel": 0}));
    assert_eq!((&one["ending"], &one["total"]), (&"complete".into(), &5.into()));
    assert_eq!(one, summary("-j5"));
}

#[test]
fn the_summary_can_go_to_a_file() {
    let bench = Bench::new(8);
    run(bench.command(&["--summary=told.json"])).refused("ITEMS_FAILED");
    let told = std::fs::read_to_string(bench.path("told.json")).unwrap();
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["total"], &told["counts"]["fail"]), (&8.into(), &1.into()));
    assert_eq!(told["output_bytes"], bench.out().len());
    run(bench.command(&["--summary=/does/not/exist/told.json"])).refused("INPUT_UNREADABLE");
}

#[test]
fn a_terminal_shows_how_the_run_goes_unless_it_is_to_be_quiet() {
    let on_terminal = |option: &str| {
        let line =
            format!("{} map {option} 'sleep 0.3; echo' ::: a b", env!("CARGO_BIN_EXE_sprag"));
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm");
        script.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
        run(script).stdout
    };
    let shown = on_terminal("");
    assert!(shown.contains("cursor 0, lag ") && shown.contains("/2 "), "{shown}");
    assert_eq!(on_terminal("-q"), "a\r\nb\r\n");
    assert_eq!(on_terminal("--quiet"), "a\r\nb\r\n");
}

#[test]
fn what_failed_items_print_in_vain_takes_no_memory() {
    let bench = Bench::new(60);
    // The first one holds up the others; the last one looks at what they have cost the run until then.
    let script = "[ {} = 1 ] && { until [ -e over ]; do sleep 0.01; done; exit 0; }; \
                  [ {} = 60 ] && { grep VmHWM /proc/$PPID/status; touch over; exit 0; }; \
                  head -c 4000000 /dev/zero; exit 1";
    let said = run(bench.bare(&["-j2", "-a", "items", "--", script]));
    assert_eq!(said.code, 1, "{}", said.stderr);
    let peak: Vec<&str> = said.stdout.split_whitespace().collect();
    let ["VmHWM:", kib, "kB"] = peak[..] else { panic!("{}", said.stdout) };
    assert!(kib.parse::<u64>().unwrap() < 120_000, "{kib} KiB for 232 MB");
}

#[test]
fn an_output_that_takes_no_more_ends_the_run() {
    map(&["--out", "/dev/full", "echo", ":::", "a", "b"], "").refused("INPUT_UNREADABLE");
    let said = map(&["--out", "/dev/null", "echo", ":::", "a"], "");
    assert_eq!((said.code, said.stderr.as_str()), (0, ""));
    map(&["--out", "/does/not/exist/out", "echo", ":::", "a"], "").refused("INPUT_UNREADABLE");
}

#[test]
fn wrong_usage_of_map_exits_2() {
    for words in [
        &["map"][..],
        &["map", ":::", "a"],
        &["map", "echo", ":::", "a", ":::", "b"],
        &["map", "-a", "x", "echo", ":::", "a"],
        &["map", "--halt", "often", "echo"],
        &["map", "--timeout", "soon", "echo"],
        &["map", "--end-orphans", "echo"],
    ] {
        assert_eq!(sprag(words, "").code, 2, "{words:?}");
    }
}

#[test]
fn status_of_what_is_no_journal_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    map(&["status", file.path().to_str().unwrap()], "").refused("JOURNAL_FOREIGN");
    map(&["status", "/does/not/exist"], "").refused("JOURNAL_UNAVAILABLE");
}
