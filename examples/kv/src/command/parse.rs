//! From arguments to a [`Command`], or the error that the client gets.
//!
//! Called by connections. The clock is an argument: relative times become absolute here, before anything is logged.

use bytes::Bytes;

use super::table::{COMMANDS, Spec};
use super::{Command, Condition, Local, Read, Write, number};
use crate::glob;
use crate::limits::{CLIENTS_MAX, KEY_SIZE_MAX, SCAN_COUNT_MAX, VALUE_SIZE_MAX};
use crate::resp::Reply;

const SYNTAX: &str = "ERR syntax error";
const NOT_A_NUMBER: &str = "ERR value is not an integer or out of range";
/// Characters of what a client sent that an error repeats.
const QUOTED_MAX: usize = 64;

type Result<T = Command> = std::result::Result<T, Reply>;

/// The command that these arguments make. `now`: milliseconds since 1970.
pub fn parse(arguments: &[Bytes], now: u64) -> Result {
    let (name, rest) = arguments.split_first().ok_or_else(|| Reply::error("ERR an empty command"))?;
    let lower = String::from_utf8_lossy(&name[..name.len().min(QUOTED_MAX)]).to_ascii_lowercase();
    let spec = COMMANDS.binary_search_by_key(&lower.as_str(), |spec| spec.name).map(|at| &COMMANDS[at]);
    let spec = spec.map_err(|_| Reply::error(format!("ERR unknown command '{lower}'")))?;
    if !spec.allows(arguments.len()) {
        return Err(wrong_number(spec.name));
    }
    check_keys(spec, arguments)?;
    match spec.flag {
        "write" => write(spec.name, rest, now).map(Command::Write),
        "readonly" => read(spec.name, rest).map(Command::Read),
        _ => local(spec.name, rest).map(Command::Local),
    }
}

fn wrong_number(name: &str) -> Reply {
    Reply::error(format!("ERR wrong number of arguments for '{name}' command"))
}

fn check_keys(spec: &Spec, arguments: &[Bytes]) -> Result<()> {
    let (first, last, step) = spec.keys;
    if step == 0 {
        return Ok(());
    }
    let last = if last < 0 { arguments.len() - 1 } else { last as usize };
    match arguments[first as usize..=last].iter().step_by(step as usize).find(|key| key.len() > KEY_SIZE_MAX) {
        None => Ok(()),
        Some(key) => Err(Reply::error(format!("ERR key of {} bytes: the limit is {KEY_SIZE_MAX}", key.len()))),
    }
}

fn check_value(value: &Bytes) -> Result<Bytes> {
    if value.len() > VALUE_SIZE_MAX {
        return Err(Reply::error(format!("ERR value of {} bytes: the limit is {VALUE_SIZE_MAX}", value.len())));
    }
    Ok(value.clone())
}

fn integer(text: &Bytes) -> Result<i64> {
    number(text).ok_or(Reply::error(NOT_A_NUMBER))
}

fn write(name: &str, rest: &[Bytes], now: u64) -> Result<Write> {
    let key = || rest[0].clone();
    let add = |amount: Option<i64>| {
        let amount = amount.ok_or(Reply::error("ERR decrement would overflow"))?;
        Ok(Write::Add { key: key(), amount })
    };
    match name {
        "set" => set(rest, now),
        "setex" => set_for(name, rest, 1000, now),
        "psetex" => set_for(name, rest, 1, now),
        "getset" => Ok(plain_set(key(), check_value(&rest[1])?, None, true)),
        "mset" => {
            if rest.len() % 2 == 1 {
                return Err(wrong_number(name));
            }
            let pairs = rest.chunks_exact(2).map(|pair| Ok((pair[0].clone(), check_value(&pair[1])?)));
            pairs.collect::<Result<_>>().map(Write::SetMany)
        }
        "del" | "unlink" => Ok(Write::Delete(rest.to_vec())),
        "incr" => add(Some(1)),
        "decr" => add(Some(-1)),
        "incrby" => add(Some(integer(&rest[1])?)),
        "decrby" => add(integer(&rest[1])?.checked_neg()),
        "append" => Ok(Write::Append { key: key(), value: check_value(&rest[1])? }),
        "expire" => expire(name, rest, 1000, now),
        "pexpire" => expire(name, rest, 1, now),
        "expireat" => expire(name, rest, 1000, 0),
        "pexpireat" => expire(name, rest, 1, 0),
        "persist" => Ok(Write::Persist(key())),
        "flushall" | "flushdb" => match rest {
            [] => Ok(Write::Flush),
            [how] if how.eq_ignore_ascii_case(b"sync") || how.eq_ignore_ascii_case(b"async") => Ok(Write::Flush),
            _ => Err(Reply::error(SYNTAX)),
        },
        _ => unreachable!("a write of the table is missing here"),
    }
}

