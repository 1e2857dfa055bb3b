//! What a member lends for a mirror of a table's index.
//!
//! Part of [`MemberLink`], used by [`mirrors`](crate::control::mirrors). Why memory that was lent before is lent again: see
//! [`mirror`](crate::mirror).

use std::sync::atomic::Ordering;
use std::time::Instant;

use tailwind_fabric::{Channel, ChannelError, Grant, RemoteBuffer};
use tailwind_protocol::board::mirror::{MIRROR_AT, PartSize};
use tailwind_protocol::board::{BOARD_SIZE, Line};
use tailwind_protocol::rpc::{Failure, MirrorReply, MirrorRequest, Refusal, path};

use super::{BULK_TIMEOUT, MemberLink};
use crate::mirror::{MirrorMemory, PAUSE};
use crate::rpc::CallError;

/// Channels of mirrors that are opened to a member before it leaves the set. A backup keeps the newest sixteen of a primary over
/// RDMA, without knowing which of them are dead: the one of appends has to be among them.
const CHANNELS_MAX: u32 = 8;

/// What the index takes.
#[derive(Clone, Debug)]
pub struct Need {
    /// Bytes of a part.
    pub part_size: PartSize,
    /// How many parts.
    pub parts: u32,
    /// The board's line that says that a mirror is being filled.
    pub filling: Line,
}

/// Grants that a mirror has been written under.
#[derive(Clone, Debug)]
pub struct MirrorGrants {
    board: Grant,
    parts: Vec<Grant>,
    /// Which lending it is.
    lending: u32,
}

/// A mirror that this member had in this epoch, whose channel is closed.
#[derive(Clone, Debug)]
pub struct Former {
    /// Under which it was written.
    pub grants: MirrorGrants,
    /// A line of the board may still land.
    pub line_under_way: bool,
}

/// Why there is no mirror.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMirror {
    /// Nothing that this primary asks for in its epoch is granted there any more.
    #[error("{0}")]
    Over(String),
    /// The backup has not got the memory, or cannot lend other memory; for people.
    #[error("{0}")]
    NoMemory(String),
    /// Something failed; for people.
    #[error("{0}")]
    Failed(String),
}

impl MemberLink {
    /// Memory for a mirror, all zero, with a channel of its own; and the grants of it. `former`: the mirror that was there.
    pub async fn lend_mirror(
        &self,
        need: &Need,
        former: Option<&Former>,
    ) -> Result<(MirrorMemory, MirrorGrants), NoMirror> {
        // One that lends nothing is not bothered with channels.
        let first = if former.is_none() { Some(self.lend_parts(need, None).await?) } else { None };
        let (mut channel, grant) = self.open_mirror_channel().await?;
        let board = self.attached(grant.clone(), BOARD_SIZE).await?;
        let grants = match first {
            Some(grants) => grants,
            None => {
                let line_lands = |former: &Former| former.line_under_way && former.grants.board == grant;
                if former.is_some_and(line_lands) {
                    let why = "a line of the mirror before may still land on its board: no other one in this epoch";
                    return Err(NoMirror::NoMemory(why.to_owned()));
                }
                // Zeros must not be called live.
                channel = self.tell_filling(channel, board.clone(), need.filling).await?;
                self.lend_parts(need, former).await?
            }
        };
        let mut parts = Vec::with_capacity(grants.len());
        for part in &grants {
            parts.push(self.attached(part.clone(), need.part_size.bytes()).await?);
        }
        let grants = MirrorGrants { board: grant, parts: grants, lending: lending(former) };
        Ok((MirrorMemory { channel, board, parts }, grants))
    }

    async fn open_mirror_channel(&self) -> Result<(Box<dyn Channel>, Grant), NoMirror> {
        if self.mirror_channels.fetch_add(1, Ordering::Relaxed) >= CHANNELS_MAX {
            let why = format!("{CHANNELS_MAX} channels for a mirror there have failed in this epoch");
            return Err(NoMirror::Over(why));
        }
        let (channel, board) = self.open_channel(true).await.map_err(no_mirror)?;
        let board = board.ok_or_else(|| NoMirror::NoMemory("it has no memory for a board".to_owned()))?;
        Ok((channel, board))
    }

    async fn attached(&self, grant: Grant, size: u32) -> Result<RemoteBuffer, NoMirror> {
        let attached = self.attach(grant, size).await.map_err(no_mirror)?;
        attached.map_err(|why| NoMirror::Failed(why.to_string()))
    }

    /// All parts: others than those of `former`, if there was one.
    async fn lend_parts(&self, need: &Need, former: Option<&Former>) -> Result<Vec<Grant>, NoMirror> {
        let mut grants = Vec::with_capacity(need.parts as usize);
        for part in 0..need.parts {
            let request = MirrorRequest { caller: self.caller(), part, lending: lending(former) };
            let reply = self.client.call(path::MIRROR, &request, self.timeout).await;
            let MirrorReply { parts, part_size, grant } = reply.map_err(not_lent)?;
            let why = match grant {
                _ if part_size != need.part_size.bytes() && parts > 0 => {
                    format!("it lends parts of {part_size} bytes, and not of {}", need.part_size.bytes())
                }
                _ if parts < need.parts => format!("it lends {parts} parts of {} (--mirror)", need.parts),
                None => "it has no room in its pool".to_owned(),
                Some(grant) if former.is_some_and(|former| former.grants.parts.contains(&grant)) => {
                    "it lends no other memory".to_owned()
                }
                Some(grant) => {
                    grants.push(grant);
                    continue;
                }
            };
            return Err(NoMirror::NoMemory(why));
        }
        Ok(grants)
    }

    /// Writes the line that says that the mirror is being filled, and waits until it has landed.
    async fn tell_filling(
        &self,
        mut channel: Box<dyn Channel>,
        board: RemoteBuffer,
        line: Line,
    ) -> Result<Box<dyn Channel>, NoMirror> {
        let written = tokio::task::spawn_blocking(move || {
            write_line(&mut *channel, &board, &line)?;
            Ok::<_, ChannelError>(channel)
        });
        let failed = |why: &dyn std::fmt::Display| NoMirror::Failed(why.to_string());
        written.await.map_err(|why| failed(&why))?.map_err(|why| failed(&why))
    }
}

/// The number of the next lending. One that was granted and never written under is asked for again.
fn lending(former: Option<&Former>) -> u32 {
    former.map_or(0, |former| former.grants.lending + 1)
}

fn write_line(channel: &mut dyn Channel, board: &RemoteBuffer, line: &Line) -> Result<(), ChannelError> {
    channel.post_bytes(board, MIRROR_AT, line)?;
    channel.push();
    let began = Instant::now();
    while channel.poll()? == 0 {
        if began.elapsed() > BULK_TIMEOUT {
            return Err(ChannelError::Disconnected);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn no_mirror(failure: Failure) -> NoMirror {
    match failure {
        Failure::Superseded(_) | Failure::ClaimedBefore(_) => NoMirror::Over(failure.to_string()),
        Failure::Unreachable(why) => NoMirror::Failed(why),
    }
}

fn not_lent(error: CallError) -> NoMirror {
    match error {
        CallError::Refused(Refusal::BadRequest { .. }) => {
            NoMirror::NoMemory("it is of an earlier build, which lends no memory for mirrors".to_owned())
        }
        CallError::Refused(Refusal::RetryLater { why, .. }) => NoMirror::NoMemory(why),
        error => no_mirror(super::failure(error)),
    }
}
