//! What one client has sent to a Redis and what was answered, and whether a Redis holds what it should.
//!
//! Pure. Filled by [`writers`](super::writers), compared at the end of `./quickstart --app redis`.

use std::ops::AddAssign;

use anyhow::{Result, bail, ensure};

use super::resp::RespValue;
use crate::workload::Random;

/// Counters of a client.
const COUNTERS: usize = 200;
/// Bytes of a value.
const VALUE_LENGTH: usize = 64;

/// A write. Each key is set once, to a value that no other key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// `INCR` of this counter.
    Increment(usize),
    /// `SET` of this key.
    Set(usize),
}

/// Increments of a counter: those that were answered, and those with an unknown outcome. The others that were sent are on their
/// way.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    answered: u64,
    open: u64,
    /// How many of the open ones were carried out at least: answers have shown it.
    carried_out: u64,
}

impl Counter {
    /// The lowest value that it may have, and the highest, when nothing is on its way.
    fn bounds(self) -> (u64, u64) {
        (self.answered + self.carried_out, self.answered + self.open)
    }
}

/// The outcome of a key's only write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    Sent,
    Answered,
    Open,
}

/// What a client knows.
#[derive(Debug)]
pub struct ClientWrites {
    client: usize,
    counters: Vec<Counter>,
    settings: Vec<Setting>,
}

/// What a Redis holds, beside what was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// `INCR`s that were answered.
    pub increments: u64,
    /// `SET`s that were answered.
    pub sets: u64,
    /// Answered writes that it does not have.
    pub lost: u64,
    /// Increments that were carried out more often than they were sent.
    pub repeated: u64,
    /// Writes that nobody has answered.
    pub open: u64,
    /// The open writes that were carried out all the same.
    pub carried_out: u64,
}

impl AddAssign for Difference {
    fn add_assign(&mut self, other: Difference) {
        self.increments += other.increments;
        self.sets += other.sets;
        self.lost += other.lost;
        self.repeated += other.repeated;
        self.open += other.open;
        self.carried_out += other.carried_out;
    }
}

impl ClientWrites {
    /// An empty one of the client of this number.
    pub fn new(client: usize) -> ClientWrites {
        ClientWrites { client, counters: vec![Counter::default(); COUNTERS], settings: Vec::new() }
    }

    /// The next write: as often a counter as a new key.
    pub fn next(&mut self, random: &mut Random) -> Write {
        if random.below(2) == 0 {
            return Write::Increment(random.below(COUNTERS as u64) as usize);
        }
        self.settings.push(Setting::Sent);
        Write::Set(self.settings.len() - 1)
    }

    /// Its command, appended to others.
    pub fn encode(&self, write: Write, commands: &mut Vec<u8>) {
        match write {
            Write::Increment(counter) => encode(&["INCR", &self.counter(counter)], commands),
            Write::Set(key) => encode(&["SET", &self.key(key), &self.value(key)], commands),
        }
    }

    /// A write is answered.
    ///
    /// # Errors
    /// No sound Redis answers so.
    pub fn answered(&mut self, write: Write, reply: &RespValue) -> Result<()> {
        match (write, reply) {
            (Write::Increment(index), RespValue::Integer(value)) => {
                let counter = &mut self.counters[index];
                let (low, high) = counter.bounds();
                let value = u64::try_from(*value).unwrap_or_default();
                counter.answered += 1;
                counter.carried_out = value.saturating_sub(counter.answered);
                ensure!(
                    (low + 1..=high + 1).contains(&value),
                    "{} is answered {value}, which has to be from {} to {}",
                    self.counter(index),
                    low + 1,
                    high + 1,
                );
            }
            (Write::Set(key), RespValue::Simple(ok)) if ok == "OK" => self.settings[key] = Setting::Answered,
            _ => bail!("client {}: {write:?} is answered {reply:?}", self.client),
        }
        Ok(())
    }

    /// A write gets no answer any more: it may have been carried out.
    pub fn gave_up(&mut self, write: Write) {
        match write {
            Write::Increment(counter) => self.counters[counter].open += 1,
            Write::Set(key) => self.settings[key] = Setting::Open,
        }
    }

