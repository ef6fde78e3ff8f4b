//! Keeps a password in a store URL out of what others can see.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::exec::{not_ourselves, own_binary};
use crate::failure::{Failure, Outcome, code};
use crate::words::plain;

/// Others see the arguments of a process. If a store URL is among them, this process starts itself anew with the URL in
/// its environment instead, which only its user sees.
pub fn hide(given: &[OsString]) -> Outcome<()> {
    let Some((url, rest)) = taken_out(given) else { return Ok(()) };
    let harmless = [&b"sqlite:"[..], b"memory:"].iter().any(|scheme| url.as_bytes().starts_with(scheme));
    let Some((name, args)) = rest.split_first().filter(|_| !harmless) else { return Ok(()) };
    let error = Command::new(own_binary()).arg0(name).args(args).env("LEASEHOLD_STORE", url).exec();
    Err(Failure::Own(code::INTERNAL, format!("the URL could not be hidden: {}", not_ourselves(error))))
}

/// Whether a URL that a client has connected with may have a password or a user. URLs of MongoDB and PostgreSQL can:
/// before the host, or as an option.
pub fn has_password(url: &str) -> bool {
    let url = url.to_ascii_lowercase();
    ["mongodb", "postgres"].iter().any(|scheme| url.starts_with(scheme))
        && ["@", "%40", "password", "properties", "user="].iter().any(|word| url.contains(word))
}

/// The value of `--store`, and the arguments without it. They were parsed before, so they are well-formed.
fn taken_out(given: &[OsString]) -> Option<(OsString, Vec<OsString>)> {
    let mut rest = Vec::new();
    let mut url = None;
    let mut all = given.iter();
    while let Some(arg) = all.next() {
        if arg == "--" {
            rest.push(arg.clone());
            rest.extend(all.cloned());
            break;
        }
        if arg == "--key" || arg == "--name" {
            // The next argument is a key, whatever it looks like.
            rest.push(arg.clone());
            rest.extend(all.next().cloned());
        } else if arg == "--store" {
            url = all.next().cloned();
        } else if let Some(value) = arg.as_bytes().strip_prefix(b"--store=") {
            url = Some(OsStr::from_bytes(value).to_owned());
        } else {
            rest.push(arg.clone());
        }
    }
    Some((url?, rest))
}

/// A message that quotes arguments, without the secret parts of any URL in them.
pub fn scrubbed(message: &str, given: &[OsString]) -> String {
    let mut message = message.to_owned();
    for rest in given.iter().filter_map(|arg| arg.to_str()).map(after_scheme) {
        let hidden = hidden(rest);
        let stripped = |text: &str| plain(&anstream::adapter::strip_str(text).to_string());
        // The text as it is, and as it is shown if a terminal would obey something in it.
        for shown_as in [&plain as &dyn Fn(&str) -> String, &str::to_owned, &stripped] {
            let shown = shown_as(rest);
            if !shown.is_empty() {
                message = message.replace(&shown, &shown_as(&hidden));
            }
        }
    }
    message
}

/// The part of an argument after the scheme of what may be a URL, also if a part of `://` is missing.
fn after_scheme(arg: &str) -> &str {
    arg.find([':', '/']).map_or("", |at| arg[at..].trim_start_matches([':', '/']))
}

/// That part without user and password, and without the options, one of which may be a password.
fn hidden(rest: &str) -> String {
    let (user, options) = (rest.rfind('@').unwrap_or(0), rest.find(['?', '&']).map_or(rest.len(), |at| at + 1));
    // A password may contain `?`, and an option `@`.
    if user > 0 && options <= user {
        return "***".to_owned();
    }
    let stars = |is_there| if is_there { "***" } else { "" };
    format!("{}{}{}", stars(user > 0), &rest[user..options], stars(options < rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(args: &[&str]) -> Vec<OsString> {
        args.iter().map(OsString::from).collect()
    }

    #[test]
    fn the_url_is_taken_out_of_our_own_arguments_only() {
        let given = os(&["l", "--store", "x://u:p@h", "run", "k", "--", "prog", "--store", "y"]);
        let (url, rest) = taken_out(&given).unwrap();
        assert_eq!(url, "x://u:p@h");
        assert_eq!(rest, os(&["l", "run", "k", "--", "prog", "--store", "y"]));
        assert_eq!(taken_out(&os(&["l", "run", "--store=a", "k"])).unwrap().1, os(&["l", "run", "k"]));
        assert!(taken_out(&os(&["l", "run", "k", "--", "--store", "y"])).is_none());
        // A key, which may be anything.
        for option in ["--key", "--name"] {
            assert!(taken_out(&os(&["l", "run", option, "--store", "--", "prog"])).is_none());
            let (url, rest) = taken_out(&os(&["l", "status", option, "--", "--store", "y"])).unwrap();
            assert_eq!((url, rest), ("y".into(), os(&["l", "status", option, "--"])));
        }
    }

    #[test]
    fn a_url_with_a_password_is_known() {
        for with in [
            "mongodb://u:p@h/d",
            "mongodb+srv://u:p@h/d",
            "MongoDB://h/d?tlsCertificateKeyFilePassword=x",
            "postgres://h/d?password=x",
            "postgres://h/d?user=me",
        ] {
            assert!(has_password(with), "{with}");
        }
        let spanner = "spanner:projects/p/instances/i/databases/d?table=t";
        for without in [
            "sqlite:/a@b/c.db",
            "sqlite:/mongodb/a@b.db",
            "mongodb://h/d?collection=c",
            "dynamodb://t?region=r",
            spanner,
        ] {
            assert!(!has_password(without), "{without}");
        }
    }

    #[test]
    fn passwords_are_scrubbed() {
        for (given, shown) in [
            ("postgres://h/d?password=x&sslmode=require", "postgres://h/d?***"),
            ("--stor=mongodb://u:p@h/d?tlsCertificateKeyFilePassword=x", "--stor=mongodb://***@h/d?***"),
            ("dynamodb://table?region=r", "dynamodb://table?***"),
            ("postgres://h/d&passwd=x", "postgres://h/d&***"),
            // A part of `://` is missing.
            ("postgres//u:p@h/d", "postgres//***@h/d"),
            ("postgres:u:p//q@h/d", "postgres:***@h/d"),
            ("u:p@h/d", "u:***@h/d"),
            // Nobody knows where the password ends.
            ("mongodb://me:p?q@h/d?password=x", "mongodb://***"),
            ("postgres://h/d?password=x@y", "postgres://***"),
        ] {
            assert_eq!(scrubbed(&format!("unknown '{given}'"), &os(&["l", given])), format!("unknown '{shown}'"));
        }
        let given = os(&["l", "mongodb://me:p@ss@host/db"]);
        assert_eq!(scrubbed("unknown 'mongodb://me:p@ss@host/db'", &given), "unknown 'mongodb://***@host/db'");
        let given = os(&["l", "mongodb://me:\u{1b}[1mp\u{7}@host/db"]);
        for shown in [given[1].to_str().unwrap(), &plain(given[1].to_str().unwrap()), "mongodb://me:p@host/db"] {
            assert_eq!(scrubbed(shown, &given), "mongodb://***@host/db");
        }
    }
}
