//! A document pipeline: the pages of a scan are read, embedded and summed up, many at a time, and assembled in
//! their order. The models are small and run here: the OCR compares pixels with a font, the embedding counts
//! words, the summary picks a sentence. Put yours in their place.
//!
//!     cargo run --example documents [FOLDER]

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_engine::batch::{Item, ItemOutcome};
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::{EngineBuilder, EngineConfig};
use sprag_engine::protocol::Protocol;
use sprag_engine::store::Store;
use sprag_engine::worker::{Context, Handler};
use sprag_stores::sqlite::{Durability, SqliteStore};

const PAGES: usize = 40;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "documents-data".to_owned());
    let found = run(Path::new(&folder), PAGES).await?;
    println!("{PAGES} pages are in {folder}/book.jsonl, in order; on leases see pages {found}");
    Ok(())
}

/// Takes a document of so many pages from scan to book. The same document again is the same job: it is done.
pub(crate) async fn run(folder: &Path, pages: usize) -> Result<Value, Box<dyn Error>> {
    std::fs::create_dir_all(folder)?;
    let store = SqliteStore::open(&folder.join("sprag.db"), Durability::Full)?;
    let config = EngineConfig { files: Some(folder.to_owned()), ..EngineConfig::default() };
    let engine = EngineBuilder::new(store)
        .config(config)
        .protocol(Protocol::read(include_str!("protocol.yaml"))?)
        .service("scanner", 1, scanner())
        .service("ocr", 4, ocr())
        .service("embedding", 4, embedding())
        .service("summary", 4, summary())
        .batch_service("assembler", 2, |item, _| Ok(line(&item)))
        .service("finder", 1, finder())
        .start()
        .await?;
    let envelope = json!({
        "tenant_id": "archive", "request_type": "DOCUMENT", "schema_version": "1",
        "input_ref": "scan:1", "output_ref": "book.jsonl", "payload": {"pages": pages},
    });
    let job_id = engine.submit(envelope.to_string().as_bytes()).await?.job_id;
    let job = engine.closed(job_id).await?;
    let attempts = engine.store().attempts(job_id).await?;
    engine.shutdown(Duration::from_secs(5)).await?;
    if let Some(error) = job.error {
        return Err(format!("{}: {}", error.code, error.message).into());
    }
    let last = attempts.iter().rfind(|attempt| attempt.step_id == "find");
    Ok(serde_json::from_str(last.and_then(|find| find.output.as_deref()).unwrap_or("null"))?)
}

/// What stands on the pages, three of these on each.
const SENTENCES: [&str; 7] = [
    "A LEASE ENDS WHEN ITS WORKER FALLS SILENT",
    "THE SAME REQUEST IS THE SAME JOB",
    "EVERY STEP COMMITS WITH THE DIGIT THAT PROVES IT",
    "A JOB CLOSES ONCE",
    "PARALLEL WORK COMMITS IN ITS ORDER",
    "A WORKER RENEWS ITS LEASE WHILE IT WORKS",
    "WHAT IS COMMITTED IS NEVER TAKEN BACK",
];

/// The text of a page, for whoever wants to compare.
pub(crate) fn page(n: usize) -> String {
    let sentence = |k: usize| SENTENCES[(n * 3 + k * (n + 1)) % SENTENCES.len()];
    format!("{}. {}. {}.", sentence(0), sentence(1), sentence(2))
}

/// Pictures of pages: for each line of text five lines of pixels.
fn scanner() -> Handler {
    Handler::new(|input: Value, _: Directive, _: Context| async move {
        let pages = usize::try_from(input["pages"].as_u64().unwrap_or(0)).unwrap_or(0);
        Ok::<_, Failure>((0..pages).map(|n| picture(&page(n))).collect::<Vec<_>>())
    })
}

fn ocr() -> Handler {
    Handler::new(|_: Value, directive: Directive, _: Context| async move {
        if directive.index == Some(7) && directive.attempt_no == 1 {
            return Err(Failure::retryable("BUSY", "all readers are taken"));
        }
        let picture = directive.item.as_ref().and_then(Value::as_array).cloned();
        let rows: Vec<String> = picture
            .unwrap_or_default()
            .iter()
            .filter_map(|row| Some(row.as_str()?.to_owned()))
            .collect();
        read(&rows).ok_or_else(|| Failure::fatal("UNREADABLE", "this is no scan of a page"))
    })
}

fn embedding() -> Handler {
    Handler::new(|_: Value, directive: Directive, _: Context| async move {
        let text: String = directive.input("ocr")?.unwrap_or_default();
        Ok::<_, Failure>(embed(&text))
    })
}