fn plain_set(key: Bytes, value: Bytes, deadline: Option<u64>, get: bool) -> Write {
    Write::Set { key, value, deadline, keep_deadline: false, condition: Condition::Always, get }
}

/// `SET key value [NX | XX] [GET] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]`
fn set(rest: &[Bytes], now: u64) -> Result<Write> {
    let (mut set_deadline, mut keep, mut when, mut answer_old) = (None, false, None, false);
    let mut options = rest[2..].iter();
    while let Some(option) = options.next() {
        let option = option.to_ascii_lowercase();
        match option.as_slice() {
            b"nx" if when.is_none() => when = Some(Condition::IfAbsent),
            b"xx" if when.is_none() => when = Some(Condition::IfPresent),
            b"get" => answer_old = true,
            b"keepttl" if set_deadline.is_none() => keep = true,
            b"ex" | b"px" | b"exat" | b"pxat" if set_deadline.is_none() && !keep => {
                let time = integer(options.next().ok_or(Reply::error(SYNTAX))?)?;
                let unit = if option[0] == b'e' { 1000 } else { 1 };
                let since = if option.ends_with(b"at") { 0 } else { now };
                set_deadline = Some(deadline("set", time, unit, since)?);
            }
            _ => return Err(Reply::error(SYNTAX)),
        }
    }
    Ok(Write::Set {
        key: rest[0].clone(),
        value: check_value(&rest[1])?,
        deadline: set_deadline,
        keep_deadline: keep,
        condition: when.unwrap_or_default(),
        get: answer_old,
    })
}

fn set_for(name: &str, rest: &[Bytes], unit: i64, now: u64) -> Result<Write> {
    let until = deadline(name, integer(&rest[1])?, unit, now)?;
    Ok(plain_set(rest[0].clone(), check_value(&rest[2])?, Some(until), false))
}

/// A deadline that lies ahead, at least of 1970.
fn deadline(name: &str, time: i64, unit: i64, since: u64) -> Result<u64> {
    let invalid = || Reply::error(format!("ERR invalid expire time in '{name}' command"));
    if time <= 0 {
        return Err(invalid());
    }
    absolute(time, unit, since).ok_or_else(invalid)
}

fn absolute(time: i64, unit: i64, since: u64) -> Option<u64> {
    let sum = time.checked_mul(unit)?.checked_add(i64::try_from(since).ok()?)?;
    // What lies before 1970 has passed all the same.
    Some(sum.max(1) as u64)
}

/// Here a time that has passed is allowed: the key goes at once.
fn expire(name: &str, rest: &[Bytes], unit: i64, since: u64) -> Result<Write> {
    let invalid = || Reply::error(format!("ERR invalid expire time in '{name}' command"));
    let until = absolute(integer(&rest[1])?, unit, since).ok_or_else(invalid)?;
    Ok(Write::Expire { key: rest[0].clone(), deadline: until })
}

fn read(name: &str, rest: &[Bytes]) -> Result<Read> {
    let key = || rest[0].clone();
    Ok(match name {
        "get" => Read::Get(key()),
        "mget" => Read::GetMany(rest.to_vec()),
        "exists" => Read::Exists(rest.to_vec()),
        "strlen" => Read::Length(key()),
        "ttl" => Read::TimeLeft { key: key(), millis: false },
        "pttl" => Read::TimeLeft { key: key(), millis: true },
        "type" => Read::Type(key()),
        "keys" => Read::Keys(key()),
        "dbsize" => Read::Size,
        "wait" => {
            integer(&rest[0])?;
            integer(&rest[1])?;
            Read::Copies
        }
        "scan" => return scan(rest),
        _ => unreachable!("a read of the table is missing here"),
    })
}

/// `SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]`
fn scan(rest: &[Bytes]) -> Result<Read> {
    let cursor = std::str::from_utf8(&rest[0]).ok().and_then(|text| text.parse().ok());
    let cursor = cursor.ok_or(Reply::error("ERR invalid cursor"))?;
    let (mut wanted, mut visits, mut strings) = (None, 10, true);
    for pair in rest[1..].chunks(2) {
        let [option, value] = pair else { return Err(Reply::error(SYNTAX)) };
        match option.to_ascii_lowercase().as_slice() {
            b"match" => wanted = Some(value.clone()),
            b"count" => match integer(value)? {
                count @ 1.. => visits = (count as u64).min(SCAN_COUNT_MAX),
                _ => return Err(Reply::error(SYNTAX)),
            },
            b"type" => strings = value.eq_ignore_ascii_case(b"string"),
            _ => return Err(Reply::error(SYNTAX)),
        }
    }
    Ok(Read::Scan { cursor, pattern: wanted, count: visits, strings })
}

