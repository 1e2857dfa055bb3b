//! What this sidecar knows of each backup beside what its term knows: since when one is lost and why, and whether those answer
//! that have no seat.
//!
//! A term ([`roles`](crate::control::roles)) tells of seats and losses. Every backup without a seat is asked for a sign of life
//! every few seconds, by a primary and by a standby alike: a spare that is gone, or a set that could not be recovered, shows
//! before it is needed. Told by [`status`](super). Nothing is decided from it.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tailwind_protocol::config::{Configuration, MemberRef};
use tailwind_protocol::ids::{LogId, MemberId, SegmentId};
use tailwind_protocol::rpc::{Inventory, InventoryRequest, path};
use tailwind_report::sidecar::Takeover;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::control::Context;
use crate::rpc::BackupClient;

/// Between two questions to one backup. Each is one small request on a connection that is kept.
const ASK_INTERVAL: Duration = Duration::from_secs(2);
/// How long it may take to answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// Characters of a reason that are kept.
const WHY_CHARS_MAX: usize = 300;

/// The backups.
#[derive(Debug, Default)]
pub struct Contacts {
    known: Mutex<BTreeMap<MemberId, Contact>>,
    /// Somebody wants to know at once.
    ask: Notify,
}

/// One backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contact {
    /// It has a seat at this primary, whose term knows better.
    pub seated: bool,
    /// Since when it has been lost to this primary, and why.
    pub lost: Option<(Instant, String)>,
    /// What came of the last question, and since when it has been so. `None` before the first.
    pub answer: Option<(Instant, Result<(), String>)>,
    /// Why this primary did not take it as a spare.
    pub refused: Option<String>,
}

impl Contacts {
    /// It has a seat at this primary.
    pub fn seat(&self, member: &MemberId) {
        self.lock().insert(member.clone(), Contact { seated: true, ..Contact::default() });
    }

    /// It has lost its seat.
    pub fn lose(&self, member: &MemberId, why: &str) {
        let lost = Some((Instant::now(), cut(why)));
        self.lock().insert(member.clone(), Contact { lost, ..Contact::default() });
        self.ask.notify_one();
    }

    /// This primary did not take it as a spare.
    pub fn refuse(&self, member: &MemberId, why: &str) {
        self.lock().entry(member.clone()).or_default().refused = Some(cut(why));
    }

    /// A term begins or ends: what was known by the one before is not known by the next.
    pub fn forget_seats(&self) {
        for contact in self.lock().values_mut() {
            (contact.seated, contact.lost, contact.refused) = (false, None, None);
        }
        self.ask.notify_one();
    }

    /// What is known of it.
    pub fn of(&self, member: &MemberId) -> Contact {
        self.lock().get(member).cloned().unwrap_or_default()
    }

    /// It has been asked. A member that answers and is not in the set is lost no longer: it is a spare.
    fn answered(&self, member: &MemberId, asked: Instant, in_set: bool, result: Result<(), String>) {
        let mut known = self.lock();
        let contact = known.entry(member.clone()).or_default();
        // Its seat was taken or lost since: that is newer.
        if contact.seated || contact.lost.as_ref().is_some_and(|(since, _)| *since > asked) {
            return;
        }
        if result.is_ok() && !in_set {
            contact.lost = None;
        }
        let same = contact.answer.take().filter(|(_, before)| before.is_ok() == result.is_ok());
        contact.answer = Some((same.map_or(asked, |(since, _)| since), result.map_err(|why| cut(&why))));
    }

