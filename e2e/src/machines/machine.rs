//! Virtual machines with soft-RoCE on one wire: boots them, runs commands in them, kills, freezes and unplugs them.
//!
//! [`Wire`] and [`Machine`] drive the scripts `e2e/rdma/wire` and `e2e/rdma/boot`, which say what a machine contains and
//! which packages it takes. Used by tests behind the feature `machines`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::context::note;
use crate::processes::observer::TIMEOUT;

/// How long a boot may take until the machine is booted again: an emulated kernel hangs in its first second once in many boots.
/// Some 5 s were seen without KVM on two cores that others used too, and more with several at once; the first of all also
/// downloads a kernel of 70 MB.
const BOOT_TIMEOUTS: [Duration; 3] = [Duration::from_secs(30), Duration::from_secs(60), Duration::from_secs(240)];
/// How long a machine that is there may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a command in a machine may take, unless [`Machine::run_within`] says otherwise.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest life of a machine, in case the test dies before it.
const LIFE_S: &str = "1800";
/// How often a condition is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A wire with sockets for machines, and a folder that they share. Dropped after its machines.
#[derive(Debug)]
pub struct Wire {
    script: Script,
    control: Control,
    folder: TempDir,
}

impl Wire {
    /// A wire for machines 1 to `machines`, at most 9.
    pub fn create(machines: usize) -> Result<Wire> {
        ensure!((1..=9).contains(&machines), "a wire has 1 to 9 machines, not {machines}");
        let folder = tempfile::Builder::new().prefix("tailwind-wire.").tempdir().context("make a folder")?;
        fs::create_dir(folder.path().join("share")).context("make the shared folder")?;
        let qmp = folder.path().join("wire.qmp");
        let mut command = Command::new(script_path("wire"));
        command.arg(folder.path().join("wire")).arg(machines.to_string()).env("QMP", &qmp);
        let mut script = Script::start(&mut command, folder.path().join("wire.log"))?;
        let deadline = Instant::now() + TIMEOUT;
        // The sockets of machines are there before this one.
        let control = Control::over(script.connect(&qmp, deadline)?)?;
        Ok(Wire { script, control, folder })
    }

    /// The folder of this host that is `/share` in each machine.
    pub fn share(&self) -> PathBuf {
        self.folder.path().join("share")
    }

    /// Boots machines, all at once, and waits until they take commands. A machine that was killed can be booted again. So
    /// is one that does not come up.
    pub fn boot(&mut self, ids: &[usize], hardware: &Hardware) -> Result<Vec<Machine>> {
        let booting = ids.iter().map(|&id| Ok((id, self.start(id, hardware)?))).collect::<Result<Vec<_>>>()?;
        let deadline = Instant::now() + BOOT_TIMEOUTS[0];
        booting.into_iter().map(|(id, script)| self.connect(id, script, deadline, hardware)).collect()
    }

    /// Waits for a machine that boots, and boots it again if it is not there at the deadline, which others may have used up.
    fn connect(&self, id: usize, script: Script, deadline: Instant, hardware: &Hardware) -> Result<Machine> {
        let deadline = deadline.max(Instant::now() + ANSWER_TIMEOUT);
        let mut found = Machine::connect(id, script, self.folder.path(), deadline);
        for timeout in &BOOT_TIMEOUTS[1..] {
            let Err(error) = found else { break };
            note(&format!("machine {id} is booted again: {error:#}; its kernel's log: {}", self.kernel_log(id)));
            let again = self.start(id, hardware)?;
            found = Machine::connect(id, again, self.folder.path(), Instant::now() + *timeout);
        }
        found.with_context(|| format!("log of the wire: {}; of the kernel: {}", self.script.log(), self.kernel_log(id)))
    }

    /// The last lines of a machine's kernel.
    fn kernel_log(&self, id: usize) -> String {
        let text = fs::read(kernel_path(self.folder.path(), id)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn start(&self, id: usize, hardware: &Hardware) -> Result<Script> {
        let folder = self.folder.path();
        let mut command = Command::new(script_path("boot"));
        command.arg("-").args(&hardware.programs);
        command.env("VM_ID", id.to_string()).env("WIRE", folder.join("wire")).env("SHARE", self.share());
        command.env("CONSOLE", console_path(folder, id)).env("QMP", qmp_path(folder, id));
        command.env("SMP", hardware.processors.to_string()).env("MEM_MB", hardware.memory_mb.to_string());
        command.env("KERNEL_LOG", kernel_path(folder, id));
        command.env("HUGEPAGES", hardware.huge_pages.to_string()).env("TIMEOUT_S", LIFE_S);
        Script::start(&mut command, folder.join(format!("machine{id}.log")))
    }

    /// Drops, or no longer drops, what passes between a machine and the others. Unlike with [`Machine::cut_link`] the
    /// machine's network card notices nothing.
    pub fn block(&mut self, id: usize, blocked: bool) -> Result<()> {
        self.control.ask("set_link", json!({ "name": format!("port{id}"), "up": !blocked }))
    }
}

/// What machines are made of.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Processors.
    pub processors: usize,
    /// Memory; `/dev/shm` holds three quarters of it at most.
    pub memory_mb: usize,
    /// Pages of 2 MiB that are set aside of that memory.
    pub huge_pages: usize,
    /// Programs of this host that are there with their libraries. Programs in the shared folder need those too.
    pub programs: Vec<PathBuf>,
}

impl Default for Hardware {
    fn default() -> Hardware {
        Hardware { processors: 1, memory_mb: 512, huge_pages: 0, programs: Vec::new() }
    }
}

/// How a command in a machine has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellOutput {
    /// Exit status as a shell sees it; 137 if it took too long.
    pub status: i32,
    /// Standard output and error.
    pub text: String,
}

