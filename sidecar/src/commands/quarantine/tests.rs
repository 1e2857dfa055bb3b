use std::os::unix::fs::symlink;

use clap::Parser;
use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, SegmentId};
use tailwind_protocol::layout::{Footer, Sealed, SegmentIdentity, SegmentSize};
use tailwind_protocol::segment::SegmentWriter;
use tempfile::TempDir;

use super::*;

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    options: QuarantineOptions,
}

fn parse(arguments: &[&str]) -> Result<QuarantineOptions, clap::Error> {
    CommandLine::try_parse_from([&["quarantine"], arguments].concat()).map(|line| line.options)
}

/// A segment of ten records from LSN 11 on.
fn identity(segment: u64) -> SegmentIdentity {
    SegmentIdentity {
        log: LogId(7),
        segment: SegmentId(segment),
        epoch: Epoch(3),
        generation: Generation(segment),
        size: SegmentSize::MIN,
    }
}

fn bytes(segment: u64, sealed: Sealed) -> Vec<u8> {
    let mut bytes = vec![0; SegmentSize::MIN.bytes() as usize];
    let (mut writer, mut end) = SegmentWriter::open(identity(segment), Lsn(11), &mut bytes);
    for _ in 0..10 {
        end += writer.append(&mut bytes[end as usize..], [&b"payload"[..]].into_iter());
    }
    let closure = writer.closure();
    bytes.truncate(end as usize);
    bytes.extend_from_slice(&Footer { sealed, closure }.to_bytes());
    bytes
}

fn name(segment: u64, sealed: Sealed) -> String {
    QuarantineName::new(&identity(segment), sealed).to_string()
}

