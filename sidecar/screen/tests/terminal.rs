//! The screen on a real terminal: a pseudo-terminal, on which this program runs itself as its own child. However that ends, the
//! terminal is as it was.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use tailwind_screen::poll::Sidecars;
use tailwind_screen::show::{self, End};
use tailwind_screen::terminal::Screen;

/// What the child is to do.
const JOB: &str = "TAILWIND_SCREEN_CHILD";
const PATIENCE: Duration = Duration::from_secs(30);
const ENTERED: &str = "\x1b[?1049h";
const LEFT: &str = "\x1b[?1049l";

/// The child: a screen that asks nobody, until it is told to end. Without a parent it does nothing.
#[test]
fn child() {
    let Some(job) = std::env::var_os(JOB) else { return };
    let screen = Screen::enter().unwrap();
    if job == "panic" {
        panic!("as asked");
    }
    let (_nothing, inputs) = show::nothing_to_tell();
    let sidecars = Sidecars::new(vec!["/nonexistent/socket".into()], Duration::from_secs(1));
    let end = show::show(screen, sidecars, Duration::from_millis(50), &inputs).unwrap();
    println!("ended with {end:?}");
    assert_ne!(end, End::Done);
}

/// A child on a pseudo-terminal of its own.
struct OnTerminal {
    child: Child,
    keys: File,
    terminal: File,
    output: mpsc::Receiver<Vec<u8>>,
    seen: String,
    /// How keys were read before the child began.
    before: LocalModes,
}

impl OnTerminal {
    fn start(job: &str, columns: u16, rows: u16, variables: &[(&str, &str)]) -> OnTerminal {
        let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&control).unwrap();
        unlockpt(&control).unwrap();
        let name = ptsname(&control, Vec::new()).unwrap();
        let terminal = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        tcsetwinsize(&terminal, Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let before = tcgetattr(&terminal).unwrap().local_modes;
        let stdio = || Stdio::from(terminal.try_clone().unwrap());
        // `setsid --ctty` makes it the child's controlling terminal, and becomes the child.
        let child = Command::new("setsid")
            .arg("--ctty")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(JOB, job)
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .envs(variables.iter().copied())
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .unwrap();
        let keys = File::from(control);
        let (mut reads, (bytes, output)) = (keys.try_clone().unwrap(), mpsc::channel());
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reads.read(&mut buffer) {
                if bytes.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        OnTerminal { child, keys, terminal, output, seen: String::new(), before }
    }

    /// Reads until this has been written.
    fn wait_for(&mut self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.seen.contains(text) {
            let left = deadline.saturating_duration_since(Instant::now());
            let bytes = self.output.recv_timeout(left);
            let bytes = bytes.unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.seen));
            self.seen += &String::from_utf8_lossy(&bytes);
        }
    }

    fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
    }

    fn modes(&self) -> LocalModes {
        tcgetattr(self.terminal.as_fd()).unwrap().local_modes
    }

    /// Waits for its end: the screen has been left, and keys are what they were.
    fn finish(mut self, says: &str, succeeds: bool) -> String {
        self.wait_for(LEFT);
        self.wait_for(says);
        let status = self.child.wait().unwrap();
        assert_eq!(status.success(), succeeds, "{status}: {}", self.seen);
        assert_eq!(self.modes(), self.before, "{}", self.seen);
        let (_, after) = self.seen.rsplit_once(LEFT).unwrap();
        assert!(after.contains(says), "it is said on the screen that is gone: {}", self.seen);
        std::mem::take(&mut self.seen)
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        // Where the test has failed it may still be there.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn started(job: &str) -> OnTerminal {
    let mut on = OnTerminal::start(job, 80, 24, &[]);
    on.wait_for(ENTERED);
    on
}

#[test]
fn a_key_quits_and_the_terminal_is_as_it_was() {
    for (key, wish) in [(b"q", "Quit"), (b"\x1b", "Quit"), (b"\x03", "Interrupt")] {
        let mut on = started("show");
        on.wait_for("/nonexistent/socket:");
        let raw = on.modes();
        assert!(!raw.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG), "keys are read one by one");
        on.press(b"x\x1b[A");
        on.press(key);
        let text = on.finish(&format!("ended with Wish({wish})"), true);
        assert!(text.contains("\x1b[0;1;7;31mno sidecar answers"), "{text}");
    }
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut on = started("show");
        on.wait_for("no sidecar answers");
        kill_process(Pid::from_child(&on.child), signal).unwrap();
        on.finish(&format!("ended with Wish(Signal({}))", signal.as_raw()), true);
    }
}

#[test]
fn a_panic_leaves_the_terminal_as_it_was() {
    started("panic").finish("as asked", false);
}

#[test]
fn the_size_and_the_wish_for_no_colour_are_honoured() {
    let mut on = OnTerminal::start("show", 20, 5, &[("NO_COLOR", "1")]);
    on.wait_for("no sidecar");
    on.press(b"q");
    on.wait_for(LEFT);
    on.child.wait().unwrap();
    assert!(!on.seen.contains(";31m") && !on.seen.contains(";33m"), "{}", on.seen);
    assert!(!on.seen.contains("\x1b[6;"), "no line below the fifth: {}", on.seen);
}
