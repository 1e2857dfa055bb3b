//! Turns bytes from a client into commands, wherever the bytes are cut.
//!
//! Each connection has one. It keeps what it has understood of an unfinished command, so that no byte is looked at twice,
//! and says how large that is, so that the connection can ask for a place before it reads on.

use bytes::{Buf, Bytes, BytesMut};

use super::inline;
use crate::limits::{ARGUMENT_COST, ARGUMENT_SIZE_MAX, ARGUMENTS_MAX, COMMAND_SIZE_MAX, INLINE_SIZE_MAX, READ_SIZE};

/// Longest line that announces a number: a type, 20 characters, line end.
const HEADER_SIZE_MAX: usize = 32;

/// What a client has sent that is no command. It is told so, and its connection ends: where its next command would begin
/// is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Protocol error: {0}")]
pub struct ProtocolError(String);

/// Bytes in, commands out.
#[derive(Debug, Default)]
pub struct Parser {
    buffer: BytesMut,
    /// How many bytes of the buffer are known to hold no line end.
    searched: usize,
    unfinished: Option<Unfinished>,
}

#[derive(Debug)]
struct Unfinished {
    arguments: Vec<Bytes>,
    /// Arguments to come.
    left: usize,
    /// Length of the next one, if it has been announced.
    length: Option<usize>,
    /// The total size of the arguments that have been announced.
    size: usize,
}

impl Parser {
    /// Where to put the next bytes.
    pub fn room(&mut self) -> &mut BytesMut {
        self.buffer.reserve(READ_SIZE);
        &mut self.buffer
    }

    /// Size of the command that is being received, as far as it is known.
    pub fn size(&self) -> usize {
        self.unfinished.as_ref().map_or(0, |unfinished| unfinished.size).max(self.buffer.len())
    }

    /// True when a part of a command is here and the rest is not.
    pub fn is_midway(&self) -> bool {
        self.unfinished.is_some() || !self.buffer.is_empty()
    }

