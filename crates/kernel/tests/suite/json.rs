//! A slow canonical JSON that shares nothing with the kernel: a tree, its canonical text by the rules,
//! and as many other spellings of it as there are seeds.

use proptest::prelude::*;

/// A JSON document. Objects may have equal names.
#[derive(Clone, Debug)]
pub(crate) enum Tree {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

/// A number as it is spelled.
#[derive(Clone, Debug)]
pub(crate) struct Number {
    pub(crate) negative: bool,
    pub(crate) whole: String,
    pub(crate) fraction: String,
    pub(crate) exponent: i32,
}

impl Tree {
    /// The canonical text, by the rules and without haste.
    pub(crate) fn canonical(&self) -> String {
        match self {
            Self::Null => "null".into(),
            Self::Bool(yes) => yes.to_string(),
            Self::Number(number) => number.canonical(),
            Self::Text(text) => canonical_text(text),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(Self::canonical).collect();
                format!("[{}]", items.join(","))
            }
            Self::Object(members) => {
                let mut last = std::collections::BTreeMap::new();
                for (name, value) in members {
                    last.insert(name.as_bytes(), (name, value));
                }
                let kept = last.values().filter(|(_, value)| !matches!(value, Self::Null));
                let texts: Vec<String> = kept
                    .map(|(name, value)| format!("{}:{}", canonical_text(name), value.canonical()))
                    .collect();
                format!("{{{}}}", texts.join(","))
            }
        }
    }

    /// The same with a long member in every object, for readers that treat large objects otherwise.
    pub(crate) fn grown(self) -> Self {
        match self {
            Self::Object(members) => {
                let grown = members.into_iter().map(|(name, value)| (name, value.grown()));
                let long = ("long".to_owned(), Self::Text("x".repeat(5_000)));
                Self::Object(grown.chain([long]).collect())
            }
            Self::List(items) => Self::List(items.into_iter().map(Self::grown).collect()),
            leaf @ (Self::Null | Self::Bool(_) | Self::Number(_) | Self::Text(_)) => leaf,
        }
    }

    /// One of the many spellings: space, escapes, number forms, and the order of members.
    pub(crate) fn spelled(&self, dice: &mut Dice) -> String {
        let text = match self {
            Self::Null => "null".into(),
            Self::Bool(yes) => yes.to_string(),
            Self::Number(number) => number.spelled(dice),
            Self::Text(text) => spelled_text(text, dice),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(|item| item.spelled(dice)).collect();
                format!("[{}{}]", dice.space(), items.join(","))
            }
            Self::Object(members) => {
                let salt = dice.roll(1 << 30);
                let mut order: Vec<_> = members.iter().collect();
                // Stable, and equal names have equal keys: the last of them stays the last.
                order.sort_by_key(|(name, _)| {
                    name.bytes().fold(salt, |key, byte| (key ^ u64::from(byte)) * 31 % 65_521)
                });
                let texts: Vec<String> = order
                    .into_iter()
                    .map(|(name, value)| {
                        let name = spelled_text(name, dice);
                        format!("{}{name}{}:{}", dice.space(), dice.space(), value.spelled(dice))
                    })
                    .collect();
                format!("{{{}{}}}", texts.join(","), dice.space())
            }
        };
        format!("{}{text}{}", dice.space(), dice.space())
    }
}

impl Number {
    /// Moves the point one place at a time.
    fn canonical(&self) -> String {
        let (mut before, mut after) = (self.whole.clone(), self.fraction.clone());
        for _ in 0..self.exponent {
            before.push(if after.is_empty() { '0' } else { after.remove(0) });
        }
        for _ in self.exponent..0 {
            after.insert(0, before.pop().unwrap_or('0'));
        }
        let before = before.trim_start_matches('0');
        let after = after.trim_end_matches('0');
        let sign = if self.negative { "-" } else { "" };
        match (before, after) {
            ("", "") => "0".into(),
            (before, "") => format!("{sign}{before}"),
            ("", after) => format!("{sign}0.{after}"),
            (before, after) => format!("{sign}{before}.{after}"),
        }
    }

