//! RESP, the protocol of Redis: the bytes of commands and replies. Called by [`commands`](crate::commands).

use std::io::{self, ErrorKind};
use std::sync::Arc;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// Longest command, in bytes of its words: the longest value of a table, and as much again.
const COMMAND_SIZE_MAX: usize = 128 << 10;
/// Most words in a command: as many keys as a request to a table may have, and the command itself.
const WORDS_MAX: usize = 257;
/// Longest line: a command that somebody types.
const LINE_SIZE_MAX: usize = 16 << 10;

/// Reads the next command, in words; `None` at the end. What is no command is [`ErrorKind::InvalidData`].
pub(crate) async fn read_command(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Vec<Vec<u8>>>> {
    let Some(line) = read_line(from).await? else { return Ok(None) };
    let Some(count) = line.strip_prefix(b"*") else {
        let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        return Ok(Some(words.map(<[u8]>::to_vec).collect()));
    };
    let (mut words, mut room) = (Vec::new(), COMMAND_SIZE_MAX);
    for _ in 0..number(count, WORDS_MAX)? {
        let line = read_line(from).await?.ok_or(ErrorKind::UnexpectedEof)?;
        let size = number(line.strip_prefix(b"$").ok_or_else(|| invalid("expected '$'"))?, room)?;
        room -= size;
        let mut word = vec![0; size + 2];
        from.read_exact(&mut word).await?;
        if word.split_off(size) != b"\r\n" {
            return Err(invalid("a word is longer than announced"));
        }
        words.push(word);
    }
    Ok(Some(words))
}

/// Reads up to a line's end, which is not returned; `None` at the end.
async fn read_line(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    from.take(LINE_SIZE_MAX as u64).read_until(b'\n', &mut line).await?;
    match line.strip_suffix(b"\n") {
        Some(rest) => Ok(Some(rest.strip_suffix(b"\r").unwrap_or(rest).to_vec())),
        None if line.is_empty() => Ok(None),
        None if line.len() == LINE_SIZE_MAX => Err(invalid("a line is too long")),
        None => Err(ErrorKind::UnexpectedEof.into()),
    }
}

fn number(text: &[u8], max: usize) -> io::Result<usize> {
    let number = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.filter(|number| *number <= max).ok_or_else(|| invalid(&format!("expected a number up to {max}")))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("Protocol error: {what}"))
}

/// What a command is answered with.
#[derive(Debug)]
pub(crate) enum Reply {
    Simple(&'static str),
    /// A word in capitals, which programs look at, and words for people.
    Error(String),
    Integer(i64),
    Bulk(Arc<[u8]>),
    Nil,
}

impl Reply {
    pub(crate) fn count(count: usize) -> Reply {
        Reply::Integer(count as i64)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Simple(text) => out.extend(format!("+{text}\r\n").bytes()),
            // A client's words may be quoted in it, and a line's end among them would end it.
            Reply::Error(text) => out.extend(format!("-{}\r\n", text.replace(char::is_control, " ")).bytes()),
            Reply::Integer(number) => out.extend(format!(":{number}\r\n").bytes()),
            Reply::Bulk(bytes) => {
                out.extend(format!("${}\r\n", bytes.len()).bytes());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Reply::Nil => out.extend_from_slice(b"$-1\r\n"),
        }
    }
}
