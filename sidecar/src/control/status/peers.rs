//! The group's other sidecars: a standby or a reader tells the primary of itself, and a primary remembers who has.
//!
//! [`tell`] runs beside the roles; what the primary hears comes in by [`run`](crate::run)'s endpoint, and is told by
//! [`status`](super). Nothing is decided from it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tailwind_protocol::config::PrimaryRef;
use tailwind_protocol::ids::SidecarId;
use tailwind_protocol::rpc::{Empty, Refusal};
use tailwind_report::peer::{self, PeerNote};
use tailwind_report::sidecar::{FollowReport, ReaderReport, StandbyReport, Takeover};
use tokio::time::Instant;

use super::contacts;
use crate::control::Context;
use crate::rpc::{BackupClient, printable};

/// Between two notes to the primary.
const TELL_INTERVAL: Duration = Duration::from_secs(1);
/// How long the primary may take to answer one.
const TELL_TIMEOUT: Duration = Duration::from_secs(1);
/// One that has not been heard for so long is silent: three notes.
const SILENT_AFTER: Duration = Duration::from_millis(3500);
/// And after so long it is nobody's standby or reader any more.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Sidecars that are remembered, some hundred bytes each: more than a group has pods in practice. Others are not shown.
const PEERS_MAX: usize = 64;
/// Characters of a reason that are kept.
const WHY_CHARS_MAX: usize = 300;

/// Who has told this sidecar of itself, and when the primary was heard.
#[derive(Debug, Default)]
pub struct Peers {
    heard: Mutex<BTreeMap<String, (PeerNote, Instant)>>,
    primary: Mutex<Option<(PrimaryRef, Instant)>>,
}

/// No more than a line has room for.
fn line(text: &str) -> String {
    printable(text).chars().take(WHY_CHARS_MAX).collect()
}

impl Peers {
    /// Another sidecar tells of itself. `reads_only`: its certificate says so.
    pub fn hear(&self, note: PeerNote, group: &str, reads_only: bool) -> Result<(), Refusal> {
        let bad = |why: String| Refusal::BadRequest { why };
        if note.group != group {
            return Err(bad(format!("the note is for group {}, and this is a sidecar of {group}", note.group)));
        }
        let name: SidecarId = note.name.parse().map_err(|why| bad(format!("name of a sidecar: {why}")))?;
        let reads_only = reads_only || note.reads_only;
        let takeover = note
            .takeover
            .filter(|_| !reads_only)
            .map(|takeover| Takeover { why_not: takeover.why_not.map(|why| line(&why)), ..takeover });
        let follow = note.follow.map(|follow| FollowReport { from: line(&follow.from), ..follow });
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.retain(|_, (_, at)| at.elapsed() < FORGET_AFTER);
        if heard.len() < PEERS_MAX || heard.contains_key(name.as_str()) {
            heard.insert(name.to_string(), (PeerNote { reads_only, takeover, follow, ..note }, Instant::now()));
        }
        Ok(())
    }

