//! The clients of a getter: whose gets it has, and what they have been shown. Part of [`AppendLoop`].

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tailwind_protocol::config::{Cut, Time};
use tailwind_protocol::ids::{LogId, Lsn};
use tailwind_protocol::socket::{GET_FRESH, GET_NO_VALUE, GET_OLDER, Response};
use tailwind_protocol::table::get::Get;
use tailwind_protocol::table::getter::Answer;
use tailwind_protocol::table::record::Key;

use super::{Brought, Getting, Surroundings};
use crate::path::AppendLoop;
use crate::path::connection::AnswerKind;
use crate::path::gets::{GetId, has_parted, unavailable};
use crate::path::messages::{ClientId, Counters};
use crate::path::requests::{Outcome, RequestContext};
use crate::path::role::RoleState;
use crate::path::slots::ClientSlots;

/// A get off the primary.
pub(super) struct Asked {
    pub(super) get: GetId,
    pub(super) key: Box<[u8]>,
    /// The state after this record, or later.
    pub(super) least: Lsn,
    pub(super) fresh: bool,
    pub(super) older: bool,
    pub(super) no_value: bool,
    pub(super) came: Instant,
}

impl GetId {
    /// Answers it, as a getter has found.
    pub(super) fn settle(self, answer: &Answer<'_>, clients: &mut ClientSlots, counters: &Counters) {
        let Some(client) = clients.get(self.slot, self.client) else { return };
        let (counter, response) = match *answer {
            Answer::Value { revision, value, as_of, stale } => {
                client.outbox.shown.note(as_of);
                let (revision, as_of, value) = (Some(revision), as_of.0, value.as_bytes());
                (&counters.gets_found, Response::Value { revision, as_of, value, older: false, stale })
            }
            Answer::Absent { as_of, stale } => {
                client.outbox.shown.note(as_of);
                let (revision, as_of) = (None, as_of.0);
                (&counters.gets_absent, Response::Value { revision, as_of, value: &[], older: false, stale })
            }
            Answer::Older(value) => {
                let value = value.as_bytes();
                (&counters.gets_older, Response::Value { revision: None, as_of: 0, value, older: true, stale: false })
            }
            Answer::Unavailable(why) => (&counters.gets_unavailable, unavailable(why)),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        client.outbox.settle(AnswerKind::Get, self.request, &response);
    }
}

impl AppendLoop {
    pub(in crate::path) fn on_get_off_primary(
        &mut self,
        context: &mut RequestContext<'_>,
        key: Key<'_>,
        least: Lsn,
        flags: u16,
    ) -> Outcome {
        let getting = self.getting.as_mut().expect("a table has a getter");
        if let Some(config) = getting.configuration()
            && let Err(parted) = context.outbox.shown.go_on(config.log, &config.cuts)
        {
            context.outbox.answer(context.request, &has_parted(parted));
            return Outcome::Done;
        }
        if !getting.may_take() || !context.outbox.may_get() {
            return Outcome::Later;
        }
        context.outbox.owe(AnswerKind::Get);
        getting.take(Asked {
            get: GetId { client: context.client, slot: context.slot as u32, request: context.request },
            key: key.as_bytes().into(),
            least,
            fresh: flags & GET_FRESH != 0,
            older: flags & GET_OLDER != 0,
            no_value: flags & GET_NO_VALUE != 0,
            came: Instant::now(),
        });
        Outcome::Done
    }

    /// Has the getter do what it can. Returns true if there was anything.
    pub(in crate::path) fn turn_getting(&mut self, elapsed: Duration) -> bool {
        if self.getting.as_ref().is_none_or(|getting| getting.is_resting()) {
            return false;
        }
        self.with_getting(elapsed, Getting::turn)
    }

    /// Control has brought something for the getter.
    pub(in crate::path) fn on_brought(&mut self, brought: Brought) {
        match &brought {
            Brought::Config(config) => self.part(config.log, &config.cuts),
            Brought::Connected(_, Ok(memory)) => {
                memory.channel.readiness().into_iter().for_each(|fd| self.sleeper.watch_channel(fd, false));
            }
            _ => {}
        }
        self.with_getting(self.started.elapsed(), |getting, around| getting.take_brought(brought, around));
    }

    /// Gets of connections that were shown what is lost by these cuts, or another log, are answered so.
    fn part(&mut self, log: LogId, cuts: &[Cut]) {
        let Some(getting) = &mut self.getting else { return };
        for client in self.clients.iter_mut() {
            let Err(parted) = client.outbox.shown.go_on(log, cuts) else { continue };
            for asked in getting.gone(client.id) {
                client.outbox.settle(AnswerKind::Get, asked.get.request, &has_parted(parted));
            }
        }
    }

    /// This connection has ended.
    pub(in crate::path) fn forget_gets_of(&mut self, client: ClientId) {
        if let Some(getting) = &mut self.getting {
            getting.gone(client);
        }
    }

    /// This sidecar leads from now on: its own index answers what has waited for the getter.
    pub(in crate::path) fn take_over_gets(&mut self) {
        let elapsed = self.started.elapsed();
        self.with_getting(elapsed, |getting, around| getting.rest(around));
        let (Some(getting), RoleState::Leading(leading)) = (&mut self.getting, &mut self.state) else { return };
        let (log, now) = (&leading.log, Time(elapsed.as_millis() as u64));
        let (Some(gets), Some(table)) = (&mut leading.gets, log.table()) else { return };
        let config = log.primary().config();
        let outlived = getting.epoch() > config.epoch;
        for asked in getting.give_up() {
            let Some(client) = self.clients.get(asked.get.slot, asked.get.client) else { continue };
            let shown = &mut client.outbox.shown;
            let refusal = match shown.go_on(config.log, &config.cuts) {
                Err(parted) => has_parted(parted),
                Ok(()) if outlived || !gets.may_take() => unavailable("this sidecar has changed its role"),
                Ok(()) => {
                    let hash = table.index().hash(Key::new(&asked.key).expect("it was one when it came"));
                    let (least, fresh, no_value) = (asked.least.max(shown.last), asked.fresh, asked.no_value);
                    gets.take(asked.get, Get { hash, least, fresh, no_value }, now);
                    continue;
                }
            };
            client.outbox.settle(AnswerKind::Get, asked.get.request, &refusal);
        }
    }

    fn with_getting<R: Default>(
        &mut self,
        now: Duration,
        act: impl FnOnce(&mut Getting, &mut Surroundings<'_>) -> R,
    ) -> R {
        let Some(getting) = &mut self.getting else { return R::default() };
        let (clients, counters, control) = (&mut self.clients, &*self.counters, &self.control.requests);
        act(getting, &mut Surroundings { now, started: self.started, clients, counters, control })
    }
}
