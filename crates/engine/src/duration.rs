//! Durations as people write them: `500ms`, `30s`, `2m`, `72h`, `7d`, or a number of seconds.

use serde::{Deserialize, Deserializer, Serializer};
use sprag_kernel::retry::Millis;

/// The longest duration that a protocol may name.
pub const MAX_MS: Millis = 10 * 365 * 24 * 3_600_000;

/// Reads a duration.
pub fn parse(text: &str) -> Result<Millis, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match &text[digits..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => 0,
    };
    let amount = text[..digits].parse::<u64>().ok().and_then(|amount| amount.checked_mul(unit));
    match amount {
        Some(ms) if unit > 0 && ms <= MAX_MS => Ok(ms),
        Some(_) | None => Err(format!("{text:?} is not a duration such as 500ms, 30s, 2m, 1h, 7d")),
    }
}

/// Writes a duration.
pub fn show(ms: Millis) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    match units.iter().find(|(unit, _)| ms > 0 && ms.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", ms / unit),
        None => format!("{ms}ms"),
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Seconds(u64),
    Text(String),
}

impl Written {
    fn read<E: serde::de::Error>(self) -> Result<Millis, E> {
        match self {
            Self::Seconds(seconds) => parse(&seconds.to_string()).map_err(E::custom),
            Self::Text(text) => parse(&text).map_err(E::custom),
        }
    }
}

/// A duration.
pub mod required {
    use super::{Deserialize, Deserializer, Millis, Serializer, Written, show};

    /// Reads it.
    pub fn deserialize<'d, D: Deserializer<'d>>(source: D) -> Result<Millis, D::Error> {
        Written::deserialize(source)?.read()
    }

    /// Writes it.
    #[allow(clippy::trivially_copy_pass_by_ref)] // serde hands it over so
    pub fn serialize<S: Serializer>(value: &Millis, target: S) -> Result<S::Ok, S::Error> {
        target.serialize_str(&show(*value))
    }
}

/// An optional duration.
pub mod optional {
    use super::{Deserialize, Deserializer, Millis, Serializer, Written, show};

    /// Reads it.
    pub fn deserialize<'d, D: Deserializer<'d>>(source: D) -> Result<Option<Millis>, D::Error> {
        Option::<Written>::deserialize(source)?.map(Written::read).transpose()
    }

    /// Writes it.
    pub fn serialize<S: Serializer>(value: &Option<Millis>, target: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(ms) => target.serialize_str(&show(*ms)),
            None => target.serialize_none(),
        }
    }
}

/// An optional list of durations.
pub mod list {
    use super::{Deserialize, Deserializer, Millis, Serializer, Written, show};

    /// Reads it.
    pub fn deserialize<'d, D: Deserializer<'d>>(
        source: D,
    ) -> Result<Option<Vec<Millis>>, D::Error> {
        Option::<Vec<Written>>::deserialize(source)?
            .map(|list| list.into_iter().map(Written::read).collect())
            .transpose()
    }

    /// Writes it.
    pub fn serialize<S: Serializer>(
        value: &Option<Vec<Millis>>,
        target: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(list) => target.collect_seq(list.iter().map(|ms| show(*ms))),
            None => target.serialize_none(),
        }
    }
}