/// A machine that runs. Dropped, it is killed.
#[derive(Debug)]
pub struct Machine {
    id: usize,
    script: Script,
    console: UnixStream,
    control: Control,
    /// What came from the console and belongs to no command yet.
    unread: Vec<u8>,
    /// Commands so far: each has its own marks, so that a late answer is not taken for the next one's.
    commands: u64,
}

impl Machine {
    fn connect(id: usize, mut script: Script, folder: &Path, deadline: Instant) -> Result<Machine> {
        let control = Control::over(script.connect(&qmp_path(folder, id), deadline)?)?;
        let console = script.connect(&console_path(folder, id), deadline)?;
        let mut machine = Machine { id, script, console, control, unread: Vec::new(), commands: 0 };
        // What is written to the console waits there for its shell.
        let left = deadline.saturating_duration_since(Instant::now());
        let state = machine.run_until("cat /sys/class/infiniband/rxe0/ports/1/state", left, deadline)?;
        ensure!(state.text == "4: ACTIVE\n", "machine {id} has no soft-RoCE: {state:?}");
        Ok(machine)
    }

    /// Its number on the wire.
    pub fn id(&self) -> usize {
        self.id
    }

    /// Its address on the wire, which GID 1 of `rxe0` holds too.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 9, 0, self.id as u8)
    }

    /// Runs a shell script to its end. An error means that the machine does not answer.
    pub fn run(&mut self, script: &str) -> Result<ShellOutput> {
        self.run_within(script, COMMAND_TIMEOUT)
    }

    /// The same with another deadline. What takes longer is killed there.
    pub(crate) fn run_within(&mut self, script: &str, time: Duration) -> Result<ShellOutput> {
        self.run_until(script, time, Instant::now() + time + TIMEOUT)
    }

    /// The same; the machine must have answered at the deadline.
    fn run_until(&mut self, script: &str, time: Duration, deadline: Instant) -> Result<ShellOutput> {
        self.commands += 1;
        let (begin, end) = (format!("\nbegin-{}\n", self.commands), format!("\nend-{} ", self.commands));
        let seconds = time.as_secs().max(1);
        // A shell of its own for each, so that an error of syntax ends that one only. By its path: busybox's timeout would
        // start busybox's shell, which prefers its own tc to the real one.
        let line = format!(
            "printf '\\nbegin-{number}\\n'; timeout -s KILL {seconds} /bin/sh -c {script} </dev/null 2>&1; \
             printf '\\nend-{number} %d\\n' $?\n",
            number = self.commands,
            script = quoted(script),
        );
        let asked = self.console.write_all(line.as_bytes());
        asked.with_context(|| format!("machine {}: write to its console", self.id))?;
        self.read_past(&begin, deadline)?;
        let text = self.read_past(&end, deadline)?;
        let status = self.read_past("\n", deadline)?;
        let status = status.trim().parse().with_context(|| format!("machine {}: status {status:?}", self.id))?;
        Ok(ShellOutput { status, text })
    }

    /// Runs a shell script to its end; its output. Fails unless its status is 0.
    pub fn must(&mut self, script: &str) -> Result<String> {
        let output = self.run(script)?;
        ensure!(output.status == 0, "machine {}: {script}: {output:?}", self.id);
        Ok(output.text)
    }

    /// Starts a shell script in the background, in a process group of its own; returns the number of both. What it prints
    /// goes to a file in the shared folder.
    pub fn start(&mut self, script: &str, log: &str) -> Result<u32> {
        let log = quoted(&format!("/share/{log}"));
        let line = format!("setsid /bin/sh -c {} </dev/null >{log} 2>&1 & echo $!", quoted(script));
        let number = self.must(&line)?;
        number.trim().parse().with_context(|| format!("machine {}: process number {number:?}", self.id))
    }

    /// Pulls the machine's cable out, or plugs it in again. Its network card notices.
    pub fn cut_link(&mut self, cut: bool) -> Result<()> {
        self.control.ask("set_link", json!({ "name": "wire", "up": !cut }))
    }

    /// Stops all processors of the machine, or resumes them as if no time had passed.
    pub fn freeze(&mut self, frozen: bool) -> Result<()> {
        self.control.ask(if frozen { "stop" } else { "cont" }, json!({}))
    }

    /// Ends the machine as a power cut does. When this returns it runs no more.
    pub fn kill(mut self) -> Result<()> {
        self.script.end();
        // If the script itself had to be killed QEMU dies after it; the console lives no longer than QEMU.
        let deadline = Instant::now() + TIMEOUT;
        while self.fill(deadline).is_ok() {}
        ensure!(Instant::now() < deadline, "machine {} does not die", self.id);
        Ok(())
    }

    /// Reads up to a mark; what came before it.
    fn read_past(&mut self, mark: &str, deadline: Instant) -> Result<String> {
        loop {
            let found = self.unread.windows(mark.len()).position(|bytes| bytes == mark.as_bytes());
            if let Some(at) = found {
                let rest = self.unread.split_off(at + mark.len());
                let read = std::mem::replace(&mut self.unread, rest);
                return Ok(String::from_utf8_lossy(&read[..at]).into_owned());
            }
            self.fill(deadline)?;
        }
    }

    fn fill(&mut self, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let late = || anyhow!("machine {} does not answer: {}", self.id, self.script.log());
        ensure!(!left.is_zero(), late());
        self.console.set_read_timeout(Some(left)).context("set a timeout")?;
        let mut bytes = [0; 65536];
        match self.console.read(&mut bytes) {
            Ok(0) => bail!("machine {} has ended: {}", self.id, self.script.log()),
            Ok(count) => self.unread.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => bail!(late()),
            Err(error) => return Err(error).context("read from a console"),
        }
        Ok(())
    }
}

