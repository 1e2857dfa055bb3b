//! Runs the contract suite against each fabric.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use crate::suite::{Fabric, Harness};
#[cfg(feature = "baselines")]
use crate::suite::{World, complete, eventually};
use tailwind_fabric::shm::{ShmReader, ShmReceiver, ShmSender};
use tailwind_fabric::tcp::{TcpReader, TcpReceiver, TcpSender};
use tailwind_fabric::{Pool, Reader, Receiver, Sender};

struct Shm;

impl Harness for Shm {
    fn receiver(pool: Arc<Pool>) -> Box<dyn Receiver> {
        Box::new(ShmReceiver::new(pool).unwrap())
    }

    fn sender() -> Box<dyn Sender> {
        Box::<ShmSender>::default()
    }

    fn reader() -> Option<Box<dyn Reader>> {
        Some(Box::<ShmReader>::default())
    }
}

struct Tcp;

impl Harness for Tcp {
    fn receiver(pool: Arc<Pool>) -> Box<dyn Receiver> {
        Box::new(TcpReceiver::new(pool, TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).unwrap())
    }

    fn sender() -> Box<dyn Sender> {
        Box::<TcpSender>::default()
    }

    fn reader() -> Option<Box<dyn Reader>> {
        Some(Box::<TcpReader>::default())
    }
}

/// Needs an RDMA device: `./check` runs these tests in a virtual machine that has one.
#[cfg(feature = "verbs")]
mod rdma {
    use tailwind_fabric::verbs::{
        DeviceSelector, SelectedPort, Tuning, VerbsReader, VerbsReceiver, VerbsSender, list_devices, select,
    };

    use super::*;

    pub(super) struct Verbs;

    fn port() -> SelectedPort {
        select(&list_devices().unwrap(), &DeviceSelector::default()).unwrap()
    }

    impl Harness for Verbs {
        fn receiver(pool: Arc<Pool>) -> Box<dyn Receiver> {
            Box::new(VerbsReceiver::open(pool, &port(), Tuning::default()).unwrap())
        }

        fn sender() -> Box<dyn Sender> {
            Box::new(VerbsSender::open(&port(), Tuning::default()).unwrap())
        }

        fn reader() -> Option<Box<dyn Reader>> {
            Some(Box::new(VerbsReader::open(&port(), Tuning::default()).unwrap()))
        }
    }
}

/// Two-sided replication, which `./bench` compares with.
#[cfg(feature = "baselines")]
mod two_sided {
    use tailwind_fabric::baselines::{
        Baseline, MessageReader, MessageReceiver, MessageSender, TcpMessageSender, tcp_receiver,
    };

    use super::*;

    macro_rules! over_shared_memory {
        ($($harness:ident $barrier_before_reads:literal)*) => {$(
            pub(super) struct $harness;

            impl Harness for $harness {
                const BARRIER_BEFORE_READS: bool = $barrier_before_reads;

                fn receiver(pool: Arc<Pool>) -> Box<dyn Receiver> {
                    Box::new(MessageReceiver::new(pool, Baseline::$harness).unwrap())
                }

                fn sender() -> Box<dyn Sender> {
                    Box::new(MessageSender::new(Baseline::$harness))
                }

                fn reader() -> Option<Box<dyn Reader>> {
                    let is_read = Baseline::$harness != Baseline::Ring;
                    is_read.then(|| Box::new(MessageReader::new(Baseline::$harness)) as Box<dyn Reader>)
                }
            }
        )*};
    }
    over_shared_memory!(Rpc false RpcPipelined false Ring true);

    pub(super) struct RpcTcp;

    impl Harness for RpcTcp {
        fn receiver(pool: Arc<Pool>) -> Box<dyn Receiver> {
            Box::new(tcp_receiver(pool, TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).unwrap())
        }

        fn sender() -> Box<dyn Sender> {
            Box::new(TcpMessageSender::new(Baseline::RpcPipelined))
        }
    }
}

macro_rules! test_each {
    ($when:meta, $harness:ty, $promise:ident: $($test:ident)*) => {$(
        #[test]
        #[$when]
        fn $test() {
            crate::suite::$promise::$test(&Fabric::of::<$harness>());
        }
    )*};
}

/// One test for each promise and fabric, so that a failure names both. Each fabric has an attribute for its tests.
macro_rules! contract_suite {
    ($($fabric:ident: $harness:ty, $when:meta);*) => {$(
        mod $fabric {
            use super::*;

            test_each!($when, $harness, writing:
                bytes_land_at_the_same_offsets
                a_whole_slot_is_one_write
                many_large_writes_may_be_on_their_way
                writes_to_several_slots_share_a_channel
                every_write_completes_once_and_a_full_queue_moves_on
                a_writer_reconnects_as_often_as_it_likes
                bytes_are_copied_at_the_call
                an_empty_write_completes_and_writes_nothing
                a_failure_is_final
                posting_and_polling_allocate_nothing
                a_sleeper_is_woken
            );
            test_each!($when, $harness, lending:
                lent_memory_is_zero
                an_earlier_lending_reaches_no_byte_of_a_later_one
                released_memory_is_lent_anew
                side_slots_are_lent_like_the_others
                side_slots_end_without_a_copy
                kept_memory_is_out_of_reach_for_a_revoked_writer
                a_grant_that_was_kept_back_opens_nothing_later
                an_ended_lending_completes_no_write_and_keeps_its_bytes
                a_retained_slot_outlasts_its_writer
                a_held_slot_is_nobodys_to_write
                the_other_fabric_is_refused
                messages_survive_the_control_rpc
                a_restart_keeps_bytes_and_is_a_barrier
            );
            test_each!($when, $harness, revocation:
                completed_writes_are_there_afterwards
                an_empty_write_fails_afterwards
                a_revoked_writer_gets_nothing_more_and_others_go_on
                an_ended_lending_is_revoked_too
                a_revocation_is_a_barrier_for_a_busy_writer
            );
            #[test]
            #[$when]
            #[should_panic]
            fn only_published_bytes_can_be_posted() {
                crate::suite::writing::only_published_bytes_can_be_posted(&Fabric::of::<$harness>());
            }

            #[test]
            #[$when]
            #[should_panic(expected = "within its slot")]
            fn only_bytes_within_the_slot_can_be_posted() {
                crate::suite::writing::only_bytes_within_the_slot_can_be_posted(&Fabric::of::<$harness>());
            }
        }
    )*};
}

