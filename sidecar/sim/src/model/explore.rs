//! Explores every state of a scenario, breadth first, with Stateright, and judges how each one ends.
//!
//! Called by [`run`](super::run).

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use stateright::{HasDiscoveries, Model as _, Property};
use tailwind_protocol::ids::BootId;

use super::act::{self, Action};
use super::follow::Follow;
use super::host::Host;
use super::judge::Judge;
use super::names::Names;
use super::part::{Digest, Part};
use super::scenario::{Budget, Scenario};
use super::state::{HOSTS, Role, SIDES, Side, State};
use super::step::Step;
use super::tidy::tidy;
use super::{Counterexample, Outcome, TRANSITIONS_MAX};

const RULES: &str = "the rules hold";
const ENDS: &str = "left alone, it ends well";
/// Free steps after which a group that still moves is taken to be running in circles; the longest seen are below 200.
const STEPS_MAX: usize = 2_000;

/// One scenario as Stateright sees it.
pub(super) struct Model {
    scenario: Scenario,
    names: Names,
    start: State,
    /// States that are known to end well when left alone.
    settled: Mutex<HashSet<u64>>,
    complete: AtomicUsize,
    at_bound: AtomicUsize,
    /// A counterexample was found.
    traced: AtomicBool,
}

/// How a state ends that nothing happens to any more.
enum End {
    /// A primary that can take appends has acknowledged everything that it was given, and every backup is a member.
    Complete,
    /// Nobody may claim another epoch: the model ends here, the group would go on.
    AtBound,
}

impl Model {
    pub(super) fn new(scenario: Scenario) -> Model {
        let names = Names::new();
        let side = || Part::new(Side { life: 0, role: Role::Standby });
        let start = State {
            hosts: std::array::from_fn(|at| {
                let boards = scenario.budget.visits > 0;
                Part::new(Host::new(names.members[at].clone(), BootId(at as u128 + 1), boards))
            }),
            sides: [(); SIDES].map(|()| side()),
            store: Part::new(None),
            messages: Vec::new(),
            calls: Vec::new(),
            writes: [(); SIDES].map(|()| [(); HOSTS].map(|()| Part::new(std::collections::VecDeque::new()))),
            follow: Part::new(None),
            judge: Part::new(Judge::default()),
            left: Budget::default(),
            broken: None,
        };
        let (settled, zero) = (Mutex::default(), || AtomicUsize::new(0));
        let mut model = Model {
            scenario,
            names,
            start,
            settled,
            complete: zero(),
            at_bound: zero(),
            traced: AtomicBool::new(false),
        };
        for host in 0..HOSTS {
            model.start = model.after(&model.start, Action::Start(host), &mut None).expect("a backup can start");
        }
        if !scenario.from_nothing {
            let (formed, _) =
                model.left_alone(&model.start.clone(), None).expect("a group forms when nothing goes wrong");
            model.start = formed;
        }
        for _ in 0..scenario.acked {
            model.start.left.appends = 1;
            let appended = model.after(&model.start, Action::Append(0), &mut None).expect("a primary takes an append");
            (model.start, _) = model.left_alone(&appended, None).expect("an append is acknowledged");
        }
        model.settled().clear();
        model.start.left = scenario.budget;
        if scenario.budget.visits > 0 {
            model.start.follow = Part::new(Some(Follow::new()));
        }
        model
    }

    /// Runs the scenario to its end.
    pub(super) fn explore(self) -> Outcome {
        use stateright::Checker as _;
        let scenario = self.scenario;
        let begun = std::time::Instant::now();
        let checker = self.checker().finish_when(HasDiscoveries::Any).target_state_count(TRANSITIONS_MAX);
        let checker = checker.spawn_bfs().join();
        let model = checker.model();
        let found = [RULES, ENDS].into_iter().find_map(|rule| Some((rule, checker.discovery(rule)?)));
        let counterexample = found.map(|(rule, path)| model.counterexample(rule, &path.into_actions()));
        Outcome {
            scenario: scenario.name,
            states: checker.unique_state_count(),
            transitions: checker.state_count(),
            depth: checker.max_depth(),
            complete: model.complete.load(Ordering::Relaxed),
            at_bound: model.at_bound.load(Ordering::Relaxed),
            took: begun.elapsed(),
            exhausted: counterexample.is_none() && checker.state_count() < TRANSITIONS_MAX,
            counterexample,
        }
    }

