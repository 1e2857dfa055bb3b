//! What the getter of the append path asks: channels, shares, fetches and positions; and what the config store shows, for it.
//!
//! Called by [`control`](super) for each request of the path, and once for the configurations, in a group that keeps a table.
//! Nothing that a member says is believed here: the getter checks every byte.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use tailwind_protocol::board::mirror::LINES_WITH_MIRROR;
use tailwind_protocol::config::MemberRef;
use tailwind_protocol::follower::Visit;
use tailwind_protocol::ids::{LogId, SegmentId};
use tailwind_protocol::table::getter::PATIENCE;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::Context;
use super::desired::READS_DISABLED;
use super::reads::member::VisitedMember;
use super::reads::position;
use super::reads::visit::SIGN_OF_LIFE;
use super::sources::Sources;
use crate::path::{Brought, Command, GetterRequest, LANDING, MirrorMemory, Wish};
use crate::thread::result;

/// Hands the getter each configuration that the config store shows.
pub(super) async fn tell_configurations(context: &Context) -> Infallible {
    let mut configurations = context.configuration.clone();
    configurations.mark_changed();
    while context.rules.table.is_some() && configurations.changed().await.is_ok() {
        let config = configurations.borrow_and_update().clone();
        if let Some(config) = config {
            bring(context, Brought::Config(Box::new(config)));
        }
    }
    std::future::pending().await
}

/// Serves one request of the getter.
pub(super) async fn serve(context: Arc<Context>, request: GetterRequest) {
    match request {
        GetterRequest::Visit(visit, log, member, wishes) => visit_member(&context, visit, log, member, wishes).await,
        GetterRequest::Ask(question) => {
            let position = position::ask(Arc::clone(&context)).await;
            bring(&context, Brought::Told(question, position.map(|position| position.last)));
        }
        // Over some fabrics that takes a while.
        GetterRequest::Close(memory) => drop(tokio::task::spawn_blocking(move || drop(memory)).await),
    }
}

fn bring(context: &Context, brought: Brought) {
    context.path.send(Command::Getter(brought));
}

/// Visits a member until nobody can wish anything of it any more.
async fn visit_member(
    context: &Arc<Context>,
    visit: Visit,
    log: LogId,
    member: MemberRef,
    mut wishes: mpsc::Receiver<Wish>,
) {
    let member = VisitedMember::new(context, log, member, context.follows.getter());
    let connected = tokio::select! {
        connected = connect(context, &member) => connected,
        // There is no wish before it is connected.
        _ = wishes.recv() => return,
    };
    let Some(connected) = connected.transpose() else { return bring(context, Brought::NoMemory(visit)) };
    let failed = connected.is_err();
    bring(context, Brought::Connected(visit, connected.map(Box::new)));
    if failed {
        return;
    }
    let mut calls = JoinSet::new();
    let mut sign_due = Instant::now() + SIGN_OF_LIFE;
    let why = loop {
        tokio::select! {
            wish = wishes.recv() => match wish {
                None => return,
                Some(wish) => {
                    let (context, member) = (Arc::clone(context), member.clone());
                    calls.spawn(async move { bring(&context, carry_out(&context, visit, &member, wish).await) });
                }
            },
            Some(call) = calls.join_next() => result(call).await,
            () = sleep_until(sign_due) => {
                if let Err(why) = member.keep_knowing().await {
                    break why;
                }
                sign_due = Instant::now() + SIGN_OF_LIFE;
            }
            () = context.desires(|_| !context.may_read()) => break READS_DISABLED.to_owned(),
        }
    };
    bring(context, Brought::Broken(visit, why));
}

/// `None` if the member was given no memory for a mirror.
async fn connect(context: &Context, member: &VisitedMember) -> Result<Option<MirrorMemory>, String> {
    if !context.may_read() {
        return Err(READS_DISABLED.to_owned());
    }
    let channel = member.open(LANDING).await?;
    let Some((board, parts)) = member.share_mirror(LINES_WITH_MIRROR.end).await? else { return Ok(None) };
    Ok(Some(MirrorMemory { channel, board, parts }))
}

async fn carry_out(context: &Context, visit: Visit, member: &VisitedMember, wish: Wish) -> Brought {
    match wish {
        Wish::Share(segments) => {
            let shared = member.share_segments(segments.clone()).await;
            Brought::Shared(visit, segments, shared)
        }
        Wish::Fetch(get, segment, bytes) => {
            let fetched = timeout(PATIENCE, fetch(context, member, segment, bytes)).await;
            let fetched = fetched.unwrap_or_else(|_| Err(format!("segment {segment}: no backup answers in time")));
            Brought::Fetched(visit, get, fetched)
        }
    }
}

/// These bytes of a closed segment.
async fn fetch(
    context: &Context,
    member: &VisitedMember,
    segment: SegmentId,
    bytes: Range<u32>,
) -> Result<Vec<u8>, String> {
    let config = context.configuration.borrow().clone().ok_or("who are the members is not known")?;
    let (identity, closure) = member.find(segment).await?;
    Sources::of(context, &config).fetch_record(context, identity, closure, bytes).await
}
