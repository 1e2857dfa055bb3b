use tailwind_protocol::ids::Generation;
use tailwind_protocol::layout::{FOOTER_SIZE, Footer, Sealed, SegmentIdentity, SegmentSize};
use tailwind_protocol::segment::SegmentWriter;

use super::*;
use crate::commands::scan::examine::examine;

const LOG: LogId = LogId(7);

/// The file of a segment with these LSNs.
fn file(log: LogId, segment: u64, epoch: u64, sealed: Sealed, lsns: std::ops::Range<u64>) -> Vec<u8> {
    let identity = SegmentIdentity {
        log,
        segment: SegmentId(segment),
        epoch: Epoch(epoch),
        generation: Generation(segment),
        size: SegmentSize::MIN,
    };
    let mut bytes = vec![0; SegmentSize::MIN.bytes() as usize];
    let (mut writer, mut end) = SegmentWriter::open(identity, Lsn(lsns.start), &mut bytes);
    for _ in lsns {
        end += writer.append(&mut bytes[end as usize..], [&b"payload"[..]].into_iter());
    }
    let closure = writer.closure();
    bytes.truncate(closure.end.0 as usize);
    bytes.extend_from_slice(&Footer { sealed, closure }.to_bytes());
    bytes
}

fn add(folder: &mut Folder, name: &str, bytes: &[u8]) -> String {
    match examine(name, bytes) {
        Ok(content) => folder.add(name, &content),
        Err(why) => folder.add_bad(name, &why.to_string()),
    }
}

fn closed(folder: &mut Folder, segment: u64, epoch: u64, lsns: std::ops::Range<u64>) -> String {
    add(folder, &format!("segment-{segment:016}.closed"), &file(LOG, segment, epoch, Sealed::Closed, lsns))
}

fn problems(folder: &Folder) -> Vec<String> {
    let verdict = folder.verdict().unwrap();
    assert!(!verdict.is_sound());
    assert!(verdict.summary.starts_with("DAMAGED: "), "{verdict}");
    verdict.problems
}

#[test]
fn a_whole_folder_is_sound() {
    let mut folder = Folder::default();
    assert_eq!(
        closed(&mut folder, 3, 1, 10..20),
        "segment-0000000000000003.closed  sound    segment 3, epoch 1, LSN 10 to 19, 552 bytes valid"
    );
    closed(&mut folder, 4, 2, 20..30);
    let open = file(LOG, 5, 2, Sealed::Open, 30..35);
    let said = add(&mut folder, "segment-0000000000000005.open", &open[..open.len() - FOOTER_SIZE]);
    assert_eq!(
        said,
        "segment-0000000000000005.open    open     segment 5, epoch 2, LSN 30 to 34, 312 bytes valid, no footer"
    );
    let verdict = folder.verdict().unwrap();
    assert!(verdict.is_sound());
    assert_eq!(
        verdict.to_string(),
        "  \
  log       00000000000000000000000000000007
  segments  3 to 5: 2 closed, 1 open
  total     25 records, LSN 10 to 34, 175 B of payload
  begin     records before LSN 10 are trimmed or missing
  verdict   sound: no file is damaged, no segment and no LSN is missing between the first and the last. Whether the log \
         ends here, only the other members can tell"
    );
}

#[test]
fn a_name_is_one_line_and_no_escape_sequence() {
    let folder = Folder::default();
    let line = folder.add_other("x\u{1b}[2J\nsegment-0000000000000001.closed", "unknown");
    assert!(line.starts_with("x?[2J?segment-"), "{line}");
}

#[test]
fn missing_segments_are_listed_with_their_records() {
    let mut folder = Folder::default();
    closed(&mut folder, 1, 1, 1..11);
    closed(&mut folder, 3, 1, 20..30);
    closed(&mut folder, 6, 1, 50..51);
    closed(&mut folder, 8, 1, 52..53);
    assert_eq!(
        problems(&folder),
        [
            "segment 2 is missing: LSN 11 to 19 are missing",
            "segments 4 to 5 are missing: LSN 30 to 49 are missing",
            "segment 7 is missing: LSN 51 is missing",
        ]
    );
}

