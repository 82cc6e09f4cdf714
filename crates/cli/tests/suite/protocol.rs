//! `sprag protocol`.

use super::sprag;

const PAGES: &str = r"
protocol_id: pages.v1
request_types: [PAGES]
steps:
  - {step_id: split, service: splitter}
  - {step_id: meta, needs: [], service: reader}
  - {step_id: pages, needs: [split], for_each: steps.split.output.pages, max_parallel: 50, service: page-worker}
  - {step_id: assemble, needs: [pages, meta], when: size(steps.pages.output) > 0, service: writer}
";

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn a_sound_protocol_is_shown_as_text_and_as_a_flowchart() {
    let file = file(PAGES);
    let path = file.path().to_str().unwrap();
    let checked = sprag(&["protocol", "check", path], "");
    assert_eq!(
        (checked.code, checked.stdout.as_str()),
        (0, "pages.v1 is sound: a graph of 6 nodes\n")
    );
    let text = sprag(&["protocol", "show", path], "");
    assert_eq!(
        text.stdout,
        "split: service splitter\n\
         meta: service reader\n\
         pages: for each of steps.split.output.pages, 50 at a time, after split\n  \
           pages: service page-worker\n\
         assemble: service writer, when size(steps.pages.output) > 0, after meta, pages\n"
    );
    let chart = sprag(&["protocol", "show", path, "--format", "mermaid"], "").stdout;
    assert!(chart.starts_with("flowchart TD\n"), "{chart}");
    for edge in ["n0 --> n2", "n2 --> n3", "n3 --> n4", "n4 --> n5", "n1 --> n5"] {
        assert!(chart.contains(edge), "{edge} in {chart}");
    }
    assert_eq!(chart.matches("subgraph").count(), chart.matches("end\n").count(), "{chart}");
}

#[test]
fn a_cycle_is_shown_with_its_condition_and_the_way_back() {
    let file = file(
        "{protocol_id: poll.v1, request_types: [POLL], steps: [{step_id: poll, service: s,\
          repeat: {while: steps.poll.output.left > 0, max: 9, delay: 10s}}, {step_id: after, service: s}]}",
    );
    let path = file.path().to_str().unwrap();
    let text = sprag(&["protocol", "show", path], "");
    assert_eq!(
        text.stdout,
        "poll: repeat while steps.poll.output.left > 0, 9 turns at most, 10s apart\n  \
           poll: service s\n\
         after: service s, after poll\n"
    );
    let chart = sprag(&["protocol", "show", path, "--format", "mermaid"], "").stdout;
    for edge in ["n0 --> n1", "n1 --> n2", "n2 -. again .-> n0", "n2 --> n3"] {
        assert!(chart.contains(edge), "{edge} in {chart}");
    }
}

#[test]
fn a_mistake_is_refused_with_its_place() {
    let file = file(&PAGES.replace("steps.split.output.pages", "steps.meta.output"));
    let said = sprag(&["protocol", "check", file.path().to_str().unwrap(), "--json"], "");
    assert_eq!(said.code, 1);
    let error = said.error();
    assert_eq!(error["error_code"], "PROTOCOL_INVALID");
    assert_eq!(error["fields"]["place"], "steps[2].for_each");
}
