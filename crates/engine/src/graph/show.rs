//! A graph for people: as text, one line per step, and as a Mermaid flowchart.

use std::fmt::Write as _;

use super::keys::OnFailure;
use super::{Fan, Graph, Kind, Loop, Node, ScopeKind};
use crate::duration;

impl Graph {
    /// One line per step, indented by scope: what it is, and what it waits for.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        self.lines(0, 0, &mut text);
        text
    }

    fn lines(&self, scope: usize, indent: usize, text: &mut String) {
        for index in &self.scopes[scope].nodes {
            let node = self.node(*index);
            let name = self.shown_name(*index);
            let after: Vec<&str> = node.needs.iter().map(|need| self.shown_name(*need)).collect();
            let mut line = format!("{:indent$}{name}: {}", "", self.what(node));
            if let Some(when) = &node.when {
                write!(line, ", when {}", when.source()).expect("writing to a string");
            }
            if !after.is_empty() {
                write!(line, ", after {}", after.join(", ")).expect("writing to a string");
            }
            text.push_str(&line);
            text.push('\n');
            if let Some(inside) = opens(node) {
                self.lines(inside, indent + 2, text);
            }
        }
    }

    /// A flowchart: a scope is a box around its steps, a closer its own node.
    pub fn to_mermaid(&self) -> String {
        let mut chart = "flowchart TD\n".to_owned();
        self.boxes(0, 1, &mut chart);
        for (index, node) in (0_u32..).zip(&self.nodes) {
            for follower in &node.followers {
                writeln!(chart, "    n{index} --> n{follower}").expect("writing to a string");
            }
        }
        for (opener, inside) in self.openers() {
            let scope = &self.scopes[inside];
            let (closer, end) = match scope.kind {
                ScopeKind::Job => continue,
                ScopeKind::Branches { gather, end, .. } => (gather, end),
                ScopeKind::Turns { closer, end, .. } => {
                    writeln!(chart, "    n{closer} -. again .-> n{opener}")
                        .expect("writing to a string");
                    (closer, end)
                }
            };
            for root in scope.nodes.iter().filter(|node| self.node(**node).needs.is_empty()) {
                writeln!(chart, "    n{opener} --> n{root}").expect("writing to a string");
            }
            writeln!(chart, "    n{end} --> n{closer}").expect("writing to a string");
        }
        chart
    }

    fn openers(&self) -> impl Iterator<Item = (u32, usize)> {
        (0_u32..).zip(&self.nodes).filter_map(|(n, node)| opens(node).map(|scope| (n, scope)))
    }

    /// The closer of a scope that a node opens.
    fn closer(&self, scope: usize) -> u32 {
        match self.scopes[scope].kind {
            ScopeKind::Job => unreachable!("no node opens the job"),
            ScopeKind::Branches { gather, .. } => gather,
            ScopeKind::Turns { closer, .. } => closer,
        }
    }

    fn boxes(&self, scope: usize, indent: usize, chart: &mut String) {
        let space = " ".repeat(indent * 4);
        for index in &self.scopes[scope].nodes {
            let node = self.node(*index);
            let label = escaped(&format!("{}: {}", self.shown_name(*index), self.what(node)));
            writeln!(chart, "{space}n{index}[\"{label}\"]").expect("writing to a string");
            let Some(inside) = opens(node) else { continue };
            writeln!(chart, "{space}subgraph s{inside} [ ]").expect("writing to a string");
            self.boxes(inside, indent + 1, chart);
            writeln!(chart, "{space}end").expect("writing to a string");
            let closer = self.closer(inside);
            let label = escaped(&self.what(self.node(closer)));
            writeln!(chart, "{space}n{closer}([\"{label}\"])").expect("writing to a string");
        }
    }

    /// The name of the step that a node belongs to.
    fn shown_name(&self, index: u32) -> &str {
        let node = self.node(index);
        match (&node.publishes, opens(node)) {
            (Some(name), _) => name,
            (None, Some(scope)) => self.shown_name(self.closer(scope)),
            (None, None) => &node.step_id,
        }
    }

    fn what(&self, node: &Node) -> String {
        match &node.kind {
            Kind::Work => format!("service {}", node.service),
            Kind::Fan(fan) => show_fan(fan),
            Kind::Gather { .. } => "all branches, in the order of the items".to_owned(),
            Kind::Begin { scope } => match self.scopes[*scope].kind {
                ScopeKind::Turns { closer, .. } => self.what(self.node(closer)),
                ScopeKind::Job | ScopeKind::Branches { .. } => "a cycle".to_owned(),
            },
            Kind::Loop(closer) => show_loop(closer),
            Kind::Join => "all of them".to_owned(),
            Kind::Wait(wait, _) => match wait.timeout {
                Some(ms) => {
                    format!("wait for signal {}, {} at most", wait.signal, duration::show(ms))
                }
                None => format!("wait for signal {}", wait.signal),
            },
            Kind::Sleep => format!("sleep {}", duration::show(node.delay_ms)),
            Kind::Job(child, _) => format!("child job {}", child.request_type),
            Kind::Exec(exec) => format!("command {}", exec.command.join(" ")),
            Kind::Http(http, _) => format!("{} {}", http.method, http.url),
        }
    }
}

fn opens(node: &Node) -> Option<usize> {
    match &node.kind {
        Kind::Fan(fan) => Some(fan.scope),
        Kind::Begin { scope } => Some(*scope),
        Kind::Work
        | Kind::Gather { .. }
        | Kind::Loop(_)
        | Kind::Join
        | Kind::Wait(..)
        | Kind::Sleep
        | Kind::Job(..)
        | Kind::Exec(_)
        | Kind::Http(..) => None,
    }
}

fn show_fan(fan: &Fan) -> String {
    let mut text = format!("for each of {}", fan.items.source());
    if let Some(most) = fan.max_parallel {
        write!(text, ", {most} at a time").expect("writing to a string");
    }
    match fan.on_failure {
        OnFailure::FailFast => {}
        OnFailure::FinishAll => text.push_str(", all to the end"),
        OnFailure::Tolerate(most) => {
            write!(text, ", up to {most} may fail").expect("writing to a string");
        }
    }
    text
}

fn show_loop(closer: &Loop) -> String {
    let mut text =
        format!("repeat while {}, {} turns at most", closer.condition.source(), closer.max);
    if closer.delay_ms > 0 {
        write!(text, ", {} apart", duration::show(closer.delay_ms)).expect("writing to a string");
    }
    text
}

/// Quotes and brackets would end a label.
fn escaped(label: &str) -> String {
    label.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;").replace('>', "&gt;")
}