#[test]
fn damaged_files_are_listed_as_gaps() {
    let mut folder = Folder::default();
    closed(&mut folder, 1, 1, 1..11);
    let mut rotten = file(LOG, 2, 1, Sealed::Closed, 11..20);
    rotten[300] ^= 1;
    let said = add(&mut folder, "segment-0000000000000002.closed", &rotten);
    assert!(said.contains("DAMAGED  footer and scan disagree; segment 2, epoch 1, LSN 11 to 1"), "{said}");
    closed(&mut folder, 3, 1, 20..30);
    let said = folder.add_bad("segment-0000000000000004.closed", "not a file but a FIFO");
    assert_eq!(said, "segment-0000000000000004.closed  DAMAGED  not a file but a FIFO");
    let expected = [
        "segment 2 is damaged: LSN 11 to 19 are missing",
        "segment 4 is damaged, and no other file in this folder has it",
    ];
    assert_eq!(problems(&folder), expected);
}

#[test]
fn an_open_file_that_ends_too_early_is_a_gap() {
    let mut folder = Folder::default();
    add(&mut folder, "segment-0000000000000001.open", &file(LOG, 1, 1, Sealed::Open, 1..5));
    closed(&mut folder, 2, 1, 11..20);
    let said = "segment 1, of which only the open file is here, ends at LSN 4, segment 2 begins at LSN 11: LSN 5 to 10 are missing";
    assert_eq!(problems(&folder), [said]);
    // The closed file says how far the segment went.
    closed(&mut folder, 1, 1, 1..11);
    assert!(folder.verdict().unwrap().is_sound());
}

#[test]
fn mismatched_segments_are_listed() {
    let mut folder = Folder::default();
    closed(&mut folder, 1, 2, 1..11);
    closed(&mut folder, 2, 1, 11..20);
    closed(&mut folder, 3, 2, 15..30);
    add(&mut folder, "segment-0000000000000004.closed", &file(LogId(8), 4, 2, Sealed::Closed, 30..40));
    assert_eq!(
        problems(&folder),
        [
            "1 segment of another log, 00000000000000000000000000000008",
            "segment 2 is of epoch 1, segment 1 of epoch 2",
            "segment 3 begins at LSN 15, although segment 2 reaches to LSN 19",
        ]
    );
}

#[test]
fn a_misnamed_file_is_damaged_and_leaves_a_gap() {
    let mut folder = Folder::default();
    closed(&mut folder, 1, 1, 1..11);
    add(&mut folder, "segment-0000000000000003.closed", &file(LOG, 2, 1, Sealed::Closed, 11..20));
    closed(&mut folder, 4, 1, 30..40);
    assert_eq!(problems(&folder), ["segments 2 to 3 are missing or damaged (1 damaged): LSN 11 to 29 are missing"]);
}

#[test]
fn unused_copies_are_not_part_of_the_log() {
    let mut folder = Folder::default();
    closed(&mut folder, 1, 1, 1..11);
    for name in ["segment-2.closed", "segment-0000000000000002.closed.old"] {
        let said = add(&mut folder, name, &file(LOG, 2, 1, Sealed::Closed, 11..20));
        assert!(said.contains(" aside    segment 2, epoch 1, LSN 11 to 19"), "{said}");
    }
    let verdict = folder.verdict().unwrap();
    assert!(verdict.is_sound());
    assert!(verdict.to_string().contains("aside     2 copies, which the backup does not use"), "{verdict}");
    assert_eq!(Folder::default().verdict(), None);
}

#[test]
fn quarantined_files_are_listed_separately() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("quarantined-0000000000000002.epoch-1.0000000000000002.closed");
    std::fs::write(&path, file(LOG, 2, 1, Sealed::Closed, 11..20)).unwrap();
    let mut folder = Folder::default();
    let mut out = Vec::new();
    crate::commands::scan::scan_member(&mut folder, &path, false, &mut out).unwrap();
    let said = String::from_utf8(out).unwrap();
    assert!(said.contains(" aside    segment 2, epoch 1, LSN 11 to 19"), "{said}");
    assert_eq!((folder.aside, folder.held.len()), (1, 0));
}
