//! Times and names, in words and out of them.

use std::time::{Duration, SystemTime};

use jiff::{Span, SpanRelativeTo, Timestamp};

/// The longest duration of an option, a hundred years: so it can be added to any time.
const MOST: Duration = Duration::from_secs(36_500 * 86_400);

/// A duration above zero, as an option's value.
pub fn duration(text: &str) -> Result<Duration, String> {
    let d = duration_or_zero(text).ok().filter(|d| !d.is_zero());
    d.ok_or_else(|| {
        "a duration above zero and of at most 36500d is wanted, like 500ms, 30s, 5m, 1h30m or 1d".to_owned()
    })
}

/// The same, where zero makes sense.
pub fn duration_or_zero(text: &str) -> Result<Duration, String> {
    let d = parse(text).filter(|d| *d <= MOST);
    d.ok_or_else(|| "a duration of at most 36500d is wanted, like 0s, 30s, 5m, 1h30m or 1d".to_owned())
}

/// The same, within the limit of the library for a lease or a minimum hold.
pub fn at_most_30_days(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(d) if d > Duration::from_secs(30 * 86_400) => duration(""),
        other => other,
    }
    .map_err(|why| why.replace("36500d", "30 days"))
}

/// A number alone is seconds, a day 24 hours.
fn parse(text: &str) -> Option<Duration> {
    if text.bytes().all(|digit| digit.is_ascii_digit()) {
        return text.parse().ok().map(Duration::from_secs);
    }
    // Fractions of seconds, as flock and sleep accept them.
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Duration::try_from_secs_f64(text.parse().ok()?).ok();
    }
    let span: Span = text.parse().ok()?;
    Duration::try_from(span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?).ok()
}

/// Names in the library's messages, and what a user of the command types instead.
const OURS: [(&str, &str); 17] = [
    ("create_schema()", "`leasehold init`"),
    ("schema() says", "`leasehold init --print` says"),
    (", or lease_forever()", ""),
    ("drop this process's clients and connections on it, and connect again", "start leasehold again"),
    ("connect again", "start leasehold again"),
    ("as max_hold allows", "as --max-hold allows"),
    // An argument, followed by what is wrong with it.
    ("hold_at_least is ", "--hold-at-least is "),
    ("max_holders is ", "--max-holders is "),
    ("max_hold is ", "--max-hold is "),
    ("lease is ", "--lease is "),
    ("margin is ", "--kill-after, with what is kept after it, is "),
    ("key_prefix is ", "--prefix is "),
    ("lock_id is ", "the lock id is "),
    ("comment is ", "--comment is "),
    ("owner is ", "--owner is "),
    ("duration is ", "--for is "),
    ("entity is ", "the pin is "),
];

