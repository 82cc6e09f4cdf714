//! The command with its places for the item, and what becomes of it for one item.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::items::Item;

/// A place in a word of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// `{}`
    Whole,
    /// `{.}`
    NoExtension,
    /// `{/}`
    Base,
    /// `{//}`
    Folder,
    /// `{/.}`
    BaseNoExtension,
    /// `{#}`
    Number,
}

const SLOTS: [(&[u8], Slot); 6] = [
    (b"{}", Slot::Whole),
    (b"{.}", Slot::NoExtension),
    (b"{/}", Slot::Base),
    (b"{//}", Slot::Folder),
    (b"{/.}", Slot::BaseNoExtension),
    (b"{#}", Slot::Number),
];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Slot(Slot),
}

/// A command that waits for its item.
#[derive(Clone, Debug)]
pub struct Template {
    words: Vec<Vec<Part>>,
    shell: bool,
}

/// Words that only a shell understands.
const OPERATORS: [&[u8]; 10] = [b"|", b"||", b"&&", b"&", b";", b">", b">>", b"<", b"2>", b"2>&1"];
/// What makes a single word shell syntax: anything that separates, quotes, expands or redirects.
const SYNTAX: &[u8] = b" \t\n|&;<>()$`\\\"'*?[]~";

impl Template {
    /// Reads the words of a command. `shell` is what the user said, none if nothing.
    pub fn new(command: &[OsString], shell: Option<bool>) -> Self {
        let shell = shell.unwrap_or_else(|| looks_like_shell(command));
        let mut words: Vec<_> = command.iter().map(|word| parse(word.as_bytes())).collect();
        if !words.iter().flatten().any(|part| matches!(part, Part::Slot(_))) {
            words.push(vec![Part::Slot(Slot::Whole)]);
        }
        Self { words, shell }
    }

    /// Whether commands run in sh.
    pub fn is_shell(&self) -> bool {
        self.shell
    }

    /// The words to execute for this item.
    pub fn words(&self, item: &Item) -> Vec<OsString> {
        if self.shell {
            let script = self.words.iter().map(|word| fill(word, item, true));
            let script = script.collect::<Vec<_>>().join(&b' ');
            return vec!["/bin/sh".into(), "-c".into(), OsString::from_vec(script)];
        }
        self.words.iter().map(|word| OsString::from_vec(fill(word, item, false))).collect()
    }

    /// The command for this item as a line that a shell would accept.
    pub fn line(&self, item: &Item) -> String {
        let quoted: Vec<Vec<u8>> = if self.shell {
            self.words.iter().map(|word| fill(word, item, true)).collect()
        } else {
            self.words.iter().map(|word| quote(&fill(word, item, false))).collect()
        };
        String::from_utf8_lossy(&quoted.join(&b' ')).into_owned()
    }
}

fn looks_like_shell(command: &[OsString]) -> bool {
    match command {
        [only] => {
            let text = parse(only.as_bytes());
            let has_syntax = |text: &[u8]| text.iter().any(|byte| SYNTAX.contains(byte));
            text.iter().any(|part| matches!(part, Part::Text(text) if has_syntax(text)))
        }
        // The caller's shell has taken the words apart already.
        words => words.iter().any(|word| OPERATORS.contains(&word.as_bytes())),
    }
}

fn parse(word: &[u8]) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut text = Vec::new();
    let mut rest = word;
    while let Some(&first) = rest.first() {
        if let Some((sign, slot)) = SLOTS.iter().find(|(sign, _)| rest.starts_with(sign)) {
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            parts.push(Part::Slot(*slot));
            rest = &rest[sign.len()..];
        } else {
            text.push(first);
            rest = &rest[1..];
        }
    }
    if !text.is_empty() || parts.is_empty() {
        parts.push(Part::Text(text));
    }
    parts
}