/// A script of `e2e/rdma` that runs until it is asked to end.
#[derive(Debug)]
struct Script {
    child: Child,
    log: PathBuf,
}

impl Script {
    fn start(command: &mut Command, log: PathBuf) -> Result<Script> {
        let file = File::create(&log).context("create a log")?;
        let copy = file.try_clone().context("copy a file handle")?;
        let child = command.stdin(Stdio::null()).stdout(file).stderr(copy).spawn();
        Ok(Script { child: child.with_context(|| format!("start {command:?}"))?, log })
    }

    /// What it has printed.
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Connects to a socket that it opens by and by.
    fn connect(&mut self, socket: &Path, deadline: Instant) -> Result<UnixStream> {
        loop {
            match UnixStream::connect(socket) {
                Ok(stream) => return Ok(stream),
                Err(error) if Instant::now() > deadline => {
                    return Err(error).with_context(|| format!("connect to {}", socket.display()));
                }
                Err(_) => {}
            }
            let ended = self.child.try_wait().context("look at a process")?;
            ensure!(ended.is_none(), "{}", self.log());
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Asks it to end, which it does after it has killed what it has started.
    fn end(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        let mut signal = Some(Signal::TERM);
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() > deadline {
                signal = Some(Signal::KILL);
            }
            if let Some(signal) = signal.take() {
                // Not reaped yet, so the number is still its own.
                let _ = kill_process(Pid::from_child(&self.child), signal);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.end();
    }
}

/// QEMU's machine protocol: <https://www.qemu.org/docs/master/interop/qmp-spec.html>.
#[derive(Debug)]
struct Control(BufReader<UnixStream>);

impl Control {
    fn over(stream: UnixStream) -> Result<Control> {
        stream.set_read_timeout(Some(TIMEOUT)).context("set a timeout")?;
        let mut control = Control(BufReader::new(stream));
        control.ask("qmp_capabilities", json!({}))?;
        Ok(control)
    }

    fn ask(&mut self, command: &str, arguments: Value) -> Result<()> {
        let asked = writeln!(self.0.get_mut(), "{}", json!({ "execute": command, "arguments": arguments }));
        asked.with_context(|| format!("ask QEMU to {command}"))?;
        loop {
            let mut line = String::new();
            let read = self.0.read_line(&mut line);
            ensure!(read.with_context(|| format!("wait for QEMU to {command}"))? > 0, "QEMU has ended: {command}");
            let answer: Value = serde_json::from_str(&line).context("read QEMU's answer")?;
            ensure!(answer.get("error").is_none(), "QEMU refuses {command}: {answer}");
            // Else it is its greeting, or news.
            if answer.get("return").is_some() {
                return Ok(());
            }
        }
    }
}

fn script_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("rdma").join(name)
}

fn console_path(folder: &Path, id: usize) -> PathBuf {
    folder.join(format!("machine{id}.console"))
}

fn kernel_path(folder: &Path, id: usize) -> PathBuf {
    folder.join(format!("machine{id}.kernel"))
}

fn qmp_path(folder: &Path, id: usize) -> PathBuf {
    folder.join(format!("machine{id}.qmp"))
}

/// As one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