    fn spelled(&self, dice: &mut Dice) -> String {
        let sign = if self.negative { "-" } else { "" };
        let point = if self.fraction.is_empty() { "" } else { "." };
        let plus = if self.exponent >= 0 && dice.roll(2) == 0 { "+" } else { "" };
        let mark = if dice.roll(2) == 0 { 'e' } else { 'E' };
        let exponent = match (self.exponent, dice.roll(2)) {
            (0, 0) => String::new(),
            (exponent, _) => format!("{mark}{plus}{exponent}"),
        };
        format!("{sign}{}{point}{}{exponent}", self.whole, self.fraction)
    }
}

fn canonical_text(text: &str) -> String {
    let mut out = String::from('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            low if low < ' ' => {
                out.push_str("\\u00");
                out.push(if low < '\u{10}' { '0' } else { '1' });
                out.push(char::from_digit(u32::from(low) % 16, 16).expect("a hex digit"));
            }
            other => out.push(other),
        }
    }
    out + "\""
}

fn spelled_text(text: &str, dice: &mut Dice) -> String {
    let mut out = String::from('"');
    for character in text.chars() {
        let must = character < ' ' || matches!(character, '"' | '\\');
        match (character, dice.roll(3)) {
            (character, 0) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let lower = format!("\\u{unit:04x}");
                    let upper = format!("\\u{unit:04X}");
                    out.push_str(if dice.roll(2) == 0 { &lower } else { &upper });
                }
            }
            ('/', 1) => out.push_str("\\/"),
            (character, _) if must => {
                let quoted = canonical_text(&character.to_string());
                out.push_str(&quoted[1..quoted.len() - 1]);
            }
            (character, _) => out.push(character),
        }
    }
    out + "\""
}

/// Choices from a seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn space(&mut self) -> &'static str {
        ["", "", "", " ", "\n", "\t", " \r\n  "][self.roll(7) as usize]
    }
}

fn text() -> impl Strategy<Value = String> {
    let characters = [
        'a',
        'b',
        'B',
        '1',
        '"',
        '\\',
        '/',
        '\0',
        '\u{1f}',
        '\n',
        '\t',
        '\u{8}',
        '\u{7f}',
        '\u{e9}',
        '\u{20ac}',
        '\u{2028}',
        '\u{ffff}',
        '\u{1f600}',
        '\u{10ffff}',
        ' ',
    ];
    let few = proptest::sample::select(characters.to_vec());
    proptest::collection::vec(few, 0..12).prop_map(|characters| characters.into_iter().collect())
}

fn number() -> impl Strategy<Value = Number> {
    let digits = |range| proptest::collection::vec(0..10_u8, range);
    let spell = |digits: Vec<u8>| digits.into_iter().map(|d| char::from(b'0' + d)).collect();
    (any::<bool>(), digits(1..12), digits(0..12), -30..30_i32).prop_map(
        move |(negative, whole, fraction, exponent)| {
            let whole: String = spell(whole);
            let trimmed = whole.trim_start_matches('0');
            let whole = if trimmed.is_empty() { "0".into() } else { trimmed.to_owned() };
            Number { negative, whole, fraction: spell(fraction), exponent }
        },
    )
}

/// Any document, a few levels deep, with equal names now and then.
pub(crate) fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        2 => Just(Tree::Null),
        1 => any::<bool>().prop_map(Tree::Bool),
        3 => number().prop_map(Tree::Number),
        3 => text().prop_map(Tree::Text),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        let name = prop_oneof![text(), Just("a".to_owned()), Just("b".to_owned())];
        prop_oneof![
            1 => proptest::collection::vec(inner.clone(), 0..6).prop_map(Tree::List),
            2 => proptest::collection::vec((name, inner), 0..6).prop_map(Tree::Object),
        ]
    })
}