/// A message of the library's in the words of this command, except for what it quotes. A message that is in these words
/// already stays as it is.
pub fn ours(message: &str) -> String {
    let mut escaped = false;
    let is_quote = |c: char| {
        let is_quote = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        is_quote
    };
    // Every other part is in quotes.
    let parts = message.split(is_quote).enumerate();
    let parts = parts.map(|(at, part)| if at % 2 == 0 { reworded(part) } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("\"")
}

fn reworded(part: &str) -> String {
    OURS.iter().fold(part.to_owned(), |part, (theirs, ours)| replaced(&part, theirs, ours))
}

/// A name is not replaced if it is the end of a longer name, or has its dashes already.
fn replaced(part: &str, theirs: &str, ours: &str) -> String {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let (mut told, mut from) = (String::new(), 0);
    for (at, _) in part.match_indices(theirs) {
        if theirs.starts_with(is_of_name) && part[..at].ends_with(is_of_name) {
            continue;
        }
        told.push_str(&part[from..at]);
        told.push_str(ours);
        from = at + theirs.len();
    }
    told + &part[from..]
}

/// `12 s`, `3 min 5 s`, `2 h 5 min`, `3 days 4 h`.
pub fn words(d: Duration) -> String {
    let secs = d.as_secs();
    let (days, hours, mins) = (secs / 86_400, secs / 3600 % 24, secs / 60 % 60);
    let pair = |a: u64, a_unit: &str, b: u64, b_unit: &str| match b {
        0 => format!("{a} {a_unit}"),
        _ => format!("{a} {a_unit} {b} {b_unit}"),
    };
    match (days, hours, mins) {
        (0, 0, 0) if secs < 10 && d.subsec_millis() > 0 => format!("{:.1} s", d.as_secs_f64()),
        (0, 0, 0) => format!("{secs} s"),
        (0, 0, mins) => pair(mins, "min", secs % 60, "s"),
        (0, hours, mins) => pair(hours, "h", mins, "min"),
        (1, hours, _) => pair(1, "day", hours, "h"),
        (days, hours, _) => pair(days, "days", hours, "h"),
    }
}

/// The same to the nearest second.
pub fn whole(d: Duration) -> Duration {
    Duration::from_secs((d + Duration::from_millis(500)).as_secs())
}

/// How long ago that was.
pub fn age(at: SystemTime) -> Duration {
    SystemTime::now().duration_since(at).unwrap_or_default()
}

/// The same in words.
pub fn ago(at: SystemTime) -> String {
    format!("{} ago", words(age(at)))
}

/// The text in at most this many columns, with an ellipsis instead of what does not fit.
pub fn fitted(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

/// UTC, for people.
pub fn clock_time(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| "unknown".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M:%SZ").to_string())
}

/// RFC 3339 in UTC, for machines.
pub fn timestamp(at: SystemTime) -> Option<String> {
    Timestamp::try_from(at).ok().map(|at| format!("{at:.3}"))
}

/// A name that others chose, without anything that a terminal would obey.
pub fn plain(text: &str) -> String {
    let shown = |c: char| if obeyed(c) { c.escape_unicode().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// The same for a text of several lines.
pub fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// The same for a text of a store, which may contain what others have written.
pub fn said(text: &str) -> String {
    plain_lines(&text.replace(['\t', '\r'], " "))
}

/// Whether a terminal would obey something in it.
pub fn is_obeyed(text: &str) -> bool {
    text.contains(obeyed)
}

fn obeyed(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        let hours = [("1h30m", 5400), ("1h 30m", 5400), ("1d", 86_400), ("2d 12h", 216_000), ("1w", 604_800)];
        for (text, secs) in [("30s", 30), ("30", 30), ("5m", 300), ("PT30S", 30), ("30.0", 30)].into_iter().chain(hours)
        {
            assert_eq!(duration(text), Ok(Duration::from_secs(secs)), "{text}");
        }
        for text in ["", "-30s", "-30", "0", "0s", "1x", "s", "1mo", "1y", "99999999999999999999"] {
            assert!(duration(text).unwrap_err().contains("like 500ms"), "{text}");
        }
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!((duration("36500d"), duration_or_zero("36500d")), (Ok(MOST), Ok(MOST)));
        for text in ["36501d", "18446744073709551615", "18446744073709551616"] {
            let refused = [duration(text), duration_or_zero(text), at_most_30_days(text)];
            assert!(refused.iter().all(|why| why.as_ref().unwrap_err().contains("at most 3")), "{text}: {refused:?}");
        }
        assert!(duration("1.2.3").is_err() && duration(".").is_err());
        assert_eq!(duration_or_zero("0"), Ok(Duration::ZERO));
        assert_eq!(duration_or_zero("0s"), Ok(Duration::ZERO));
        assert!(duration_or_zero("-1s").is_err());
    }

    /// Uses the corpus of the fuzz target, and each pair of its files, one after the other.
    #[test]
    fn no_text_is_too_much_for_a_duration() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cli/durations");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let texts: Vec<String> = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
        assert!(texts.len() > 10, "{texts:?}");
        for (first, second) in texts.iter().flat_map(|first| texts.iter().map(move |second| (first, second))) {
            for text in [first.clone(), format!("{first}{second}"), format!("{first} {second}")] {
                let _ = duration_or_zero(&text).map(words);
            }
        }
    }

    #[test]
    fn durations_are_told() {
        let cases = [
            (300, "0.3 s"),
            (5_000, "5 s"),
            (12_900, "12 s"),
            (60_000, "1 min"),
            (185_000, "3 min 5 s"),
            (7_500_000, "2 h 5 min"),
            (86_400_000, "1 day"),
            (274_000_000, "3 days 4 h"),
        ];
        for (millis, text) in cases {
            assert_eq!(words(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_message_names_what_can_be_typed() {
        assert_eq!(ours("no table; create_schema() makes it"), "no table; `leasehold init` makes it");
        assert_eq!(ours("at least 0.1 s, or lease_forever()"), "at least 0.1 s");
        assert_eq!(ours("max_hold is 0ns, but must be more"), "--max-hold is 0ns, but must be more");
        // The end of a longer name is no name of its own, and what can be typed already is right.
        for right in ["spindle_duration is 9ms", "--comment is \"\"", "no_comment is wrong"] {
            assert_eq!(ours(right), right);
        }
        assert_eq!(ours("lease is 1ms, but must be from 1s"), "--lease is 1ms, but must be from 1s");
        assert_eq!(ours("margin is 1ms, but must be"), "--kill-after, with what is kept after it, is 1ms, but must be");
        assert_eq!(ours("duration is 0ns, (owner is \"\")"), "--for is 0ns, (--owner is \"\")");
        // What others chose stays as it is.
        let quoted = r#"lock "owner is \" connect again \\": "#;
        assert_eq!(ours(&format!("{quoted}owner is \"\"")), format!("{quoted}--owner is \"\""));
    }

    /// The texts in quotes of a source file, except those in attributes and tests.
    fn texts(source: &str) -> Vec<String> {
        let source = source.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let is_code = |line: &&str| {
            !["//", "#[must_use", "#[doc", "#![", "#[cfg"].iter().any(|s| line.trim_start().starts_with(s))
        };
        let code: Vec<&str> = source.lines().filter(is_code).collect();
        let code = code.join("\n").replace("'\"'", "").replace("\\\"", "'");
        code.split('"')
            .skip(1)
            .step_by(2)
            .map(|text| text.split_whitespace().filter(|word| *word != "\\").collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn no_message_of_the_library_names_a_function() {
        let mut folders = ["model", "sys", "engine", "store", "api"]
            .map(|name| format!("{}/src/{name}", env!("CARGO_MANIFEST_DIR")).into())
            .to_vec();
        let mut seen = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir::<std::path::PathBuf>(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    folders.push(entry);
                    continue;
                }
                for text in texts(&std::fs::read_to_string(&entry).unwrap()).iter().filter(|text| text.contains(' ')) {
                    seen += usize::from(text.contains("create_schema()"));
                    // A user at a shell cannot do that.
                    assert!(!ours(text).contains("connect again"), "{}: {text}", entry.display());
                    let words: Vec<String> = ours(text).split_whitespace().map(str::to_owned).collect();
                    // Only users who assert a lock in their own transaction see the first one; the others are
                    // PostgreSQL's.
                    let known = ["start_transaction()", "clock_timestamp()", "version()", "$.keyvalue()"];
                    let call =
                        words.iter().map(|word| word.trim_start_matches('(').trim_end_matches([',', ';', ':', '.']));
                    let is_call = |word: &&str| word.ends_with("()") && !word.contains(char::is_uppercase);
                    let call = call.filter(is_call).find(|word| !known.contains(word) && !word.starts_with("pg_"));
                    assert_eq!(call, None, "{}: {text}", entry.display());
                }
            }
        }
        assert!(seen > 5, "{seen}");
    }

    #[test]
    fn what_does_not_fit_ends_with_an_ellipsis() {
        assert_eq!([5, 4, 2, 1].map(|columns| fitted("häng", columns)), ["häng", "häng", "h…", "…"]);
    }

    #[test]
    fn what_a_terminal_would_obey_is_shown_instead() {
        assert_eq!(plain("a\u{1b}[2Jb\u{202e}ü\n"), "a\\u{1b}[2Jb\\u{202e}ü\\u{a}");
    }
}
