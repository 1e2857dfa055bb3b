//! Maps an [`Output`] to the request that a member receives, and its result to an [`Input`].
//!
//! Called by the code that executes outputs.

use crate::backup::Request;
use crate::config::Durability;
use crate::ids::{Offset, Position};
use crate::rpc::{
    Caller, CloseRequest, DropRequest, Failure, FlushRequest, OpenRequest, Purpose, SyncRequest, TrimRequest,
};

use super::{Input, Output, Seat};

impl Output {
    /// The seat concerned, if any.
    pub fn seat(&self) -> Option<Seat> {
        match self {
            Output::Connect(seat, _)
            | Output::Open(seat, _)
            | Output::Close(seat, ..)
            | Output::Install(seat, ..)
            | Output::Repair(seat, ..)
            | Output::Drop(seat, _)
            | Output::Flush(seat, ..)
            | Output::Sync(seat, _)
            | Output::Trim(seat, _)
            | Output::Disconnect(seat) => Some(*seat),
            Output::Prepare(_)
            | Output::Forget(..)
            | Output::Swap(_)
            | Output::Survey
            | Output::Fence(_)
            | Output::ReadConfig
            | Output::StepDown(_) => None,
        }
    }

    /// The request to the member, if the output is carried out by one request.
    pub fn request(&self, caller: Caller, durability: Durability) -> Option<Request> {
        Some(match *self {
            Output::Connect(..) => Request::Connect(caller),
            Output::Open(_, identity) => {
                Request::Open(OpenRequest { caller, identity, purpose: Purpose::Append, durability })
            }
            Output::Close(_, identity, closure) => Request::Close(CloseRequest { caller, identity, closure }),
            Output::Drop(_, ref copies) => Request::Drop(DropRequest { caller, copies: copies.clone() }),
            Output::Flush(_, identity, end) => Request::Flush(FlushRequest { caller, identity, end }),
            Output::Sync(_, point) => Request::Sync(SyncRequest { caller, point }),
            Output::Trim(_, below) => Request::Trim(TrimRequest { caller, below }),
            _ => return None,
        })
    }

    /// The input that reports success. `flushed` is how far a flush came.
    pub fn done(&self, flushed: Offset) -> Option<Input> {
        Some(match self {
            Output::Connect(seat, _) => Input::Connected(*seat),
            Output::Prepare(identity) => Input::Prepared(identity.segment),
            Output::Open(seat, identity) => Input::Opened(*seat, identity.segment),
            Output::Close(seat, identity, _) => Input::Closed(*seat, identity.segment),
            Output::Install(seat, identity, ..) => Input::Installed(*seat, identity.segment),
            Output::Repair(seat, identity, ..) => Input::Repaired(*seat, identity.segment),
            Output::Sync(seat, point) => Input::Synced(*seat, point.last),
            Output::Drop(seat, _) | Output::Trim(seat, _) => Input::Tidied(*seat),
            // Only what was requested is known to have completed, so the answer counts up to there.
            Output::Flush(seat, identity, end) => {
                Input::Flushed(*seat, Position::new(identity.segment, flushed.min(*end)))
            }
            _ => return None,
        })
    }

    /// The input that reports a failure. A member that has promised this epoch to another claim is lost too: only a
    /// promotion can resolve that.
    pub fn failed(&self, failure: &Failure) -> Option<Input> {
        match (self, failure) {
            (output, Failure::Superseded(epoch)) => output.seat().map(|seat| Input::Refused(seat, *epoch)),
            (Output::Repair(seat, identity, ..), _) => Some(Input::RepairFailed(*seat, identity.segment)),
            (Output::Install(seat, identity, ..), Failure::Unreachable(_)) => {
                Some(Input::InstallFailed(*seat, identity.segment))
            }
            (output, _) => output.seat().map(Input::Lost),
        }
    }
}