fn fill(word: &[Part], item: &Item, quoted: bool) -> Vec<u8> {
    let mut filled = Vec::new();
    for part in word {
        match part {
            Part::Text(text) => filled.extend_from_slice(text),
            Part::Slot(slot) => {
                let value = value(*slot, item);
                let value = if quoted { quote(&value) } else { value };
                filled.extend_from_slice(&value);
            }
        }
    }
    filled
}

fn value(slot: Slot, item: &Item) -> Vec<u8> {
    let text = item.text.as_slice();
    match slot {
        Slot::Whole => text.to_vec(),
        Slot::NoExtension => without_extension(text).to_vec(),
        Slot::Base => base(text).to_vec(),
        Slot::Folder => folder(text).to_vec(),
        Slot::BaseNoExtension => without_extension(base(text)).to_vec(),
        Slot::Number => (item.origin + 1).to_string().into_bytes(),
    }
}

fn base(text: &[u8]) -> &[u8] {
    text.rsplit(|&byte| byte == b'/').next().unwrap_or(text)
}

fn without_extension(text: &[u8]) -> &[u8] {
    let from = text.len() - base(text).len();
    match text[from..].iter().rposition(|&byte| byte == b'.') {
        Some(dot) => &text[..from + dot],
        None => text,
    }
}

fn folder(text: &[u8]) -> &[u8] {
    let path = std::path::Path::new(OsStr::from_bytes(text));
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => b".",
        Some(parent) => parent.as_os_str().as_bytes(),
        None => text,
    }
}

/// One word for sh, whatever it holds.
pub fn quote(text: &[u8]) -> Vec<u8> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./:=@%+,".contains(byte);
    if !text.is_empty() && text.iter().all(plain) {
        return text.to_vec();
    }
    let mut quoted = vec![b'\''];
    for &byte in text {
        match byte {
            b'\'' => quoted.extend_from_slice(br"'\''"),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(text: &str) -> Item {
        Item { origin: 4, text: text.into() }
    }

    fn template(words: &[&str]) -> Template {
        Template::new(&words.iter().map(OsString::from).collect::<Vec<_>>(), None)
    }

    fn line(words: &[&str], text: &str) -> String {
        template(words).line(&item(text))
    }

    #[test]
    fn every_place_is_what_gnu_parallel_makes_of_it() {
        for (text, expected) in [
            (
                "dir/sub/file.tar.gz",
                "dir/sub/file.tar.gz dir/sub/file.tar file.tar.gz dir/sub file.tar 5",
            ),
            ("file", "file file file . file 5"),
            ("a.b/c", "a.b/c a.b/c c a.b c 5"),
        ] {
            assert_eq!(line(&["{}", "{.}", "{/}", "{//}", "{/.}", "{#}"], text), expected);
        }
    }

    #[test]
    fn without_a_place_the_item_comes_last() {
        assert_eq!(line(&["wc", "-l"], "x y"), "wc -l 'x y'");
        assert_eq!(line(&["echo", "a{}b{#}"], "x"), "echo axb5");
    }

    #[test]
    fn shell_is_used_where_there_is_shell_syntax() {
        assert!(!template(&["echo", "{}"]).is_shell());
        assert!(!template(&["echo"]).is_shell());
        assert!(!template(&["echo{}"]).is_shell());
        assert!(!template(&["awk", "{print $1}", "{}"]).is_shell());
        assert!(template(&["echo {} | wc"]).is_shell());
        assert!(template(&["echo", "{}", "|", "wc"]).is_shell());
    }

    #[test]
    fn an_item_cannot_leave_its_quotes() {
        let words = template(&["echo {} >&2"]).words(&item("a'; rm -rf x; '"));
        assert_eq!(words[2], OsString::from(r"echo 'a'\''; rm -rf x; '\''' >&2"));
    }

    #[test]
    fn bytes_that_are_not_text_pass_unchanged() {
        let item = Item { origin: 0, text: vec![0xff, b'.', 0xfe] };
        let words = template(&["echo", "{}", "{.}"]).words(&item);
        assert_eq!(words[1].as_bytes(), [0xff, b'.', 0xfe]);
        assert_eq!(words[2].as_bytes(), [0xff]);
    }
}