    /// The next command's arguments, of which the first is its name; `None` until it is complete.
    pub fn next_command(&mut self) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        loop {
            match self.unfinished.take() {
                Some(unfinished) => return self.go_on(unfinished),
                None if self.buffer.first() == Some(&b'*') => {
                    let Some(count) = self.header("multibulk length")? else { return Ok(None) };
                    if count > ARGUMENTS_MAX as i64 {
                        let why = format!("invalid multibulk length: at most {ARGUMENTS_MAX} arguments");
                        return Err(ProtocolError(why));
                    }
                    // An empty command asks for nothing, not even a reply.
                    if count > 0 {
                        let left = count as usize;
                        let arguments = Vec::with_capacity(left.min(16));
                        self.unfinished = Some(Unfinished { arguments, left, length: None, size: 0 });
                    }
                }
                None => {
                    let Some(line) = self.line(INLINE_SIZE_MAX, "too big inline request")? else { return Ok(None) };
                    let words = inline::split(&line);
                    let words = words.ok_or_else(|| ProtocolError("unbalanced quotes in request".to_owned()))?;
                    if !words.is_empty() {
                        return Ok(Some(words));
                    }
                }
            }
        }
    }

    fn go_on(&mut self, mut unfinished: Unfinished) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        while unfinished.left > 0 {
            let length = match unfinished.length {
                Some(length) => length,
                None => match self.announced()? {
                    Some(length) => length,
                    None => return Ok(self.keep(unfinished)),
                },
            };
            if unfinished.length.replace(length).is_none() {
                unfinished.size += length + ARGUMENT_COST;
                if unfinished.size > COMMAND_SIZE_MAX {
                    let why = format!("a command above {COMMAND_SIZE_MAX} bytes: split it");
                    return Err(ProtocolError(why));
                }
            }
            if self.buffer.len() < length + 2 {
                return Ok(self.keep(unfinished));
            }
            if &self.buffer[length..length + 2] != b"\r\n" {
                return Err(ProtocolError("an argument is longer than announced".to_owned()));
            }
            unfinished.arguments.push(self.buffer.split_to(length).freeze());
            self.buffer.advance(2);
            unfinished.left -= 1;
            unfinished.length = None;
        }
        Ok(Some(unfinished.arguments))
    }

    fn keep(&mut self, unfinished: Unfinished) -> Option<Vec<Bytes>> {
        self.unfinished = Some(unfinished);
        None
    }

    /// The length of the next argument.
    fn announced(&mut self) -> Result<Option<usize>, ProtocolError> {
        match self.buffer.first() {
            None => return Ok(None),
            Some(b'$') => {}
            Some(other) => {
                return Err(ProtocolError(format!("expected '$', got '{}'", char::from(*other).escape_default())));
            }
        }
        let Some(length) = self.header("bulk length")? else { return Ok(None) };
        match usize::try_from(length) {
            Ok(length) if length <= ARGUMENT_SIZE_MAX => Ok(Some(length)),
            _ => Err(ProtocolError(format!("invalid bulk length: at most {ARGUMENT_SIZE_MAX} bytes"))),
        }
    }

    /// The number behind the type of a header line.
    fn header(&mut self, what: &str) -> Result<Option<i64>, ProtocolError> {
        let invalid = || ProtocolError(format!("invalid {what}"));
        let Some(line) = self.line(HEADER_SIZE_MAX, &format!("invalid {what}"))? else { return Ok(None) };
        let number = std::str::from_utf8(&line[1..]).ok().and_then(|text| text.parse().ok());
        number.map(Some).ok_or_else(invalid)
    }

    /// A whole line, without its end.
    fn line(&mut self, size_max: usize, too_long: &str) -> Result<Option<Bytes>, ProtocolError> {
        let found = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
        let length = found.map_or(self.buffer.len(), |at| self.searched + at);
        if length > size_max {
            return Err(ProtocolError(too_long.to_owned()));
        }
        if found.is_none() {
            self.searched = length;
            return Ok(None);
        }
        self.searched = 0;
        let mut line = self.buffer.split_to(length);
        self.buffer.advance(1);
        if line.last() == Some(&b'\r') {
            line.truncate(length - 1);
        }
        Ok(Some(line.freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Vec<Vec<Bytes>>, ProtocolError> {
        let mut parser = Parser::default();
        parser.room().extend_from_slice(bytes);
        let mut commands = Vec::new();
        while let Some(command) = parser.next_command()? {
            commands.push(command);
        }
        Ok(commands)
    }

    #[test]
    fn commands_parse_as_arrays_and_lines() {
        let commands =
            parse(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING\r\n\r\n*0\r\n*-1\r\n*1\r\n$0\r\n\r\nSET a 'b c'\n").unwrap();
        let words = |words: &[&'static str]| words.iter().map(|word| Bytes::from(*word)).collect::<Vec<_>>();
        let expected = [words(&["GET", "a"]), words(&["PING"]), words(&[""]), words(&["SET", "a", "b c"])];
        assert_eq!(commands, expected);
    }

    #[test]
    fn invalid_commands_are_named() {
        let why = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
        assert_eq!(why(b"*x\r\n"), "Protocol error: invalid multibulk length");
        assert_eq!(why(b"*1\r\n:3\r\n"), "Protocol error: expected '$', got ':'");
        assert_eq!(
            why(b"*1\r\n$-1\r\n"),
            format!("Protocol error: invalid bulk length: at most {ARGUMENT_SIZE_MAX} bytes")
        );
        assert_eq!(why(b"*1\r\n$1\r\nabc"), "Protocol error: an argument is longer than announced");
        assert_eq!(why(&[b'*'; 100]), "Protocol error: invalid multibulk length");
        assert_eq!(why(&vec![b'a'; INLINE_SIZE_MAX + 1]), "Protocol error: too big inline request");
        assert_eq!(why(b"set \"a\r\n"), "Protocol error: unbalanced quotes in request");
        assert!(why(format!("*{}\r\n", ARGUMENTS_MAX + 1).as_bytes()).contains("at most"));
    }

    #[test]
    fn oversized_commands_are_refused_early() {
        let mut bytes = b"*9\r\n".to_vec();
        for _ in 0..9 {
            bytes.extend_from_slice(format!("${ARGUMENT_SIZE_MAX}\r\n").as_bytes());
            bytes.extend(std::iter::repeat_n(b'x', ARGUMENT_SIZE_MAX));
            bytes.extend_from_slice(b"\r\n");
        }
        assert!(parse(&bytes).unwrap_err().to_string().contains("split it"));
    }
}