    /// The standbys and the readers.
    pub fn told(&self) -> (Vec<StandbyReport>, Vec<ReaderReport>) {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut standbys, mut readers) = (Vec::new(), Vec::new());
        for (note, at) in heard.values() {
            let elapsed = at.elapsed();
            let (silent, heard_ms_ago) = (elapsed >= SILENT_AFTER, ms(elapsed));
            let (name, follow) = (note.name.clone(), note.follow.clone());
            match (elapsed < FORGET_AFTER, note.reads_only) {
                (false, _) => {}
                (true, true) => readers.push(ReaderReport { name, silent, heard_ms_ago, follow }),
                (true, false) => {
                    let (takeover, app) = (note.takeover.clone(), note.app);
                    standbys.push(StandbyReport { name, takeover, app, silent, heard_ms_ago, follow });
                }
            }
        }
        (standbys, readers)
    }

    /// This primary has given a sign of life.
    pub fn hear_primary(&self, primary: &PrimaryRef) {
        let mut heard = self.primary.lock().unwrap_or_else(PoisonError::into_inner);
        *heard = Some((primary.clone(), Instant::now()));
    }

    /// How long ago this primary gave a sign of life, if it has.
    pub fn heard_ms_ago(&self, primary: &PrimaryRef) -> Option<u64> {
        let heard = self.primary.lock().unwrap_or_else(PoisonError::into_inner);
        heard.as_ref().filter(|(known, _)| known == primary).map(|(_, at)| ms(at.elapsed()))
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Tells the primary of this sidecar while it is another one, for as long as the process lives.
pub async fn tell(context: &Arc<Context>) -> Infallible {
    let mut configurations = context.configuration.clone();
    let mut known: Option<(PrimaryRef, BackupClient)> = None;
    loop {
        let primary = configurations.borrow_and_update().as_ref().map(|config| config.primary.clone());
        if let Some(primary) = primary.filter(|primary| *primary != context.me && context.log.term().is_none()) {
            let client = match known.take().filter(|(of, _)| *of == primary) {
                Some((_, client)) => client,
                None => BackupClient::of_primary(&primary, &context.access),
            };
            match client.call::<PeerNote, Empty>(peer::PATH, &note(context), TELL_TIMEOUT).await {
                // A standby goes by the heartbeats, which it would miss.
                Ok(Empty {}) if context.rules.reader => context.peers.hear_primary(&primary),
                Ok(Empty {}) => {}
                Err(why) => tracing::debug!(%why, "failed to tell the primary of this sidecar"),
            }
            known = Some((primary, client));
        }
        tokio::select! {
            () = tokio::time::sleep(TELL_INTERVAL) => {}
            changed = configurations.changed() => if changed.is_err() {
                // The process is ending.
                std::future::pending::<()>().await;
            }
        }
    }
}

fn note(context: &Context) -> PeerNote {
    PeerNote {
        group: context.group.to_string(),
        name: context.me.id.to_string(),
        reads_only: context.rules.reader,
        takeover: could_take_over(context),
        app: *context.shared.clients.borrow() > 0,
        follow: context.follows.report(std::time::Instant::now()),
    }
}

/// Whether this sidecar could take over; `None` while it does not know, or only reads.
pub fn could_take_over(context: &Context) -> Option<Takeover> {
    if context.rules.reader {
        return None;
    }
    let (config, desired) = (context.configuration.borrow().clone()?, context.desired());
    if let Some(waiting) = context.waits.told() {
        return Some(Takeover { ready: false, why_not: Some(waiting.why) });
    }
    contacts::takeover(&config, desired.min_in_sync, desired.fenced, |member| context.contacts.of(member))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &str) -> PeerNote {
        PeerNote {
            group: "db".to_owned(),
            name: name.to_owned(),
            reads_only: false,
            takeover: Some(Takeover { ready: true, why_not: None }),
            app: true,
            follow: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_standby_is_named_and_then_forgotten() {
        let peers = Peers::default();
        assert_eq!(peers.told(), (vec![], vec![]));
        peers.hear(note("second"), "db", false).unwrap();
        let told = || peers.told().0.first().map(|standby| (standby.silent, standby.heard_ms_ago));
        assert_eq!(told(), Some((false, 0)));
        tokio::time::advance(SILENT_AFTER).await;
        assert_eq!(told(), Some((true, 3500)));
        peers.hear(note("second"), "db", false).unwrap();
        assert_eq!(told(), Some((false, 0)));
        tokio::time::advance(FORGET_AFTER).await;
        assert_eq!(told(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_readers_certificate_makes_no_standby() {
        let peers = Peers::default();
        peers.hear(note("liar"), "db", true).unwrap();
        let (standbys, readers) = peers.told();
        assert_eq!((standbys.len(), readers.len()), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn notes_are_checked_and_bounded() {
        let peers = Peers::default();
        let refused = |note: PeerNote| peers.hear(note, "db", false).unwrap_err().to_string();
        assert!(refused(PeerNote { group: "other".to_owned(), ..note("a") }).contains("for group other"));
        assert!(refused(note("no name")).contains("name of a sidecar"), "{}", refused(note("no name")));
        let why_not = Some("x".repeat(100_000));
        let long = PeerNote { takeover: Some(Takeover { ready: false, why_not }), ..note("first") };
        peers.hear(long, "db", false).unwrap();
        assert_eq!(peers.told().0[0].takeover.as_ref().unwrap().why_not.as_ref().unwrap().len(), WHY_CHARS_MAX);
        (0..2 * PEERS_MAX).for_each(|n| peers.hear(note(&format!("s{n}")), "db", false).unwrap());
        assert_eq!(peers.told().0.len(), PEERS_MAX);
        tokio::time::advance(FORGET_AFTER).await;
        peers.hear(note("late"), "db", false).unwrap();
        assert_eq!(peers.told().0.len(), 1);
    }
}
