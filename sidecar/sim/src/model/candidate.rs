//! Carries out what a [`Promotion`] wants and brings it the answers; copies images for candidates and primaries.
//!
//! Called by [`step`](super::step).

use tailwind_protocol::backup::Request;
use tailwind_protocol::config::Time;
use tailwind_protocol::ids::{Epoch, MemberId, Offset};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::primary;
use tailwind_protocol::promotion::{Input, Output, Promotion, Task};
use tailwind_protocol::rpc::{CloseRequest, Failure, FetchRequest, OpenRequest, Purpose, Refusal};

use super::act::SOON;
use super::names::{LOG, PRIMARY, PROMOTION};
use super::state::{Answer, Ask, Image, Lane, Requester, Role, Silence, Then, Write, WriteState};
use super::step::Step;
use super::words;

impl Step<'_> {
    /// A standby becomes a candidate.
    pub(super) fn promote(&mut self, side: usize) {
        let mut out = Vec::new();
        // Different for every promotion of this sidecar and for the two of them; small, so that equal states stay equal.
        let claims = (side as u64) << 32 | u64::from(self.state.sides[side].life) << 16;
        let promotion = Promotion::start(self.names.sidecars[side].clone(), PROMOTION, LOG, claims, &mut out);
        self.become_role(side, Role::Candidate(Box::new(promotion)));
        let name = self.side_name(side).clone();
        self.trace(|| format!("{name} is a candidate"));
        self.execute_promotion(side, out);
    }

    pub(super) fn promotion_input(&mut self, side: usize, input: Input) {
        self.promotion_input_at(side, SOON, input);
    }

    pub(super) fn promotion_input_at(&mut self, side: usize, now: Time, input: Input) {
        let Role::Candidate(machine) = &mut self.state.sides[side].role else { return };
        let mut out = Vec::new();
        machine.step(now, input, &mut out);
        self.execute_promotion(side, out);
    }

    fn execute_promotion(&mut self, side: usize, out: Vec<Output>) {
        for output in out {
            match output {
                Output::ReadConfig => self.call(side, Ask::Read),
                Output::Survey(_) => self.call(side, Ask::Survey),
                Output::Swap(swap) => self.call(side, Ask::Swap(Box::new(swap))),
                Output::Install(ref config, ref member, identity, closure, ref holders) => {
                    if let Some((epoch, task)) = output.task() {
                        self.install(
                            side,
                            config.epoch,
                            &member.id,
                            (identity, closure),
                            holders,
                            Requester::Candidate(epoch, task),
                        );
                    }
                }
                Output::Fence(..) | Output::Trim(..) | Output::Drop(..) | Output::Close(..) => {
                    let Some((member, request)) = output.request(self.names.group.clone()) else { continue };
                    let then = match (&output, output.task()) {
                        (_, Some((epoch, task))) => Then::Repair(epoch, task),
                        (Output::Fence(config, _), None) => Then::Fence(config.epoch, member.id.clone()),
                        _ => continue,
                    };
                    self.send(side, self.host_of(&member.id), request, then);
                }
                Output::Waiting(why) => {
                    let name = self.side_name(side).clone();
                    self.trace(|| format!("{name} waits: {why}"));
                }
                Output::Won(config, reference) => self.begin_epoch(side, config, &reference),
                Output::Lost(epoch) => {
                    let name = self.side_name(side).clone();
                    self.trace(|| format!("{name} gives up: epoch {epoch} is claimed by another"));
                    self.become_role(side, Role::Standby);
                }
                Output::OtherKind(_) => unreachable!("there are logs only"),
            }
        }
    }

    pub(super) fn on_fence_answer(
        &mut self,
        side: usize,
        epoch: Epoch,
        member: MemberId,
        answer: Result<Answer, Silence>,
    ) {
        let result = match answer {
            Ok(Answer::Inventory(inventory)) => {
                let name = self.side_name(side).clone();
                self.trace(|| format!("{name} has fenced {member}: {}", words::inventory(&inventory)));
                Ok(inventory)
            }
            other => Err(failure(other)),
        };
        self.promotion_input(side, Input::Fenced(epoch, member, result));
    }

    pub(super) fn on_repair_answer(&mut self, side: usize, epoch: Epoch, task: Task, answer: Result<Answer, Silence>) {
        let result = match answer {
            Ok(Answer::Done) => Ok(()),
            other => Err(failure(other)),
        };
        let (name, good) = (self.side_name(side).clone(), result.is_ok());
        self.trace(|| format!("{name} learns that {task:?} {}", if good { "is done" } else { "has failed" }));
        self.promotion_input(side, Input::Repaired(epoch, task, result));
    }

    // Images: fetch, lend, write, close.

    pub(super) fn install(
        &mut self,
        side: usize,
        epoch: Epoch,
        target: &MemberId,
        (identity, closure): (SegmentIdentity, Closure),
        holders: &[MemberId],
        whom: Requester,
    ) {
        let target = self.host_of(target);
        let sources = holders.iter().map(|holder| self.host_of(holder)).filter(|source| *source != target).collect();
        self.fetch(side, Image { identity, closure, epoch, target, sources, bytes: Vec::new(), whom });
    }

    /// Asks the next source; without one the copy has failed.
    fn fetch(&mut self, side: usize, mut image: Image) {
        if image.sources.is_empty() {
            return self.image_failed(side, image, Failure::Unreachable("nobody can give it".to_owned()));
        }
        let source = image.sources.remove(0);
        let group = self.names.group.clone();
        let fetch = FetchRequest { group, identity: image.identity, closure: image.closure, check: true, range: None };
        self.send(side, source, Request::Fetch(fetch), Then::Fetched(Box::new(image)));
    }

    pub(super) fn on_fetched(&mut self, side: usize, mut image: Image, answer: Result<Answer, Silence>) {
        let Ok(Answer::Bytes(bytes)) = answer else { return self.fetch(side, image) };
        image.bytes = bytes;
        let open = OpenRequest {
            caller: self.caller(image.identity.log, image.epoch),
            identity: image.identity,
            purpose: Purpose::Install,
            durability: PRIMARY.durability,
        };
        self.send(side, image.target, Request::Open(open), Then::Granted(Box::new(image)));
    }

    /// The image goes through the fabric like any write.
    pub(super) fn on_granted(&mut self, side: usize, image: Image, answer: Result<Answer, Silence>) {
        let Ok(Answer::Granted(slot, key, process)) = answer else {
            return self.image_failed(side, image, failure(answer));
        };
        let (to, segment, bytes) = (image.target, image.identity.segment, image.bytes.clone());
        let write = Write {
            life: self.state.sides[side].life,
            lane: Lane::Image(Box::new(image)),
            lending: (process, slot, key),
            segment,
            from: Offset(0),
            bytes,
            flight: WriteState::Flying,
            counted: false,
        };
        self.state.writes[side][to].push_back(write);
    }

    pub(super) fn on_image_written(&mut self, side: usize, image: Image, landed: bool) {
        if !landed {
            return self.image_failed(side, image, Failure::Unreachable("the write failed".to_owned()));
        }
        let caller = self.caller(image.identity.log, image.epoch);
        let close = CloseRequest { caller, identity: image.identity, closure: image.closure };
        self.send(side, image.target, Request::Close(close), Then::Sealed(Box::new(image)));
    }

    pub(super) fn on_sealed(&mut self, side: usize, image: Image, answer: Result<Answer, Silence>) {
        match answer {
            Ok(Answer::Done) => self.image_done(side, image),
            // The bytes were bad at their source: another one may have good ones.
            Ok(Answer::Refused(Refusal::Corrupt { .. })) => self.fetch(side, image),
            other => self.image_failed(side, image, failure(other)),
        }
    }

    fn image_done(&mut self, side: usize, image: Image) {
        let name = self.side_name(side).clone();
        let (segment, target) = (image.identity.segment, self.names.members[image.target].clone());
        self.trace(|| format!("{name} has copied segment {segment} to {target}: {}", words::closure(&image.closure)));
        match image.whom {
            Requester::Candidate(epoch, task) => self.promotion_input(side, Input::Repaired(epoch, task, Ok(()))),
            Requester::Primary(output) => {
                if let Some(done) = output.done(Offset(0)) {
                    self.primary_input(side, done);
                }
            }
        }
    }

    fn image_failed(&mut self, side: usize, image: Image, failure: Failure) {
        match (image.whom, failure) {
            (Requester::Candidate(epoch, task), failure) => {
                self.promotion_input(side, Input::Repaired(epoch, task, Err(failure)));
            }
            (Requester::Primary(output), failure) => match output.failed(&failure) {
                Some(primary::Input::Lost(seat)) => self.lose_seat(side, seat, "it could not be given a segment"),
                Some(input) => self.primary_input(side, input),
                None => {}
            },
        }
    }
}

/// What a candidate makes of anything but success.
pub(super) fn failure(answer: Result<Answer, Silence>) -> Failure {
    match answer {
        Ok(Answer::Refused(refusal)) => refusal.into(),
        Ok(other) => unreachable!("{other:?} is no answer to this"),
        Err(Silence::Lost) => Failure::Unreachable("no answer in time".to_owned()),
        Err(Silence::Gone) => Failure::Unreachable("no connection".to_owned()),
    }
}
