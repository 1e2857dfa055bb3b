//! What is measured of each build.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::comparisons::{Length, SPIN, fail_over, with_sums};
use crate::costs::{self, Appends};
use crate::cpu::settle;
use crate::load::{closed_loop, one_at_a_time};
use crate::ours::{Ours, Shape};
use crate::results::{Figures, Metric};

/// A case: its group, its load, and the figures of it that are compared.
pub(super) struct Case {
    pub(super) name: &'static str,
    fabric: &'static str,
    ring: bool,
    load: Load,
    metrics: &'static [Metric],
}

enum Load {
    /// One client, which sleeps or polls until the answer comes.
    OneAppend {
        polls: bool,
    },
    Pipelined,
    Clients,
    FailOver,
}

const COPIES: usize = 3;
const ALONE: usize = 128;
const PIPELINED: Appends = Appends { clients: 1, depth: 2048, size: 100 };
const CLIENTS: usize = 64;
/// Length of the log at a failover: what recovery scans, without the time that it takes to write it.
const LOG: Length = Length::Records(100_000);

const SLEEPS: Load = Load::OneAppend { polls: false };
const POLLS: Load = Load::OneAppend { polls: true };
const LATENCY: &[Metric] = &[Metric::P50];
const RATE: &[Metric] = &[Metric::Rate];
const RATE_AND_COST: &[Metric] = &[Metric::Rate, Metric::Cpu];
const FIRST_ACK: &[Metric] = &[Metric::FirstAck];

const fn case(name: &'static str, fabric: &'static str, ring: bool, load: Load, metrics: &'static [Metric]) -> Case {
    Case { name, fabric, ring, load, metrics }
}

pub(super) const ALL: &[Case] = &[
    case("shm, one append, client sleeps", "shm", false, SLEEPS, LATENCY),
    case("shm, one append, client polls", "shm", false, POLLS, LATENCY),
    case("shm by ring, one append, client sleeps", "shm", true, SLEEPS, LATENCY),
    case("shm by ring, one append, client polls", "shm", true, POLLS, LATENCY),
    case("tcp, one append, client sleeps", "tcp", false, SLEEPS, LATENCY),
    case("tcp, one append, client polls", "tcp", false, POLLS, LATENCY),
    case("shm, pipelined", "shm", false, Load::Pipelined, RATE_AND_COST),
    case("shm by ring, pipelined", "shm", true, Load::Pipelined, RATE_AND_COST),
    case("tcp, pipelined", "tcp", false, Load::Pipelined, RATE_AND_COST),
    case("shm, 64 clients", "shm", false, Load::Clients, RATE),
    case("tcp, 64 clients", "tcp", false, Load::Clients, RATE),
    case("shm, failover", "shm", false, Load::FailOver, FIRST_ACK),
    case("tcp, failover", "tcp", false, Load::FailOver, FIRST_ACK),
];

/// Each figure that is compared: case and metric.
pub(super) fn figures() -> impl Iterator<Item = (&'static str, Metric)> {
    ALL.iter().flat_map(|case| case.metrics.iter().map(|metric| (case.name, *metric)))
}

/// The groups of one build.
pub(super) struct Groups {
    all: Vec<(&'static str, Ours)>,
}

impl Groups {
    pub(super) fn start(program: &Path, memory: &Path) -> Result<Groups> {
        let group = |fabric| Ok((fabric, Ours::start(fabric, program, memory, &shape(fabric))?));
        Ok(Groups { all: ["shm", "tcp"].into_iter().map(group).collect::<Result<_>>()? })
    }

    fn of(&self, fabric: &str) -> &Ours {
        let found = self.all.iter().find(|(name, _)| *name == fabric);
        &found.expect("a group of each fabric").1
    }
}

fn shape(fabric: &'static str) -> Shape {
    Shape { buffers: 8, ..Shape::new(fabric, COPIES) }
}

impl Case {
    pub(super) fn find(name: &str) -> Option<&'static Case> {
        ALL.iter().find(|case| case.name == name)
    }

    /// The figures that are compared; `None` if this build cannot do it.
    pub(super) fn measure(
        &self,
        program: &Path,
        memory: &Path,
        groups: &Groups,
        time: Duration,
    ) -> Result<Option<Figures>> {
        if let Load::FailOver = self.load {
            let shape = Shape { sidecars: 2, default_timeouts: true, ..shape(self.fabric) };
            let mut ours = Ours::start(self.name, program, memory, &shape)?;
            return Ok(Some(self.compared(fail_over(&mut ours, LOG)?)));
        }
        let ours = groups.of(self.fabric);
        if self.ring && !ours.client_by(true, Duration::ZERO)?.welcome().ring {
            return Ok(None);
        }
        let figures = match self.load {
            Load::OneAppend { polls } => {
                let mut client = ours.client_by(self.ring, if polls { SPIN } else { Duration::ZERO })?;
                one_at_a_time(time, || Ok(client.append(&[7; ALONE]).map(|_| ())?))?.figures()
            }
            Load::Clients => {
                let mut connections =
                    (0..CLIENTS).map(|_| ours.connection_by(self.ring)).collect::<Result<Vec<_>>>()?;
                closed_loop(&mut connections, 1, &[7; ALONE], time)?.figures()
            }
            Load::Pipelined | Load::FailOver => {
                with_sums(costs::measure_on(ours, || ours.connection_by(self.ring), &PIPELINED, time)?)
            }
        };
        ours.trim()?;
        // The other build is next, and shall have the machine to itself.
        let processes: Vec<u32> = ours.backups()?.into_iter().chain([ours.sidecar()?]).collect();
        settle(&processes)?;
        Ok(Some(self.compared(figures)))
    }

    fn compared(&self, mut figures: Figures) -> Figures {
        figures.retain(|metric, _| self.metrics.contains(metric));
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_has_a_name_of_its_own_and_is_found_by_it() {
        for case in ALL {
            assert_eq!(ALL.iter().filter(|other| other.name == case.name).count(), 1, "{}", case.name);
            assert!(Case::find(case.name).is_some() && !case.metrics.is_empty());
        }
        assert!(Case::find("shm").is_none());
        // Named in decision.rs, where it bounds how often a gate fails for nothing.
        assert!(figures().count() <= 16);
    }
}
