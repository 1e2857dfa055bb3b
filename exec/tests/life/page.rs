//! The table in `docs/apps.md` is that of the filter. `UPDATE_GOLDENFILES=1` rewrites it.
#![cfg(target_arch = "x86_64")]

use std::fs;
use std::path::Path;

use tailwind_exec::trap::RULES;

const BEGIN: &str = "<!-- table -->\n";
const END: &str = "<!-- end -->";

fn table() -> String {
    let mut table = "| call | if | |\n|---|---|---|\n".to_owned();
    for rule in RULES {
        let calls: Vec<String> = rule.calls.iter().map(|name| format!("`{}`", name.name())).collect();
        let when = if rule.when.is_empty() { "always" } else { rule.when };
        table += &format!("| {} | {when} | {} |\n", calls.join(", "), rule.outcome);
    }
    table
}

#[test]
fn the_table_of_calls_is_that_of_the_filter() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/apps.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let expected = format!("{before}{BEGIN}{}{END}{after}", table());
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        fs::write(&path, &expected).unwrap();
    } else {
        assert_eq!(page, expected, "run this test with UPDATE_GOLDENFILES=1");
    }
}
