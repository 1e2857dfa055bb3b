//! Do the checkers bite? Each planted bug must be found, and by a checker, within a bounded number of seeds.

use tailwind_protocol::config::{Durability, Kind};
use tailwind_protocol::planted::{self, Bug};
use tailwind_sim::plan::Fixed;
use tailwind_sim::runner::{play, play_lying};
use tailwind_sim::world::Lie;

/// Seeds that are played in search of a bug.
const WITHIN: u64 = 3000;

/// How seeds are played.
#[derive(Clone, Copy)]
enum How {
    /// As they are drawn.
    Drawn,
    /// In groups of this durability.
    Under(Durability),
    /// In groups in which a member likes this lie, which is too seldom otherwise.
    Lying(Lie),
}

/// Plays seeds until one breaks a rule; says after how many, and which rule. The
/// seed that found the bug when this was last looked at comes first: in a simulator that has changed it may find nothing, and
/// then the search begins with seed 0.
#[expect(clippy::print_stdout, reason = "how soon a bug is found is what a reader of the test wants to see")]
fn hunt(bug: Bug, known: u64, how: How) {
    // A third of all seeds are tables, and would find bugs of other parts too: but the noted ones were found in logs.
    let kind = Some(if bug.is_of_tables() { Kind::Table } else { Kind::Log });
    // Nor had they residents.
    let residents = Some(bug == Bug::ResidentIsEvidence);
    let mirrors = Some(bug.is_of_mirrors());
    let broken = |seed, planted| {
        planted::plant(planted);
        let played = match how {
            How::Drawn => play(seed, false, Fixed { durability: None, kind, residents, mirrors }),
            How::Under(durability) => {
                play(seed, false, Fixed { durability: Some(durability), kind, residents, mirrors })
            }
            How::Lying(lie) => play_lying(seed, lie),
        };
        let end = played.end;
        planted::plant(None);
        end.err()
    };
    // A seed that breaks a rule without it has not found it.
    let found = std::iter::once(known - 1).chain(0..WITHIN).find_map(|seed| {
        let rule = broken(seed, Some(bug))?;
        broken(seed, None).is_none().then_some((seed + 1, rule))
    });
    let Some((seeds, rule)) = found else { panic!("{} is not found within {WITHIN} seeds", bug.name()) };
    let news = if seeds == known { String::new() } else { format!(" (no longer after {known}: to be noted here)") };
    println!("{:<28} after {seeds:>4} seeds: {rule}{news}", bug.name());
    assert!(rule.contains(" is broken: "), "found by a checker, not by the machines' own asserts: {rule}");
}

/// One test for each bug, and a test that none was forgotten.
macro_rules! hunts {
    ($($test:ident $bug:ident after $seeds:literal $(under $durability:ident)? $(lying $lie:ident)?;)*) => {
        $(
            #[test]
            fn $test() {
                let how = [$(How::Under(Durability::$durability),)? $(How::Lying(Lie::$lie),)? How::Drawn];
                hunt(Bug::$bug, $seeds, how[0]);
            }
        )*

        #[test]
        fn every_planted_bug_has_a_test() {
            // No two keys here have the same fingerprint, and other bytes that verify are seldom where a record was: the worlds
            // of the protocol's tests have both.
            let elsewhere = [Bug::KeyUnchecked, Bug::RevisionUnchecked];
            let hunted = [$(Bug::$bug),*];
            assert!(Bug::ALL.iter().all(|bug| elsewhere.contains(bug) || hunted.contains(bug)));
        }
    };
}

