//! Residents: closed segments are read from memory, even while their files are somewhere else; and memory is filled again.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use tailwind_e2e::context::TestContext;
use tailwind_e2e::on_every_fabric;
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::steps::{OUTAGE, append, check_whole, primary};

on_every_fabric!(closed_segments_are_read_without_their_files);

/// True once every closed segment of this backup is on disk, and resident.
fn all_are_resident(group: &Group, backup: usize) -> bool {
    let metric = |name| group.metric::<u64>(Process::Backup(backup), name);
    let on_disk = metric("tailwind_backup_segments_on_disk");
    on_disk > Some(3)
        && on_disk == metric("tailwind_backup_segments_closed")
        && on_disk == metric("tailwind_backup_resident_segments")
}

/// Moves the files of closed segments from one folder into another.
fn move_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".closed") {
            fs::rename(from.join(&name), to.join(&name)).unwrap();
        }
    }
}

fn closed_segments_are_read_without_their_files(fabric: &str) {
    let test = TestContext::start();
    let input = test.input();
    let mut setup = test.setup(fabric).unwrap();
    (setup.backups, setup.copies) = (2, 2);
    setup.backup_options.push(("--resident", "16MiB".to_owned()));
    // It looks for the files.
    setup.backup_options.push(("--scrub-rate", "0".to_owned()));
    let mut group = test.start_group(setup).unwrap();
    let end = append(&mut primary(&group).unwrap(), &input, 0, 2000).unwrap();
    let resident = |group: &Group| (0..2).all(|backup| all_are_resident(group, backup));
    group.wait("all closed segments to be on disk and resident", resident).unwrap();

    let aside = |backup| group.folder().join(format!("aside-{backup}"));
    let folders = [0, 1].map(|backup| (group.flush_folder(backup), aside(backup)));
    folders.iter().for_each(|(folder, aside)| move_files(folder, aside));
    check_whole(&group, &input, end).unwrap();
    folders.iter().for_each(|(folder, aside)| move_files(aside, folder));

    let loads = |group: &Group| group.metric::<u64>(Process::Backup(0), "tailwind_backup_resident_loads_total");
    group.kill_backup(0).unwrap();
    group.start_backup(0).unwrap();
    group.wait("the residents of a process that was killed", |group| all_are_resident(group, 0)).unwrap();
    assert_eq!(loads(&group), Some(0), "they were there all the time");

    group.signal(Process::Backup(0), Signal::TERM).unwrap();
    group.wait_for_end(Process::Backup(0)).unwrap();
    fs::remove_dir_all(group.pool(0)).unwrap();
    group.start_backup(0).unwrap();
    group.wait("the residents to be loaded after a reboot", |group| all_are_resident(group, 0)).unwrap();
    assert!(loads(&group) > Some(3), "{:?}", loads(&group));
    group.wait_for_full_set().unwrap();
    check_whole(&group, &input, end).unwrap();
    // The board of a member that has just ended is gone.
    group.check_logs(&[&OUTAGE[..], &["no board"]].concat()).unwrap();
}