fn folder(segments: &[(u64, Sealed)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (segment, sealed) in segments {
        fs::write(folder.path().join(name(*segment, *sealed)), bytes(*segment, *sealed)).unwrap();
    }
    fs::write(folder.path().join("segment-0000000000000001.closed"), bytes(1, Sealed::Closed)).unwrap();
    fs::write(folder.path().join("promise"), "kept").unwrap();
    folder
}

fn names(folder: &TempDir) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

fn listed(folder: &TempDir) -> Listed {
    list(folder.path(), &find(folder.path()).unwrap())
}

#[test]
fn each_file_is_listed_with_its_records_and_state() {
    let folder = folder(&[(2, Sealed::Closed), (3, Sealed::Open), (4, Sealed::Closed), (5, Sealed::Open)]);
    let change = |segment, sealed, change: fn(&mut Vec<u8>)| {
        let path = folder.path().join(name(segment, sealed));
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
    };
    change(4, Sealed::Closed, |bytes| bytes[300] ^= 1);
    change(5, Sealed::Open, |bytes| bytes.truncate(bytes.len() - 48));
    let Listed { lines, unread } = listed(&folder);
    assert_eq!(unread, 0);
    let [sound, open, rotten, cut] = lines.as_slice() else { panic!("{lines:?}") };
    let expected = "quarantined-0000000000000002.epoch-3.0000000000000002.closed  sound    600 bytes, segment 2, epoch 3, \
                    LSN 11 to 20, 552 bytes valid";
    assert_eq!(sound, expected);
    assert!(open.contains(".open  sound    600 bytes, segment 3, epoch 3, LSN 11 to 20"), "{open}");
    assert!(rotten.contains("  DAMAGED  600 bytes, footer and scan disagree; segment 4"), "{rotten}");
    assert!(cut.contains(".open  open     552 bytes, segment 5") && cut.ends_with(", no footer"), "{cut}");
}

#[test]
fn other_files_are_listed_as_damaged() {
    let folder = folder(&[]);
    for (segment, bytes) in [(2, &b""[..]), (3, b"somebody's notes"), (4, &[0; 100_000]), (5, &bytes(6, Sealed::Open))]
    {
        fs::write(folder.path().join(name(segment, Sealed::Open)), bytes).unwrap();
    }
    let Listed { lines, unread } = listed(&folder);
    assert_eq!((lines.len(), unread), (4, 0));
    for (line, words) in lines.iter().zip(["empty", "neither a buffer", "nothing but zeros", "the header disagree"]) {
        assert!(line.contains("  DAMAGED  ") && line.contains(words), "{line}");
    }
}

#[test]
fn files_with_the_same_name_are_distinguished_by_kind() {
    let folder = folder(&[(2, Sealed::Open)]);
    let (plain, second) = (name(2, Sealed::Open), format!("{}-1", name(2, Sealed::Open)));
    let bytes = fs::read(folder.path().join(plain)).unwrap();
    fs::write(folder.path().join(&second), &bytes[..bytes.len() - 48]).unwrap();
    let lines = listed(&folder).lines;
    assert!(lines[1].starts_with(&format!("{second}  open     552 bytes, segment 2")), "{lines:?}");
}

#[test]
fn only_the_named_files_are_released() {
    let folder = folder(&[(2, Sealed::Closed), (3, Sealed::Open), (4, Sealed::Closed)]);
    let (found, before) = (find(folder.path()).unwrap(), names(&folder));
    let wanted = [name(4, Sealed::Closed), name(2, Sealed::Closed), name(4, Sealed::Closed)];
    let Released { gone, result } = release(folder.path(), &choose(folder.path(), &found, &wanted).unwrap());
    result.unwrap();
    assert_eq!(sum(&gone), "2 files, 1.17 KiB");
    let left: Vec<_> = before.into_iter().filter(|name| !wanted.contains(name)).collect();
    assert_eq!(names(&folder), left);
}

#[test]
fn an_unknown_name_is_refused_and_nothing_is_released() {
    let folder = folder(&[(2, Sealed::Closed)]);
    let good = name(2, Sealed::Closed);
    let inside = format!("inside/{good}");
    fs::create_dir(folder.path().join("inside")).unwrap();
    fs::write(folder.path().join(&inside), "another folder's").unwrap();
    symlink(folder.path().join("promise"), folder.path().join(name(3, Sealed::Closed))).unwrap();
    let before = names(&folder);
    let found = find(folder.path()).unwrap();
    for bad in [
        "promise",
        "segment-0000000000000001.closed",
        "",
        ".",
        "..",
        &inside,
        &format!("./{good}"),
        &format!("../{}/{good}", folder.path().file_name().unwrap().to_str().unwrap()),
        folder.path().join(&good).to_str().unwrap(),
        &name(3, Sealed::Closed),
        &name(9, Sealed::Closed),
    ] {
        let error = choose(folder.path(), &found, &[good.clone(), bad.to_owned()]).unwrap_err().to_string();
        assert!(error.contains(&format!("`{bad}`")) && error.contains("Nothing was released"), "{error}");
    }
    assert_eq!(names(&folder), before);
}

#[test]
fn all_releases_only_files_in_quarantine() {
    let folder = folder(&[(2, Sealed::Closed), (3, Sealed::Open)]);
    let found = find(folder.path()).unwrap();
    for expected in ["2 files, 1.17 KiB", "nothing"] {
        let Released { gone, result } = release(folder.path(), &found);
        result.unwrap();
        assert_eq!(sum(&gone), expected);
        assert_eq!(names(&folder), ["promise", "segment-0000000000000001.closed"]);
    }
}

#[test]
fn files_moved_aside_are_listed_and_go_by_name_only() {
    let folder = folder(&[(2, Sealed::Closed)]);
    let aside = ["segment-0000000000000007.closed.aside", "segment-0000000000000008.open.aside"];
    fs::write(folder.path().join(aside[0]), "of a newer version, say").unwrap();
    fs::write(folder.path().join(aside[1]), bytes(8, Sealed::Open)).unwrap();
    let found = find_aside(folder.path()).unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), aside);
    let lines = list(folder.path(), &found).lines;
    assert!(lines[0].starts_with(&format!("{}  DAMAGED  23 bytes, ", aside[0])), "{lines:?}");
    assert!(lines[1].starts_with(&format!("{}  aside    600 bytes, segment 8", aside[1])), "{lines:?}");
    let dir = folder.path().to_str().unwrap();
    run(&parse(&["release", "--flush-dir", dir, "--all"]).unwrap()).unwrap();
    assert!(names(&folder).contains(&aside[0].to_owned()), "they may be all that is left of a segment");
    run(&parse(&["release", "--flush-dir", dir, aside[0]]).unwrap()).unwrap();
    assert_eq!(names(&folder), ["promise", "segment-0000000000000001.closed", aside[1]]);
}

#[test]
fn a_folder_is_given_directly_or_by_group_and_name() {
    let path = |arguments: &[&str]| match parse(arguments).unwrap().command {
        QuarantineCommand::List(ListOptions { folder, .. }) => folder.path(),
        QuarantineCommand::Release(_) => unreachable!("it lists"),
    };
    assert_eq!(path(&["list", "--flush-dir", "/flush"]).unwrap(), Path::new("/flush"));
    let told = path(&["list", "--group", "orders", "--name", "b0"]).unwrap();
    assert_eq!(told, Path::new("/var/lib/tailwind/orders/b0"));
    let of_host: MemberId = own_name(None).unwrap();
    assert_eq!(path(&["list"]).unwrap(), Path::new(&format!("/var/lib/tailwind/default/{of_host}")));
    let missing = run(&parse(&["list", "/no/such/folder"]).unwrap()).unwrap_err();
    assert!(explain(&missing).contains("list flush folder /no/such/folder: No such file"), "{missing:#}");
}

#[test]
fn release_requires_names_or_all() {
    assert!(parse(&["release", "--flush-dir", "/flush"]).is_err());
    assert!(parse(&["release", "--flush-dir", "/flush", "--all", "name"]).is_err());
    assert!(parse(&[]).is_err());
}
