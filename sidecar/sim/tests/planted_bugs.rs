//! Do the checkers bite? Each planted bug must be found, and by a checker, within a stated number of seeds.

use tailwind_protocol::config::Durability;
use tailwind_protocol::planted::{self, Bug};
use tailwind_sim::runner::play;

/// Plays seeds, of groups of this durability if one is given, until one breaks a rule; says after how many, and which rule.
#[expect(clippy::print_stdout, reason = "how soon a bug is found is what a reader of the test wants to see")]
fn hunt(bug: Bug, within: u64, durability: Option<Durability>) {
    let broken = |seed, planted| {
        planted::plant(planted);
        let end = play(seed, false, durability).end;
        planted::plant(None);
        end.err()
    };
    // A seed that breaks a rule without it has not found it.
    let found = (0..within).find_map(|seed| {
        let rule = broken(seed, Some(bug))?;
        broken(seed, None).is_none().then_some((seed + 1, rule))
    });
    let Some((seeds, rule)) = found else { panic!("{} is not found within {within} seeds", bug.name()) };
    println!("{:<28} after {seeds:>4} seeds: {rule}", bug.name());
    assert!(rule.contains(" is broken: "), "found by a checker, not by the machines' own asserts: {rule}");
}

/// One test for each bug, and a test that none was forgotten.
macro_rules! hunts {
    ($($test:ident $bug:ident within $within:literal $(under $durability:ident)?;)*) => {
        $(
            #[test]
            fn $test() {
                let durability: &[Durability] = &[$(Durability::$durability)?];
                hunt(Bug::$bug, $within, durability.first().copied());
            }
        )*

        #[test]
        fn every_planted_bug_has_a_test() {
            let hunted = [$(Bug::$bug),*];
            assert!(Bug::ALL.iter().all(|bug| hunted.contains(bug)));
        }
    };
}

hunts! {
    no_payload_crc NoPayloadCrc within 3000;
    header_crc_only HeaderCrcOnly within 3000;
    unseeded_chain UnseededChain within 3000;
    scan_skips_bad_entry ScanSkipsBadEntry within 3000;
    ack_all_but_one AckAllButOne within 3000;
    ack_old_set_only AckOldSetOnly within 3000;
    shrink_without_swap ShrinkWithoutSwap within 3000;
    newcomer_too_early NewcomerTooEarly within 3000;
    never_pauses NeverPauses within 3000;
    pause_admits PauseAdmits within 3000;
    newcomer_unsynced NewcomerUnsynced within 3000;
    synced_before_flushed SyncedBeforeFlushed within 3000;
    reader_past_acked ReaderPastAcked within 3000;
    follower_goes_back FollowerGoesBack within 3000;
    steps_down_at_once StepsDownAtOnce within 3000;
    newcomer_unflushed NewcomerUnflushed within 3000 under Flushed;
    unknown_is_refused UnknownIsRefused within 3000;
    fence_before_revoke FenceBeforeRevoke within 3000;
    epoch_not_persisted EpochNotPersisted within 3000;
    old_epoch_admitted OldEpochAdmitted within 3000;
    tail_exposed_early TailExposedEarly within 3000;
    stranger_trusted StrangerTrusted within 3000;
    shrink_assumed ShrinkAssumed within 3000;
    closed_while_written ClosedWhileWritten within 3000;
    board_before_ack BoardBeforeAck within 3000;
    beat_without_barrier BeatWithoutBarrier within 3000;
    no_rezeroing NoRezeroing within 3000;
    queue_pair_reused QueuePairReused within 3000;
    rkey_reused RkeyReused within 3000;
    identity_kept IdentityKept within 3000;
    damaged_is_a_witness DamagedIsAWitness within 3000;
    ledger_not_written LedgerNotWritten within 3000;
    owed_file_ignored OwedFileIgnored within 3000;
    table_zero_is_free TableZeroIsFree within 3000;
    lost_buffer_is_free LostBufferIsFree within 3000;
    marks_ignored MarksIgnored within 3000;
    stale_promise_believed StalePromiseBelieved within 3000 under Flushed;
    image_unverified ImageUnverified within 3000;
    rot_is_left RotIsLeft within 3000;
    completion_before_placement CompletionBeforePlacement within 3000;
}
