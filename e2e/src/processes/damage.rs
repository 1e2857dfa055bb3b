//! What a disk, an administrator or a backup tool can do to a group's files.
//!
//! The files are those of a backup's flush folder, of its pool and of the config store.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tailwind_protocol::layout::{FOOTER_SIZE, Footer, SEGMENT_HEADER_SIZE, SegmentIdentity};

/// Files by name, with their bytes.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The files of a folder whose names pass, with their bytes.
pub fn files(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Files> {
    let mut files = Files::new();
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        // A daemon may have renamed or deleted the file since.
        if let Some(bytes) = wanted(&name).then(|| fs::read(folder.join(&name)).ok()).flatten() {
            files.insert(name, bytes);
        }
    }
    Ok(files)
}

/// The files of closed segments, oldest first.
pub fn closed(folder: &Path) -> Result<Vec<PathBuf>> {
    paths(folder, ".closed")
}

/// The files of open segments, oldest first.
pub fn open(folder: &Path) -> Result<Vec<PathBuf>> {
    paths(folder, ".open")
}

fn paths(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let found = files(folder, |name| name.starts_with("segment-") && name.ends_with(ending))?;
    Ok(found.keys().map(|name| folder.join(name)).collect())
}

/// The last record in the file of a closed segment, by its footer.
pub fn last_record(file: &Path) -> Option<u64> {
    let bytes = fs::read(file).ok()?;
    let footer = Footer::from_bytes(bytes.last_chunk::<FOOTER_SIZE>()?)?;
    Some(footer.closure.last.0)
}

/// The identity that the file of a segment begins with.
pub fn identity(file: &Path) -> Option<SegmentIdentity> {
    let bytes = fs::read(file).ok()?;
    SegmentIdentity::from_header(bytes.first_chunk::<SEGMENT_HEADER_SIZE>()?).map(|(identity, _)| identity)
}

/// True while a backup still holds a closed segment in memory that is on its disk, too.
pub fn is_in_memory(pool: &Path, folder: &Path) -> bool {
    let buffers = files(pool, |name| name.starts_with("slot-") && name.ends_with(".buf")).unwrap_or_default();
    let closed: Vec<Vec<u8>> =
        closed(folder).unwrap_or_default().iter().filter_map(|file| fs::read(file).ok()).collect();
    let same = |buffer: &Vec<u8>| {
        closed.iter().any(|file| file.get(..SEGMENT_HEADER_SIZE) == buffer.get(..SEGMENT_HEADER_SIZE))
    };
    buffers.values().any(same)
}

/// Inverts a bit of the byte at `at`, counted from the end if negative.
pub fn flip(file: &Path, at: i64) -> Result<()> {
    change(file, |bytes| {
        let at = if at < 0 { bytes.len() as i64 + at } else { at };
        bytes[at as usize] ^= 1;
    })
}

/// Changes a file's bytes in place.
pub fn change(file: &Path, change: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
    let mut bytes = fs::read(file).with_context(|| format!("read {}", file.display()))?;
    change(&mut bytes);
    fs::write(file, bytes).with_context(|| format!("write {}", file.display()))
}

/// Finds bytes in the buffers of a pool: the file, and where in it they begin.
pub fn find_in_memory(pool: &Path, wanted: &[u8]) -> Result<Option<(PathBuf, u64)>> {
    let buffers = files(pool, |name| name.starts_with("slot-") && name.ends_with(".buf"))?;
    let found = buffers.iter().find_map(|(name, bytes)| {
        let at = bytes.windows(wanted.len()).position(|window| window == wanted)?;
        Some((pool.join(name), at as u64))
    });
    Ok(found)
}

/// Inverts a bit of one byte of a file that others have mapped: it keeps its length all the while.
pub fn flip_mapped(file: &Path, at: u64) -> Result<()> {
    let opened = fs::File::options().read(true).write(true).open(file);
    let opened = opened.with_context(|| format!("open {}", file.display()))?;
    let mut byte = [0];
    opened.read_exact_at(&mut byte, at).with_context(|| format!("read {}", file.display()))?;
    opened.write_all_at(&[byte[0] ^ 1], at).with_context(|| format!("write {}", file.display()))
}

/// The contents of the config store.
pub fn store(config: &Path) -> Result<Files> {
    let (folder, name) = parts(config)?;
    files(folder, |other| other.starts_with(name))
}

/// Puts older (or newer) contents of the config store back.
pub fn put_back(config: &Path, contents: &Files) -> Result<()> {
    let (folder, _) = parts(config)?;
    for name in store(config)?.keys().filter(|name| !contents.contains_key(*name)) {
        fs::remove_file(folder.join(name)).with_context(|| format!("remove {name}"))?;
    }
    contents.iter().try_for_each(|(name, bytes)| {
        // Under another name first: a reader finds it whole.
        let temporary = folder.join("put-back");
        fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, folder.join(name))).context("put back")
    })
}

fn parts(config: &Path) -> Result<(&Path, &str)> {
    let name = config.file_name().and_then(|name| name.to_str()).context("a file's name")?;
    Ok((config.parent().context("a file's folder")?, name))
}