    /// Every name that was written, in the order in which [`compare`](ClientWrites::compare) takes the values.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let counters = (0..self.counters.len()).map(|counter| self.counter(counter));
        counters.chain((0..self.settings.len()).map(|key| self.key(key)))
    }

    /// Compares with the values that a Redis has under these names.
    ///
    /// # Errors
    /// These are not values of these names.
    pub fn compare(&self, values: &[RespValue]) -> Result<Difference> {
        ensure!(values.len() == self.counters.len() + self.settings.len(), "{} values", values.len());
        let mut difference = Difference::default();
        let (counters, settings) = values.split_at(self.counters.len());
        for (counter, value) in self.counters.iter().zip(counters) {
            let value = match value {
                RespValue::Nil => 0,
                RespValue::Bulk(text) => str::from_utf8(text)?.parse()?,
                other => bail!("a counter is {other:?}"),
            };
            let (low, high) = counter.bounds();
            difference += Difference {
                increments: counter.answered,
                sets: 0,
                lost: low.saturating_sub(value),
                repeated: value.saturating_sub(high),
                open: counter.open,
                carried_out: value.clamp(low, high) - counter.answered,
            };
        }
        for (key, (setting, value)) in self.settings.iter().zip(settings).enumerate() {
            let there = *value == RespValue::text(&self.value(key));
            // Half a value is never right.
            let damaged = !there && *value != RespValue::Nil;
            let answered = *setting == Setting::Answered;
            difference += Difference {
                increments: 0,
                sets: answered.into(),
                lost: (damaged || (answered && !there)).into(),
                repeated: 0,
                open: (!answered).into(),
                carried_out: (!answered && there).into(),
            };
        }
        Ok(difference)
    }

    fn counter(&self, counter: usize) -> String {
        format!("counter:{}:{counter}", self.client)
    }

    fn key(&self, key: usize) -> String {
        format!("key:{}:{key}", self.client)
    }

    fn value(&self, key: usize) -> String {
        format!("{:x<VALUE_LENGTH$}", format!("{}:{key}:", self.client))
    }
}

/// A command as RESP has it.
fn encode(words: &[&str], commands: &mut Vec<u8>) {
    commands.extend(format!("*{}\r\n", words.len()).into_bytes());
    for word in words {
        commands.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two increments and a key that were answered, one of each whose outcome is open.
    fn sent() -> ClientWrites {
        let mut sent = ClientWrites::new(7);
        sent.settings = vec![Setting::Sent; 2];
        for value in [1, 2] {
            sent.answered(Write::Increment(0), &RespValue::Integer(value)).unwrap();
        }
        sent.answered(Write::Set(0), &RespValue::Simple("OK".to_owned())).unwrap();
        sent.gave_up(Write::Increment(0));
        sent.gave_up(Write::Set(1));
        sent
    }

    /// What a Redis holds that has carried out everything.
    fn values(sent: &ClientWrites) -> Vec<RespValue> {
        let mut values = vec![RespValue::Nil; COUNTERS];
        values[0] = RespValue::text("3");
        values.extend((0..2).map(|key| RespValue::text(&sent.value(key))));
        values
    }

    fn changed(at: usize, value: RespValue) -> Difference {
        let sent = sent();
        let mut values = values(&sent);
        values[at] = value;
        sent.compare(&values).unwrap()
    }

    #[test]
    fn an_open_write_may_be_there_or_not() {
        let sent = sent();
        let all = Difference { increments: 2, sets: 1, lost: 0, repeated: 0, open: 2, carried_out: 2 };
        assert_eq!(sent.compare(&values(&sent)).unwrap(), all);
        let without = Difference { carried_out: 1, ..all };
        assert_eq!(changed(0, RespValue::text("2")), without);
        assert_eq!(changed(COUNTERS + 1, RespValue::Nil), without);
    }

    #[test]
    fn a_lost_write_is_found() {
        assert_eq!(changed(0, RespValue::text("1")).lost, 1);
        assert_eq!(changed(0, RespValue::Nil).lost, 2);
        assert_eq!(changed(COUNTERS, RespValue::Nil).lost, 1);
    }

    #[test]
    fn a_repeated_write_is_found() {
        assert_eq!(changed(0, RespValue::text("4")).repeated, 1);
        assert_eq!(changed(1, RespValue::text("1")).repeated, 1);
    }

    #[test]
    fn a_damaged_value_is_found() {
        for at in [COUNTERS, COUNTERS + 1] {
            assert_eq!(changed(at, RespValue::text("7:0")).lost, 1);
        }
    }

    #[test]
    fn an_impossible_answer_is_refused() {
        let mut sent = sent();
        // Two were answered, and one is open.
        for value in [2, 5] {
            let error = sent.answered(Write::Increment(0), &RespValue::Integer(value)).unwrap_err().to_string();
            assert!(error.contains("has to be from 3 to 4"), "{error}");
            sent = self::sent();
        }
        assert!(sent.answered(Write::Set(1), &RespValue::Error("ERR".to_owned())).is_err());
    }

    #[test]
    fn an_answer_settles_what_was_open() {
        let mut sent = sent();
        sent.answered(Write::Increment(0), &RespValue::Integer(4)).unwrap();
        let mut values = values(&sent);
        for (value, lost) in [("4", 0), ("3", 1)] {
            values[0] = RespValue::text(value);
            assert_eq!(sent.compare(&values).unwrap().lost, lost);
        }
    }
}
