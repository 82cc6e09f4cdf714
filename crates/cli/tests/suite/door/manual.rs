//! The quickstart, walked by the letter: its files are saved, its commands are typed into a shell, and what it says
//! comes true.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{House, Running, program};

const QUICKSTART: &str = include_str!("../../../../../docs/quickstart.md");
const README: &str = include_str!("../../../../../README.md");

/// The files that a page says to save, by their names.
fn files(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for part in page.split("Save this as `").skip(1) {
        let (name, rest) = part.split_once('`').unwrap();
        let block = rest.split("```").nth(1).unwrap();
        let (_, text) = block.split_once('\n').unwrap();
        found.push((name.to_owned(), text.to_owned()));
    }
    found
}

/// The commands of a part of the page, as they stand there.
fn commands(part: u32) -> String {
    let (_, rest) = QUICKSTART.split_once(&format!("\n## {part}. ")).unwrap();
    let part = rest.split("\n## ").next().unwrap();
    // What stands between fences is a file.
    let prose = part.split("```").step_by(2);
    let lines = prose.flat_map(str::lines).filter_map(|line| line.strip_prefix("    "));
    lines.collect::<Vec<_>>().join("\n")
}

/// Types commands into a shell, whose background jobs end with it.
fn type_in(house: &House, text: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_sprag")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash")
        .arg("-eu")
        .current_dir(house.folder.path())
        .env("PATH", path)
        .env("SPRAG_DATA", house.data())
        .stdin(Stdio::piped())
        .stdout(fs::File::create(house.file("typed")).unwrap())
        .spawn()
        .unwrap();
    let text = text.replace("http://127.0.0.1:7070", &house.url());
    // Once what is in the foreground is over, those in the background are told to end.
    let text = format!("{text}\nfor worker in $(jobs -p); do kill $worker; done\nwait\n");
    shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let status = Running(shell).end();
    let said = fs::read_to_string(house.file("typed")).unwrap();
    assert!(status.success(), "{text}\n{said}");
    said
}

#[test]
fn the_quickstart_does_what_it_says() {
    assert_eq!(commands(1), "sprag serve --allow-exec");
    let mut house = House::open();
    assert!(house.server.take().unwrap().stop().success());
    house.config = Some(house.file("sprag.yaml"));
    house.write("sprag.yaml", "allow_exec: true\n");
    house.serve();
    let files = files(QUICKSTART);
    assert_eq!(files.len(), 2);
    for (name, text) in &files {
        house.write(name, text);
    }
    let worker = program("def run(");
    house.write("worker.py", worker);

    let letter = type_in(&house, &[commands(2), commands(3), commands(4)].join("\n"));
    let line = letter
        .lines()
        .find(|line| line.contains("SUCCEEDED"))
        .unwrap_or_else(|| panic!("{letter}"));
    let job_id = line.split_whitespace().next().unwrap();
    assert!(house.file("printed.json").exists());
    let told = type_in(&house, &commands(5).replace("JOB_ID", job_id));
    assert!(told.contains("Nothing: the job is over."), "{told}");

    let (before, after) = commands(6)
        .split_once("sprag job show")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let report = type_in(&house, &before);
    let line = report
        .lines()
        .find(|line| line.contains("SUCCEEDED"))
        .unwrap_or_else(|| panic!("{report}"));
    let job_id = line.split_whitespace().next().unwrap();
    let shown = type_in(&house, &format!("sprag job show{}", after.replace("JOB_ID", job_id)));
    assert!(shown.contains("42"), "{shown}");
    walk_the_request(&house);
    house.close();
}

/// Part 7: each id is taken from what was printed before.
fn walk_the_request(house: &House) {
    let part = commands(7);
    let (new, rest) = part.split_at(part.find("sprag request draft").unwrap());
    let (confirm, watch) = rest.split_at(rest.find("sprag job watch").unwrap());
    let made = type_in(house, new);
    let request_id = made.split_whitespace().next().unwrap();
    let confirmed = type_in(house, &confirm.replace("REQUEST_ID", request_id));
    assert!(
        confirmed.contains("ok     payload") && confirmed.contains("by printer"),
        "{confirmed}"
    );
    let last = confirmed.lines().rfind(|line| line.starts_with(request_id)).unwrap();
    let (_, job_id) = last.rsplit_once("job ").unwrap();
    let watch = watch.replace("JOB_ID", job_id).replace("REQUEST_ID", request_id);
    let shown = type_in(house, &[commands(3), watch].join("\n"));
    assert!(shown.contains("succeeded"), "{shown}");
}

#[test]
fn the_servers_part_of_the_readme_does_what_it_says() {
    let house = House::open();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    std::os::unix::fs::symlink(examples, house.file("examples")).unwrap();
    let (_, part) = README.split_once("In another terminal of the same folder:").unwrap();
    let lines = part.lines().skip_while(|line| line.is_empty());
    let commands: Vec<&str> = lines.map_while(|line| line.strip_prefix("    ")).collect();
    assert!(commands.len() >= 4, "{commands:?}");
    let said = type_in(&house, &commands.join("\n"));
    assert!(said.contains("SUCCEEDED"), "{said}");
    assert!(house.file("printed.json").exists());
    house.close();
}
