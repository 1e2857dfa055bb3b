//! The reader's side: the getter's wishes are carried out, and its answers are judged.

use tailwind_protocol::board::LINE_SIZE as BOARD_LINE;
use tailwind_protocol::config::{Configuration, Kind, MemberRef, PrimaryRef};
use tailwind_protocol::ids::{BootId, Claim, Epoch, LogId, Lsn, Version};
use tailwind_protocol::table::getter::{self, Answer, ConnectionId, Get, GetId};
use tailwind_protocol::table::mirror;

use super::super::{World, key};
use super::{Asked, CONNECTIONS, MEMBERS, PART, Transfer, What};

impl World {
    pub(super) fn step_getter(&mut self, input: getter::Input<'_>) -> Result<(), String> {
        let (now, mut out, mut answers) = (self.since_start(), Vec::new(), Vec::new());
        self.reading().getter.step(now, input, &mut out, |get, answer| {
            answers.push((get, Given::of(&answer)));
        });
        for (get, given) in answers {
            self.check_answer(get, &given)?;
        }
        let reading = self.reading();
        for output in out {
            let member = reading.visiting;
            let reads = |what, size, grain| Transfer::new(what, member, vec![0; size], grain);
            let grain = reading.nature.grain;
            let transfer = match output {
                getter::Output::Connect(visit, _, to) => {
                    reading.tally.visits += 1;
                    let id = |member: usize| format!("b{member}");
                    reading.visiting = (0..MEMBERS).find(|at| to.control == id(*at)).expect("a member");
                    Transfer::new(What::Connect(visit), reading.visiting, vec![0; 1], 1)
                }
                getter::Output::Look(visit) => reads(What::Look(visit, now), 3 * BOARD_LINE, grain),
                getter::Output::Buckets(visit, get, at) => {
                    let at = at.map(|(part, at)| (part * PART + at) as usize);
                    reads(What::Buckets(visit, get, at), 512, grain)
                }
                getter::Output::Record(visit, get, segment, range) => {
                    reads(What::Record(visit, get, segment, range), 1, 1)
                }
                getter::Output::Fetch(visit, get, segment, range) => {
                    reads(What::Fetch(visit, get, segment, range), 1, 1)
                }
                getter::Output::Ask(question) => reads(What::Ask(question), 1, 1),
                getter::Output::Leave(..) => {
                    reading.transfers.retain(|transfer| !transfer.what.is_of_a_visit());
                    continue;
                }
            };
            reading.transfers.push(transfer);
        }
        Ok(())
    }

    pub(super) fn tick(&mut self) -> Result<(), String> {
        if self.random.below(2) == 0 {
            self.now = self.now.plus(1);
        }
        for at in 0..MEMBERS {
            if self.reading().members[at].memory.is_empty() && self.random.below(4) == 0 {
                self.lend(at)?;
            }
        }
        if self.reading().told < self.log.epoch && self.random.below(4) == 0 {
            self.tell_config()?;
        }
        self.step_mirrors(mirror::Input::Tick)?;
        self.step_getter(getter::Input::Tick)
    }

    pub(super) fn tell_config(&mut self) -> Result<(), String> {
        let epoch = self.log.epoch;
        self.reading().told = epoch;
        let members = (0..MEMBERS).map(|at| MemberRef {
            id: format!("b{at}").parse().expect("a name"),
            boot: BootId(at as u128),
            control: format!("b{at}"),
        });
        let config = Configuration {
            log: LogId(1),
            kind: Kind::Table,
            epoch: Epoch(epoch),
            claim: Claim(1),
            earlier: Vec::new(),
            won: Epoch(epoch),
            cuts: Vec::new(),
            version: Version(epoch),
            primary: PrimaryRef { id: "s1".parse().expect("a name"), control: "s1:1".to_owned() },
            members: members.collect(),
        };
        self.step_getter(getter::Input::Config(&config))
    }

    pub(super) fn ask(&mut self) -> Result<(), String> {
        let first = usize::from(self.reading().nature.twins);
        let mut name = self.random.below(self.names.len() as u64) as usize;
        if first == 1 && name == 1 {
            name = 0;
        }
        let (fresh, older) = (self.random.below(6) == 0, self.random.below(3) == 0);
        let least = if self.random.below(4) == 0 { self.log.acked } else { 0 };
        self.get(name, fresh, older, least)
    }

    pub(in super::super) fn get(&mut self, name: usize, fresh: bool, older: bool, least: u64) -> Result<(), String> {
        let connection = ConnectionId(self.random.below(CONNECTIONS));
        let (acked, bytes) = (self.log.acked, self.names[name].clone());
        let reading = self.reading();
        if !reading.getter.may_take() {
            return Ok(());
        }
        reading.gets += 1;
        let id = GetId(reading.gets);
        let wanted = if fresh { acked } else { least };
        // No entry says which revision the record before has: foreign bytes could pass for it.
        let older = older && !reading.nature.foreign;
        reading.asked.insert(id, Asked { name, connection, least: wanted });
        let (least, floor) = (Lsn(least), Lsn(0));
        self.step_getter(getter::Input::Get(Get {
            id,
            connection,
            key: key(&bytes),
            least,
            floor,
            fresh,
            older,
            no_value: false,
        }))
    }
}

/// An answer, to be looked at after the step.
#[derive(Clone, Debug)]
pub(in super::super) enum Given {
    Value { revision: u64, value: Vec<u8>, as_of: u64 },
    Absent { as_of: u64 },
    Older { value: Vec<u8> },
    Unavailable,
}

impl Given {
    pub(super) fn of(answer: &Answer<'_>) -> Given {
        match *answer {
            Answer::Value { revision, value, as_of, .. } => {
                Given::Value { revision: revision.lsn().0, value: value.as_bytes().to_vec(), as_of: as_of.0 }
            }
            Answer::Absent { as_of, .. } => Given::Absent { as_of: as_of.0 },
            Answer::Older(value) => Given::Older { value: value.as_bytes().to_vec() },
            Answer::Unavailable(_) => Given::Unavailable,
        }
    }
}
