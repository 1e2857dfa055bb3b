use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

use tailwind_protocol::config::{Kind, PrimaryRef};
use tailwind_protocol::ids::{Claim, Epoch, LogId, Version};

use crate::store::Store;

fn group() -> GroupName {
    "db".parse().unwrap()
}

fn config(epoch: u64) -> Configuration {
    claimed(epoch, 1)
}

fn claimed(epoch: u64, claim: u64) -> Configuration {
    Configuration {
        log: LogId(7),
        kind: Kind::Log,
        epoch: Epoch(epoch),
        claim: Claim(claim),
        earlier: Vec::new(),
        won: Epoch(0),
        cuts: Vec::new(),
        version: Version(epoch),
        primary: PrimaryRef { id: "a".parse().unwrap(), control: "127.0.0.1:1".into() },
        members: Vec::new(),
    }
}

fn swap_to(epoch: u64) -> Swap {
    Swap { expected: (epoch > 1).then(|| config(epoch - 1).stamp()), proposed: config(epoch) }
}

/// A store that has come to an epoch.
fn store_at(folder: &Path, epoch: u64) -> FileStore {
    let store = FileStore::new(&folder.join("config.json"), &group()).unwrap();
    advance(&store, 0, epoch);
    store
}

fn advance(store: &FileStore, from: u64, to: u64) {
    for epoch in from + 1..=to {
        assert_eq!(store.swap(&swap_to(epoch)).unwrap(), SwapOutcome::Applied);
    }
}

/// A swap that has looked, written its file and fallen asleep.
fn asleep(store: &FileStore, proposed: &Configuration) -> Draft {
    store.draft(store.look().unwrap().as_ref(), proposed).unwrap()
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_newest_differs_once_the_content_does() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_at(folder.path(), 0);
    assert!(store.newest().is_err(), "there is nothing");
    let mut before = None;
    for epoch in 0..5 {
        advance(&store, epoch, epoch + 1);
        let newest = store.newest().unwrap();
        assert_ne!(before, Some(newest), "epoch {}", epoch + 1);
        assert_eq!(store.newest().unwrap(), newest, "as long as nobody writes");
        before = Some(newest);
    }
    // Somebody puts another file in its place, under its number.
    let highest = store.path_of(store.highest_number().unwrap());
    fs::copy(&highest, folder.path().join("copy")).unwrap();
    fs::rename(folder.path().join("copy"), highest).unwrap();
    assert_ne!(before, Some(store.newest().unwrap()));
}

#[tokio::test]
async fn a_watch_that_has_seen_a_content_sees_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_at(folder.path(), 1);
    for epoch in 1..4 {
        let watched = Store::File(store.clone());
        let watch = tokio::spawn(async move { watched.changed(Some(config(epoch).stamp())).await });
        tokio::time::sleep(Duration::from_millis(120)).await;
        assert!(!watch.is_finished(), "nothing has changed");
        advance(&store, epoch, epoch + 1);
        assert_eq!(watch.await.unwrap(), config(epoch + 1));
    }
}

#[test]
fn a_swap_requires_the_expected_content() {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::new(&folder.path().join("deep/config.json"), &group()).unwrap();
    assert_eq!(store.read().unwrap(), None);
    let first = swap_to(1);
    assert_eq!(store.swap(&first).unwrap(), SwapOutcome::Applied);
    assert_eq!(store.swap(&first).unwrap(), SwapOutcome::Conflict(Some(config(1))));
    assert_eq!(store.swap(&swap_to(2)).unwrap(), SwapOutcome::Applied);
    assert_eq!(store.swap(&first).unwrap(), SwapOutcome::Conflict(Some(config(2))));
    assert_eq!(store.read().unwrap(), Some(config(2)));
    // The group was deleted and created again: its stamps are the same, and its log is another one.
    let of_old_log = Swap { proposed: Configuration { log: LogId(8), ..config(3) }, ..swap_to(3) };
    assert_eq!(store.swap(&of_old_log).unwrap(), SwapOutcome::Conflict(Some(config(2))));
}