hunts! {
    no_payload_crc NoPayloadCrc after 15;
    header_crc_only HeaderCrcOnly after 15;
    unseeded_chain UnseededChain after 1;
    scan_skips_bad_entry ScanSkipsBadEntry after 15;
    ack_all_but_one AckAllButOne after 2;
    ack_old_set_only AckOldSetOnly after 6;
    shrink_without_swap ShrinkWithoutSwap after 1;
    newcomer_too_early NewcomerTooEarly after 1;
    never_pauses NeverPauses after 72;
    pause_admits PauseAdmits after 37;
    newcomer_unsynced NewcomerUnsynced after 613;
    synced_before_flushed SyncedBeforeFlushed after 7;
    reader_past_acked ReaderPastAcked after 10;
    follower_goes_back FollowerGoesBack after 866;
    end_unproved EndUnproved after 592;
    cut_ignored CutIgnored after 113;
    any_line_is_new AnyLineIsNew after 56;
    beats_in_every_role BeatsInEveryRole after 70;
    one_trim_is_enough OneTrimIsEnough after 100;
    later_epoch_is_believed LaterEpochIsBelieved after 97 lying LaterEpoch;
    put_back_is_believed PutBackIsBelieved after 53;
    word_is_latched WordIsLatched after 72;
    spare_is_believed SpareIsBelieved after 91;
    steps_down_at_once StepsDownAtOnce after 41;
    newcomer_unflushed NewcomerUnflushed after 696 under Flushed;
    unknown_is_refused UnknownIsRefused after 401;
    fence_before_revoke FenceBeforeRevoke after 4;
    epoch_not_persisted EpochNotPersisted after 1;
    old_epoch_admitted OldEpochAdmitted after 7;
    tail_exposed_early TailExposedEarly after 2;
    stranger_trusted StrangerTrusted after 19;
    shrink_assumed ShrinkAssumed after 4;
    closed_while_written ClosedWhileWritten after 72;
    acked_before_whole AckedBeforeWhole after 1;
    marked_before_ack MarkedBeforeAck after 75;
    proved_by_old_posts ProvedByOldPosts after 807;
    syncs_acked_only SyncsAckedOnly after 7;
    board_before_ack BoardBeforeAck after 10;
    beat_without_barrier BeatWithoutBarrier after 1278;
    no_rezeroing NoRezeroing after 1;
    queue_pair_reused QueuePairReused after 1;
    rkey_reused RkeyReused after 7;
    identity_kept IdentityKept after 1;
    damaged_is_a_witness DamagedIsAWitness after 16;
    ledger_not_written LedgerNotWritten after 276;
    file_not_recorded FileNotRecorded after 818 under Flushed;
    old_notes_believed OldNotesBelieved after 149;
    owed_file_ignored OwedFileIgnored after 90;
    table_zero_is_free TableZeroIsFree after 79;
    lost_buffer_is_free LostBufferIsFree after 13;
    marks_ignored MarksIgnored after 176;
    stale_promise_believed StalePromiseBelieved after 156 under Flushed;
    image_unverified ImageUnverified after 308;
    resident_is_evidence ResidentIsEvidence after 26;
    rot_is_left RotIsLeft after 8;
    completion_before_placement CompletionBeforePlacement after 176;
    index_before_ack IndexBeforeAck after 1;
    move_without_recheck MoveWithoutRecheck after 6;
    move_renews_revision MoveRenewsRevision after 14;
    trim_before_moved TrimBeforeMoved after 39;
    drops_unacked DropsUnacked after 583;
    trim_before_synced TrimBeforeSynced after 44 under Memory;
    fold_ignores_deletes FoldIgnoresDeletes after 2;
    warm_index_is_believed WarmIndexIsBelieved after 1857;
    mismatch_tells_unacked MismatchTellsUnacked after 1;
    mismatch_without_barrier MismatchWithoutBarrier after 214;
    puts_fill_reserve PutsFillReserve after 14;
    moves_stay_unseen MovesStayUnseen after 42;
    fresh_without_barrier FreshWithoutBarrier after 115;
    record_unchecked RecordUnchecked after 260;
    get_not_looked_again GetNotLookedAgain after 13;
    entry_without_crc EntryWithoutCrc after 782;
    trim_without_grace TrimWithoutGrace after 1;
    published_before_complete PublishedBeforeComplete after 1;
    round_after_bits RoundAfterBits after 1;
    filling_is_live FillingIsLive after 6;
    crc_made_when_posted CrcMadeWhenPosted after 2;
    absent_without_published AbsentWithoutPublished after 1;
    older_as_new OlderAsNew after 137;
    cleaner_ignores_mirrors CleanerIgnoresMirrors after 6;
    part_not_zeroed PartNotZeroed after 1;
    parts_lent_once PartsLentOnce after 127;
}
