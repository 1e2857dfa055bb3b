//! The terminal: taken over for a while, and left as it was found however the process ends, unless it is killed with SIGKILL.
//!
//! Held by [`show`](crate::show). Drawing is ratatui's; this has the few sequences of ECMA-48 that its cells need, and termios(3).
//! Keys come from the controlling terminal, so that a program whose input is something else can be watched as well.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};
use ratatui_core::terminal::Terminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::draw::{Look, draw};
use crate::model::Model;

/// The alternate screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
/// The screen that was there before, with its cursor.
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";
/// Where terminals that do not tell their size are taken to end.
const SIZE_DEFAULT: Size = Size::new(80, 24);

/// What was there before. The first to leave restores it: the owner, a panic, or a signal.
static BEFORE: Mutex<Option<(File, Termios)>> = Mutex::new(None);
static PANIC_HOOK: Once = Once::new();

/// The terminal, while the screen is on it.
#[derive(Debug)]
pub struct Screen {
    terminal: Terminal<Ansi>,
    keys: File,
    signal: Arc<AtomicUsize>,
    look: Look,
    signals: Vec<signal_hook::SigId>,
}

/// What the user, or the system, asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// `q` or Escape.
    Quit,
    /// Ctrl-C.
    Interrupt,
    /// This signal has come.
    Signal(i32),
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// There is no terminal, or it does not obey.
    pub fn enter() -> io::Result<Screen> {
        let keys = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
        let before = tcgetattr(&keys)?;
        let mut raw = before.clone();
        // Keys come one by one and are not shown. Ctrl-C is a key: the screen is left before anything else happens.
        raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        let signal = Arc::new(AtomicUsize::new(0));
        let register = |number: i32| signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize);
        let signals = [SIGTERM, SIGHUP, SIGINT].into_iter().map(register).collect::<io::Result<Vec<_>>>()?;
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some((keys.try_clone()?, before));
        PANIC_HOOK.call_once(|| {
            let then = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                then(panic);
            }));
        });
        // From here on `drop` leaves it.
        let ansi = Ansi { out: io::stdout(), text: String::new(), asks: keys.try_clone()? };
        let terminal = match Terminal::new(ansi) {
            Ok(terminal) => terminal,
            Err(error) => {
                restore();
                return Err(error);
            }
        };
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mut screen = Screen { terminal, keys, signal, look: Look { colour }, signals };
        tcsetattr(&screen.keys, OptionalActions::Drain, &raw)?;
        screen.terminal.backend_mut().write(ENTER)?;
        Ok(screen)
    }

    /// Draws; what has not changed is not sent again.
    pub fn draw(&mut self, model: &Model) -> io::Result<()> {
        // Another thread has panicked, and what it says is on the screen that was there before.
        if BEFORE.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Ok(());
        }
        let look = self.look;
        self.terminal.draw(|frame| draw(model, look, frame)).map(|_| ())
    }

    /// Waits at most so long for a wish.
    pub fn wish(&mut self, patience: Duration) -> io::Result<Option<Wish>> {
        let signal = |found: usize| (found > 0).then_some(Wish::Signal(found as i32));
        if let Some(wish) = signal(self.signal.load(Ordering::Relaxed)) {
            return Ok(Some(wish));
        }
        let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        let mut fds = [PollFd::new(&self.keys, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(signal(self.signal.load(Ordering::Relaxed))),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 32];
        match self.keys.read(&mut bytes)? {
            // The terminal has gone.
            0 => Ok(Some(Wish::Signal(SIGHUP))),
            count => Ok(wish(&bytes[..count])),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
        self.signals.drain(..).for_each(|id| _ = signal_hook::low_level::unregister(id));
    }
}

/// What these keys mean: the first wish among them. An escape at the end is the Escape key; with more behind it, it begins another
/// key's sequence.
fn wish(mut bytes: &[u8]) -> Option<Wish> {
    loop {
        bytes = match bytes {
            [] => return None,
            [3, ..] => return Some(Wish::Interrupt),
            [0x1b] | [b'q' | b'Q', ..] => return Some(Wish::Quit),
            [0x1b, b'[' | b'O', rest @ ..] => {
                let end = rest.iter().position(|byte| matches!(byte, 0x40..=0x7e));
                end.map_or(&[], |end| &rest[end + 1..])
            }
            [0x1b, _, rest @ ..] | [_, rest @ ..] => rest,
        };
    }
}

/// Leaves the terminal as it was. Once: later calls do nothing.
fn restore() {
    let Some((mut terminal, before)) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    // Nothing can be done where the terminal is gone.
    let _ = terminal.write_all(LEAVE.as_bytes());
    let _ = tcsetattr(&terminal, OptionalActions::Now, &before);
}

/// Whether standard output is a terminal that can show the screen.
pub fn is_usable() -> bool {
    use io::IsTerminal;
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    io::stdout().is_terminal() && !is_dumb
}

/// Writes ratatui's cells.
#[derive(Debug)]
struct Ansi {
    out: io::Stdout,
    text: String,
    /// Where the size is asked for.
    asks: File,
}

impl Ansi {
    fn write(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

/// The sequence that sets a cell's style, from none.
fn style(text: &mut String, cell: &Cell) {
    text.push_str("\x1b[0");
    for (modifier, code) in [
        (Modifier::BOLD, 1),
        (Modifier::DIM, 2),
        (Modifier::ITALIC, 3),
        (Modifier::UNDERLINED, 4),
        (Modifier::REVERSED, 7),
    ] {
        if cell.modifier.contains(modifier) {
            let _ = write!(text, ";{code}");
        }
    }
    for (color, base) in [(cell.fg, 30), (cell.bg, 40)] {
        if let Some(code) = code(color) {
            let _ = write!(text, ";{}", base + code);
        }
    }
    text.push('m');
}

/// The number of one of the eight colours that the screen uses.
fn code(color: Color) -> Option<u8> {
    Some(match color {
        Color::Black => 0,
        Color::Red => 1,
        Color::Green => 2,
        Color::Yellow => 3,
        Color::Blue => 4,
        Color::Magenta => 5,
        Color::Cyan => 6,
        Color::White => 7,
        _ => return None,
    })
}

impl Backend for Ansi {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let mut before: Option<(u16, u16, &Cell)> = None;
        for (x, y, cell) in content {
            if before.is_none_or(|(last_x, last_y, _)| (last_x + 1, last_y) != (x, y)) {
                let _ = write!(text, "\x1b[{};{}H", y + 1, x + 1);
            }
            if before.is_none_or(|(.., last)| (last.fg, last.bg, last.modifier) != (cell.fg, cell.bg, cell.modifier)) {
                style(&mut text, cell);
            }
            text.push_str(cell.symbol());
            before = Some((x, y, cell));
        }
        text.push_str("\x1b[0m");
        let written = self.out.write_all(text.as_bytes());
        self.text = text;
        written
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[?25l")
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[?25h")
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        write!(self.out, "\x1b[{};{}H", y + 1, x + 1)
    }

    fn clear(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[2J")
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        self.out.write_all(match region {
            ClearType::All => b"\x1b[2J",
            ClearType::AfterCursor => b"\x1b[0J",
            ClearType::BeforeCursor => b"\x1b[1J",
            ClearType::CurrentLine => b"\x1b[2K",
            ClearType::UntilNewLine => b"\x1b[0K",
        })
    }

    fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(self.asks.as_fd())?;
        Ok(match (size.ws_col, size.ws_row) {
            (0, _) | (_, 0) => SIZE_DEFAULT,
            (columns, rows) => Size::new(columns, rows),
        })
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::default() })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_come_together_are_told_apart() {
        for (keys, found) in [
            ("", None),
            ("x\x1b[A", None),
            ("\x1b[1;5C\x1bOP", None),
            ("\x1bq", None),
            ("\x1b[", None),
            ("q", Some(Wish::Quit)),
            ("\x1b", Some(Wish::Quit)),
            ("x\x1b[A\x1b", Some(Wish::Quit)),
            ("\x1b[AQ", Some(Wish::Quit)),
            ("\x1b[A\x03", Some(Wish::Interrupt)),
            ("\x03q", Some(Wish::Interrupt)),
        ] {
            assert_eq!(wish(keys.as_bytes()), found, "{keys:?}");
        }
    }
}
