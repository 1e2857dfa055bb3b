//! What the pages tell people to type, to look at and to alert on exists in the programs of this build.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Command, CommandFactory};
use serde_json::Value;

/// Pages that are made from the programs, or tell of what once was.
const LEFT_OUT: [&str; 2] = ["docs/reference", "docs/decisions"];
/// What stands in pages for a value that the reader knows, and a value of its kind.
const STANDS_FOR: [(&str, &str); 8] = [
    ("LOG/LSN", "0123456789abcdef0123456789abcdef/1"),
    ("LSN", "1"),
    ("COUNT", "1"),
    ("PORT", "7000"),
    ("$backups", "b0=127.0.0.1:7420"),
    ("$n", "1"),
    ("$1", "first"),
    ("$2", "7001"),
];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A page that people read: its path from the top, its text.
struct Page {
    name: String,
    text: String,
}

/// What a page shows as code, from this line on.
struct Code {
    line: usize,
    text: String,
    /// Within a sentence: it may be a part of a command.
    inline: bool,
}

fn pages() -> Vec<Page> {
    let top = top();
    let mut found = Vec::new();
    let mut folders =
        vec![top.join("docs"), top.join("examples"), top.join("charts"), top.join("sidecar/client/python")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.extend(["README.md", "CONTRIBUTING.md"].map(|name| top.join(name)));
    let named = found.into_iter().map(|path| {
        let name = path.strip_prefix(&top).unwrap().display().to_string();
        Page { text: fs::read_to_string(&path).unwrap(), name }
    });
    let mut pages: Vec<Page> = named.filter(|page| !LEFT_OUT.iter().any(|left| page.name.starts_with(left))).collect();
    pages.sort_by(|a, b| a.name.cmp(&b.name));
    pages
}

impl Page {
    /// Blocks of commands, whether fenced or indented, and what stands in backquotes.
    fn code(&self) -> Vec<Code> {
        let (mut code, mut fence) = (Vec::new(), None::<(String, Code)>);
        for (number, line) in self.text.lines().enumerate() {
            let trimmed = line.trim_start();
            match (trimmed.strip_prefix("```"), fence.as_mut()) {
                (Some(_), Some(_)) => {
                    code.extend(fence.take().filter(|(language, _)| language.is_empty()).map(|(_, code)| code))
                }
                (Some(language), None) => {
                    fence = Some((language.to_owned(), Code { line: number + 2, text: String::new(), inline: false }));
                }
                (None, Some((_, block))) => block.text += &format!("{line}\n"),
                (None, None) if line.starts_with("    ") => {
                    code.push(Code { line: number + 1, text: trimmed.to_owned(), inline: false });
                }
                (None, None) => {
                    let spans = line.split('`').skip(1).step_by(2);
                    code.extend(spans.map(|text| Code { line: number + 1, text: text.to_owned(), inline: true }));
                }
            }
        }
        code
    }
}

/// The commands of a text for a shell, each as its words.
fn commands(text: &str) -> Vec<Vec<String>> {
    let text = text.replace("\\\n", " ");
    let (mut commands, mut words, mut word, mut quote) = (Vec::new(), Vec::new(), None::<String>, None);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            (_, Some(mark)) if letter == mark => quote = None,
            (_, Some(_)) => word.get_or_insert_default().push(letter),
            ('\'' | '"', None) => {
                word.get_or_insert_default();
                quote = Some(letter);
            }
            ('#', None) if word.is_none() => while letters.next_if(|letter| *letter != '\n').is_some() {},
            (';' | '|' | '&' | '\n' | '(' | ')', None) => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            ('>' | '<', None) => {
                // The descriptor before it, and the file after it.
                word.take_if(|word| word.chars().all(|letter| letter.is_ascii_digit()));
                words.extend(word.take());
                while letters.next_if(|letter| matches!(letter, '>' | '&' | ' ')).is_some() {}
                while letters.next_if(|letter| !letter.is_whitespace() && *letter != ';').is_some() {}
            }
            (_, None) if letter.is_whitespace() => words.extend(word.take()),
            (_, None) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    commands.push(words);
    commands
}

/// The command lines of one of our programs among these words: at their beginning, or what another program is to run.
fn of_ours<'a>(words: &'a [String], programs: &'a [Command]) -> Option<(&'a Command, &'a [String])> {
    let begins = |at: usize| {
        at.checked_sub(1).is_none_or(|before| {
            let before = &words[before];
            ["--", "do", "{"].contains(&before.as_str())
                || before.split_once('=').is_some_and(|(name, _)| !name.starts_with('-'))
        })
    };
    words.iter().enumerate().filter(|(at, _)| begins(*at)).find_map(|(at, word)| {
        let name = word.rsplit('/').next().unwrap_or_default();
        let program = programs.iter().find(|program| program.get_name() == name)?;
        Some((program, &words[at..]))
    })
}

