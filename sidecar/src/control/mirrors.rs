//! Keeps a mirror of a table's index at each member of the set, for one term: gets memory lent, hands it to the mirrors'
//! [thread](crate::mirror), and gets other memory when a channel has failed.
//!
//! Started by [`lead`](super::roles) with the term, which tells it of the members, and ended with it. Nothing that a primary owes
//! its clients waits for it. A member without the memory is no error: it is said once, and asked again from time to time.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tailwind_protocol::board::BoardIdentity;
use tailwind_protocol::board::mirror::{MirrorLine, PartSize};
use tailwind_protocol::ids::{Epoch, Lsn, MemberId};
use tailwind_protocol::table::acked::AckedView;
use tailwind_protocol::table::changed::ChangedLines;
use tailwind_protocol::table::mirror::MirrorId;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::Context;
use super::roles::member::MemberLink;
use super::roles::member::mirror::{Former, MirrorGrants, Need, NoMirror};
use super::status::mirrors::MirrorRow;
use crate::mirror::{self, FromThread, MirrorMemory, MirroredIndex, Mirroring, Report};
use crate::path::Command;
use crate::thread::result;

/// How long a member is left alone at first: the buffers of the log come first.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Pause before a member is asked again, after a first failure; it doubles.
const AGAIN_MIN: Duration = Duration::from_secs(1);
/// The longest, and the one for a member that has not got the memory.
const AGAIN_MAX: Duration = Duration::from_secs(60);

/// What is mirrored in a term.
#[derive(Clone, Debug)]
pub(super) struct MirroredTerm {
    /// The epoch.
    pub epoch: Epoch,
    /// Its boards.
    pub board: BoardIdentity,
    /// The index.
    pub view: Arc<AckedView>,
}

/// Keeps the mirrors. `members`: those of the set, as long as they are in it. Returns only if the thread ends, which it must not.
pub(super) async fn keep(
    context: Arc<Context>,
    term: MirroredTerm,
    members: watch::Receiver<Vec<Arc<MemberLink>>>,
) -> anyhow::Result<Infallible> {
    let part_size = PartSize::beside(context.rules.segment_size);
    let (hash_key, buckets) = (*term.view.hash_key(), term.view.buckets());
    let line = MirrorLine { published: Lsn(0), hash_key, buckets, part_size, live: false };
    let need = Need { part_size, parts: part_size.parts(buckets), filling: line.encode(&term.board) };
    let mut keeper = Keeper {
        context,
        term,
        need,
        kept: Vec::new(),
        former: HashMap::new(),
        asked: JoinSet::new(),
        thread: None,
        mirrors: 0,
    };
    keeper.run(members).await
}

struct Keeper {
    context: Arc<Context>,
    term: MirroredTerm,
    need: Need,
    kept: Vec<Kept>,
    /// The last mirror at each member whose channel is closed, or about to be.
    former: HashMap<MemberId, (MirrorId, Former)>,
    /// A question to a member, one at a time for each that has no mirror, with the way to it.
    asked: JoinSet<(Arc<MemberLink>, Lent)>,
    /// From the first mirror on.
    thread: Option<(Mirroring, FromThread)>,
    /// So many there have been.
    mirrors: u64,
}

type Lent = Result<(MirrorMemory, MirrorGrants), NoMirror>;

/// A member of the set.
struct Kept {
    link: Arc<MemberLink>,
    mirror: Option<(MirrorId, MirrorGrants)>,
    /// Why there is none, or why its channel is lost.
    why: Option<String>,
    /// How long the next pause is.
    pause: Duration,
}

impl Keeper {
    async fn run(&mut self, mut members: watch::Receiver<Vec<Arc<MemberLink>>>) -> anyhow::Result<Infallible> {
        self.on_members(&members.borrow_and_update().clone());
        loop {
            tokio::select! {
                Ok(()) = members.changed() => self.on_members(&members.borrow_and_update().clone()),
                Some(asked) = self.asked.join_next() => {
                    let (link, lent) = result(asked).await;
                    self.on_lent(&link, lent).await?;
                }
                report = report(&mut self.thread) => self.on_report(report.context("the mirrors' thread has ended")?),
            }
            self.tell();
        }
    }

    fn on_members(&mut self, links: &[Arc<MemberLink>]) {
        let stays = |kept: &Kept| links.iter().any(|link| Arc::ptr_eq(link, &kept.link));
        for gone in self.kept.extract_if(.., |kept| !stays(kept)).collect::<Vec<_>>() {
            if let Some((mirror, grants)) = gone.mirror {
                self.part_with(&gone.link, mirror, grants);
                self.end(mirror);
            }
        }
        for link in links {
            if !self.kept.iter().any(|kept| Arc::ptr_eq(link, &kept.link)) {
                let link = Arc::clone(link);
                self.kept.push(Kept { link: Arc::clone(&link), mirror: None, why: None, pause: AGAIN_MIN });
                self.ask(&link, FIRST_PAUSE);
            }
        }
    }

    /// What was written under these grants may be under way until the thread says otherwise.
    fn part_with(&mut self, link: &MemberLink, mirror: MirrorId, grants: MirrorGrants) {
        let former = Former { grants, line_under_way: true };
        self.former.insert(link.member().id.clone(), (mirror, former));
    }

