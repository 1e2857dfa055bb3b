//! Pull: a backup copies a closed segment by itself from another backup, on behalf of the primary.
//!
//! A pull is an open, a copy and a close, all under the caller's epoch: the backup's own machine lends the buffer as for an
//! image of the primary, and closes it the same way, so what is refused there is refused here, and only bytes that match the
//! closure ever count. What is left to decide is where the bytes come from. Carried out by the backup daemon (and by the
//! simulator). See "Pull" in `docs/protocol.md`.

use crate::ids::SegmentId;
use crate::rpc::{CloseRequest, OpenRequest, PullRequest, PullSource, Purpose, Refusal};

/// How long a caller waits for a pull before it copies the segment itself, in milliseconds. A newcomer is given up after twice
/// [`open_timeout_ms`](crate::primary::Rules::open_timeout_ms) without progress, so a pull that fails leaves time for that copy.
pub const fn patience_ms(open_timeout_ms: u64) -> u64 {
    open_timeout_ms * 3 / 2
}

/// How the bytes of a source are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// One-sidedly, out of its memory.
    Memory,
    /// By `/v1/fetch`, as they are.
    Fetch,
    /// By `/v1/fetch`, and the source looks at them first: it learns that its copy is corrupt, if it is.
    CheckedFetch,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Have the own machine lend a buffer; answer with [`Input::Opened`].
    Open(OpenRequest),
    /// Copy the segment from this source into the buffer; answer with [`Input::Copied`].
    Copy(PullSource, Way),
    /// Have the own machine close it; answer with [`Input::Closed`].
    Close(CloseRequest),
    /// Answer the caller.
    End(Result<(), Refusal>),
}

/// The refusal for a buffer that a pull may not fill, or has not filled alone: what is in it counts for nothing.
pub fn filled_by_others(segment: SegmentId) -> Refusal {
    Refusal::NoSuchCopy { segment, why: "the caller, or a later pull, fills its buffer".to_owned() }
}

/// Why nothing was copied, in words for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The source does not answer, and another way to it costs the same time again.
    #[error("{0}")]
    Silent(String),
    /// It cannot be copied in this way.
    #[error("{0}")]
    Failed(String),
}

/// The results of the outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The result of [`Output::Open`].
    Opened(Result<(), Refusal>),
    /// The result of [`Output::Copy`].
    Copied(Result<(), CopyError>),
    /// The result of [`Output::Close`].
    Closed(Result<(), Refusal>),
}

/// A pull under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pull {
    request: PullRequest,
    /// Index of the source that is tried.
    source: usize,
    way: Way,
    /// The results of the earlier ones, for people.
    answers: Vec<String>,
}

impl Pull {
    /// Begins a pull that the backup's machine has admitted. `is_here`: the segment is closed here already.
    pub fn start(request: PullRequest, is_here: bool) -> (Pull, Output) {
        let mut pull = Pull { request, source: 0, way: Way::Memory, answers: Vec::new() };
        // Its close may not have been answered, and is answered once it is safe.
        let first = if is_here { Output::Close(pull.close()) } else { pull.open() };
        (pull, first)
    }

    /// Takes what came of the last output, and says what is next.
    pub fn step(&mut self, input: Input) -> Output {
        match input {
            Input::Opened(Ok(())) => Output::Copy(self.request.sources[self.source].clone(), self.way),
            Input::Copied(Ok(())) => Output::Close(self.close()),
            Input::Closed(Ok(())) => Output::End(Ok(())),
            Input::Copied(Err(error)) => self.on_failed(error),
            Input::Closed(Err(Refusal::Corrupt { .. })) => self.on_corrupt(),
            Input::Opened(Err(refusal)) | Input::Closed(Err(refusal)) => Output::End(Err(refusal)),
        }
    }

    fn on_failed(&mut self, error: CopyError) -> Output {
        match (self.way, error) {
            // On disk there, or not to be read: its processor has it.
            (Way::Memory, CopyError::Failed(_)) => self.try_way(Way::Fetch),
            (_, CopyError::Silent(why) | CopyError::Failed(why)) => self.try_next(why),
        }
    }

    /// The bytes may have moved while they were read. The source looks too, so that it knows if its copy is corrupt.
    fn on_corrupt(&mut self) -> Output {
        match self.way {
            Way::Memory | Way::Fetch => self.try_way(Way::CheckedFetch),
            Way::CheckedFetch => self.try_next("what it sent is not the segment".to_owned()),
        }
    }

    fn try_way(&mut self, way: Way) -> Output {
        self.way = way;
        self.open()
    }

    fn try_next(&mut self, why: String) -> Output {
        let source = &self.request.sources[self.source].member;
        self.answers.push(format!("{source}: {why}"));
        self.source += 1;
        self.try_way(Way::Memory)
    }

    /// A buffer, for the first time or again: an image that did not match has given up its own.
    fn open(&mut self) -> Output {
        let PullRequest { ref caller, identity, durability, .. } = self.request;
        if self.source >= self.request.sources.len() {
            let answers = self.answers.join("; ");
            let why = format!("none of the {} backups named could give it; {answers}", self.request.sources.len());
            return Output::End(Err(Refusal::NoSuchCopy { segment: identity.segment, why }));
        }
        Output::Open(OpenRequest { caller: caller.clone(), identity, purpose: Purpose::Install, durability })
    }

    fn close(&self) -> CloseRequest {
        let PullRequest { ref caller, identity, closure, .. } = self.request;
        CloseRequest { caller: caller.clone(), identity, closure }
    }
}
