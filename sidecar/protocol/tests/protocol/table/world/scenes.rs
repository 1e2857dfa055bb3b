//! Scenes in which what is too rare at random happens for sure.

use tailwind_protocol::table::cleaner::GRACE_MS;
use tailwind_protocol::table::record::Value;
use tailwind_protocol::table::request::{Apply, Operation, Written};

use super::{SEGMENTS, World, key, unless};

impl World {
    /// Fills the table with keys that stay as they are, and then overwrites one key, until the log has been written many times:
    /// what is cleaned is live nearly throughout, and no put may wait for good.
    pub(crate) fn churn(&mut self) -> Result<(), String> {
        let mut kept = 0;
        while self.tally.full == 0 {
            // Sizes that leave something free behind the last record of each segment.
            kept += usize::from(self.put(kept, 2000 + kept * 37 % 2000)?);
        }
        for _ in 0..200 * SEGMENTS {
            let mut turns = 0;
            while !self.put(0, 2000)? {
                turns += 1;
                unless(turns < 1000, || format!("stuck: a put waits, {} segments", self.log.len()))?;
            }
        }
        self.check_views(true)?;
        self.rest()
    }

    /// Has a segment cleaned whose only live record is deleted shortly before it is judged: for as long as the delete is not
    /// acknowledged, a crash may bring the record back.
    pub(crate) fn delete_late(&mut self) -> Result<(), String> {
        let last = self.names.len() - 1;
        self.put(last, 2000)?;
        while self.log.len() < 11 {
            self.put(0, 3000)?;
            self.acknowledge(self.log.last())?;
        }
        let name = self.names[last].clone();
        let operations = [Operation::Write { key: key(&name), written: Written::Nothing, only_if: None }];
        self.carry_out(&Apply::new(&operations).expect("a request"))?;
        for _ in 0..100 {
            self.now = self.now.plus(GRACE_MS);
            self.publish();
            self.progress()?;
            self.work()?;
        }
        unless(self.cleaner.settling() > 0 && self.tally.trimmed == 0, || "S18: the put may be needed".to_owned())?;
        self.rest()
    }

    /// Puts a key if there is room, and otherwise gives everything else a turn.
    fn put(&mut self, name: usize, length: usize) -> Result<bool, String> {
        let (name, value) = (self.names[name].clone(), vec![name as u8; length]);
        let value = Value::new(&value).expect("a value");
        let before = self.tally;
        let operations = [Operation::Write { key: key(&name), written: Written::Value(value), only_if: None }];
        self.carry_out(&Apply::new(&operations).expect("a request"))?;
        if self.tally.waits > before.waits {
            self.turn()?;
        }
        unless(self.log.len() <= SEGMENTS, || format!("C: the log has {} segments", self.log.len()))?;
        Ok(self.tally.applied > before.applied)
    }
}
