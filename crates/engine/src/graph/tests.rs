//! What compiles to what, and what is refused where.

use super::*;
use crate::protocol::Protocol;

fn graph(steps: &str) -> Graph {
    read(steps).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn read(steps: &str) -> Result<Graph, sprag_kernel::Refusal> {
    let text = format!("protocol_id: p.v1\nrequest_types: [P]\nsteps:\n{steps}");
    Protocol::read(&text)?.graph()
}

#[track_caller]
fn refused(steps: &str, place: &str, reason: &str) {
    let refusal = read(steps).expect_err("this protocol is wrong");
    let said = refusal.to_string();
    assert!(said.contains(place) && said.contains(reason), "{said}");
}

/// Each node with what it waits for, by name.
fn edges(graph: &Graph) -> Vec<(&str, Vec<&str>)> {
    let name = |index: &u32| graph.node(*index).step_id.as_str();
    let needs = |node: &Node| node.needs.iter().map(name).collect();
    graph.nodes().iter().map(|node| (node.step_id.as_str(), needs(node))).collect()
}

#[test]
fn without_keys_of_a_graph_it_is_the_sequence_that_it_was() {
    let graph = graph("  - {step_id: a, service: s}\n  - {step_id: b, service: s}\n");
    assert!(graph.is_sequence());
    assert_eq!(edges(&graph), [("a", vec![]), ("b", vec!["a"])]);
    assert!(graph.nodes().iter().all(|node| matches!(node.kind, Kind::Work)));
}

#[test]
fn needs_make_a_diamond_and_forward_names_are_put_in_order() {
    let graph = graph(
        "  - {step_id: last, needs: [left, right], service: s}\n  \
           - {step_id: left, needs: [first], service: s}\n  \
           - {step_id: right, needs: [first], service: s}\n  \
           - {step_id: first, needs: [], service: s}\n",
    );
    assert_eq!(
        edges(&graph),
        [
            ("first", vec![]),
            ("left", vec!["first"]),
            ("right", vec!["first"]),
            ("last", vec!["left", "right"])
        ]
    );
    assert_eq!(graph.node(3).sees, [0, 1, 2]);
    assert_eq!(graph.node(0).followers, [1, 2]);
}

#[test]
fn a_fan_out_is_an_opener_a_scope_and_a_closer() {
    let graph = graph(
        "  - {step_id: list, service: s}\n  \
           - {step_id: each, for_each: steps.list.output, on_failure: {tolerate: 2}, service: s}\n  \
           - {step_id: after, service: s}\n",
    );
    let names: Vec<_> = graph.nodes().iter().map(|node| node.step_id.as_str()).collect();
    assert_eq!(names, ["list", "each/fan", "each", "each/gather", "after"]);
    assert_eq!(graph.scopes()[1].kind, ScopeKind::Branches { fan: 1, gather: 3, end: 2 });
    assert!(graph.scopes()[1].tolerates && !graph.scopes()[0].tolerates);
    assert_eq!(graph.scopes()[0].nodes, [0, 1, 4], "a closer is born with what it closes");
    assert_eq!(graph.node(4).needs, [3], "who waits for a fan-out waits for its closer");
    assert_eq!(graph.node(2).sees, [0]);
    assert_eq!(graph.node(4).sees, [0, 3]);
}

#[test]
fn what_the_engine_does_for_a_step_may_be_lost_as_often_as_the_step() {
    let graph = graph(
        "  - step_id: each\n    for_each: input\n    retry: {max_losses: 3}\n    steps:\n      \
             - {step_id: a, service: s}\n      \
             - {step_id: b, needs: [], service: s}\n  \
           - {step_id: again, repeat: {while: 'false', max: 2}, retry: {max_losses: 4}, service: s}\n",
    );
    let losses: Vec<_> =
        graph.nodes().iter().map(|node| (node.step_id.as_str(), node.policy.max_losses)).collect();
    assert_eq!(
        losses,
        [
            ("each/fan", 3),
            ("a", 10),
            ("b", 10),
            ("each/join", 3),
            ("each/gather", 3),
            ("again/begin", 4),
            ("again", 4),
            ("again/loop", 4),
        ]
    );
}

#[test]
fn a_scope_with_several_last_steps_is_ended_by_a_join() {
    let graph = graph(
        "  - step_id: each\n    for_each: input\n    steps:\n      \
             - {step_id: a, service: s}\n      \
             - {step_id: b, needs: [a], service: s}\n      \
             - {step_id: c, needs: [a], when: item.wants, service: s}\n",
    );
    assert_eq!(
        edges(&graph),
        [
            ("each/fan", vec![]),
            ("a", vec![]),
            ("b", vec!["a"]),
            ("c", vec!["a"]),
            ("each/join", vec!["b", "c"]),
            ("each/gather", vec![]),
        ]
    );
    assert_eq!(graph.scopes()[1].kind, ScopeKind::Branches { fan: 0, gather: 5, end: 4 });
}

#[test]
fn a_cycle_is_an_opener_a_scope_and_a_closer_that_looks_at_the_turn() {
    let graph = graph(
        "  - step_id: poll\n    repeat: {while: steps.poll.output.left > 0 && turn < 5, max: 9, delay: 10s}\n    \
               service: s\n  - {step_id: after, service: s}\n",
    );
    let names: Vec<_> = graph.nodes().iter().map(|node| node.step_id.as_str()).collect();
    assert_eq!(names, ["poll/begin", "poll", "poll/loop", "after"]);
    assert!(graph.scopes()[1].in_cycle);
    assert_eq!(graph.node(3).needs, [2]);
}

#[test]
fn fan_outs_nest_three_deep_and_no_deeper() {
    let nest = |depth: usize| {
        let mut steps = String::new();
        for level in 0..depth {
            let indent = " ".repeat(2 + 4 * level);
            let fan = format!("- step_id: f{level}\n{indent}  for_each: input\n{indent}  steps:\n");
            steps.extend([&indent, &fan].map(String::as_str));
        }
        let indent = " ".repeat(2 + 4 * depth);
        steps + &format!("{indent}- {{step_id: x, service: s}}\n")
    };
    assert_eq!(graph(&nest(3)).scopes()[3].depth, 3);
    refused(&nest(4), "for_each", "nested deeper than 3");
}

#[test]
fn mistakes_are_refused_where_they_are() {
    let a = "  - {step_id: a, service: s}\n";
    for (step, place, reason) in [
        ("{step_id: b, needs: [nobody], service: s}", "steps[1].needs", "no step of this list"),
        ("{step_id: b, needs: [a, a], service: s}", "steps[1].needs", "twice"),
        ("{step_id: b, needs: [b], service: s}", "steps", "in a circle"),
        ("{step_id: a, service: s}", "steps[1]", "twice"),
        ("{step_id: b}", "steps[1]", "neither a service"),
        ("{step_id: b, service: s, sleep: 1s}", "steps[1]", "service, sleep"),
        ("{step_id: b, service: sprag.x}", "steps[1].service", "belongs to Sprag"),
        ("{step_id: b, service: s, when: steps.c.output}", "steps[1].when", "not over"),
        ("{step_id: b, service: s, when: steps.b.output}", "steps[1].when", "not over"),
        ("{step_id: b, service: s, when: steps.a.state}", "steps[1].when", "steps.NAME.output"),
        ("{step_id: b, service: s, when: 'steps[input.x].output'}", "steps[1].when", "steps.NAME"),
        ("{step_id: b, service: s, when: 'size(input) >'}", "steps[1].when", ""),
        ("{step_id: b, service: s, when: nobody > 1}", "steps[1].when", "refers to nobody"),
        ("{step_id: b, service: s, when: now() > 1}", "steps[1].when", "calls now"),
        ("{step_id: b, service: s, when: item > 1}", "steps[1].when", "item outside"),
        ("{step_id: b, service: s, when: turn > 1}", "steps[1].when", "turn outside"),
        ("{step_id: b, service: s, when: size(input)}", "steps[1].when", "never be true or false"),
        ("{step_id: b, service: s, for_each: '1 > 2'}", "steps[1].for_each", "never be a list"),
        ("{step_id: b, service: s, max_parallel: 2}", "steps[1]", "without for_each"),
        ("{step_id: b, service: s, for_each: input, max_items: 0}", "steps[1].max_items", "1 to"),
        (
            "{step_id: b, steps: [{step_id: c, service: s}]}",
            "steps[1]",
            "without for_each or repeat",
        ),
        (
            "{step_id: b, service: s, for_each: input, repeat: {while: 'true', max: 2}}",
            "steps[1]",
            "for_each and repeat",
        ),
        (
            "{step_id: b, service: s, repeat: {while: 'true', max: 0}}",
            "steps[1].repeat.max",
            "1 to",
        ),
        ("{step_id: b, exec: {command: []}}", "steps[1].exec.command", "empty"),
        (
            "{step_id: b, http: {method: LOOK, url: 'http://x'}}",
            "steps[1].http.method",
            "not one of",
        ),
        ("{step_id: b, http: {method: GET, url: x}}", "steps[1].http.url", "is not a URL"),
        (
            "{step_id: b/fan, needs: [], service: s}\n  - {step_id: b, for_each: input, service: s}",
            "steps",
            "b/fan is there twice",
        ),
    ] {
        refused(&format!("{a}  - {step}\n"), place, reason);
    }
    refused(
        "  - step_id: a\n    repeat: {while: 'true', max: 2}\n    steps:\n      \
           - {step_id: b, repeat: {while: 'true', max: 2}, service: s}\n",
        "steps[0].steps[0].repeat",
        "inside another cycle",
    );
}

#[test]
fn around_a_list_of_steps_nothing_is_said_of_attempts_but_how_often_an_engine_may_be_lost() {
    let around = |opens: &str, said: &str| {
        format!("  - {{step_id: a, {opens}, {said}, steps: [{{step_id: b, service: s}}]}}\n")
    };
    for opens in ["for_each: input", "repeat: {while: 'true', max: 2}"] {
        for (said, place) in [
            ("step_type: T", "steps[0].step_type"),
            ("retry: {max_attempts: 2}", "steps[0].retry.max_attempts"),
            ("retry: {backoff: [1s]}", "steps[0].retry.backoff"),
            ("retry: {ack_backoff: [1s]}", "steps[0].retry.ack_backoff"),
            ("timeouts: {ack: 1s}", "steps[0].timeouts.ack"),
            ("timeouts: {lease: 1s}", "steps[0].timeouts.lease"),
            ("timeouts: {step: 1s}", "steps[0].timeouts.step"),
            ("priority: 1", "steps[0].priority"),
        ] {
            refused(&around(opens, said), place, "has no effect around a list of steps");
        }
        assert_eq!(graph(&around(opens, "retry: {max_losses: 1}")).node(0).policy.max_losses, 1);
        graph(&format!(
            "  - {{step_id: a, {opens}, service: s, priority: 1, timeouts: {{ack: 1s}}}}\n"
        ));
    }
}

#[test]
fn a_timeout_of_0_and_a_request_type_that_is_no_name_are_refused() {
    for key in ["ack", "lease", "step"] {
        let step = format!("  - {{step_id: a, service: s, timeouts: {{{key}: 0s}}}}\n");
        refused(&step, &format!("steps[0].timeouts.{key}"), "over before it begins");
    }
    let steps = "steps: [{step_id: a, service: s}]";
    for wrong in ["''", "\"a\\tb\"", &"x".repeat(201)] {
        let text = format!("protocol_id: p.v1\nrequest_types: [P, {wrong}]\n{steps}");
        let refusal = Protocol::read(&text).unwrap_err();
        assert_eq!(refusal.code().name(), "NAME_INVALID");
        assert_eq!(refusal.field("place").unwrap().to_string(), "request_types[1]");
        assert!(refusal.field("line").is_some(), "{refusal}");
    }
}

#[test]
fn a_branch_sees_its_own_steps_and_those_before_the_fan_out_but_not_its_siblings() {
    let steps = |when: &str| {
        format!(
            "  - {{step_id: a, service: s}}\n  - {{step_id: z, needs: [], service: s}}\n  \
               - step_id: each\n    needs: [a]\n    for_each: input\n    steps:\n      \
                 - {{step_id: b, service: s}}\n      - {{step_id: c, when: {when}, service: s}}\n"
        )
    };
    for when in ["steps.a.output", "steps.b.output", "item.x", "index == 3", "input.y"] {
        graph(&steps(when));
    }
    refused(&steps("steps.z.output"), "steps[2].steps[1].when", "not over");
    refused(&steps("steps.each.output"), "steps[2].steps[1].when", "not over");
}

#[test]
fn a_limit_is_checked_when_the_protocol_is_read() {
    let limit = |limit: &str| format!("  - {{step_id: a, service: s, limit: {limit}}}\n");
    for (given, place, reason) in [
        ("{}", "steps[0].limit", "neither max nor rate"),
        ("{key: tenant}", "steps[0].limit", "neither max nor rate"),
        ("{max: 0}", "steps[0].limit.max", "from 1 to"),
        ("{max: 10001}", "steps[0].limit.max", "from 1 to"),
        ("{rate: {max: 0, per: 1s}}", "steps[0].limit.rate.max", "from 1 to"),
        ("{rate: {max: 1, per: 0s}}", "steps[0].limit.rate.per", "is 0"),
        ("{max: 1, key: item}", "steps[0].limit.key", "outside"),
        ("{max: 1, key: other}", "steps[0].limit.key", "refers to other"),
        ("{max: 1, key: 'input.list.map(x, x)'}", "steps[0].limit.key", "loop"),
        ("{max: 1, key: '[tenant]'}", "steps[0].limit.key", "never"),
    ] {
        refused(&limit(given), place, reason);
    }
    let long = format!("{{max: 1, key: '\"{}\"'}}", "x".repeat(200));
    refused(&limit(&long), "steps[0].limit.key", "longer");
    let after = "  - {step_id: a, service: s}\n  \
                 - {step_id: b, service: s, limit: {max: 1, key: steps.a.output}}\n";
    refused(after, "steps[1].limit.key", "refers to steps");
    refused("  - {step_id: a, sleep: 1s, limit: {max: 1}}\n", "steps[0]", "nobody works");
}

#[test]
fn the_paths_of_a_batch_are_text() {
    refused(
        "  - {step_id: a, service: s, batch: {file: '3'}}\n",
        "steps[0].batch.file",
        "can never be text",
    );
    refused(
        "  - {step_id: a, service: s, batch: {items: input.list, out: {file: '[1]'}}}\n",
        "steps[0].batch.out.file",
        "can never be text",
    );
}

mod expressions {
    use std::collections::BTreeMap;

    use serde_json::json;

    use crate::expression::{Expression, MAX_BYTES, Sight};

    fn sight() -> Sight {
        let steps = BTreeMap::from([("a-b".to_owned(), json!({"n": 3, "list": [1, 2, 3]}))]);
        Sight {
            input: json!({"n": 10, "half": 0.5, "name": "x", "many": vec![0; 2_000]}),
            tenant: Some("acme".to_owned()),
            steps,
            item: Some(json!("i")),
            index: Some(2),
            turn: None,
        }
    }

    #[test]
    fn they_compute_on_what_they_see() {
        for (source, result) in [
            ("input.n + 1", json!(11)),
            ("input.n / 3", json!(3)),
            ("input.half * 2.0", json!(1.0)),
            ("steps['a-b'].output.list.map(x, x * 2)", json!([2, 4, 6])),
            ("steps['a-b'].output.list.filter(x, x > 1 && x < input.n)", json!([2, 3])),
            ("{'who': item, 'at': index}", json!({"who": "i", "at": 2})),
            ("has(input.absent) ? input.absent : 'none'", json!("none")),
            ("input.name in ['x', 'y']", json!(true)),
            ("tenant + ':' + input.name", json!("acme:x")),
            ("steps['a-b'].output.list.all(x, [1, 2, 3].exists(y, y == x))", json!(true)),
        ] {
            let value = Expression::read(source).unwrap().evaluate(&sight());
            assert_eq!(value, Ok(result), "{source}");
        }
    }

    #[test]
    fn what_has_no_value_says_why() {
        for (source, reason) in [
            ("input.absent", "absent"),
            ("input.n / 0", "zero"),
            ("input.name + 1", ""),
            ("9223372036854775807 + 1", ""),
        ] {
            let said = Expression::read(source).unwrap().evaluate(&sight()).unwrap_err();
            assert!(
                said.to_lowercase().contains(reason) && !said.contains('\n'),
                "{source}: {said}"
            );
        }
        assert!(Expression::read("input.n").unwrap().holds(&sight()).is_err());
        assert!(Expression::read("input").unwrap().list(&sight()).is_err());
    }

    #[test]
    fn what_can_never_have_a_value_is_refused_when_it_is_read() {
        for (source, reason) in [
            ("1 + 'a' == 2", "an int together with text"),
            ("input.n > 1 && (input.half < [1])", "anything together with a list"),
            ("input.list.all(x, x + 'a' > 1)", "text together with an int"),
            ("input.list.map(x, -'a')", "text has no negative"),
            ("'a' && input.ok", "text is neither true nor false"),
            ("input.ok ? 1 % 2.0 : 3", "an int together with a double"),
            ("{'a': 1 - true}", "an int together with true or false"),
            ("1 in 'abc'", "text contains nothing"),
            ("size(3) > 1", "an int has no size"),
            ("3.startsWith('a')", ""),
            ("'a'.b", "text has no members"),
            ("{[1]: 2}", "a list is the key"),
            ("true.map(x, x)", ""),
        ] {
            let said = Expression::read(source).map(|_| ()).unwrap_err();
            assert!(said.contains(reason), "{source}: {said}");
        }
    }

    #[test]
    fn what_may_have_a_value_is_read_and_its_shape_is_seen() {
        use crate::expression::Shape;
        for (source, shape) in [
            ("1 < 2.5 && 1u <= 2", Shape::Truth),
            ("'a' + input.name", Shape::Text),
            ("input.n + 1", Shape::Int),
            ("[1] + [2]", Shape::List),
            ("input.list.exists_one(x, x == 'a')", Shape::Truth),
            ("input.list.filter(x, x > 1).map(x, {'a': x})", Shape::List),
            ("input.ok ? 'a' : 'b'", Shape::Text),
            ("input.ok ? 'a' : 1", Shape::Unknown),
            ("has(input.a) && type(input.a) == string", Shape::Truth),
            ("1 == 'a'", Shape::Truth),
            ("input.a[0].b", Shape::Unknown),
            ("double(input.n) / 2.0", Shape::Double),
            ("null", Shape::Null),
        ] {
            let read = Expression::read(source).unwrap_or_else(|said| panic!("{source}: {said}"));
            assert_eq!(read.shape(), shape, "{source}");
        }
    }

    #[test]
    fn their_cost_is_bounded() {
        let long = format!("'{}' == ''", "x".repeat(MAX_BYTES));
        assert!(Expression::read(&long).is_err());
        for (open, close) in [("(", ")"), ("[", "]"), ("-(", ")"), ("!", ""), ("{1: ", "}")] {
            let count = (MAX_BYTES - 1) / (open.len() + close.len());
            let deep = format!("{}1{}", open.repeat(count), close.repeat(count));
            // Whether it is refused or folded away: it must come back.
            let read = Expression::read(&deep).map(|deep| deep.evaluate(&sight()));
            assert!(open == "(" || open == "!" || read.is_err(), "{count} {open}");
        }
        let chain = format!("input{}", ".a".repeat(400));
        assert!(Expression::read(&chain).unwrap_err().contains("deeper"));
        let ternary = format!("{}1", "true ? 1 : ".repeat(300));
        assert!(Expression::read(&ternary).is_err());
        let loops = Expression::read("input.many.all(x, input.many.all(y, x == y))").unwrap();
        let said = loops.evaluate(&sight()).unwrap_err();
        assert!(said.contains("bytes on the way"), "{said}");
    }

    #[test]
    fn a_list_of_the_largest_fan_out_is_made_in_time() {
        let pages: Vec<u32> = (0..100_000).collect();
        let sight = Sight { input: json!({"pages": pages}), ..Sight::default() };
        for source in [
            "input.pages.map(p, {'page': p + 1, 'of': size(input.pages)})",
            "input.pages.map(p, p >= 0, p * 2)",
            "input.pages.filter(p, p >= 0)",
        ] {
            let made = Expression::read(source).unwrap().list(&sight);
            assert_eq!(made.map(|list| list.len()), Ok(100_000), "{source}");
        }
    }

    #[test]
    fn what_would_not_fit_into_memory_is_refused_before_it_is_made() {
        let pages: Vec<u32> = (0..2_000).collect();
        let input = json!({"pages": pages, "doc": "x".repeat(400_000)});
        let sight = Sight { input, ..Sight::default() };
        let doubled = format!("['xxxx']{}", ".map(x, x + x)".repeat(40));
        let nested = format!("[[1]]{}", ".map(x, [x, x])".repeat(40));
        for source in [
            // A list that shares the document is small, until it is written out.
            "input.pages.map(p, {'page': p, 'doc': input.doc})",
            "input.pages.map(p, input.doc + string(p))",
            "size(input.pages.map(p, input.doc + string(p))) > 0",
            // What was too much is not made up for by what is true all the same.
            "input.pages.all(p, input.doc + 'y' != input.doc) || true",
            &doubled,
            &nested,
        ] {
            let said = Expression::read(source).and_then(|source| source.evaluate(&sight));
            assert!(said.as_ref().is_err_and(|said| said.contains("bytes")), "{source}: {said:?}");
        }
        let shared = Expression::read("size(input.pages.map(p, {'page': p, 'doc': input.doc}))");
        assert_eq!(shared.unwrap().evaluate(&sight), Ok(json!(2_000)));
    }
}