fn local(name: &str, rest: &[Bytes]) -> Result<Local> {
    let word = rest.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
    Ok(Local::Answer(match name {
        "ping" => match rest {
            [] => Reply::Simple("PONG"),
            [text] => Reply::Bulk(text.clone()),
            _ => return Err(wrong_number(name)),
        },
        "echo" => Reply::Bulk(rest[0].clone()),
        "select" if rest[0].as_ref() == b"0" => Reply::OK,
        "select" => return Err(Reply::error("ERR DB index is out of range: there is one, 0")),
        "reset" => Reply::Simple("RESET"),
        "info" => return Ok(Local::Info),
        "quit" => return Ok(Local::Quit),
        "hello" => hello(rest)?,
        "command" => match word.as_slice() {
            b"" => Reply::Array(COMMANDS.iter().map(describe).collect()),
            b"count" => Reply::count(COMMANDS.len()),
            // The documentation of what this server has is Redis' own.
            b"docs" => Reply::Array(Vec::new()),
            b"info" => {
                let find = |name: &Bytes| COMMANDS.iter().find(|spec| name.eq_ignore_ascii_case(spec.name.as_bytes()));
                Reply::Array(rest[1..].iter().map(|name| find(name).map_or(Reply::Nil, describe)).collect())
            }
            _ => return Err(unknown_part(name, &word)),
        },
        "config" => match word.as_slice() {
            b"get" if rest.len() > 1 => config(&rest[1..]),
            b"get" => return Err(wrong_number("config|get")),
            _ => return Err(unknown_part(name, &word)),
        },
        "client" => match word.as_slice() {
            b"setname" | b"setinfo" | b"no-evict" | b"no-touch" => Reply::OK,
            b"getname" => Reply::Nil,
            _ => return Err(unknown_part(name, &word)),
        },
        _ => unreachable!("a command of the table is missing here"),
    }))
}

fn unknown_part(name: &str, word: &[u8]) -> Reply {
    let word = String::from_utf8_lossy(&word[..word.len().min(QUOTED_MAX)]).into_owned();
    Reply::error(format!("ERR unknown subcommand '{word}' of '{name}'"))
}

/// `HELLO [version ...]`; versions above 2 are not spoken.
fn hello(rest: &[Bytes]) -> Result<Reply> {
    match rest.first() {
        Some(version) if version.as_ref() != b"2" => {
            return Err(Reply::error("NOPROTO unsupported protocol version: this server speaks RESP2"));
        }
        _ if rest.len() > 1 => return Err(Reply::error("ERR HELLO takes a version only: there are no users here")),
        _ => {}
    }
    let pair = |name: &str, value: Reply| [Reply::text(name), value];
    let facts = [
        pair("server", Reply::text("tailwind-kv")),
        pair("version", Reply::text(env!("CARGO_PKG_VERSION"))),
        pair("proto", Reply::Integer(2)),
        pair("mode", Reply::text("standalone")),
        pair("modules", Reply::Array(Vec::new())),
    ];
    Ok(Reply::Array(facts.into_iter().flatten().collect()))
}

fn describe(spec: &Spec) -> Reply {
    let (first, last, step) = spec.keys;
    Reply::Array(vec![
        Reply::text(spec.name),
        Reply::Integer(spec.arity),
        Reply::Array(vec![Reply::Simple(spec.flag)]),
        Reply::Integer(first),
        Reply::Integer(last),
        Reply::Integer(step),
    ])
}

