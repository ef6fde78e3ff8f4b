//! Values in a command for the AWS command line that people paste into a shell.

/// One word of a shell: the value as it is, or in quotes where it has to be.
pub(super) fn word(value: &str) -> String {
    let is_plain = |c: char| is_of_name(c) || c == ':' || c == '/';
    if !value.is_empty() && value.chars().all(is_plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}

/// A list of attributes, each with its `what`: in the short form, or as JSON where a name would break that.
pub(super) fn attributes<'a>(what: &str, each: impl Iterator<Item = (&'a str, String)>) -> String {
    let each: Vec<_> = each.collect();
    if each.iter().all(|(name, _)| name.chars().all(is_of_name)) {
        let each: Vec<String> = each.iter().map(|(name, is)| format!("AttributeName={name},{what}={is}")).collect();
        return each.join(" ");
    }
    let object = |(name, is): &(&str, String)| format!("{{\"AttributeName\":\"{}\",\"{what}\":\"{is}\"}}", json(name));
    let each: Vec<String> = each.iter().map(object).collect();
    word(&format!("[{}]", each.join(",")))
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.'
}

/// The text between the quotes of a JSON string.
fn json(text: &str) -> String {
    let escaped = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_needs_quotes_has_them() {
        for plain in ["eu-central-1", "http://127.0.0.1:8000", "a_b.c"] {
            assert_eq!(word(plain), plain);
        }
        for (value, quoted) in [("", "''"), ("a b", "'a b'"), ("~", "'~'"), ("it's", r"'it'\''s'"), ("$x", "'$x'")] {
            assert_eq!(word(value), quoted);
        }
    }

    #[test]
    fn a_list_is_json_where_a_name_would_break_it() {
        let list = |names: &[&'static str]| attributes("KeyType", names.iter().map(|name| (*name, "HASH".to_owned())));
        assert_eq!(list(&["key", "a.b"]), "AttributeName=key,KeyType=HASH AttributeName=a.b,KeyType=HASH");
        for (name, escaped) in [("a,b", "a,b"), ("it's", r"it'\''s"), ("\"\\\n", r#"\"\\\u000a"#)] {
            let right = format!("'[{{\"AttributeName\":\"{escaped}\",\"KeyType\":\"HASH\"}}]'");
            assert_eq!(list(&[name]), right);
        }
    }
}