    /// Only these are backups of the group.
    fn keep(&self, such: impl Fn(&MemberId) -> bool) {
        self.lock().retain(|member, contact| contact.seated || such(member));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<MemberId, Contact>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cut(why: &str) -> String {
    why.chars().take(WHY_CHARS_MAX).collect()
}

/// Asks every backup that has no seat, for as long as the process lives. A sidecar that only reads asks nobody.
pub async fn watch(context: &Arc<Context>) -> Infallible {
    if context.rules.reader {
        std::future::pending::<()>().await;
    }
    // Clients keep their connections.
    let mut clients: HashMap<MemberId, BackupClient> = HashMap::new();
    loop {
        let config = context.configuration.borrow().clone();
        let member = |id: &MemberId| config.as_ref().and_then(|config| config.member(id)).cloned();
        let listed = context.desired().backups.into_iter().map(|(id, _)| id);
        let mut backups: Vec<MemberId> =
            config.iter().flat_map(|config| &config.members).map(|m| m.id.clone()).collect();
        backups.extend(listed);
        backups.sort_unstable();
        backups.dedup();
        clients.retain(|id, _| backups.contains(id));
        context.contacts.keep(|id| backups.contains(id));
        backups.retain(|id| !context.contacts.of(id).seated);
        let asked = Instant::now();
        let questions = backups.into_iter().map(|id| {
            let member = member(&id);
            let stored = member.as_ref().map(|member| member.control.as_str());
            let client = clients.entry(id.clone()).or_insert_with(|| context.backup(&id, stored)).clone();
            let log = config.as_ref().map(|config| config.log);
            async move {
                let result = ask(context, &client, &id, member.as_ref(), log).await;
                context.contacts.answered(&id, asked, member.is_some(), result);
            }
        });
        futures_util::future::join_all(questions.collect::<Vec<_>>()).await;
        tokio::select! {
            () = tokio::time::sleep(ASK_INTERVAL) => {}
            () = context.contacts.ask.notified() => {}
        }
    }
}

/// Whether it answers, as the one that it should be.
async fn ask(
    context: &Context,
    client: &BackupClient,
    id: &MemberId,
    member: Option<&MemberRef>,
    log: Option<LogId>,
) -> Result<(), String> {
    // After the last segment: the page has the head alone.
    let request = InventoryRequest { after: Some(SegmentId(u64::MAX)) };
    let reply: Result<Inventory, _> = client.call(path::INVENTORY, &request, ASK_TIMEOUT).await;
    let found = reply.map_err(|error| client.what_came_back(&error))?;
    if found.member != *id {
        return Err(format!("the backup there is named {}", found.member));
    }
    if let Some(other) = found.log.filter(|found| log.is_some_and(|log| log != *found)) {
        return Err(format!("it holds another log, {other}"));
    }
    if member.is_some_and(|member| member.boot != found.boot) {
        return Err("it has restarted without the memory that made it a member".to_owned());
    }
    context.misfit(client).map_or(Ok(()), |why| Err(client.without_name(&why)))
}

/// Whether a standby could take over, as far as the members' last answers go; `None` before they have been asked.
pub fn takeover(
    config: &Configuration,
    min_in_sync: u8,
    fenced: bool,
    contact: impl Fn(&MemberId) -> Contact,
) -> Option<Takeover> {
    let no = |why: String| Some(Takeover { ready: false, why_not: Some(why) });
    if fenced {
        return no("the group is fenced".to_owned());
    }
    let answers: Vec<_> =
        config.members.iter().map(|member| Some((&member.id, contact(&member.id).answer?.1))).collect::<Option<_>>()?;
    let needed = usize::from(min_in_sync.max(1)).min(answers.len());
    let well = answers.iter().filter(|(_, answer)| answer.is_ok()).count();
    if well >= needed {
        return Some(Takeover { ready: true, why_not: None });
    }
    let silent = answers.iter().filter_map(|(id, answer)| Some(format!("{id}: {}", answer.as_ref().err()?)));
    let (silent, verb) = (silent.collect::<Vec<_>>().join("; "), if well == 1 { "answers" } else { "answer" });
    no(format!("{well} of {} members {verb}, {needed} needed ({silent})", answers.len()))
}

#[cfg(test)]
mod tests {
    use tailwind_protocol::config::{Kind, PrimaryRef};
    use tailwind_protocol::ids::{BootId, Claim, Epoch, Version};

    use super::*;

    fn id(name: &str) -> MemberId {
        name.parse().unwrap()
    }

    fn refused() -> Result<(), String> {
        Err("connection refused".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_member_stays_lost_until_it_answers() {
        let contacts = Contacts::default();
        let (b1, began) = (id("b1"), Instant::now());
        contacts.seat(&b1);
        contacts.answered(&b1, Instant::now(), true, refused());
        assert!(contacts.of(&b1).seated, "its term knows better");
        let asked = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        contacts.lose(&b1, "too slow");
        contacts.answered(&b1, asked, true, Ok(()));
        assert_eq!(contacts.of(&b1).answer, None, "what it answered before it was lost says nothing");
        contacts.answered(&b1, Instant::now(), true, refused());
        tokio::time::advance(Duration::from_secs(2)).await;
        contacts.answered(&b1, Instant::now(), false, refused());
        let found = contacts.of(&b1);
        let since = began + Duration::from_secs(1);
        assert_eq!((found.lost, found.answer), (Some((since, "too slow".to_owned())), Some((since, refused()))));
        contacts.answered(&b1, Instant::now(), true, Ok(()));
        assert!(contacts.of(&b1).lost.is_some(), "acks wait for it, whether it answers or not");
        contacts.answered(&b1, Instant::now(), false, Ok(()));
        assert_eq!(contacts.of(&b1).lost, None, "it is a spare now");
    }

    #[test]
    fn what_one_term_knew_ends_with_it() {
        let contacts = Contacts::default();
        contacts.seat(&id("b0"));
        contacts.lose(&id("b1"), &"x".repeat(1000));
        assert_eq!(contacts.of(&id("b1")).lost.unwrap().1.len(), WHY_CHARS_MAX);
        contacts.refuse(&id("b2"), "it holds another log");
        contacts.forget_seats();
        for name in ["b0", "b1", "b2", "b3"] {
            assert_eq!(contacts.of(&id(name)), Contact::default());
        }
        contacts.keep(|known| *known == id("b2"));
        assert_eq!(contacts.lock().keys().cloned().collect::<Vec<_>>(), [id("b2")]);
    }

    #[test]
    fn a_standby_needs_as_many_members_as_a_promotion() {
        let members =
            ["b0", "b1", "b2"].map(|name| MemberRef { id: id(name), boot: BootId(1), control: String::new() });
        let config = Configuration {
            log: LogId(1),
            kind: Kind::Log,
            epoch: Epoch(1),
            claim: Claim(1),
            earlier: Vec::new(),
            won: Epoch(0),
            cuts: Vec::new(),
            version: Version(1),
            primary: PrimaryRef { id: "first".parse().unwrap(), control: String::new() },
            members: members.to_vec(),
        };
        let now = Instant::now();
        let judge = |answers: [Option<Result<(), String>>; 3], min_in_sync, fenced| {
            takeover(&config, min_in_sync, fenced, |asked| {
                let at = config.members.iter().position(|member| member.id == *asked).unwrap();
                Contact { answer: answers[at].clone().map(|answer| (now, answer)), ..Contact::default() }
            })
        };
        let (well, gone) = (Some(Ok(())), Some(refused()));
        let ready = Some(Takeover { ready: true, why_not: None });
        let why = |found: Option<Takeover>| found.unwrap().why_not.unwrap();
        assert_eq!(judge([well.clone(), well.clone(), None], 2, false), None, "one has not been asked");
        assert_eq!(judge([well.clone(), well.clone(), gone.clone()], 2, false), ready);
        assert_eq!(judge([well.clone(), gone.clone(), gone.clone()], 1, false), ready);
        assert_eq!(judge([well.clone(), well.clone(), well.clone()], 7, false), ready, "no more than there are");
        assert_eq!(
            why(judge([well.clone(), gone.clone(), gone.clone()], 2, false)),
            "1 of 3 members answers, 2 needed (b1: connection refused; b2: connection refused)"
        );
        assert!(
            why(judge([gone.clone(), gone.clone(), gone], 0, false)).starts_with("0 of 3 members answer, 1 needed")
        );
        assert_eq!(why(judge([well.clone(), well.clone(), well], 2, true)), "the group is fenced");
    }
}
