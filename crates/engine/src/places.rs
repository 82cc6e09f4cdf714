//! Places: where in a text something stands. A mistake in a protocol is named by its path, such as
//! `steps[1].retry.max_attempts`; whoever reads it in a file wants its line and column too. A text is gone
//! through only when something is wrong with it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};
use sprag_kernel::Refusal;
use sprag_kernel::error::Field;

/// Every path of a text with its line and column, in the order of the text; nothing if that cannot be read.
pub(crate) struct Places(Vec<(String, Point)>);

/// A line and a column, both from 1.
type Point = (u64, u64);

impl Places {
    /// The places of a text in YAML or JSON.
    pub(crate) fn of(text: &str) -> Self {
        let mut places = Vec::new();
        if let Ok(root) = serde_saphyr::from_str::<Spanned<Tree>>(text) {
            collect((String::new(), root.referenced), &root.value, &mut places);
        }
        Self(places)
    }

    /// The innermost path that begins at a point or before it.
    pub(crate) fn at(&self, point: Point) -> Option<&str> {
        let before = self.0.iter().take_while(|(_, begins)| *begins <= point);
        before.last().map(|(path, _)| path.as_str()).filter(|path| !path.is_empty())
    }

    /// Where a path stands; if it is not there, what it would be in.
    pub(crate) fn find(&self, path: &str) -> Option<Point> {
        let mut path = path;
        loop {
            if let Some((_, point)) = self.0.iter().find(|(known, _)| known == path) {
                return Some(*point);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }

    /// A refusal that names a place, with where that stands.
    pub(crate) fn locate(&self, refusal: Refusal) -> Refusal {
        let place = match refusal.field("place") {
            Some(Field::Text(place)) => self.find(place),
            Some(Field::Number(_)) | None => None,
        };
        match place {
            Some((line, column)) => refusal.with("line", line).with("column", column),
            None => refusal,
        }
    }
}

/// A text as far as places go.
enum Tree {
    Map(Vec<(Spanned<String>, Spanned<Tree>)>),
    List(Vec<Spanned<Tree>>),
    Leaf,
}

/// What has a key stands where its key does.
fn collect((path, at): (String, Location), tree: &Tree, places: &mut Vec<(String, Point)>) {
    places.push((path.clone(), (at.line(), at.column())));
    match tree {
        Tree::Map(entries) => {
            for (Spanned { value: key, referenced, .. }, tree) in entries {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect((path, *referenced), &tree.value, places);
            }
        }
        Tree::List(items) => {
            for (index, tree) in items.iter().enumerate() {
                collect((format!("{path}[{index}]"), tree.referenced), &tree.value, places);
            }
        }
        Tree::Leaf => {}
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        source.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_str<E>(self, _: &str) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }

    fn visit_some<D: Deserializer<'de>>(self, source: D) -> Result<Tree, D::Error> {
        Tree::deserialize(source)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, source: D) -> Result<Tree, D::Error> {
        IgnoredAny::deserialize(source).map(|_| Tree::Leaf)
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::Protocol;

    fn refused(text: &str) -> (String, String) {
        let refusal = Protocol::read(text).unwrap_err();
        let field = |name| refusal.field(name).map_or("-".to_owned(), ToString::to_string);
        (field("place"), format!("{}:{}", field("line"), field("column")))
    }

    #[test]
    fn a_mistake_is_named_by_path_line_and_column_in_yaml() {
        let text = |steps: &str| format!("protocol_id: p.v1\nrequest_types: [P]\nsteps:\n{steps}");
        let first = "  - step_id: a\n    service: s\n";
        for (steps, place, at) in [
            ("    retry:\n      max_attempts: 0\n", "steps[0].retry.max_attempts", "7:7"),
            ("    when: 'input.'\n", "steps[0].when", "6:5"),
            ("  - step_id: a\n    service: s\n", "steps[1]", "6:5"),
            ("    sleep: 1h\n", "steps[0]", "4:5"),
            ("    timeouts: {ack: soon}\n", "steps[0].timeouts.ack", "6:21"),
            ("    prio: 3\n", "steps[0].prio", "6:5"),
        ] {
            let (named, stands) = refused(&text(&format!("{first}{steps}")));
            assert_eq!((named.as_str(), stands.as_str()), (place, at), "{steps}");
        }
    }

    #[test]
    fn and_in_json() {
        let text = "{\"protocol_id\": \"p.v1\", \"request_types\": [\"P\"],\n \"steps\": [\n  \
            {\"step_id\": \"a\", \"service\": \"s\",\n   \"retry\": {\"max_attempts\": 2000}}]}";
        assert_eq!(refused(text), ("steps[0].retry.max_attempts".to_owned(), "4:14".to_owned()));
    }

    #[test]
    fn a_text_that_cannot_be_read_is_refused_where_that_shows() {
        let (place, at) = refused("protocol_id: p.v1\nrequest_types: [P\nsteps: 3\n");
        assert_eq!(place, "file");
        assert_ne!(at, "-:-");
    }
}
