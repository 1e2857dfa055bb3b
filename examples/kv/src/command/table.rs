//! The commands that there are: for arity checks, and for clients that ask with `COMMAND`.

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// In lower case.
    pub name: &'static str,
    /// Arguments, the name included; negative: at least so many.
    pub arity: i64,
    /// `readonly`, `write` or neither.
    pub flag: &'static str,
    /// First and last argument that is a key (-1: the last of all), and the step from one to the next; 0: no keys.
    pub keys: (i64, i64, i64),
}

impl Spec {
    /// True if a command may have so many arguments.
    pub fn allows(&self, arguments: usize) -> bool {
        let arguments = i64::try_from(arguments).unwrap_or(i64::MAX);
        if self.arity < 0 { arguments >= -self.arity } else { arguments == self.arity }
    }
}

const fn local(name: &'static str, arity: i64) -> Spec {
    Spec { name, arity, flag: "fast", keys: (0, 0, 0) }
}

const fn read(name: &'static str, arity: i64, keys: (i64, i64, i64)) -> Spec {
    Spec { name, arity, flag: "readonly", keys }
}

const fn write(name: &'static str, arity: i64, keys: (i64, i64, i64)) -> Spec {
    Spec { name, arity, flag: "write", keys }
}

const NONE: (i64, i64, i64) = (0, 0, 0);
const ONE: (i64, i64, i64) = (1, 1, 1);
const ALL: (i64, i64, i64) = (1, -1, 1);

/// Every command, by name.
pub const COMMANDS: &[Spec] = &[
    write("append", 3, ONE),
    local("client", -2),
    local("command", -1),
    local("config", -2),
    read("dbsize", 1, NONE),
    write("decr", 2, ONE),
    write("decrby", 3, ONE),
    write("del", -2, ALL),
    local("echo", 2),
    read("exists", -2, ALL),
    write("expire", 3, ONE),
    write("expireat", 3, ONE),
    write("flushall", -1, NONE),
    write("flushdb", -1, NONE),
    read("get", 2, ONE),
    write("getset", 3, ONE),
    local("hello", -1),
    write("incr", 2, ONE),
    write("incrby", 3, ONE),
    local("info", -1),
    read("keys", 2, NONE),
    read("mget", -2, ALL),
    write("mset", -3, (1, -1, 2)),
    write("persist", 2, ONE),
    write("pexpire", 3, ONE),
    write("pexpireat", 3, ONE),
    local("ping", -1),
    write("psetex", 4, ONE),
    read("pttl", 2, ONE),
    local("quit", -1),
    local("reset", 1),
    read("scan", -2, NONE),
    local("select", 2),
    write("set", -3, ONE),
    write("setex", 4, ONE),
    read("strlen", 2, ONE),
    read("ttl", 2, ONE),
    read("type", 2, ONE),
    write("unlink", -2, ALL),
    read("wait", 3, NONE),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_lower_case() {
        assert!(COMMANDS.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(COMMANDS.iter().all(|spec| spec.name.bytes().all(|byte| byte.is_ascii_lowercase())));
    }
}