/// The words as a reader types them.
fn typed(words: &[String]) -> Vec<String> {
    let fill = |word: &String| {
        let word = word.trim_end_matches("...").to_owned();
        STANDS_FOR.iter().fold(word, |word, (stands, value)| word.replace(stands, value))
    };
    words.iter().map(fill).filter(|word| !word.is_empty()).collect()
}

#[test]
fn commands_of_the_pages_are_understood() {
    let programs = [
        tailwind_sidecar::command_line::CommandLine::command(),
        tailwind_operator::command_line::CommandLine::command(),
        tailwind_exec::command_line::CommandLine::command(),
    ];
    let (mut wrong, mut understood) = (Vec::new(), 0);
    for page in pages() {
        for code in page.code() {
            for words in commands(&code.text) {
                let Some((program, words)) = of_ours(&words, &programs) else { continue };
                let in_part = code.inline || words.iter().any(|word| word == "...");
                match program.clone().try_get_matches_from(typed(words)).map_err(|error| (error.kind(), error)) {
                    Ok(_) | Err((ErrorKind::DisplayHelp | ErrorKind::DisplayVersion, _)) => understood += 1,
                    Err((
                        ErrorKind::MissingRequiredArgument | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
                        _,
                    )) if in_part => {
                        understood += 1;
                    }
                    Err((_, error)) => wrong.push(format!("{}:{}: {}\n{error}", page.name, code.line, words.join(" "))),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(understood > 50, "only {understood} commands were found");
}

/// Words of letters, digits and `_` that begin with this.
fn words_with<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(prefix).filter_map(move |(at, _)| {
        let inside =
            text[..at].chars().next_back().is_some_and(|letter| letter.is_alphanumeric() || "_/".contains(letter));
        let rest = &text[at..];
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(rest.len());
        // Rust's paths are none.
        (!inside && !rest[end..].starts_with("::")).then(|| &rest[..end])
    })
}

#[test]
fn metrics_of_the_pages_exist() {
    let reference = fs::read_to_string(top().join("docs/reference/metrics.md")).unwrap();
    let known: BTreeSet<&str> = words_with(&reference, "tailwind_").collect();
    let base = |word: &str| {
        ["_bucket", "_count", "_sum"].iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word).to_owned()
    };
    let mut seen = 0;
    for page in pages() {
        for code in page.code() {
            for word in words_with(&code.text, "tailwind_") {
                seen += 1;
                assert!(
                    known.contains(word) || known.contains(&*base(word)),
                    "{}:{}: no metric {word}",
                    page.name,
                    code.line
                );
            }
        }
    }
    assert!(seen > 50, "only {seen} metrics were found");
}

/// Whether the definition has this field, as far as it describes what is below.
fn has_field(schema: &Value, path: &[&str]) -> bool {
    let Some((first, rest)) = path.split_first() else { return true };
    match schema.get("properties") {
        Some(properties) => properties.get(first).is_some_and(|field| has_field(field, rest)),
        None => true,
    }
}

#[test]
fn fields_of_the_pages_exist() {
    let definition = fs::read_to_string(top().join("crds/replicagroups.yaml")).unwrap();
    let definition: Value = serde_yaml::from_str(&definition).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert!(
        has_field(schema, &["spec", "backups"]) && !has_field(schema, &["spec", "backup"]),
        "the definition is read"
    );
    let conditions = fs::read_to_string(top().join("docs/reference/kubernetes.md")).unwrap();
    let mut seen = 0;
    for page in pages() {
        for line in page.text.lines().filter(|line| line.contains("get rg") || line.contains("get replicagroup")) {
            let Some((_, path)) = line.split_once("jsonpath='{") else { continue };
            let (path, rest) = path.split_once(['[', '}', ' ']).unwrap();
            let fields: Vec<&str> = path.split('.').filter(|field| !field.is_empty() && *field != "range").collect();
            assert!(has_field(schema, &fields), "{}: no field {path}: {line}", page.name);
            if let Some((_, condition)) = rest.split_once("@.type==\"") {
                let condition = condition.split('"').next().unwrap();
                assert!(conditions.contains(&format!("### {condition}\n")), "{}: no condition {condition}", page.name);
            }
            seen += 1;
        }
    }
    assert!(seen > 5, "only {seen} fields were found");
}

#[test]
fn a_shells_text_is_cut_into_commands() {
    let text =
        "for n in 0; do PATH=x tailwind-sidecar backup --name b$n \\\n  --pool 'a b' 2>>$dir/log & done # no\nls|wc -l";
    let cut = commands(text);
    let words: Vec<Vec<&str>> = cut.iter().map(|words| words.iter().map(String::as_str).collect()).collect();
    assert!(
        words.contains(&vec!["do", "PATH=x", "tailwind-sidecar", "backup", "--name", "b$n", "--pool", "a b"]),
        "{words:?}"
    );
    assert!(words.contains(&vec!["wc", "-l"]), "{words:?}");
}