/// The sentence whose words are the most common ones of the page.
fn summary() -> Handler {
    Handler::new(|_: Value, directive: Directive, _: Context| async move {
        let text: String = directive.input("ocr")?.unwrap_or_default();
        let common = |sentence: &&str| {
            let count = |word: &str| text.split_whitespace().filter(|other| *other == word).count();
            let words: Vec<usize> = sentence.split_whitespace().map(count).collect();
            words.iter().sum::<usize>() * 1_000 / words.len().max(1)
        };
        let sentences = text.split('.').map(str::trim).filter(|sentence| !sentence.is_empty());
        Ok::<_, Failure>(sentences.max_by_key(common).unwrap_or_default().to_owned())
    })
}

/// A line of the book.
fn line(item: &Item) -> ItemOutcome {
    match item.value["summary"].as_str() {
        Some(summary) => ItemOutcome::Success(json!({"page": item.seq, "summary": summary})),
        None => ItemOutcome::Skip("the page was not readable".to_owned()),
    }
}

/// The three pages that are nearest to a question.
fn finder() -> Handler {
    Handler::new(|_: Value, directive: Directive, _: Context| async move {
        let pages: Vec<Value> = directive.input("pages")?.unwrap_or_default();
        let question = embed("LEASE WORKER");
        let nearness = |page: &Value| {
            let of_page = page["embedding"].as_array().into_iter().flatten();
            let product = of_page.zip(&question).filter_map(|(a, b)| Some(a.as_f64()? * b));
            product.sum::<f64>()
        };
        let mut ranked: Vec<(f64, usize)> = pages.iter().map(nearness).zip(0..).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        Ok::<_, Failure>(ranked.into_iter().take(3).map(|(_, n)| n).collect::<Vec<_>>())
    })
}

/// How often the words are there, each counted at a place that its letters give, with length 1.
fn embed(text: &str) -> Vec<f64> {
    let mut vector = vec![0.0_f64; 64];
    for word in text.split(|letter: char| !letter.is_alphabetic()).filter(|word| word.len() > 3) {
        let place = word.bytes().fold(7_usize, |sum, letter| sum * 31 % 64 + usize::from(letter));
        vector[place % 64] += 1.0;
    }
    let length = vector.iter().map(|count| count * count).sum::<f64>().sqrt();
    vector.iter().map(|count| if length > 0.0 { count / length } else { 0.0 }).collect()
}

/// Letters of three by five pixels; each octal digit is a row.
const FONT: [(char, u16); 28] = [
    ('A', 0o25755),
    ('B', 0o65656),
    ('C', 0o34443),
    ('D', 0o65556),
    ('E', 0o74647),
    ('F', 0o74644),
    ('G', 0o34553),
    ('H', 0o55755),
    ('I', 0o72227),
    ('J', 0o11152),
    ('K', 0o55655),
    ('L', 0o44447),
    ('M', 0o57755),
    ('N', 0o65555),
    ('O', 0o25552),
    ('P', 0o65644),
    ('Q', 0o25563),
    ('R', 0o65665),
    ('S', 0o34216),
    ('T', 0o72222),
    ('U', 0o55557),
    ('V', 0o55552),
    ('W', 0o55775),
    ('X', 0o55255),
    ('Y', 0o55222),
    ('Z', 0o71247),
    ('.', 0o00002),
    (' ', 0o00000),
];

fn picture(text: &str) -> Vec<String> {
    let pixels = |letter: char| FONT.iter().find(|(known, _)| *known == letter).map_or(0, |f| f.1);
    let row = |row: u16| {
        let three = |letter| {
            let bits = pixels(letter) >> (12 - 3 * row) & 7;
            [4, 2, 1].map(|bit| if bits & bit > 0 { '#' } else { ' ' }).into_iter()
        };
        text.chars().flat_map(three).collect()
    };
    (0..5).map(row).collect()
}

/// The text of a picture: for each letter the one of the font that differs least.
fn read(rows: &[String]) -> Option<String> {
    let width = rows.first().map(String::len).filter(|width| rows.len() == 5 && width % 3 == 0)?;
    if rows.iter().any(|row| row.len() != width || !row.is_ascii()) {
        return None;
    }
    let letter = |at: usize| {
        let pixels = rows.iter().flat_map(|row| row.as_bytes()[at..at + 3].iter());
        let seen = pixels.fold(0_u16, |bits, pixel| bits << 1 | u16::from(*pixel == b'#'));
        let nearest = FONT.iter().min_by_key(|(_, known)| (known ^ seen).count_ones());
        nearest.map_or('?', |(letter, _)| *letter)
    };
    Some((0..width).step_by(3).map(letter).collect())
}