#[test]
fn a_read_only_store_shows_what_others_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/config.json");
    let reader = FileStore::read_only(&path, &group()).unwrap();
    assert_eq!(reader.read().unwrap(), None);
    assert!(files(folder.path()).is_empty(), "it creates no folder");
    let store = store_at(path.parent().unwrap(), 1);
    assert_eq!(reader.read().unwrap(), Some(config(1)));
    advance(&store, 1, 5);
    assert_eq!(reader.read().unwrap(), Some(config(5)));
    fs::write(&path, "{").unwrap();
    assert!(matches!(FileStore::read_only(&path, &group()), Err(StoreError::Damaged { .. })));
}

#[test]
#[should_panic = "a reader swaps nothing"]
fn a_read_only_store_takes_no_swap() {
    let folder = tempfile::tempdir().unwrap();
    let _ = FileStore::read_only(&folder.path().join("config.json"), &group()).unwrap().swap(&swap_to(1));
}

#[test]
fn the_newest_two_files_and_number_0_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_at(folder.path(), 9);
    assert_eq!(files(folder.path()), ["config.json", "config.json.7", "config.json.8"]);
    assert_eq!(FileStore::new(&store.path, &group()).unwrap().read().unwrap(), Some(config(9)));
}

#[test]
fn only_one_of_many_racing_swaps_wins() {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::new(&folder.path().join("config.json"), &group()).unwrap();
    let racers: Vec<_> = (1..=8)
        .map(|epoch| {
            let store = store.clone();
            std::thread::spawn(move || store.swap(&Swap { expected: None, proposed: config(epoch) }).unwrap())
        })
        .collect();
    let won = racers.into_iter().map(|r| r.join().unwrap());
    assert_eq!(won.filter(|outcome| *outcome == SwapOutcome::Applied).count(), 1);
}

/// Each racer continues from what it read last, without waiting. Readers watch at the same time.
#[test]
fn a_long_race_applies_each_epoch_once() {
    const EPOCHS: u64 = 300;
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::new(&folder.path().join("config.json"), &group()).unwrap();
    let race = |racer: u64| {
        let (mut won, mut doubtful, mut known) = (Vec::new(), Vec::new(), None);
        loop {
            let epoch = known.as_ref().map_or(0, |known: &Configuration| known.epoch.0) + 1;
            if epoch > EPOCHS {
                return (won, doubtful);
            }
            let swap = Swap { expected: known.as_ref().map(Configuration::stamp), proposed: claimed(epoch, racer) };
            let outcome = store.swap(&swap).unwrap();
            match outcome {
                SwapOutcome::Applied => won.push((epoch, racer)),
                SwapOutcome::Unknown => doubtful.push((epoch, racer)),
                SwapOutcome::Conflict(_) => {}
            }
            known = store.read().unwrap();
        }
    };
    let watch = || {
        let mut seen = std::collections::BTreeMap::new();
        loop {
            let Some(config) = store.read().unwrap() else { continue };
            let (epoch, claim) = (config.epoch.0, config.claim.0);
            assert_eq!(*seen.entry(epoch).or_insert(claim), claim, "epoch {epoch} was shown with two contents");
            if epoch >= EPOCHS {
                return seen;
            }
        }
    };
    let (ends, seen) = std::thread::scope(|scope| {
        let watchers: Vec<_> = (0..2).map(|_| scope.spawn(watch)).collect();
        let racers: Vec<_> = (1..=6).map(|racer| scope.spawn(move || race(racer))).collect();
        let ends: Vec<_> = racers.into_iter().map(|racer| racer.join().unwrap()).collect();
        (ends, watchers.into_iter().map(|watcher| watcher.join().unwrap()).collect::<Vec<_>>())
    });
    let mut winners = std::collections::BTreeMap::new();
    for (epoch, racer) in ends.iter().flat_map(|(won, _)| won) {
        assert_eq!(winners.insert(*epoch, *racer), None, "epoch {epoch} was won twice");
    }
    // An epoch that nobody knows to have won is one of those whose outcome is unknown.
    for epoch in (1..=EPOCHS).filter(|epoch| !winners.contains_key(epoch)) {
        assert!(ends.iter().flat_map(|(_, doubtful)| doubtful).any(|(doubted, _)| *doubted == epoch), "{epoch}");
    }
    for (epoch, claim) in seen.into_iter().flatten() {
        assert!(winners.get(&epoch).is_none_or(|winner| *winner == claim), "epoch {epoch} was shown and not won");
    }
    assert!(files(folder.path()).len() <= 8, "{:?}", files(folder.path()));
}

