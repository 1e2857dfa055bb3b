//! Digests that tell certificates and templates apart.
//!
//! Used by [`x509`](crate::x509) and for the annotation of pods that names what they were made from.

use std::fmt::Write;

use ring::digest::{SHA256, digest};

/// SHA-256, in hexadecimal: the same in every version of this program.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    digest.as_ref().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_fips_180() {
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