/// What clients and benchmarks ask for.
fn config(patterns: &[Bytes]) -> Reply {
    let clients = CLIENTS_MAX.to_string();
    let settings = [("appendonly", "no"), ("databases", "1"), ("maxclients", &clients), ("save", "")];
    let wanted = |name: &&(&str, &str)| {
        patterns.iter().any(|pattern| glob::matches(&pattern.to_ascii_lowercase(), name.0.as_bytes()))
    };
    let pair = |(name, value): &(&str, &str)| [Reply::text(*name), Reply::text(*value)];
    Reply::Array(settings.iter().filter(wanted).flat_map(pair).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    fn words(line: &str) -> Vec<Bytes> {
        line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect()
    }

    fn set_of(line: &str) -> (Option<u64>, bool, Condition, bool) {
        match parse(&words(line), NOW) {
            Ok(Command::Write(Write::Set { deadline, keep_deadline, condition, get, .. })) => {
                (deadline, keep_deadline, condition, get)
            }
            other => panic!("{line}: {other:?}"),
        }
    }

    fn error(line: &str) -> String {
        match parse(&words(line), NOW) {
            Err(Reply::Error(text)) => text.into_owned(),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn every_listed_command_parses_any_arguments() {
        for spec in COMMANDS {
            for count in 0..8 {
                for argument in ["0", "x", "", "get", "-9223372036854775808"] {
                    let mut arguments = vec![Bytes::from(spec.name.to_ascii_uppercase())];
                    arguments.extend(std::iter::repeat_n(Bytes::from(argument), count));
                    let outcome = parse(&arguments, NOW);
                    assert!(spec.allows(count + 1) || outcome.is_err(), "{arguments:?}");
                }
            }
        }
    }

    #[test]
    fn set_accepts_options_in_any_order() {
        assert_eq!(set_of("set a b"), (None, false, Condition::Always, false));
        assert_eq!(set_of("SET a b EX 2 nx"), (Some(NOW + 2000), false, Condition::IfAbsent, false));
        assert_eq!(set_of("set a b XX GET px 2"), (Some(NOW + 2), false, Condition::IfPresent, true));
        assert_eq!(set_of("set a b exat 9 get"), (Some(9000), false, Condition::Always, true));
        assert_eq!(set_of("set a b keepttl"), (None, true, Condition::Always, false));
        for bad in ["set a b nx xx", "set a b ex", "set a b ex 1 px 1", "set a b keepttl ex 1", "set a b foo"] {
            assert_eq!(error(bad), SYNTAX, "{bad}");
        }
        assert_eq!(error("set a b ex 0"), "ERR invalid expire time in 'set' command");
        assert_eq!(error("set a b ex 9223372036854775807"), "ERR invalid expire time in 'set' command");
        assert_eq!(error("set a b ex x"), NOT_A_NUMBER);
    }

    #[test]
    fn relative_times_become_absolute() {
        let deadline = |line: &str| match parse(&words(line), NOW) {
            Ok(Command::Write(Write::Expire { deadline, .. })) => deadline,
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(deadline("expire a 3"), NOW + 3000);
        assert_eq!(deadline("pexpire a 3"), NOW + 3);
        assert_eq!(deadline("expireat a 3"), 3000);
        assert_eq!(deadline("expire a -5000"), 1);
        assert_eq!(error("expire a 9223372036854775807"), "ERR invalid expire time in 'expire' command");
    }

    #[test]
    fn errors_say_what_is_wrong() {
        assert_eq!(error("foo a"), "ERR unknown command 'foo'");
        assert_eq!(error("get"), "ERR wrong number of arguments for 'get' command");
        assert_eq!(error("mset a b c"), "ERR wrong number of arguments for 'mset' command");
        assert_eq!(error("decrby a -9223372036854775808"), "ERR decrement would overflow");
        assert_eq!(error("select 1"), "ERR DB index is out of range: there is one, 0");
        assert_eq!(error("scan x"), "ERR invalid cursor");
        assert!(error("hello 3").starts_with("NOPROTO "));
        let long = vec![
            Bytes::from_static(b"mset"),
            Bytes::from_static(b"a"),
            Bytes::new(),
            Bytes::from(vec![0; KEY_SIZE_MAX + 1]),
            Bytes::new(),
        ];
        assert_eq!(parse(&long, NOW), Err(Reply::error("ERR key of 65537 bytes: the limit is 65536")));
    }

    #[test]
    fn settings_that_benchmarks_query_exist() {
        let reply = |line: &str| match parse(&words(line), NOW) {
            Ok(Command::Local(Local::Answer(reply))) => reply,
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(reply("config get save"), Reply::Array(vec![Reply::text("save"), Reply::text("")]));
        assert_eq!(reply("CONFIG GET Append*"), Reply::Array(vec![Reply::text("appendonly"), Reply::text("no")]));
        assert_eq!(reply("config get nothing"), Reply::Array(vec![]));
        assert_eq!(
            reply("command info get nothing"),
            Reply::Array(vec![describe(COMMANDS.iter().find(|spec| spec.name == "get").unwrap()), Reply::Nil])
        );
    }
}
