//! What takes long for a caller: how much of it is under way at a time for each kind of caller, and for how long.
//!
//! Used by [`routes`](super::routes). Each kind has places of its own, so that none of them can keep another from its
//! answers, however slowly it takes its own.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tailwind_backup::Unchecked;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout_at};

use super::memory::PoolBuffers;
use crate::thread::result;
use crate::tls::PeerRole;

/// Segments being sent to sidecars at a time: 4 × 64 MiB of memory at most, when they are checked first.
const FETCHES_MAX: usize = 4;
/// The same for other backups, with two of [`PIECE`] of memory each. Each of them copies three segments at a time.
const BACKUP_FETCHES_MAX: usize = 4;
/// The same for readers.
const READER_FETCHES_MAX: usize = 4;
/// Read channels being connected at a time, for readers and, as many, for all others: each may wait a second for its
/// reader's address.
const CONNECTING_MAX: usize = 4;
/// Writers' channels being connected at a time, of those that the promised epoch has asked for. A primary has two, and makes them
/// again after a failure. Each may wait a second for its writer's address.
const WRITERS_CONNECTING_MAX: usize = 8;
/// Pages of the inventory being made for readers and sent to them at a time: 2 × 16 MiB of memory at most.
const READER_INVENTORIES_MAX: usize = 2;
/// Bytes handed to the connection at a time.
const PIECE: usize = 256 << 10;
/// Longest that an answer is being sent: 64 MiB at about 1 MiB a second. Callers that take so long have given up before.
const SEND_TIME_MAX: Duration = Duration::from_secs(60);

/// The places of all kinds of callers.
#[derive(Clone, Debug)]
pub(super) struct Places {
    sidecars: Arc<Semaphore>,
    backups: Arc<Semaphore>,
    readers: Arc<Semaphore>,
    reader_inventories: Arc<Semaphore>,
    connecting: Arc<Semaphore>,
    reader_connecting: Arc<Semaphore>,
    writers_connecting: Arc<Semaphore>,
}

/// A place that is taken. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct TakenPlace(#[allow(dead_code, reason = "held")] OwnedSemaphorePermit);

impl Places {
    pub(super) fn new() -> Places {
        let places = |max| Arc::new(Semaphore::new(max));
        Places {
            sidecars: places(FETCHES_MAX),
            backups: places(BACKUP_FETCHES_MAX),
            readers: places(READER_FETCHES_MAX),
            reader_inventories: places(READER_INVENTORIES_MAX),
            connecting: places(CONNECTING_MAX),
            reader_connecting: places(CONNECTING_MAX),
            writers_connecting: places(WRITERS_CONNECTING_MAX),
        }
    }

    /// A place for a segment that is sent to this caller. Without roles every caller counts as a sidecar.
    pub(super) async fn fetch(&self, caller: Option<PeerRole>) -> TakenPlace {
        match caller {
            Some(PeerRole::Reader) => take(&self.readers).await,
            Some(PeerRole::Backup) => take(&self.backups).await,
            Some(PeerRole::Sidecar) | None => take(&self.sidecars).await,
        }
    }

    /// A place for a segment that is checked for another backup: one of the sidecars', as it takes as much memory, and no
    /// longer than the check.
    pub(super) async fn check(&self) -> TakenPlace {
        take(&self.sidecars).await
    }

    /// A place for a read channel that is being connected.
    pub(super) async fn read_channel(&self, caller: Option<PeerRole>) -> TakenPlace {
        match caller {
            Some(PeerRole::Reader) => take(&self.reader_connecting).await,
            Some(PeerRole::Backup | PeerRole::Sidecar) | None => take(&self.connecting).await,
        }
    }

    /// A place for a writer's channel that is being connected.
    pub(super) async fn channel(&self) -> TakenPlace {
        take(&self.writers_connecting).await
    }

    /// A place for a page of the inventory; sidecars need none.
    pub(super) async fn inventory(&self, caller: Option<PeerRole>) -> Option<TakenPlace> {
        match caller {
            Some(PeerRole::Reader | PeerRole::Backup) => Some(take(&self.reader_inventories).await),
            Some(PeerRole::Sidecar) | None => None,
        }
    }
}

async fn take(places: &Arc<Semaphore>) -> TakenPlace {
    let Ok(place) = Arc::clone(places).acquire_owned().await else { unreachable!("the semaphore is never closed") };
    TakenPlace(place)
}

/// What is sent.
pub(super) enum Content {
    /// These bytes.
    Bytes(Bytes),
    /// A segment, read piece by piece.
    Unchecked(Arc<(Unchecked, PoolBuffers)>),
}

impl Content {
    pub(super) fn unchecked(copy: Unchecked, buffers: PoolBuffers) -> Content {
        Content::Unchecked(Arc::new((copy, buffers)))
    }

    fn len(&self) -> usize {
        match self {
            Content::Bytes(bytes) => bytes.len(),
            Content::Unchecked(copy) => copy.0.len() as usize,
        }
    }

