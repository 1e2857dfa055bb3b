//! Steps that are aimed: each makes what a planted bug needs to show itself and random steps meet too seldom, or hide.
//!
//! Most come at the end of the program, when nothing else happens any more.

use super::*;

/// Longer than an opening may take.
const OPENINGS_OVER: Duration = Duration::from_millis(1100);
/// What a small file has.
const SMALL: usize = 4000;
/// What a file has whose last bytes can be written without a doubt about the others: several blocks.
const SEVERAL: usize = 16 << 10;
/// So much more than the supervisor logs again with one sync that a generation takes several.
const LARGE: usize = 256 << 10;
/// What is written to it between two syncs, and how often: together twice its size and more, so that a generation begins.
const PART: usize = 30_000;
const PARTS: usize = 40;
/// Writes that syncs may meet under way, and the threads that sync.
const MEETINGS: usize = 24;
const SYNCING: usize = 4;
/// Files that are cut by an opening, and the pages of memory that the write before it comes from.
const CUTS: usize = 16;
const PAGES: usize = 256;
const PAGE: usize = 4096;

impl World {
    /// One program of three ends with one of these.
    pub(super) fn end(&self, turn: u32, random: &mut Random) {
        let name = |what: &str| format!("{what}{turn}");
        match random.below(9) {
            0 => self.hand_over(&name("handed"), random),
            1 => self.cut_by_path(&name("cut"), random),
            2 => self.outgrow_log(&name("large"), random),
            3 => self.meet_writes(&name("met"), random),
            4 => self.cut_by_open(&name("opened"), random),
            _ => {}
        }
    }

    /// A new file of these bytes, with a descriptor that is behind them.
    fn make(&self, name: &str, bytes: &[u8]) -> (PathBuf, OwnedFd, Arc<Played>) {
        let mut names = self.names.lock().expect("no panic");
        let path = self.root.join(name);
        let descriptor = open_for_writing(&path);
        let file = names.add(&path).expect("open what was made");
        self.write_down(&Entry::Names(self.list(&names)));
        assert_eq!(io::write(&descriptor, bytes).expect("write"), bytes.len());
        self.content(&file);
        (path, descriptor, file)
    }

    /// A new small file, synced when all openings are long over.
    fn make_quiet(&self, name: &str) -> (PathBuf, OwnedFd, Arc<Played>) {
        let made = self.make(name, &[1; SMALL]);
        std::thread::sleep(OPENINGS_OVER);
        self.sync_data(&made.2);
        made
    }

    fn sync_data(&self, file: &Played) {
        self.sync_by(Covers::File(file.id), || fs::fdatasync(&file.reader));
    }

    /// When all openings are long over, a child keeps a description that its parent gives up for another one by the same number,
    /// and writes by it.
    fn hand_over(&self, name: &str, random: &mut Random) {
        let (path, mut kept, file) = self.make(name, &[1; SMALL]);
        let other = open_for_writing(&path);
        for descriptor in [&kept, &other] {
            fs::seek(descriptor, SeekFrom::Start(1000)).expect("seek");
        }
        std::thread::sleep(OPENINGS_OVER);
        self.sync_data(&file);
        // SAFETY: there is one thread now; the child ends by `_exit`.
        if unsafe { libc::fork() } == 0 {
            std::thread::sleep(Duration::from_millis(20));
            io::write(&kept, &vec![random.below(255) as u8 + 1; 700]).expect("write");
            self.content(&file);
            self.sync_data(&file);
            // SAFETY: ends the child at once, without its parent's destructors.
            unsafe { libc::_exit(0) }
        }
        io::dup2(&other, &mut kept).expect("dup2");
        // Until the child has ended: its last descriptor tells of the end.
        wait_for_children();
    }

    /// When all openings are long over, a file is cut by its path, and is then as long as before: its length tells nothing.
    fn cut_by_path(&self, name: &str, random: &mut Random) {
        let (path, descriptor, file) = self.make_quiet(name);
        let path = c_path(&path);
        for length in [random.below(SMALL as u64), SMALL as u64] {
            // SAFETY: a path that ends with NUL.
            assert_eq!(unsafe { libc::truncate(path.as_ptr(), length as i64) }, 0, "truncate");
            self.content(&file);
        }
        self.sync_data(&file);
        drop(descriptor);
    }

    /// Overwrites a large file until the log is trimmed, part by part: a generation takes several syncs.
    fn outgrow_log(&self, name: &str, random: &mut Random) {
        let (_, descriptor, file) = self.make(name, &vec![1; LARGE]);
        self.sync_data(&file);
        for _ in 0..PARTS {
            let (byte, offset) = (random.below(255) as u8 + 1, random.below((LARGE - PART) as u64));
            io::pwrite(&descriptor, &vec![byte; PART], offset).expect("pwrite");
            self.content(&file);
            self.sync_data(&file);
        }
    }

