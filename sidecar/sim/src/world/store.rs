//! The config store: one configuration, changed by compare-and-swap, and everything that can happen to those who ask.
//!
//! Asked by candidates and primaries. A call is carried out at one moment between question and answer, or never, or after
//! its caller has given up; watches and stale answers show the past, never what was not.

use tailwind_protocol::config::{Configuration, Swap, SwapOutcome};
use tailwind_protocol::ids::Epoch;

use super::queue::{MS, Micros};
use super::sidecar::Notice;
use super::{Event, SidecarNo, World};
use crate::tally::Fault;
use crate::trace::{names, trace};

/// How long a caller waits for the store.
const STORE_TIMEOUT: Micros = 200 * MS;

/// What is asked of the store.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Read,
    Swap(Box<Swap>),
}

/// A call on its way.
#[derive(Clone, Debug)]
pub(crate) struct StoreCall {
    pub(crate) from: SidecarNo,
    life: u32,
    term: u32,
    number: u64,
    ask: Ask,
}

/// What the store says.
#[derive(Clone, Debug)]
pub(crate) enum StoreReply {
    Read(Result<Option<Configuration>, String>),
    Swapped(SwapOutcome),
}

/// The store.
#[derive(Debug, Default)]
pub(crate) struct Store {
    /// Everything that was ever there, and since when; the last one is there now.
    pub(crate) history: Vec<(Micros, Configuration)>,
    pub(crate) down: bool,
    /// It does what is asked, and its answers get lost.
    pub(crate) mute: bool,
    /// Another store is there now: it has seen nothing of what came before this.
    pub(crate) replaced: usize,
    /// Sidecars that cannot reach it.
    pub(crate) cut: Vec<SidecarNo>,
    /// Swaps that were sent and may yet be carried out.
    pub(crate) proposed: Vec<Swap>,
}

impl Store {
    pub(crate) fn content(&self) -> Option<&Configuration> {
        self.here().last().map(|(_, config)| config)
    }

    fn here(&self) -> &[(Micros, Configuration)] {
        &self.history[self.replaced..]
    }

    /// The last configuration of this epoch.
    pub(crate) fn last_of(&self, epoch: Epoch) -> Option<&Configuration> {
        self.history.iter().rev().map(|(_, config)| config).find(|config| config.epoch == epoch)
    }

    /// What was there at that moment.
    pub(crate) fn content_at(&self, moment: Micros) -> Option<&Configuration> {
        self.here().iter().rev().find(|(since, _)| *since <= moment).map(|(_, config)| config)
    }

    /// Swaps that could still be applied.
    pub(crate) fn pending(&self) -> impl Iterator<Item = &Configuration> {
        let stamp = self.content().map(Configuration::stamp);
        self.proposed.iter().filter(move |swap| swap.expected == stamp).map(|swap| &swap.proposed)
    }
}

impl World {
    /// Asks the store; exactly one answer comes, if only that there was none.
    pub(crate) fn ask_store(&mut self, from: SidecarNo, ask: Ask) {
        let sidecar = &mut self.sidecars[from.0];
        let (life, term, number) = (sidecar.life, sidecar.term, self.queue.count());
        sidecar.store_calls.push(number);
        if let Ask::Swap(swap) = &ask
            && !self.store.proposed.contains(swap)
        {
            self.store.proposed.push((**swap).clone());
        }
        let late = match ask {
            Ask::Read => StoreReply::Read(Err("no answer".to_owned())),
            Ask::Swap(_) => StoreReply::Swapped(SwapOutcome::Unknown),
        };
        let late = Notice::Store(term, number, Box::new(late));
        self.queue.plan(STORE_TIMEOUT, Event::Sidecar(from, life, late));
        if self.store.cut.contains(&from) {
            return;
        }
        let slow = if self.fault_occurs(Fault::StoreSlow, 60) { self.random.within(1, 900) * MS } else { 0 };
        let takes = self.random.within(300, 4000);
        let call = StoreCall { from, life, term, number, ask };
        self.queue.plan(takes + slow, Event::Store(Box::new(call)));
    }

    /// The moment at which a call is carried out.
    pub(crate) fn on_store_call(&mut self, call: StoreCall) {
        if self.store.down {
            return;
        }
        let StoreCall { from, life, term, number, ask } = call;
        let stale = self.fault_occurs(Fault::StoreStale, 60);
        let content = self.store.content().cloned();
        let seen = match stale {
            true => self.store.content_at(self.queue.now().saturating_sub(self.random.within(1, 400) * MS)).cloned(),
            false => content.clone(),
        };
        let reply = match ask {
            Ask::Read => StoreReply::Read(Ok(seen)),
            Ask::Swap(swap) => {
                let refused = self.fault_occurs(Fault::StoreConflict, 30);
                let applied = !refused && swap.expects(content.as_ref());
                let outcome = match applied {
                    true => SwapOutcome::Applied,
                    // A conflict shows what is there, or what was there a moment ago, but never less than nothing.
                    false => SwapOutcome::Conflict(seen.or(content)),
                };
                let name = &self.sidecars[from.0].name;
                let set = names(swap.proposed.members.iter().map(|member| &member.id));
                trace!(
                    self,
                    "the store, asked by {name} for epoch {}, version {}, set {set}: {}",
                    swap.proposed.epoch,
                    swap.proposed.version,
                    if applied { "done" } else { "refused" }
                );
                if applied {
                    self.apply(swap.proposed);
                }
                StoreReply::Swapped(outcome)
            }
        };
        if self.fault_occurs(Fault::StoreMute, 120) || self.store.mute {
            return;
        }
        let takes = self.random.within(300, 4000);
        self.queue.plan(takes, Event::Sidecar(from, life, Notice::Store(term, number, Box::new(reply))));
    }

    fn apply(&mut self, config: Configuration) {
        let now = self.queue.now();
        let before = self.store.content().cloned();
        self.tally.swaps += u64::from(before.as_ref().is_some_and(|before| before.members != config.members));
        self.store.history.push((now, config.clone()));
        let stamp = Some(config.stamp());
        self.store.proposed.retain(|swap| swap.expected >= stamp);
        self.judge_swap(before.as_ref(), &config);
    }
}