/// The same for the promises of reading.
macro_rules! reading_suite {
    ($($fabric:ident: $harness:ty, $when:meta);*) => {$(
        mod $fabric {
            use super::*;

            test_each!($when, $harness, reading:
                completed_writes_are_read
                a_read_lands_at_its_place_and_nowhere_else
                every_read_completes_once_and_a_full_queue_moves_on
                a_read_beside_a_writer_is_never_older_than_its_posting
                a_share_ends_with_its_memory
                no_byte_of_a_later_lending_is_read
                a_revocation_leaves_nothing_wrong_to_read
                a_restart_ends_shares
                frozen_readers_delay_nobody
                shares_of_side_slots_end_at_a_revocation
                frozen_readers_of_parts_delay_no_fence
                a_read_grant_writes_nothing
                a_write_grant_reads_nothing
                readers_and_their_channels_are_bounded
                a_dismissed_reader_is_cut_off
                a_slot_without_memory_cannot_be_shared
                the_other_fabric_is_refused_to_readers
                read_messages_survive_the_control_rpc
                a_waiting_reader_is_woken
                reading_allocates_nothing
            );

            #[test]
            #[$when]
            #[should_panic(expected = "within its slot")]
            fn copied_bytes_lie_within_the_slot() {
                crate::suite::writing::copied_bytes_lie_within_the_slot(&Fabric::of::<$harness>());
            }

            #[test]
            #[$when]
            #[should_panic(expected = "within its slot")]
            fn only_bytes_within_the_slot_can_be_read() {
                crate::suite::reading::only_bytes_within_the_slot_can_be_read(&Fabric::of::<$harness>());
            }

            #[test]
            #[$when]
            #[should_panic(expected = "within the landing")]
            fn reads_land_within_the_landing_only() {
                crate::suite::reading::reads_land_within_the_landing_only(&Fabric::of::<$harness>());
            }
        }
    )*};
}

contract_suite!(shm: Shm, cfg(test); tcp: Tcp, cfg(test));
#[cfg(feature = "verbs")]
contract_suite!(verbs: rdma::Verbs, ignore = "needs an RDMA device");
#[cfg(feature = "baselines")]
contract_suite!(
    rpc_shm: two_sided::Rpc, cfg(test);
    rpc_pipelined_shm: two_sided::RpcPipelined, cfg(test);
    ring_shm: two_sided::Ring, cfg(test);
    rpc_tcp: two_sided::RpcTcp, cfg(test)
);

/// What `./bench` compares bytes by: `ring` writes each of them twice.
#[cfg(feature = "baselines")]
#[test]
fn a_ring_counts_what_it_writes_and_what_it_copies() {
    let mut world = World::new(&Fabric::of::<two_sided::Ring>());
    let (mut channel, remote, local) = (world.channel(1), world.lend(1, 0), world.local(&[7; 4000]));
    let mut before = 0;
    let mut header = None;
    for length in [1000, 3000] {
        channel.post(&remote, &local, 0..length).unwrap();
        complete(&mut *channel, 1);
        let copied =
            |world: &World| world.receiver.written_bytes().filter(|bytes| *bytes > before + u64::from(2 * length));
        eventually("it is copied", || copied(&world).is_some());
        let written = copied(&world).unwrap();
        let beside = written - before - u64::from(2 * length);
        assert_eq!(*header.get_or_insert(beside), beside, "of each message the header is written once");
        before = written;
    }
    let world = World::new(&Fabric::of::<two_sided::Rpc>());
    assert_eq!(world.receiver.written_bytes(), None, "it does not count");
}

/// Nobody reads from `ring`, or from baselines over TCP.
mod reading {
    use super::*;

    reading_suite!(shm: Shm, cfg(test); tcp: Tcp, cfg(test));
    #[cfg(feature = "baselines")]
    reading_suite!(rpc_shm: two_sided::Rpc, cfg(test); rpc_pipelined_shm: two_sided::RpcPipelined, cfg(test));
    #[cfg(feature = "verbs")]
    reading_suite!(verbs: rdma::Verbs, ignore = "needs an RDMA device");
}

/// Lookups, which only messages over shared memory have.
mod lookups {
    use super::*;

    macro_rules! lookups_suite {
        ($($fabric:ident: $harness:ty, $when:meta: $($test:ident)*);*) => {$(
            mod $fabric {
                use super::*;

                test_each!($when, $harness, lookups: $($test)*);
            }
        )*};
    }

    lookups_suite!(shm: Shm, cfg(test): other_fabrics_have_none; tcp: Tcp, cfg(test): other_fabrics_have_none);
    #[cfg(feature = "baselines")]
    lookups_suite!(
        rpc_shm: two_sided::Rpc, cfg(test):
            a_lookup_brings_what_its_reads_lead_to
            lookups_and_reads_complete_in_their_order
            a_lookup_sees_what_has_completed
            a_lookup_of_what_is_over_ends_its_channel
            lookups_delay_no_fence_and_see_nothing_later
            who_waits_for_a_lookup_is_woken
            asking_allocates_nothing
    );
}