#[test]
fn a_stalled_writer_loses_its_taken_number() {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::new(&folder.path().join("config.json"), &group()).unwrap();
    for epoch in 1..9 {
        let sleeper = asleep(&store, &claimed(epoch, 2));
        advance(&store, epoch - 1, epoch);
        assert_eq!(store.publish(&sleeper).unwrap(), PublishResult::Late);
        assert_eq!(store.read().unwrap(), Some(config(epoch)));
    }
}

/// The sleeper read number n as the newest, and wakes up when number n + 1 has come and gone.
#[test]
fn a_stalled_writer_that_reuses_a_number_changes_nothing() {
    for slept_at in 1..6 {
        let folder = tempfile::tempdir().unwrap();
        let store = store_at(folder.path(), slept_at);
        let sleeper = asleep(&store, &claimed(slept_at + 1, 2));
        let second = asleep(&store, &claimed(slept_at + 1, 3));
        advance(&store, slept_at, slept_at + 4);
        assert_eq!(store.publish(&sleeper).unwrap(), PublishResult::Doubtful);
        assert_eq!(store.publish(&second).unwrap(), PublishResult::Late);
        let there = store.path_of(sleeper.number);
        assert!(there.exists(), "nothing in its way");
        assert_eq!(store.read().unwrap(), Some(config(slept_at + 4)));
        advance(&store, slept_at + 4, slept_at + 5);
        assert!(!there.exists(), "removed like what is superseded");
    }
}

/// Worse: the folder's list shows the stale number only, since all others have changed while it was read.
#[test]
fn a_stale_number_is_never_current() {
    for slept_at in 1..6 {
        let folder = tempfile::tempdir().unwrap();
        let store = store_at(folder.path(), slept_at);
        let sleepers = [asleep(&store, &claimed(slept_at + 1, 2))];
        advance(&store, slept_at, slept_at + 1);
        let next = asleep(&store, &claimed(slept_at + 2, 2));
        advance(&store, slept_at + 1, slept_at + 5);
        for sleeper in sleepers.iter().chain([&next]) {
            assert_eq!(store.publish(sleeper).unwrap(), PublishResult::Doubtful);
            assert!(!store.stands(sleeper.number, sleeper.entry.after).unwrap());
        }
        for number in store.numbers().unwrap().into_iter().filter(|number| *number > next.number) {
            fs::remove_file(store.path_of(number)).unwrap();
        }
        let error = store.read().unwrap_err().to_string();
        assert!(error.contains("is missing"), "{error}");
    }
}

#[test]
fn a_repeated_link_recognizes_its_own_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_at(folder.path(), 3);
    let draft = asleep(&store, &config(4));
    fs::hard_link(&draft.path, store.path_of(draft.number)).unwrap();
    assert_eq!(store.publish(&draft).unwrap(), PublishResult::Published);
    assert_eq!(store.read().unwrap(), Some(config(4)));
}

#[test]
fn a_crash_between_link_and_reply_is_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_at(folder.path(), 3);
    let draft = asleep(&store, &config(4));
    fs::hard_link(&draft.path, store.path_of(draft.number)).unwrap();
    std::mem::forget(draft);
    assert_eq!(store.swap(&swap_to(4)).unwrap(), SwapOutcome::Conflict(Some(config(4))));
    advance(&store, 4, 6);
    assert_eq!(files(folder.path()).iter().filter(|name| name.ends_with(DRAFT)).count(), 1);
    let old = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let left = old.into_iter().find(|path| path.to_str().unwrap().ends_with(DRAFT)).unwrap();
    let long_ago = std::time::SystemTime::now() - 2 * DRAFT_LIFE;
    File::options().write(true).open(&left).unwrap().set_modified(long_ago).unwrap();
    advance(&store, 6, 7);
    assert!(!left.exists());
}

