//! Runs the fuzz targets on the stable toolchain, over committed inputs and random ones, so that they cannot rot.

#[allow(unreachable_pub, reason = "cargo-fuzz has it as a crate of its own")]
#[path = "../../fuzz/src/targets.rs"]
mod targets;

use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;

/// Runs `target` over every file of `fuzz/seeds/<name>`.
fn run_seeds(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(name);
    let mut files = 0;
    for entry in folder.read_dir().expect("list the seeds") {
        let path = entry.expect("list the seeds").path();
        let seed = std::fs::read(&path).expect("read a seed");
        let passed = std::panic::catch_unwind(|| target(&seed));
        assert!(passed.is_ok(), "{} fails, see above", path.display());
        files += 1;
    }
    assert!(files > 0, "{name}: the seeds are missing");
}

#[test]
fn scan_seeds() {
    run_seeds("scan", targets::scan);
}

#[test]
fn board_seeds() {
    run_seeds("board", targets::board);
}

#[test]
fn keyed_record_seeds() {
    run_seeds("keyed_record", targets::keyed_record);
}

#[test]
fn entry_seeds() {
    run_seeds("entry", targets::entry);
}

#[test]
fn line_2_seeds() {
    run_seeds("line_2", targets::line_2);
}

#[test]
fn socket_request_seeds() {
    run_seeds("socket_request", targets::socket_request);
}

#[test]
fn socket_response_seeds() {
    run_seeds("socket_response", targets::socket_response);
}

#[test]
fn backup_machine_seeds() {
    run_seeds("backup_machine", targets::backup_machine);
}

#[test]
fn http_body_seeds() {
    run_seeds("http_body", targets::http_body);
}

/// A header that passes for one more often than chance would have it, and a body.
fn frame(kinds: std::ops::Range<u8>) -> impl Strategy<Value = Vec<u8>> {
    (vec(any::<u8>(), 0..80), kinds, any::<u8>(), -2..3_i32).prop_map(|(body, kind, request, wrong)| {
        let length = (body.len() as i32 + wrong.min(0)).max(0) as u32;
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([kind, 0, 0, 0, request, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(body);
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn scan_at_random(data in vec(any::<u8>(), 0..2000)) {
        targets::scan(&data);
    }

    #[test]
    fn board_at_random(data in vec(any::<u8>(), 0..150), segment in any::<u8>(), size in any::<bool>()) {
        targets::board(&data);
        // Mostly zeros, as boards are.
        let mut plausible = data;
        plausible.resize(1 + 128, 0);
        plausible[0] |= 1;
        plausible[1 + 24..1 + 128].fill(0);
        plausible[1 + 24] = 1;
        plausible[1 + 42] = if size { 0x80 } else { 1 };
        (plausible[1 + 64 + 16], plausible[1 + 64 + 32]) = (segment, 1);
        targets::board(&plausible);
    }

    #[test]
    fn keyed_record_at_random(data in vec(any::<u8>(), 0..100), key in 0..40_u8, small: bool) {
        targets::keyed_record(&data);
        // Often of a known kind, with a key that is there, and a revision below the LSN.
        let mut plausible = data;
        plausible.resize(plausible.len().max(24), 0);
        plausible[0] &= 0xfe;
        (plausible[12], plausible[13]) = (1 + plausible[12] % 2, plausible[13] % 2);
        (plausible[14], plausible[15]) = (key, 0);
        if small {
            plausible[17..24].fill(0);
        }
        targets::keyed_record(&plausible);
    }

    #[test]
    fn entry_at_random(data in vec(any::<u8>(), 0..40)) {
        targets::entry(&data);
        // Sealed, with a tag, bit 31 clear, and a length that may be.
        let mut plausible = data;
        plausible.resize(33, 7);
        plausible[0] |= 1;
        plausible[12] &= 0x7f;
        plausible[27..29].fill(0);
        targets::entry(&plausible);
    }

    #[test]
    fn line_2_at_random(data in vec(any::<u8>(), 0..70), buckets in 0..5_u8, size in 11..28_u32) {
        targets::line_2(&data);
        // Sealed, with a few buckets, a plausible size, and zeros.
        let mut plausible = data;
        plausible.resize(65, 7);
        plausible[0] |= 1;
        plausible[8] = 0;
        plausible[25..29].copy_from_slice(&[buckets, 0, 0, 0]);
        plausible[29..33].copy_from_slice(&(1_u32 << size).to_le_bytes());
        plausible[33] %= 4;
        plausible[34] = 1;
        plausible[35..61].fill(0);
        targets::line_2(&plausible);
    }

    #[test]
    fn backup_machine_at_random(data in vec(any::<u8>(), 0..600)) {
        targets::backup_machine(&data);
    }

    #[test]
    fn http_body_at_random(data in vec(any::<u8>(), 0..200)) {
        targets::http_body(&data);
    }

    #[test]
    fn socket_request_at_random(data in vec(any::<u8>(), 0..200)) {
        targets::socket_request(&data);
    }

    #[test]
    fn socket_request_with_plausible_headers(frames in vec(frame(0..17), 1..4)) {
        targets::socket_request(&frames.concat());
    }

    // Operations of a known kind, of keys and values that are there, as often as one random byte or none is wrong.
    #[test]
    fn socket_request_with_operations(
        operations in vec((0..5_u8, 0..2_u8, 0..4_u8, 0..3_u8, 0..2_u8, any::<[u8; 5]>()), 0..5),
        count in -1..2_i16,
        wrong in proptest::option::weighted(0.3, (any::<proptest::sample::Index>(), any::<u8>())),
    ) {
        let mut body = (operations.len() as i16 + count.min(0)).to_le_bytes().to_vec();
        body.extend([0; 6]);
        for (kind, flags, key, value, revision, text) in operations {
            let value = if kind == 1 { value } else { 0 };
            body.extend([kind, if kind < 4 { flags } else { 0 }, key, 0, value, 0, 0, 0]);
            body.extend([revision, 0, 0, 0, 0, 0, 0, 0]);
            body.extend(&text[..usize::from(key + value)]);
        }
        if let Some((place, byte)) = wrong {
            let place = place.index(body.len());
            body[place] = byte;
        }
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.extend([12, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        frame.extend(body);
        targets::socket_request(&frame);
    }

    #[test]
    fn socket_response_at_random(data in vec(any::<u8>(), 0..200)) {
        targets::socket_response(&data);
    }

    #[test]
    fn socket_response_with_plausible_headers(frames in vec(frame(128..145), 1..4)) {
        targets::socket_response(&frames.concat());
    }
}
