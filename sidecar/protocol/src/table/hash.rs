//! Where a key belongs in an index: a hash of 128 bits under a secret key, and the two buckets that it names.
//!
//! Called by the primary's index and, for a mirror of it, by getters. The hash key is drawn at random for each index, so that
//! nobody who chooses keys can choose buckets. At the primary the 128 bits stand for the key: no index holds keys.

use std::num::NonZeroU64;

use siphasher::sip128::SipHasher24;

use super::record::Key;

/// Entries of a bucket.
pub const BUCKET_ENTRIES: u32 = 8;
/// Most keys of a table.
pub const KEYS_MAX: u32 = 16 << 20;

/// 16 random bytes: under which an index hashes keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HashKey(pub [u8; 16]);

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(secret)")
    }
}

impl HashKey {
    /// The hash of a key: SipHash-2-4 with 128 bits.
    pub fn hash(&self, key: Key<'_>) -> KeyHash {
        let hash = SipHasher24::new_with_key(&self.0).hash(key.as_bytes());
        KeyHash { h0: hash.h1, h1: hash.h2 }
    }

    /// What the CRC of each entry begins with, so that none of another index verifies.
    pub fn seed(&self) -> u32 {
        crc32fast::hash(&self.0)
    }
}

/// A key's hash: both halves of the 16 bytes that the function gives, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash {
    /// Names the buckets.
    pub h0: u64,
    /// Makes the fingerprint.
    pub h1: u64,
}

impl KeyHash {
    /// What stands in the key's entry.
    pub fn fingerprint(self) -> Fingerprint {
        Fingerprint(NonZeroU64::new(self.h1).unwrap_or(NonZeroU64::MIN))
    }
}

/// The second half of a key's hash, with 1 in place of 0: zeros are no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub NonZeroU64);

/// Number of buckets of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buckets(u32);

impl Buckets {
    /// Fewest: each key has two.
    pub const MIN: Buckets = Buckets(2);

    /// Enough for so many keys: then 60 % of the entries are taken. With two buckets of eight to choose from, of a million buckets
    /// nine are full at that, and no key is without room.
    pub const fn for_keys(keys: u32) -> Buckets {
        let entries = (keys as u64 * 10).div_ceil(6);
        let buckets = entries.div_ceil(BUCKET_ENTRIES as u64);
        if buckets < Self::MIN.0 as u64 { Self::MIN } else { Buckets(buckets as u32) }
    }

    /// As many as an index says that it has. `None`: no index has so many.
    pub fn from_number(number: u32) -> Option<Buckets> {
        (Self::MIN.0..=Self::for_keys(KEYS_MAX).0).contains(&number).then_some(Buckets(number))
    }

    /// The number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Entries of all of them.
    pub const fn entries(self) -> u32 {
        self.0 * BUCKET_ENTRIES
    }

    /// The two different buckets of a key.
    pub fn of(self, hash: KeyHash) -> [u32; 2] {
        let scaled = |half: u32| ((u64::from(half) * u64::from(self.0)) >> 32) as u32;
        let (a, b) = (scaled(hash.h0 as u32), scaled((hash.h0 >> 32) as u32));
        [a, if a == b { (a + 1) % self.0 } else { b }]
    }
}

// Numbers of entries, and half of a line's, fit 32 bits.
const _: () = assert!(Buckets::for_keys(KEYS_MAX).0 as u64 * (BUCKET_ENTRIES as u64) < u32::MAX as u64);
// Any table has more than two.
const _: () = assert!(Buckets::for_keys(1000).0 == 209);