#[test]
fn a_file_of_the_first_format_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let body = serde_json::to_string_pretty(&config(1)).unwrap() + "\n";
    let header = format!("{{\"tailwind_config\":1,\"crc32\":{}}}\n", crc32fast::hash(body.as_bytes()));
    fs::write(&path, header + &body).unwrap();
    let store = FileStore::new(&path, &group()).unwrap();
    assert_eq!(store.read().unwrap(), Some(config(1)));
    advance(&store, 1, 5);
    assert_eq!(store.read().unwrap(), Some(config(5)));
}

/// Earlier builds refuse a field that they do not know, and read what has none.
#[test]
fn only_a_table_names_its_kind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for (kind, named) in [(Kind::Log, false), (Kind::Table, true)] {
        let founded = Configuration { kind, ..config(1) };
        let written = serde_json::to_string(&founded).unwrap();
        assert_eq!(written.contains(r#"{"log":"00000000000000000000000000000007","kind":"table","epoch":1,"#), named);
        assert_eq!(written.contains("kind"), named, "{written}");
        let store = FileStore::new(&path, &group()).unwrap();
        let first = Swap { expected: None, proposed: founded.clone() };
        assert_eq!(store.swap(&first).unwrap(), SwapOutcome::Applied);
        assert_eq!(store.read().unwrap(), Some(founded));
        fs::remove_file(&path).unwrap();
    }
}

/// Each would take the other's primary for a successor of its own.
#[test]
fn a_file_of_another_group_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let other = "cache".parse().unwrap();
    let path = folder.path().join("config.json");
    let early = FileStore::new(&path, &other).unwrap();
    for (from, to) in [(0, 1), (1, 4)] {
        advance(&FileStore::new(&path, &group()).unwrap(), from, to);
        for refused in [FileStore::new(&path, &other), FileStore::read_only(&path, &other)] {
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("is the config store of group db"), "{said}");
        }
        assert!(early.swap(&swap_to(1)).is_err(), "it started before there was a file");
    }
}

#[test]
fn an_unusable_file_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    for epoch in [1, 4] {
        let folder = folder.path().join(epoch.to_string());
        fs::create_dir(&folder).unwrap();
        let store = store_at(&folder, epoch);
        let path = store.path_of(epoch - 1);
        let good = fs::read_to_string(&path).unwrap();
        let other = good.replace(&format!("\"epoch\": {epoch}"), "\"epoch\": 9");
        for damage in [other, good[..good.len() - 9].to_owned(), String::new()] {
            fs::write(&path, damage).unwrap();
            let error = store.read().unwrap_err();
            assert!(matches!(error, StoreError::Damaged { .. }));
            let said = error.to_string();
            assert!(said.contains(path.to_str().unwrap()) && said.contains("docs/config-store.md"), "{said}");
            assert!(!said.contains("restore it"), "an older copy has an epoch used twice: {said}");
            assert!(store.swap(&swap_to(epoch + 1)).is_err(), "nothing is overwritten");
        }
        fs::write(&path, good.replace("\"tailwind_config\":2", "\"tailwind_config\":3")).unwrap();
        let error = store.read().unwrap_err().to_string();
        assert!(error.contains("format 3"), "{error}");
    }
}

/// What docs/config-store.md tells an administrator to do with the newest sound numbered file.
#[test]
fn a_file_copied_over_number_0_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_at(folder.path(), 5);
    fs::write(store.path_of(4), "damaged").unwrap();
    assert!(store.read().is_err());
    let older = fs::read(store.path_of(3)).unwrap();
    for name in files(folder.path()) {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("config.json"), older).unwrap();
    let store = FileStore::new(&folder.path().join("config.json"), &group()).unwrap();
    assert_eq!(store.read().unwrap(), Some(config(4)));
    advance(&store, 4, 8);
    assert_eq!(store.read().unwrap(), Some(config(8)));
}

