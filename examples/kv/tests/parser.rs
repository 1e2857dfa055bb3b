//! The parser against any bytes, and against bytes that are cut anywhere.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use tailwind_example_kv::command::parse;
use tailwind_example_kv::resp::{Parser, ProtocolError};

/// Feeds pieces and takes commands whenever there are some; what came, and how it ended.
fn feed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Vec<Bytes>>, Result<(), ProtocolError>) {
    let mut parser = Parser::default();
    let mut commands = Vec::new();
    for piece in pieces {
        parser.room().extend_from_slice(piece);
        loop {
            match parser.next_command() {
                Ok(Some(command)) => commands.push(command),
                Ok(None) => break,
                Err(error) => return (commands, Err(error)),
            }
        }
    }
    (commands, Ok(()))
}

/// Cuts bytes at these places, of which some may be the same or too far.
fn cut<'a>(bytes: &'a [u8], at: &[usize]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = at.iter().map(|place| place % (bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

fn encode(commands: &[Vec<Vec<u8>>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for command in commands {
        bytes.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
        for argument in command {
            bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        }
    }
    bytes
}

/// Bytes that look like the protocol often enough to get far.
fn likely() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        Just(b"*".to_vec()),
        Just(b"$".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"*2\r\n$3\r\nGET\r\n".to_vec()),
        Just(b"$1\r\na\r\n".to_vec()),
        Just(b"-1".to_vec()),
        Just(b"99999999999999999999".to_vec()),
        Just(b"\"".to_vec()),
        Just(b"set \\x4".to_vec()),
        (0u32..20).prop_map(|number| number.to_string().into_bytes()),
        vec(any::<u8>(), 0..6),
    ];
    vec(token, 0..40).prop_map(|tokens| tokens.concat())
}

proptest! {
    #[test]
    fn commands_parse_at_any_split(
        commands in vec(vec(vec(any::<u8>(), 0..40), 1..6), 0..8),
        at in vec(any::<usize>(), 0..20),
    ) {
        let bytes = encode(&commands);
        let (found, end) = feed(cut(&bytes, &at));
        prop_assert_eq!(end, Ok(()));
        let expected: Vec<Vec<Bytes>> = commands.into_iter().map(|command| command.into_iter().map(Bytes::from).collect()).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn parsing_is_independent_of_splits(bytes in likely(), at in vec(any::<usize>(), 0..20)) {
        let whole = feed([bytes.as_slice()]);
        let bytewise = feed(bytes.chunks(1));
        prop_assert_eq!(&feed(cut(&bytes, &at)), &whole);
        prop_assert_eq!(&bytewise, &whole);
        for command in &whole.0 {
            // For any input: a command or an error, and no panic.
            let _ = parse(command, 1_000);
        }
    }
}