    async fn piece(&self, at: usize, size: usize) -> io::Result<Bytes> {
        match self {
            Content::Bytes(bytes) => Ok(bytes.slice(at..at + size)),
            Content::Unchecked(copy) => {
                let copy = Arc::clone(copy);
                let read = move || {
                    let mut piece = vec![0; size];
                    copy.0.read(&copy.1, at as u32, &mut piece).map(|()| piece.into())
                };
                blocking(read).await
            }
        }
    }

    /// The bytes in pieces. The place is held until the last one is handed over, the caller is gone, or its time is up:
    /// then what is left is given up, and the response breaks off.
    pub(super) fn send(self, content_type: &'static str, place: TakenPlace) -> Response {
        let length = self.len();
        let (pieces, taken) = mpsc::channel(1);
        let deadline = Instant::now() + SEND_TIME_MAX;
        // Nobody needs to own it: it ends with the response or at its deadline, whichever is first.
        tokio::spawn(async move {
            let _place = place;
            // An error of the send, or its time being up: the caller has had enough.
            let _ = timeout_at(deadline, self.hand_over(pieces)).await;
        });
        let pieces = stream::unfold(taken, |mut taken: mpsc::Receiver<io::Result<Bytes>>| async move {
            taken.recv().await.map(|piece| (piece, taken))
        });
        let headers = [(header::CONTENT_TYPE, content_type.to_owned()), (header::CONTENT_LENGTH, length.to_string())];
        (headers, Body::from_stream(pieces)).into_response()
    }

    async fn hand_over(self, pieces: mpsc::Sender<io::Result<Bytes>>) {
        for at in (0..self.len()).step_by(PIECE) {
            let piece = self.piece(at, PIECE.min(self.len() - at)).await;
            // An error breaks the response off.
            let failed = piece.is_err();
            if pieces.send(piece).await.is_err() || failed {
                return;
            }
        }
        // The last one is with the connection.
        let _ = pieces.reserve().await;
    }
}

/// Runs the job on a thread that may wait for a disk.
pub(super) async fn blocking<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    result(tokio::task::spawn_blocking(job).await).await
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    const ROLES: [PeerRole; 3] = [PeerRole::Sidecar, PeerRole::Backup, PeerRole::Reader];

    /// Several pieces.
    fn long() -> Bytes {
        (0..5 * PIECE / 2).map(|at| (at / 1000) as u8).collect::<Vec<u8>>().into()
    }

    fn free(places: &Places) -> [usize; 3] {
        [&places.sidecars, &places.backups, &places.readers].map(|places| places.available_permits())
    }

    #[tokio::test]
    async fn no_kind_of_caller_takes_places_of_another() {
        for greedy in ROLES {
            let places = Places::new();
            let mut taken = Vec::new();
            for _ in 0..4 {
                taken.push(places.fetch(Some(greedy)).await);
            }
            let left = ROLES.map(|role| if role == greedy { 0 } else { 4 });
            assert_eq!(free(&places), left, "{greedy}");
            taken.clear();
            assert_eq!(free(&places), [4, 4, 4]);
        }
        let places = Places::new();
        let _taken = [places.inventory(Some(PeerRole::Reader)).await, places.inventory(Some(PeerRole::Reader)).await];
        assert_eq!((places.reader_inventories.available_permits(), free(&places)), (0, [4, 4, 4]));
        assert!(places.inventory(Some(PeerRole::Sidecar)).await.is_none(), "nor does it wait");
    }

    #[tokio::test]
    async fn a_place_is_held_until_all_is_taken() {
        let places = Places::new();
        let sent = Content::Bytes(long()).send("text/plain", places.fetch(Some(PeerRole::Backup)).await);
        let mut body = sent.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first, long().slice(..PIECE));
        assert_eq!(free(&places), [4, 3, 4]);
        let rest = body.collect().await.unwrap().to_bytes();
        assert_eq!(rest, long().slice(PIECE..));
        while free(&places) != [4, 4, 4] {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_takes_nothing_loses_its_place() {
        let places = Places::new();
        let sent = Content::Bytes(long()).send("text/plain", places.fetch(Some(PeerRole::Backup)).await);
        tokio::time::sleep(SEND_TIME_MAX - Duration::from_millis(1)).await;
        assert_eq!(free(&places), [4, 3, 4]);
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert_eq!(free(&places), [4, 4, 4]);
        let mut body = sent.into_body();
        let mut taken = 0;
        while let Some(frame) = body.frame().await {
            taken += frame.unwrap().into_data().unwrap().len();
        }
        assert!(taken < long().len(), "what is left is given up");
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_gives_its_place_back() {
        let places = Places::new();
        drop(Content::Bytes(long()).send("text/plain", places.fetch(Some(PeerRole::Reader)).await));
        while free(&places) != [4, 4, 4] {
            tokio::task::yield_now().await;
        }
    }
}
