use super::*;
use crate::random::Random;

fn files(seed: u64) -> Files {
    let mut random = Random::new(seed);
    let plan = Plan { faults: Vec::new(), ..Plan::draw(&mut random) };
    Files::new(random, &plan)
}

fn bytes(files: &Files, name: &str) -> Option<Vec<u8>> {
    files.state().names.get(name).map(|node| node.inode().bytes().to_vec())
}

/// What names stand for after the power was lost, in each of many seeds.
fn after_power(change: impl Fn(&Files), name: &str) -> Vec<Option<Vec<u8>>> {
    let after = |seed| {
        let files = files(seed);
        change(&files);
        files.lose_power(true);
        bytes(&files, name)
    };
    (0..200).map(after).collect()
}

fn put(files: &Files, name: &str, bytes: &[u8]) -> Box<dyn File> {
    let file = files.create(name).unwrap();
    file.write_all_at(0, bytes).unwrap();
    file
}

#[test]
fn synced_bytes_survive_power_loss() {
    let change = |files: &Files| {
        let file = put(files, "a", &[7; 1000]);
        file.sync().unwrap();
        Folder::sync(files).unwrap();
        file.write_all_at(1000, &[8; 2000]).unwrap();
        assert_eq!(files.state().durable["a"].inode().on_disk(0..1000), Some(&[7; 1000][..]));
        assert_eq!(files.state().durable["a"].inode().on_disk(900..1001), None);
    };
    let found = after_power(change, "a");
    assert!(found.iter().flatten().all(|bytes| bytes[..1000] == [7; 1000]));
    let ends: std::collections::BTreeSet<usize> = found.iter().flatten().map(Vec::len).collect();
    assert!(ends.len() > 100, "the end may be anywhere");
    let torn = |bytes: &&Vec<u8>| bytes.len() == 3000 || bytes[1024..].contains(&0);
    assert!(found.iter().flatten().any(|bytes| torn(&bytes)));
}

#[test]
fn names_survive_once_the_folder_is_synced() {
    let unsynced = after_power(|files| put(files, "a", b"1").sync().unwrap(), "a");
    assert!(unsynced.contains(&None) && unsynced.contains(&Some(b"1".to_vec())));
    let replaced = |files: &Files| {
        put(files, "a", b"old").sync().unwrap();
        Folder::sync(files).unwrap();
        put(files, "a.tmp", b"new").sync().unwrap();
        files.rename("a.tmp", "a").unwrap();
    };
    let found = after_power(replaced, "a");
    assert!(found.contains(&Some(b"old".to_vec())) && found.contains(&Some(b"new".to_vec())));
    assert!(!found.contains(&None), "a rename is one change");
}

#[test]
fn failed_sync_drops_written_bytes() {
    let change = |files: &Files| {
        let file = put(files, "a", &[1; 512]);
        file.sync().unwrap();
        Folder::sync(files).unwrap();
        file.write_all_at(0, &[2; 512]).unwrap();
        files.state().faults = vec![(Fault::SyncFails, 1000)];
        file.sync().unwrap_err();
        files.state().faults.clear();
        file.sync().expect("it says that all is well");
        assert_eq!(bytes(files, "a").unwrap(), [2; 512], "and it can be read");
    };
    assert!(after_power(change, "a").iter().all(|bytes| bytes.as_deref() == Some(&[1; 512])));
}

#[test]
fn full_disk_accepts_only_allocated_bytes() {
    let files = files(1);
    let file = files.create("a").unwrap();
    file.allocate(100).unwrap();
    files.set_full(true);
    file.write_all_at(0, &[1; 100]).unwrap();
    let error = file.write_all_at(50, &[1; 100]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(file.allocate(101).unwrap_err().kind(), io::ErrorKind::StorageFull);
}

#[test]
fn killed_process_makes_no_more_calls() {
    for calls in 0..6 {
        let files = files(calls.into());
        files.light(calls);
        let all = || {
            let file = files.create("a")?;
            file.write_all_at(0, &[1; 100])?;
            file.sync()?;
            files.rename("a", "b")?;
            Folder::sync(&files)
        };
        assert_eq!(all().is_err(), calls < 5, "{calls}");
        assert_eq!(files.process_died(), calls < 5);
        assert_eq!(files.state().names.contains_key("b"), calls > 3);
        let beside = Beside { bytes: Arc::new(Mutex::new(vec![0; 8])), files: files.clone() };
        let dead = files.process_died();
        beside.store(0, 7);
        assert_eq!(*beside.bytes() == [0; 8], dead || calls == 5 && files.process_died());
    }
}
