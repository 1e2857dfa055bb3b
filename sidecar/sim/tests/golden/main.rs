//! The protocol's rules as golden scripts: each file in `scripts/` tells one story, played by the production machines in
//! the simulator's world without its faults, and the output is what happened. `UPDATE_GOLDENFILES=1` writes it anew; read
//! it before you keep it.

#[macro_use]
#[path = "../../../protocol/tests/support/scripts.rs"]
mod support;
mod commands;

use commands::Script;

scripts! { Script, "tests/golden/scripts":
    append,
    backup_dies,
    backup_returns,
    bit_flip_closed,
    bit_flip_open,
    bit_flip_outside_the_set,
    candidate_cut_off,
    blackout,
    clean_shutdown,
    corrupt_tail,
    disk_full,
    drop_interrupted,
    duplicates,
    flushed,
    flushed_promotion,
    flushed_unseen,
    folder_full,
    folder_full_newcomer,
    late_drop,
    late_open,
    left_behind,
    lost_messages,
    member_dies_in_promotion,
    repaired,
    new_group,
    new_memory,
    newcomer,
    newcomer_lags,
    synced,
    synced_disk_lost,
    synced_newcomer,
    joining_under_load,
    one_left,
    another_store,
    promotion_interrupted,
    pulled,
    pulled_fenced,
    race,
    refill_meets_memory,
    refill_waits,
    refilled,
    rejoin,
    roll_over,
    room_for_an_image,
    room_refused,
    stalled,
    table,
    table_cleaned,
    too_few,
    torn_across_segments,
    torn_tail,
    trim,
    trim_missed,
    unknown_swap,
    zombie,
    zombie_tail,
}
