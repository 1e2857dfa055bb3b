//! Random numbers that convey rights: the secrets of connections and the keys of lendings.
//!
//! Receivers draw them and put them into answers and grants; senders present them. Calls the kernel's random generator.

use std::fmt;
use std::hint::black_box;
use std::io;

use serde::{Deserialize, Serialize};

/// Random bytes behind a secret.
const SECRET_BYTES: usize = 16;
/// Bytes of a secret as it is written: two hexadecimal digits for each.
pub(crate) const SECRET_SIZE: usize = 2 * SECRET_BYTES;

/// 128 random bits that convey the right to write, compared in constant time. Never logged: `Debug` hides it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// A new one.
    pub(crate) fn random() -> io::Result<Secret> {
        let digits = random::<SECRET_BYTES>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Secret(digits))
    }

    /// As it goes over the wire; `None` for a text of the wrong length, which no receiver can have made.
    pub(crate) fn digits(&self) -> Option<[u8; SECRET_SIZE]> {
        self.0.as_bytes().try_into().ok()
    }

    /// Whether this secret was presented, in a time that does not reveal how much of it was right.
    pub(crate) fn matches(&self, presented: &[u8; SECRET_SIZE]) -> bool {
        let differences =
            self.0.bytes().zip(presented).fold(0, |seen, (ours, theirs)| black_box(seen | (ours ^ theirs)));
        self.0.len() == SECRET_SIZE && differences == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A key for a lending. Never zero, which is what memory that was never lent holds in its place.
pub(crate) fn key() -> io::Result<u64> {
    loop {
        match u64::from_le_bytes(random()?) {
            0 => continue,
            key => return Ok(key),
        }
    }
}

/// A packet number of InfiniBand, 24 bits.
#[cfg(feature = "verbs")]
pub(crate) fn packet_number() -> io::Result<u32> {
    Ok(u32::from_le_bytes(random()?) & 0x00ff_ffff)
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_matches_itself_only() {
        let secret = Secret::random().unwrap();
        let mut digits = secret.digits().unwrap();
        assert!(secret.matches(&digits));
        assert!(!Secret::random().unwrap().matches(&digits));
        for index in 0..SECRET_SIZE {
            digits[index] ^= 1;
            assert!(!secret.matches(&digits));
            digits[index] ^= 1;
        }
    }

    #[test]
    fn a_secret_is_serialized_as_text_but_never_logged() {
        let secret = Secret::random().unwrap();
        let text = serde_json::to_string(&secret).unwrap();
        assert_eq!(serde_json::from_str::<Secret>(&text).unwrap().digits(), secret.digits());
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn a_secret_of_the_wrong_length_is_refused() {
        let short: Secret = serde_json::from_str("\"\"").unwrap();
        assert!(short.digits().is_none());
        assert!(!short.matches(&[0; SECRET_SIZE]));
    }
}
