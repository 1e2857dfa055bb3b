//! Copying a closed segment from one backup to another: fetch, lend, write, close.

use tailwind_protocol::backup::Request;
use tailwind_protocol::ids::{MemberId, Offset, SegmentId, SidecarId};
use tailwind_protocol::primary::Output;
use tailwind_protocol::promotion;
use tailwind_protocol::rpc::{CloseRequest, Failure, FetchRequest, OpenRequest, Purpose, Refusal};

use super::host::Answer;
use super::network::{Image, Message, Silence, Then, Whom};
use super::{World, tale};

impl World {
    /// Asks the next source; without one the copy has failed.
    pub(crate) fn fetch_image(&mut self, by: &SidecarId, mut image: Image) {
        if image.sources.is_empty() {
            return self.image_failed(by, image, Failure::Unreachable("nobody can give it".to_owned()));
        }
        let source = image.sources.remove(0);
        let fetch = FetchRequest { group: self.group(), identity: image.identity, closure: image.closure };
        self.send(by, &source, Request::Fetch(fetch), Then::Fetched(image));
    }

    pub(crate) fn on_image_answer(&mut self, message: Message, answer: Result<Answer, Silence>) {
        let by = message.from;
        match (message.then, answer) {
            (Then::Fetched(mut image), Ok(Answer::Bytes(bytes))) => {
                image.bytes = bytes;
                self.tell_outsider(&message.to, image.identity.segment);
                let open = OpenRequest {
                    caller: self.caller(image.identity.log, image.epoch),
                    identity: image.identity,
                    purpose: Purpose::Install,
                    durability: self.options.durability,
                };
                let target = image.target.clone();
                self.send(&by, &target, Request::Open(open), Then::Granted(image));
            }
            (Then::Fetched(image), _) => self.fetch_image(&by, image),
            (Then::Granted(image), Ok(Answer::Granted(slot, key))) => {
                let landed = self.host_mut(&image.target).land(slot, key, 0, &image.bytes);
                if !landed {
                    return self.image_failed(&by, image, Failure::Unreachable("the write failed".to_owned()));
                }
                let close = CloseRequest {
                    caller: self.caller(image.identity.log, image.epoch),
                    identity: image.identity,
                    closure: image.closure,
                };
                let target = image.target.clone();
                self.send(&by, &target, Request::Close(close), Then::Sealed(image));
            }
            (Then::Sealed(image), Ok(Answer::Done)) => {
                let what = format!("segment {}, {}", image.identity.segment, tale::records(&image.closure));
                self.tell(format!("{by} copies {what} to {}", image.target));
                match image.whom {
                    Whom::Candidate(epoch, task) => {
                        self.promotion_input(&by, promotion::Input::Repaired(epoch, task, Ok(())));
                    }
                    Whom::Primary(output) => {
                        if let Some(done) = output.done(Offset(0)) {
                            self.primary_input(&by, done);
                        }
                    }
                }
            }
            // The bytes were bad at their source: another one may have good ones.
            (Then::Sealed(image), Ok(Answer::Refused(Refusal::Corrupt { .. }))) => self.fetch_image(&by, image),
            (Then::Granted(image) | Then::Sealed(image), answer) => {
                let failure = super::candidate::failure(answer);
                self.image_failed(&by, image, failure);
            }
            _ => unreachable!("only images come here"),
        }
    }

    /// A backup outside the set has given a segment.
    pub(crate) fn tell_outsider(&mut self, giver: &MemberId, segment: SegmentId) {
        if self.store.content.as_ref().is_some_and(|config| config.member(giver).is_none()) {
            self.tell(format!("{giver}, outside the set, gives segment {segment}"));
        }
    }

    fn image_failed(&mut self, by: &SidecarId, image: Image, failure: Failure) {
        match image.whom {
            Whom::Candidate(epoch, task) => {
                self.promotion_input(by, promotion::Input::Repaired(epoch, task, Err(failure)));
            }
            Whom::Primary(output) => {
                if matches!((&*output, &failure), (Output::Repair(..), Failure::Unreachable(_))) {
                    self.tell(format!("{by} cannot mend segment {} at {}", image.identity.segment, image.target));
                }
                self.seat_failed(by, &output, &failure, "it could not be given a segment");
            }
        }
    }
}