    /// The state after an event; `None` when it turns out not to be one. A failed assertion of the machines is a broken
    /// rule like any other.
    fn after(&self, state: &State, action: Action, story: &mut Option<Vec<String>>) -> Option<State> {
        let lines = story.is_some().then(Vec::new);
        let mut step = Step { scenario: &self.scenario, names: &self.names, state: state.clone(), story: lines };
        let acted = catch_unwind(AssertUnwindSafe(|| {
            let acted = step.act(action);
            tidy(step.scenario, &mut step.state);
            acted
        }));
        if let (Some(story), Some(lines)) = (story, step.story.take()) {
            story.extend(lines);
        }
        match acted {
            Ok(true) => {}
            Ok(false) => return None,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words");
                step.breaks(format!("an assertion fails: {text}"));
            }
        }
        if let Some(config) = step.state.store.as_ref() {
            let verdict = step.state.judge.members_hold(config, &step.state.hosts);
            step.judge(verdict);
        }
        Some(step.state)
    }

    /// Where a state gets to when the outside leaves it alone and everything on its way arrives in a fixed order.
    fn left_alone(&self, state: &State, mut story: Option<&mut Vec<String>>) -> Result<(State, Option<End>), String> {
        let mut state = state.clone();
        let mut walked = Vec::new();
        let mut actions = Vec::new();
        for _ in 0..STEPS_MAX {
            let digest = digest(&state);
            if story.is_none() && self.settled().contains(&digest) {
                self.settled().extend(walked);
                return Ok((state, None));
            }
            if walked.contains(&digest) {
                return Err("the group runs in circles".to_owned());
            }
            walked.push(digest);
            actions.clear();
            act::free(&self.scenario, &self.names, &state, &mut actions);
            let changed = actions.iter().find_map(|action| {
                let mut lines = story.is_some().then(Vec::new);
                let next = self.after(&state, *action, &mut lines).filter(|next| *next != state)?;
                Some((next, lines))
            });
            let Some((next, lines)) = changed else {
                let end = self.end(&state)?;
                self.settled().extend(walked);
                return Ok((state, Some(end)));
            };
            if let (Some(story), Some(lines)) = (&mut story, lines) {
                story.extend(lines);
            }
            if let Some(rule) = &next.broken {
                return Err(rule.clone());
            }
            state = next;
        }
        Err(format!("the group still moves after {STEPS_MAX} steps without a fault"))
    }

    /// Stateright keeps the last discovery of a batch; the first is the shortest.
    fn told_before(&self) -> bool {
        self.traced.swap(true, Ordering::Relaxed)
    }

    fn settled(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Judges a state in which nothing happens by itself any more.
    fn end(&self, state: &State) -> Result<End, String> {
        let config = state.store.as_ref();
        let bound = config.is_some_and(|config| config.epoch.0 >= self.scenario.epoch_max);
        let claims = state.calls.iter().any(|call| act::beyond(&self.scenario, call));
        let nobody = (0..SIDES).all(|side| !act::stands(state, side));
        if claims || (bound && nobody) {
            return Ok(End::AtBound);
        }
        let Some(config) = config else { return Err("nothing happens any more, and there is no group".to_owned()) };
        let primary = self.names.sidecars.iter().position(|sidecar| *sidecar == config.primary);
        let lead = primary.and_then(|side| state.sides[side].lead()).filter(|lead| lead.epoch == config.epoch);
        let Some(lead) = lead else { return Err("nothing happens any more, and there is no primary".to_owned()) };
        let quiet = lead.unacked.is_empty() && lead.backlog.is_none();
        if !lead.machine.is_ready() || !quiet {
            return Err(format!(
                "nothing happens any more, and {} has not acknowledged all it was given",
                config.primary.id
            ));
        }
        if config.members.len() < HOSTS {
            return Err("nothing happens any more, and a backup that is up is not a member".to_owned());
        }
        Ok(End::Complete)
    }

    /// Counts how a state ends; false when it does not end well.
    fn ends_well(&self, state: &State) -> bool {
        if state.broken.is_some() {
            return true;
        }
        match self.left_alone(state, None) {
            Ok((_, Some(End::Complete))) => drop(self.complete.fetch_add(1, Ordering::Relaxed)),
            Ok((_, Some(End::AtBound))) => drop(self.at_bound.fetch_add(1, Ordering::Relaxed)),
            Ok((_, None)) => {}
            Err(_) => return false,
        }
        true
    }

    fn counterexample(&self, rule: &str, actions: &[Action]) -> Counterexample {
        let (mut state, mut story) = (self.start.clone(), Some(Vec::new()));
        for action in actions {
            state = self.after(&state, *action, &mut story).unwrap_or(state);
        }
        let mut lines = story.unwrap_or_default();
        let broken = match state.broken.clone() {
            Some(broken) => broken,
            None => {
                lines.push("the outside leaves it alone".to_owned());
                let end = self.left_alone(&state, Some(&mut lines));
                end.err().unwrap_or_else(|| rule.to_owned())
            }
        };
        Counterexample { rule: broken, lines }
    }
}

fn digest(state: &State) -> u64 {
    let mut hasher = Digest::default();
    state.hash(&mut hasher);
    hasher.finish()
}

impl stateright::Model for Model {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        act::events(&self.scenario, &self.names, state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.after(state, action, &mut None)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(RULES, |model: &Model, state: &State| state.broken.is_none() || model.told_before()),
            Property::always(ENDS, |model: &Model, state: &State| model.ends_well(state) || model.told_before()),
        ]
    }
}
