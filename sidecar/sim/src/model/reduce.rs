//! Orders that need not be explored: which events may be taken alone, and which may wait until nothing else is left.
//!
//! Called by [`act`](super::act). Both rules rest on the same fact: below the bound of epochs a fenced epoch can only
//! find out that it is over, and above everybody else's the last epoch is disturbed by nobody but the outside.
//!
//! **Alone.** Once no fault is left to happen, what the last epoch does after its fences (repairs, buffers, its own
//! writes) commutes with everything: older epochs are refused wherever it has been, and nobody will ever recover what it
//! writes. One order stands for all. Fences, recruits and changes of the set are not part of this: their order against
//! the writes of an older epoch is what the model is about.
//!
//! **Last.** An event whose only consequence is that an outrun sidecar learns of it takes away from what that sidecar
//! may still do and adds nothing. Whatever can happen after it can happen before it, so it waits.

use tailwind_protocol::backup::Request;
use tailwind_protocol::config::{Configuration, SwapOutcome};
use tailwind_protocol::ids::Epoch;

use super::act::Action;
use super::follow::Follow;
use super::scenario::{Budget, Scenario};
use super::state::{Ask, Message, Role, State, StoreReply, Then, WriteState};

/// The one event to take alone, if there is one among these.
pub(super) fn alone(scenario: &Scenario, state: &State, events: &[Action]) -> Option<Action> {
    // A follower may look between any two of them.
    let calm = Budget { appends: 0, tears: 0, ..state.left } == Budget::default()
        && state.follow.as_ref().is_none_or(Follow::is_idle);
    let up = state.hosts.iter().all(|host| host.is_up());
    let noticed = events.iter().any(|event| matches!(event, Action::Notice(..)));
    if !calm || !up || noticed {
        return None;
    }
    let last = Epoch(scenario.epoch_max);
    let leads = |side: usize| state.sides[side].lead().is_some_and(|lead| lead.epoch == last);
    let is_alone = |event: &Action| match *event {
        Action::Deliver(at) | Action::Answer(at) => {
            let message = &state.messages[at];
            let steady = !matches!(message.then, Then::Fence(..) | Then::Recruit(_) | Then::Nothing);
            steady && epoch(message) == Some(last)
        }
        Action::Land(side, ..) | Action::Complete(side, ..) => leads(side),
        _ => false,
    };
    events.iter().copied().find(is_alone)
}

/// True for an event that may wait until nothing else happens by itself.
pub(super) fn is_last(scenario: &Scenario, state: &State, event: &Action) -> bool {
    let last = Epoch(scenario.epoch_max);
    let claimed = state.store.as_ref().is_some_and(|config: &Configuration| config.epoch == last);
    let outrun = |side: usize| match &state.sides[side].role {
        Role::Primary(lead) => lead.epoch < last,
        _ => false,
    };
    claimed
        && match *event {
            Action::Deliver(at) | Action::Answer(at) => {
                let message = &state.messages[at];
                let awaited = message.from.is_some_and(|(side, _)| outrun(side));
                let refused =
                    state.hosts[message.to].promised() == last && epoch(message).is_some_and(|epoch| epoch < last);
                awaited && refused && !matches!(message.answer, Some(Ok(ref answer)) if !super::act::is_refusal(answer))
            }
            Action::CarryOut(at) | Action::Reply(at) => {
                let call = &state.calls[at];
                let swap = matches!(call.ask, Ask::Swap(_));
                let open = matches!(call.reply, None | Some(StoreReply::Swapped(SwapOutcome::Conflict(_))));
                swap && open && call.from.is_some_and(|(side, _)| outrun(side))
            }
            Action::Complete(side, host, at) => {
                outrun(side) && state.writes[side][host][at].flight == WriteState::Refused
            }
            Action::Notice(side, _) => outrun(side),
            _ => false,
        }
}

/// The epoch under which a request is made; a fetch is made for the epoch that copies.
fn epoch(message: &Message) -> Option<Epoch> {
    if let Then::Fetched(image) = &message.then {
        return Some(image.epoch);
    }
    match &message.request {
        Request::Fence(request) => Some(request.caller.epoch),
        Request::Connect(caller) => Some(caller.epoch),
        Request::Open(request) => Some(request.caller.epoch),
        Request::Close(request) => Some(request.caller.epoch),
        Request::Flush(request) => Some(request.caller.epoch),
        Request::Sync(request) => Some(request.caller.epoch),
        Request::Trim(request) => Some(request.caller.epoch),
        Request::Drop(request) => Some(request.caller.epoch),
        Request::Inventory(_) | Request::Damage | Request::Fetch(_) => None,
    }
}