#[test]
fn unrelated_files_are_left_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let others = ["config.json.007", "config.json.bak", "config.json.+3", "config.jsonl.5", "other.new"];
    others.iter().for_each(|name| fs::write(folder.path().join(name), "somebody's").unwrap());
    let store = store_at(folder.path(), 5);
    assert_eq!(store.read().unwrap(), Some(config(5)));
    assert!(others.iter().all(|name| folder.path().join(name).exists()));
}

/// The place of the first file is never free again: without it the store is not whole, and not empty either.
#[test]
fn numbered_files_without_the_first_are_damage() {
    for epoch in [2, 5] {
        let folder = tempfile::tempdir().unwrap();
        let store = store_at(folder.path(), epoch);
        fs::remove_file(folder.path().join("config.json")).unwrap();
        let before = files(folder.path());
        let words = format!("config file {} is damaged (it is missing, ", store.path().display());
        let error = store.read().unwrap_err().to_string();
        assert!(error.starts_with(&words), "{error}");
        assert!(store.swap(&swap_to(1)).is_err(), "a new group in the place of the old one");
        assert!(FileStore::new(store.path(), &group()).is_err());
        assert!(FileStore::read_only(store.path(), &group()).is_err());
        assert_eq!(files(folder.path()), before);
    }
}

/// Opening a FIFO waits for a writer, and a device may do anything.
#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    for name in ["config.json", "config.json.1"] {
        let folder = tempfile::tempdir().unwrap();
        let store = store_at(folder.path(), 2);
        let path = folder.path().join(name);
        fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        // Without this the test would hang, and not fail.
        let (told, answer) = std::sync::mpsc::channel();
        std::thread::spawn(move || drop(told.send(store.read().map_err(|error| error.to_string()))));
        let error = answer.recv_timeout(Duration::from_secs(20)).expect("an answer").unwrap_err();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("not a regular file"), "{error}");
    }
}

#[test]
fn a_file_that_is_too_large_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_at(folder.path(), 2);
    // Sparse: it takes no disk, and would take the memory of every process that reads it.
    File::options().write(true).open(store.path_of(1)).unwrap().set_len(1 << 40).unwrap();
    let error = store.read().unwrap_err().to_string();
    assert!(error.contains("config.json.1 is damaged (it is larger than 1 MiB"), "{error}");
}

/// It is tried 20 times a second, and logged when it says something new.
#[test]
fn a_failing_swap_says_the_same_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::new(&folder.path().join("deep/config.json"), &group()).unwrap();
    fs::remove_dir_all(folder.path().join("deep")).unwrap();
    let [first, second] = [(); 2].map(|()| store.swap(&swap_to(1)).unwrap_err().to_string());
    assert_eq!(first, second);
}

/// Callers may stop waiting, and ask again: the call that hangs remains the only one.
#[tokio::test]
async fn a_folder_that_hangs_holds_one_call() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_at(folder.path(), 1);
    let (release, hangs) = std::sync::mpsc::channel::<()>();
    let (began, begun) = std::sync::mpsc::channel();
    let hanging = tokio::spawn({
        let (store, began) = (store.clone(), began.clone());
        async move {
            let call = move |_: &FileStore| {
                began.send(()).unwrap();
                Ok(hangs.recv().is_ok())
            };
            store.in_turn(call).await
        }
    });
    tokio::task::spawn_blocking(move || begun.recv().map(|()| begun)).await.unwrap().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    for _ in 0..100 {
        let calls = Arc::clone(&calls);
        let asked = store.in_turn(move |_| Ok(calls.fetch_add(1, Ordering::Relaxed)));
        assert!(tokio::time::timeout(Duration::ZERO, asked).await.is_err(), "it hangs");
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    release.send(()).unwrap();
    assert_eq!(hanging.await.unwrap(), Ok(true));
    assert_eq!(store.in_turn(FileStore::read).await, Ok(Some(config(1))));
}
