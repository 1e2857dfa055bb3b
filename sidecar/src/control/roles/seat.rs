//! One member in a primary's term: executes what the machine asks of it, and watches it.
//!
//! Held by the [`Term`](super::lead), which ends all of it by dropping the [`SeatTasks`].

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tailwind_protocol::config::{Configuration, MemberRef};
use tailwind_protocol::ids::{Offset, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::primary::{Input, Output, Seat};
use tailwind_protocol::rpc::Failure;
use tokio::task::JoinSet;

use super::member::{MemberLink, Pulled};
use crate::control::Context;
use crate::path::Command;
use crate::thread::result_now;

/// Pause between two questions to a member what is corrupt there.
const DAMAGE_INTERVAL: Duration = Duration::from_secs(2);
/// Longest time for one copy to be repaired. The member may have no buffer to lend for it.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(30);

/// A member's tasks, ended when dropped. At most one for each output that the machine has under way, and one that watches.
pub(super) struct SeatTasks {
    worker: Worker,
    tasks: JoinSet<()>,
}

impl SeatTasks {
    /// Takes a member in, and begins to watch it.
    pub(super) fn begin(context: &Arc<Context>, config: &Configuration, seat: Seat, member: MemberRef) -> SeatTasks {
        let link = Arc::new(MemberLink::new(context, config, member));
        let (unrepaired, trouble) = (Arc::default(), Arc::default());
        let worker = Worker { seat, link, context: Arc::clone(context), unrepaired, trouble };
        let mut tasks = JoinSet::new();
        tasks.spawn(worker.clone().watch());
        SeatTasks { worker, tasks }
    }

    /// The way to the member.
    pub(super) fn link(&self) -> &Arc<MemberLink> {
        &self.worker.link
    }

    /// What went wrong with the member last, if anything did.
    pub(super) fn trouble(&self) -> Option<String> {
        self.worker.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Something else went wrong with it.
    pub(super) fn note_trouble(&self, why: String) {
        self.worker.note_trouble(why);
    }

    /// Executes an output for this seat beside those that are under way.
    pub(super) fn execute(&mut self, output: Output) {
        while self.tasks.try_join_next().and_then(result_now).is_some() {}
        self.tasks.spawn(self.worker.clone().execute(output));
    }
}

/// What one seat's tasks share.
#[derive(Clone)]
struct Worker {
    seat: Seat,
    link: Arc<MemberLink>,
    context: Arc<Context>,
    /// Copies here that could not be repaired: logged once, and tried again.
    unrepaired: Arc<Mutex<BTreeSet<SegmentId>>>,
    /// Why the member is about to be lost, for people.
    trouble: Arc<Mutex<Option<String>>>,
}

impl Worker {
    async fn execute(self, output: Output) {
        let result = match &output {
            Output::Connect(..) => self.connect().await,
            Output::Open(_, identity) => self.open(*identity).await,
            Output::Flush(_, identity, end) => {
                let flushed = self.link.flush(*identity, *end).await;
                flushed.map(|end| self.tell(output.done(end)))
            }
            other => self.ask(other).await.map(|()| self.tell(output.done(Offset(0)))),
        };
        if let Err(failure) = result {
            self.log_failure(&output, &failure);
            self.tell(output.failed(&failure));
        }
    }

    async fn ask(&self, output: &Output) -> Result<(), Failure> {
        match output {
            Output::Close(_, identity, closure) => self.link.close(*identity, *closure).await,
            Output::Sync(_, point) => self.link.sync(*point).await,
            Output::Drop(_, copies) => self.link.drop_copies(copies.clone()).await,
            // A member that does not know of a trim takes the missing beginning for a loss when it is the last one left.
            Output::Trim(_, below) => self.link.trim(*below).await,
            Output::Install(_, identity, closure, sources) => self.copy(*identity, *closure, sources).await,
            Output::Repair(_, identity, closure, sources) => self.repair(*identity, *closure, sources).await,
            other => unreachable!("{other:?} is not asked of a member"),
        }
    }

    async fn connect(&self) -> Result<(), Failure> {
        let (channel, board) = self.link.connect().await?;
        self.context.path.send(Command::Connected(self.link.epoch(), self.seat, channel, board));
        Ok(())
    }

    async fn open(&self, identity: SegmentIdentity) -> Result<(), Failure> {
        let (remote, board) = self.link.open(identity).await?;
        let epoch = self.link.epoch();
        if let Some(board) = board {
            self.context.path.send(Command::BoardLent(epoch, self.seat, board));
        }
        self.context.path.send(Command::Opened(epoch, self.seat, identity.segment, remote));
        Ok(())
    }

    async fn repair(&self, identity: SegmentIdentity, closure: Closure, sources: &[MemberRef]) -> Result<(), Failure> {
        let late = |_| Err(Failure::Unreachable(format!("not done within {REPAIR_TIMEOUT:?}")));
        tokio::time::timeout(REPAIR_TIMEOUT, self.copy(identity, closure, sources)).await.unwrap_or_else(late)?;
        let (member, segment) = (&self.link.member().id, identity.segment);
        self.unrepaired().remove(&segment);
        tracing::info!(%member, %segment, "closed copy reinstalled");
        Ok(())
    }

    /// Has the member copy the segment by itself, so that its bytes do not pass through here; or else copies it there.
    async fn copy(&self, identity: SegmentIdentity, closure: Closure, sources: &[MemberRef]) -> Result<(), Failure> {
        let (member, segment) = (&self.link.member().id, identity.segment);
        if !sources.is_empty() {
            let sources = sources.iter().map(|source| self.context.source(source)).collect();
            match self.link.pull(identity, closure, sources).await? {
                Pulled::Done => return Ok(()),
                Pulled::NotThisWay(why) => tracing::info!(%member, %segment, %why, "not pulled: copied from here"),
            }
        }
        self.install(identity, closure).await?;
        self.context.shared.image_bytes.fetch_add(closure.end.0.into(), Ordering::Relaxed);
        Ok(())
    }

    async fn install(&self, identity: SegmentIdentity, closure: Closure) -> Result<(), Failure> {
        let sources = self.context.log.sources();
        let sources = sources.ok_or_else(|| Failure::Unreachable("no member to copy from".into()))?;
        let image = sources.fetch(&self.context, identity, closure).await.map_err(Failure::Unreachable)?;
        self.link.install(identity, closure, &image).await
    }

    /// Reports the member lost once its heartbeats stop, and until then whether it is followed. A backup finds rot by itself, or
    /// when somebody reads, so it is also asked now and then what is corrupt there; a question that fails says nothing of the
    /// member, as its heartbeats do.
    async fn watch(self) {
        let factor = crate::fabric::heartbeat_factor(self.context.sender.kind());
        let mut known = false;
        let silence = self.link.watch(self.context.rules.heartbeat_silence * factor, |followed| {
            if std::mem::replace(&mut known, followed) != followed {
                self.tell(Some(Input::Followed(self.seat, followed)));
            }
        });
        let why = tokio::select! {
            why = silence => why,
            () = self.watch_damage() => return,
        };
        tracing::warn!(member = %self.link.member().id, %why, "no heartbeat");
        self.note_trouble(self.link.client().without_name(&why));
        self.tell(Some(Input::Lost(self.seat)));
    }

    async fn watch_damage(&self) {
        let member = &self.link.member().id;
        let mut known = 0;
        loop {
            tokio::time::sleep(DAMAGE_INTERVAL).await;
            let corrupt = match self.link.damage().await {
                Ok(corrupt) => corrupt,
                Err(why) => {
                    tracing::debug!(%member, %why, "failed to ask what is corrupt");
                    continue;
                }
            };
            if let Some(first) = corrupt.first().filter(|_| corrupt.len() > known) {
                let segment = first.identity.segment;
                tracing::warn!(%member, corrupt = corrupt.len(), first = %segment, "a member has corrupt closed copies");
            }
            if known > 0 || !corrupt.is_empty() {
                known = corrupt.len();
                self.tell(Some(Input::Damaged(self.seat, corrupt)));
            }
        }
    }

    fn log_failure(&self, output: &Output, failure: &Failure) {
        let member = &self.link.member().id;
        match (output, failure) {
            // The config store tells whether that is so. If it is not, the member is of no use, and lost for this reason.
            (_, Failure::Superseded(_)) => self.note_trouble(failure.to_string()),
            (Output::Repair(_, identity, ..), why) => {
                if self.unrepaired().insert(identity.segment) {
                    tracing::warn!(%member, segment = %identity.segment, %why, "failed to repair a closed copy: will retry");
                }
            }
            // Only a promotion can see to that: of a member that nobody has fenced, nothing is known.
            (output, Failure::ClaimedBefore(_)) => {
                tracing::error!(%member, action = action(output), %failure, "member refused");
            }
            (output, Failure::Unreachable(why)) => {
                tracing::warn!(%member, action = action(output), %why, "member failed");
                self.note_trouble(format!("{}: {}", action(output), self.link.client().without_name(why)));
            }
        }
    }

    fn note_trouble(&self, why: String) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    fn unrepaired(&self) -> std::sync::MutexGuard<'_, BTreeSet<SegmentId>> {
        self.unrepaired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, input: Option<Input>) {
        if let Some(input) = input {
            self.context.path.send(Command::Input(self.link.epoch(), input));
        }
    }
}

fn action(output: &Output) -> &'static str {
    match output {
        Output::Connect(..) => "connect",
        Output::Open(..) => "open",
        Output::Close(..) => "close",
        Output::Drop(..) => "drop",
        Output::Trim(..) => "trim",
        Output::Flush(..) => "flush",
        Output::Sync(..) => "sync",
        _ => "install",
    }
}
