//! One sidecar leads twice: what belongs to its first term does not reach the second. Seats are numbered alike in every
//! term, so that nothing but the epoch tells them apart.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tailwind_protocol::config::{Durability, SwapOutcome, Time};
use tailwind_protocol::ids::Epoch;
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::primary::{Input, Output, Primary, Rules, Seat};
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::socket::Role;
use tailwind_sidecar::path::{
    Allowed, COMMANDS_MAX, Command, ControlReceivers, Counters, Description, Options, Path, Waker, control_channels,
};

use crate::bench::configuration::{BACKUPS, configuration};

struct Bench {
    path: Path,
    commands: SyncSender<Command>,
    _from_path: ControlReceivers,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (commands, inbox) = sync_channel(COMMANDS_MAX);
        let (to_control, from_path) = control_channels();
        let options = Options {
            allowed: Allowed::Own,
            segment_size: SegmentSize::MIN,
            spin: Duration::ZERO,
            client_timeout: Duration::from_secs(30),
            batch_memory: 1 << 20,
            rings_max: 64,
        };
        let (shared, waker) = (Arc::new(Counters::default()), Waker::new().unwrap());
        let path = Path::new(options, "a".into(), listener, inbox, to_control, shared, &waker).unwrap();
        Bench { path, commands, _from_path: from_path, _folder: folder }
    }

    /// Begins a term; its first seat.
    fn lead(&mut self, epoch: u64) -> Seat {
        let rules = Rules {
            backups: BACKUPS as u8,
            min_in_sync: 1,
            durability: Durability::Memory,
            segment_size: SegmentSize::MIN,
            open_timeout_ms: 60_000,
            recruit_interval_ms: 60_000,
            swap_interval_ms: 60_000,
        };
        let mut outputs = Vec::new();
        let primary = Primary::new(configuration(epoch), rules, &Reference::default(), 7, Time(0), &mut outputs);
        self.send(Command::Lead(Box::new(primary), 0));
        let seats = outputs.iter().filter_map(|output| match output {
            Output::Connect(seat, _) => Some(*seat),
            _ => None,
        });
        seats.min().unwrap()
    }

    fn send(&mut self, command: Command) {
        self.commands.send(command).unwrap();
        self.path.turn().unwrap();
    }

    fn describe(&mut self) -> Description {
        let (reply, mut answer) = tokio::sync::oneshot::channel();
        self.send(Command::Describe(reply));
        answer.try_recv().unwrap()
    }

    fn lost(&mut self) -> usize {
        self.describe().leading.unwrap().members.iter().filter(|member| member.lost).count()
    }
}

#[test]
fn messages_of_an_earlier_term_do_not_reach_the_next() {
    let mut bench = Bench::new();
    let first = bench.lead(1);
    bench.send(Command::Wait { role: Role::Recovering, epoch: 1, primary: String::new() });
    let second = bench.lead(2);
    assert_eq!((first.index, first.tenancy), (second.index, second.tenancy), "seats are numbered alike");

    bench.send(Command::Input(Epoch(1), Input::Lost(first)));
    assert_eq!(bench.lost(), 0, "that was another term's member");
    bench.send(Command::Input(Epoch(2), Input::Lost(second)));
    assert_eq!(bench.lost(), 1);

    // It is to be swapped out, and acks need it until that has happened.
    bench.send(Command::Input(Epoch(1), Input::Swapped(SwapOutcome::Applied)));
    assert_eq!((bench.describe().leading.unwrap().version, bench.lost()), (2, 1), "that was another swap");
    bench.send(Command::Input(Epoch(2), Input::Swapped(SwapOutcome::Applied)));
    assert_eq!((bench.describe().leading.unwrap().version, bench.lost()), (3, 0));
}
