//! Brings a state into one form: what can have no effect any more is dropped, what has no order is ordered.
//!
//! Called by [`explore`](super::explore) after every step. Each rule here must be sound: two states that become one
//! must have the same futures.

use tailwind_protocol::backup::Request;
use tailwind_protocol::ids::Epoch;

use super::part::Part;
use super::scenario::{Scenario, Wrong};
use super::state::{Ask, Call, HOSTS, Lane, Lead, Message, SIDES, State, Then, WriteState};

pub(super) fn tidy(scenario: &Scenario, state: &mut State) {
    tidy_messages(scenario, state);
    tidy_calls(scenario, state);
    for side in 0..SIDES {
        (0..HOSTS).for_each(|host| tidy_writes(state, side, host));
    }
}

/// True while somebody waits for the answer.
fn is_awaited(state: &State, message: &Message) -> bool {
    let Some((side, life)) = message.from else { return false };
    let side = &state.sides[side];
    let seated = match &message.then {
        Then::Seat(output) => {
            let connected = |lead: &Lead| output.seat().is_some_and(|seat| lead.channels.contains_key(&seat));
            side.lead().is_some_and(connected)
        }
        _ => true,
    };
    side.life == life && seated
}

fn tidy_messages(scenario: &Scenario, state: &mut State) {
    let messages = std::mem::take(&mut state.messages);
    let mut kept = Vec::with_capacity(messages.len());
    for message in messages {
        if is_awaited(state, &message) {
            kept.push(message);
            continue;
        }
        // Answered already, or a question that changes nothing, or one that is refused for ever: promises only grow.
        let promised = state.hosts[message.to].promised();
        let old = |epoch: Epoch| epoch < promised && scenario.wrong != Wrong::PromiseForgotten;
        let idle = match &message.request {
            Request::Inventory(_) | Request::Damage | Request::Connect(_) | Request::Fetch(_) => true,
            Request::Fence(request) => old(request.caller.epoch),
            Request::Open(request) => old(request.caller.epoch),
            Request::Close(request) => old(request.caller.epoch),
            Request::Drop(request) => old(request.caller.epoch),
            Request::Trim(request) => old(request.caller.epoch),
            Request::Flush(_) | Request::Sync(_) => true,
        };
        if message.answer.is_none() && !idle {
            let message = message.into_inner();
            kept.push(Part::new(Message { from: None, then: Then::Nothing, ..message }));
        }
    }
    kept.sort_by_key(Part::digest);
    state.messages = kept;
}

fn tidy_calls(scenario: &Scenario, state: &mut State) {
    let calls = std::mem::take(&mut state.calls);
    let stamp = state.store.as_ref().map(|config| config.stamp());
    let mut kept = Vec::with_capacity(calls.len());
    for call in calls {
        if call.from.is_some_and(|(side, life)| state.sides[side].life == life) {
            kept.push(call);
            continue;
        }
        // A swap of a content that is gone for good: stamps only grow.
        let hopeless = |expected| expected < stamp && scenario.wrong != Wrong::SwapWithoutCompare;
        if call.reply.is_none() && matches!(&call.ask, Ask::Swap(swap) if !hopeless(swap.expected)) {
            kept.push(Part::new(Call { from: None, ..call.into_inner() }));
        }
    }
    kept.sort_by_key(Part::digest);
    state.calls = kept;
}

/// A write whose key is gone is refused: nobody can tell when. One that has ended and is not awaited is nothing.
fn tidy_writes(state: &mut State, side: usize, host: usize) {
    let (hosts, sides) = (&state.hosts, &state.sides);
    let queue = &mut state.writes[side][host];
    let doomed = |write: &super::state::Write| write.flight == WriteState::Flying && !hosts[host].admits(write.lending);
    if queue.iter().any(doomed) {
        queue.iter_mut().filter(|write| doomed(write)).for_each(|write| write.flight = WriteState::Refused);
    }
    let side = &sides[side];
    let awaited = |write: &super::state::Write| {
        let seated = match &write.lane {
            Lane::Post(seat) => side.lead().is_some_and(|lead| lead.channels.contains_key(seat)),
            Lane::Image(_) => true,
        };
        write.life == side.life && seated && !write.counted
    };
    let idle = |write: &super::state::Write| write.flight != WriteState::Flying && !awaited(write);
    if queue.iter().any(idle) {
        queue.retain(|write| !idle(write));
    }
}
