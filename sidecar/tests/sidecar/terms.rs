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
    Allowed, AppendLoop, COMMANDS_MAX, Command, ControlReceivers, Counters, Description, Options, Waker,
    control_channels,
};

use crate::loop_harness::configuration::{BACKUPS, configuration};

struct BareLoop {
    path: AppendLoop,
    commands: SyncSender<Command>,
    _from_path: ControlReceivers,
    _folder: tempfile::TempDir,
}

impl BareLoop {
    fn new() -> BareLoop {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (commands, inbox) = sync_channel(COMMANDS_MAX);
        let (to_control, from_path) = control_channels();
        let options = Options {
            allowed: Allowed::Own,
            segment_size: SegmentSize::MIN,
            table: false,
            spin: Duration::ZERO,
            client_timeout: Duration::from_secs(30),
            batch_memory: 1 << 20,
            rings_max: 64,
        };
        let (shared, waker) = (Arc::new(Counters::default()), Waker::new().unwrap());
        let path = AppendLoop::new(options, "a".into(), listener, inbox, to_control, shared, &waker).unwrap();
        BareLoop { path, commands, _from_path: from_path, _folder: folder }
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
        self.send(Command::Lead(Box::new(primary), 0, None));
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
    let mut bare = BareLoop::new();
    let first = bare.lead(1);
    bare.send(Command::Wait { role: Role::Recovering, epoch: 1, primary: String::new() });
    let second = bare.lead(2);
    assert_eq!((first.index, first.tenancy), (second.index, second.tenancy), "seats are numbered alike");

    bare.send(Command::Input(Epoch(1), Input::Lost(first)));
    assert_eq!(bare.lost(), 0, "that was another term's member");
    bare.send(Command::Input(Epoch(2), Input::Lost(second)));
    assert_eq!(bare.lost(), 1);

    // It is to be swapped out, and acks need it until that has happened.
    bare.send(Command::Input(Epoch(1), Input::Swapped(SwapOutcome::Applied)));
    assert_eq!((bare.describe().leading.unwrap().version, bare.lost()), (2, 1), "that was another swap");
    bare.send(Command::Input(Epoch(2), Input::Swapped(SwapOutcome::Applied)));
    assert_eq!((bare.describe().leading.unwrap().version, bare.lost()), (3, 0));
}
