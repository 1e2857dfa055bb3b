//! One mirror's channel: posts what the machine wants written, and counts what has completed.
//!
//! Held by the [thread](super::thread).

use std::collections::VecDeque;

use tailwind_fabric::ChannelError;
use tailwind_protocol::board::{self, mirror::MIRROR_AT};
use tailwind_protocol::table::acked;
use tailwind_protocol::table::mirror::{IN_FLIGHT_MAX, MirrorId, Output};

use super::{MirrorMemory, MirroredIndex};

/// Bytes of each write: a line of the index, or one of the board.
pub(super) const LINE_BYTES: u64 = board::LINE_SIZE as u64;
const _: () = assert!(board::LINE_SIZE == acked::LINE_SIZE);

/// A mirror's channel, and what is to be posted by it.
#[derive(Debug)]
pub(super) struct MirrorChannel {
    mirror: MirrorId,
    memory: MirrorMemory,
    /// What the machine wants, in its order, as far as the channel has not had room for it.
    wanted: VecDeque<Output>,
    /// Writes so far: completed ≤ posted.
    posted: u64,
    completed: u64,
    /// The last of them that was a line of the board.
    line: u64,
}

impl MirrorChannel {
    pub(super) fn new(mirror: MirrorId, memory: MirrorMemory) -> MirrorChannel {
        let wanted = VecDeque::with_capacity(IN_FLIGHT_MAX as usize + 1);
        MirrorChannel { mirror, memory, wanted, posted: 0, completed: 0, line: 0 }
    }

    pub(super) fn mirror(&self) -> MirrorId {
        self.mirror
    }

    /// To be posted next.
    pub(super) fn want(&mut self, output: Output) {
        self.wanted.push_back(output);
    }

    /// Posts what is wanted, as far as there is room; how many writes. A line of the index is copied only now: it may be newer
    /// than when it was wanted, and never older.
    pub(super) fn post(&mut self, index: &MirroredIndex) -> Result<u32, ChannelError> {
        let MirrorMemory { channel, board, parts } = &mut self.memory;
        let before = self.posted;
        while let Some(output) = self.wanted.front() {
            let posted = match output {
                Output::Write(_, line) => {
                    let (part, at) = index.part_size.line_at(*line);
                    channel.post_bytes(&parts[part as usize], at, &index.view.line(*line))
                }
                Output::Publish(_, line) => channel.post_bytes(board, MIRROR_AT, &line.encode(&index.board)),
            };
            // The rest goes when something has completed.
            if posted == Err(ChannelError::QueueFull) {
                break;
            }
            // What has failed may have landed all the same.
            self.posted += 1;
            if let Output::Publish(..) = output {
                self.line = self.posted;
            }
            posted?;
            self.wanted.pop_front();
        }
        channel.push();
        Ok((self.posted - before) as u32)
    }

    /// How many writes have completed since the last time.
    pub(super) fn poll(&mut self) -> Result<u32, ChannelError> {
        let completed = self.memory.channel.poll()?;
        self.completed += u64::from(completed);
        Ok(completed)
    }

    /// Something has been posted that has not completed, or is still to be posted.
    pub(super) fn is_busy(&self) -> bool {
        self.completed < self.posted || !self.wanted.is_empty()
    }

    /// A line of the board was posted whose completion was not seen.
    pub(super) fn line_under_way(&self) -> bool {
        self.completed < self.line
    }
}