    /// When all openings are long over, threads sync a file again and again while another one writes to it, from memory that has to
    /// come from a disk first: what a sync has compared by then is not what the write leaves.
    fn meet_writes(&self, name: &str, random: &mut Random) {
        let (_, descriptor, file) = self.make_quiet(name);
        let sources: Vec<Slow> = (0..MEETINGS).map(|_| Slow::new(random.below(255) as u8 + 1, SMALL)).collect();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..SYNCING {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        self.sync_data(&file);
                    }
                });
            }
            for source in &sources {
                io::pwrite(&descriptor, source.bytes(), 0).expect("pwrite");
                self.content(&file);
                self.sync_data(&file);
            }
            over.store(true, Ordering::Relaxed);
        });
    }

    /// When all openings are long over, files are synced while an opening that cuts them waits for a write. Each is then made as
    /// long as before: its length tells nothing, and both writes are to its last block. The new descriptor stays.
    fn cut_by_open(&self, name: &str, random: &mut Random) {
        let made: Vec<_> = (0..CUTS).map(|cut| self.make(&format!("{name}-{cut}"), &[1; SEVERAL])).collect();
        std::thread::sleep(OPENINGS_OVER);
        made.iter().for_each(|(_, _, file)| self.sync_data(file));
        let mut cut = |(path, descriptor, file): &(PathBuf, OwnedFd, Arc<Played>)| {
            let source = Slow::new(1, PAGES * PAGE);
            let bytes: Vec<IoSlice<'_>> = source.bytes().chunks(PAGE).map(|page| IoSlice::new(&page[..1])).collect();
            let pause = |random: &mut Random| std::thread::sleep(Duration::from_micros(random.below(500)));
            let flags = OFlags::RDWR | OFlags::TRUNC | OFlags::CLOEXEC;
            let (writes, opens) = (AtomicBool::new(false), AtomicBool::new(false));
            let opened = std::thread::scope(|scope| {
                scope.spawn(|| {
                    writes.store(true, Ordering::Release);
                    io::pwritev(descriptor, &bytes, (SEVERAL - PAGES) as u64).expect("pwritev");
                });
                await_flag(&writes);
                pause(random);
                let mut opening = None;
                self.sync_by(Covers::File(file.id), || {
                    // It may be empty from here on.
                    self.write_down(&Entry::Content(file.id, Vec::new()));
                    opening = Some(scope.spawn(|| {
                        opens.store(true, Ordering::Release);
                        fs::open(path, flags, Mode::empty()).expect("open")
                    }));
                    await_flag(&opens);
                    pause(random);
                    fs::fdatasync(&file.reader)
                });
                opening.map(|opening| opening.join().expect("no panic"))
            });
            let opened = opened.expect("the sync has begun it");
            self.content(file);
            io::pwrite(&opened, &[2], SEVERAL as u64 - 1).expect("pwrite");
            self.content(file);
            self.sync_data(file);
            opened
        };
        let kept: Vec<OwnedFd> = made.iter().map(&mut cut).collect();
        drop(kept);
    }

    /// Closes a descriptor after a last write by it, and gives its number to another description of the same file, which is no
    /// further and no further back than that one was at the last sync.
    pub(super) fn replace_number(&self, table: &mut Table, from: usize, to: usize, random: &mut Random) {
        let position = fs::tell(&table.open[to].descriptor).expect("a position");
        fs::seek(&table.open[from].descriptor, SeekFrom::Start(position)).expect("seek");
        let Open { descriptor, file, .. } = table.open.remove(to);
        let from = if to < from { from - 1 } else { from };
        self.sync_by(Covers::File(file.id), || fs::fsync(&file.reader));
        self.exclusive(&file, || {
            io::write(&descriptor, &vec![random.below(255) as u8 + 1; 700]).expect("write");
            self.content(&file);
        });
        drop(descriptor);
        let descriptor = io::dup(&table.open[from].descriptor).expect("dup");
        self.sync_by(Covers::File(file.id), || fs::fdatasync(&file.reader));
        table.open.push(Open { descriptor, file, writes: true });
    }
}

fn await_flag(flag: &AtomicBool) {
    while !flag.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

fn open_for_writing(path: &Path) -> OwnedFd {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    fs::open(path, flags, Mode::from_raw_mode(0o644)).expect("open a file")
}

/// Bytes that are on a disk, in no memory: who reads them waits, for each page by itself.
struct Slow {
    at: *mut std::ffi::c_void,
    length: usize,
}

impl Slow {
    fn new(byte: u8, length: usize) -> Slow {
        let file = tempfile::tempfile().expect("a file elsewhere");
        file.write_all_at(&vec![byte; length], 0).expect("write");
        file.sync_all().expect("sync");
        fs::fadvise(&file, 0, None, fs::Advice::DontNeed).expect("fadvise");
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let at = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) };
        let at = at.expect("a mapping");
        // SAFETY: it is mapped; nothing is read ahead.
        unsafe { madvise(at, length, Advice::Random) }.expect("madvise");
        Slow { at, length }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: it is mapped as long as this lives, and nobody else has the file.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.length) }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        // SAFETY: this has mapped it, and its bytes are borrowed from this.
        unsafe { munmap(self.at, self.length) }.expect("munmap");
    }
}