    fn end(&self, mirror: MirrorId) {
        if let Some((mirroring, _)) = &self.thread {
            mirroring.left(mirror);
        }
    }

    fn ask(&mut self, link: &Arc<MemberLink>, pause: Duration) {
        let (link, need) = (Arc::clone(link), self.need.clone());
        let former = self.former.get(&link.member().id).map(|(_, former)| former.clone());
        self.asked.spawn(async move {
            tokio::time::sleep(pause).await;
            let lent = link.lend_mirror(&need, former.as_ref()).await;
            (link, lent)
        });
    }

    async fn on_lent(&mut self, link: &Arc<MemberLink>, lent: Lent) -> anyhow::Result<()> {
        let Some(at) = self.kept.iter().position(|kept| Arc::ptr_eq(link, &kept.link)) else { return Ok(()) };
        match lent {
            Ok((memory, grants)) => {
                self.begin_thread().await?;
                self.mirrors += 1;
                let mirror = MirrorId(self.mirrors);
                if let Some((lost, _)) = self.kept[at].mirror.replace((mirror, grants)) {
                    self.end(lost);
                }
                if let Some((mirroring, _)) = &self.thread {
                    mirroring.lent(mirror, memory);
                }
                (self.kept[at].why, self.kept[at].pause) = (None, AGAIN_MIN);
                tracing::info!(member = %link.member().id, "mirror begun");
            }
            Err(no_mirror) => self.on_none(at, &no_mirror),
        }
        Ok(())
    }

    fn on_none(&mut self, at: usize, no_mirror: &NoMirror) {
        let (link, why) = (Arc::clone(&self.kept[at].link), no_mirror.to_string());
        if self.kept[at].why.as_ref() != Some(&why) {
            tracing::info!(member = %link.member().id, %why, "no mirror");
        }
        self.kept[at].why = Some(why);
        let pause = match no_mirror {
            // Nothing changes that before the next epoch.
            NoMirror::Over(_) => return,
            NoMirror::NoMemory(_) => AGAIN_MAX,
            NoMirror::Failed(_) => self.kept[at].pause,
        };
        self.kept[at].pause = (2 * pause).min(AGAIN_MAX);
        self.ask(&link, pause);
    }

    fn on_report(&mut self, report: Report) {
        let Report { mirror, lost, line_under_way } = report;
        let kept = self.kept.iter().find(|kept| kept.mirror.as_ref().is_some_and(|(id, _)| *id == mirror));
        let lost = lost.zip(kept.and_then(|kept| Some((Arc::clone(&kept.link), kept.mirror.as_ref()?.1.clone()))));
        if let Some((why, (link, grants))) = lost {
            tracing::info!(member = %link.member().id, %why, "mirror's channel lost");
            self.part_with(&link, mirror, grants);
            self.landing(mirror, line_under_way);
            self.ask(&link, Duration::ZERO);
        } else {
            self.landing(mirror, line_under_way);
        }
    }

    /// Its channel is closed.
    fn landing(&mut self, mirror: MirrorId, line_under_way: bool) {
        let former = self.former.values_mut().find(|(id, _)| *id == mirror);
        if let Some((_, former)) = former {
            former.line_under_way = line_under_way;
        }
    }

    /// The thread, which is started for the first mirror: with the lines that change from then on.
    async fn begin_thread(&mut self) -> anyhow::Result<()> {
        if self.thread.is_none() {
            let changed = Arc::new(ChangedLines::new(self.term.view.lines(), Lsn(0)));
            let (view, board) = (Arc::clone(&self.term.view), self.term.board);
            let index = MirroredIndex { view, changed: Arc::clone(&changed), part_size: self.need.part_size, board };
            let (mirroring, from) = mirror::start(index, &self.context.shared).context("start the mirrors' thread")?;
            let (reply, noted) = oneshot::channel();
            let bell = Arc::clone(mirroring.bell());
            self.context.path.send(Command::NoteChanges(self.term.epoch, changed, bell, reply));
            if noted.await.is_err() {
                // The path leads this term no more, and this task will end with it.
                std::future::pending::<()>().await;
            }
            self.context.table.mirrors().written(self.term.epoch, Arc::clone(mirroring.shown()));
            self.thread = Some((mirroring, from));
        }
        Ok(())
    }

    fn tell(&self) {
        let row = |kept: &Kept| MirrorRow {
            member: kept.link.member().id.clone(),
            mirror: kept.mirror.as_ref().map(|(mirror, _)| *mirror),
            why: kept.why.clone(),
        };
        let mut rows: Vec<MirrorRow> = self.kept.iter().map(row).collect();
        rows.sort_unstable_by(|one, other| one.member.cmp(&other.member));
        self.context.table.mirrors().set(self.term.epoch, rows);
    }
}

/// What the thread says next; `None` if it has ended.
async fn report(thread: &mut Option<(Mirroring, FromThread)>) -> Option<Report> {
    match thread {
        Some((_, from)) => from.reports.recv().await,
        None => std::future::pending().await,
    }
}
