//! Who is inside an endpoint, and who must go when it is full: strangers never take the places of those who have shown who
//! they are, and of either kind the one that has been silent for longest goes first.
//!
//! Kept by [`serve`](super::serve): every connection that is accepted enters at once, so that nobody has to wait outside.
//! One lock around two small tables; nothing is awaited under it. The data port's [`door`](tailwind_fabric::tcp) does the
//! same for records.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{RecvFlags, recv};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// How many may be inside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Those that have not shown who they are. An endpoint that everybody may use has no others.
    pub(super) strangers: usize,
    /// Of these, from one address: half, so that no single one fills the endpoint.
    pub(super) strangers_per_source: usize,
    /// Those that have.
    pub(super) guests: usize,
}

/// Everybody inside.
#[derive(Debug)]
pub(super) struct Hall {
    bounds: Bounds,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By the order of their coming.
    visits: BTreeMap<u64, Visit>,
    /// Counts every change: who has the smaller number has been quiet for longer.
    clock: u64,
}

#[derive(Debug)]
struct Visit {
    source: IpAddr,
    is_guest: bool,
    doing: Doing,
    quiet_since: u64,
    /// There while it is silent.
    stream: Option<Arc<TcpStream>>,
    /// Dropped to send it away.
    _stay: oneshot::Sender<()>,
}

/// What a connection does. Of a crowd, who does the least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Doing {
    /// Not one byte has been seen from it.
    Silent,
    /// It has been answered, and may say more: a caller without TLS does so once it has the server's proof.
    Rests,
    /// It speaks, or waits for an answer.
    Works,
}

/// One connection's place. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    hall: Arc<Hall>,
    id: u64,
    /// The address that the connection has reached.
    pub(super) local: SocketAddr,
}

impl Hall {
    pub(super) fn new(bounds: Bounds) -> Arc<Hall> {
        Arc::new(Hall { bounds, state: Mutex::default() })
    }

    /// Takes a stranger in. The receiver ends when it must go.
    pub(super) fn enter(
        self: &Arc<Hall>,
        stream: &Arc<TcpStream>,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> (Place, oneshot::Receiver<()>) {
        let (stay, leave) = oneshot::channel();
        let source = source(peer.ip());
        let mut state = self.lock();
        state.make_room(false, self.bounds.strangers, self.bounds.strangers_per_source, source);
        let quiet_since = state.tick();
        let stream = Some(Arc::clone(stream));
        let visit = Visit { source, is_guest: false, doing: Doing::Silent, quiet_since, stream, _stay: stay };
        state.visits.insert(quiet_since, visit);
        (Place { hall: Arc::clone(self), id: quiet_since, local }, leave)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Sends one away if there is no place for one more from `source`.
    fn make_room(&mut self, guests: bool, max: usize, max_per_source: usize, source: IpAddr) {
        let mut crowds: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for visit in self.visits.values().filter(|visit| visit.is_guest == guests) {
            *crowds.entry(visit.source).or_default() += 1;
        }
        let crowded = if crowds.get(&source).is_some_and(|count| *count >= max_per_source) {
            source
        } else if crowds.values().sum::<usize>() >= max {
            // Whoever has most pays for those that come.
            let most = crowds.iter().max_by_key(|(_, count)| **count);
            most.map_or(source, |(source, _)| *source)
        } else {
            return;
        };
        let of_crowd = self.visits.iter_mut().filter(|(_, visit)| visit.is_guest == guests && visit.source == crowded);
        let first = of_crowd.min_by_key(|(_, visit)| (visit.doing_by_now(), visit.quiet_since)).map(|(id, _)| *id);
        if let Some(visit) = first.and_then(|id| self.visits.remove(&id)) {
            tracing::debug!(source = %crowded, guests, doing = ?visit.doing, "endpoint is full: closed a pending connection");
        }
    }
}

impl Visit {
    /// One whose first bytes are here and whose task has not had its turn yet is not silent: under a flood of connections
    /// that are, this is what tells a caller from them.
    fn doing_by_now(&self) -> Doing {
        let has_bytes = |stream: &Arc<TcpStream>| {
            let mut byte = [0_u8; 1];
            matches!(recv(&**stream, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((1.., _)))
        };
        if self.stream.as_ref().is_some_and(has_bytes) { Doing::Works } else { self.doing }
    }
}

impl Place {
    /// Its first bytes are here. From now on the stream is the caller's alone.
    pub(super) fn speaks(&self) {
        self.change(|visit| {
            visit.stream = None;
            visit.doing = Doing::Works;
        });
    }

    /// It waits for an answer.
    pub(super) fn works(&self) {
        self.change(|visit| visit.doing = Doing::Works);
    }

    /// It has been answered.
    pub(super) fn rests(&self) {
        self.change(|visit| visit.doing = Doing::Rests);
    }

    /// It has shown who it is.
    pub(super) fn admit(&self) {
        let mut state = self.hall.lock();
        let Some(source) = state.visits.get(&self.id).filter(|visit| !visit.is_guest).map(|visit| visit.source) else {
            return;
        };
        let max = self.hall.bounds.guests;
        state.make_room(true, max, max, source);
        if let Some(visit) = state.visits.get_mut(&self.id) {
            visit.is_guest = true;
        }
    }

    fn change(&self, change: impl FnOnce(&mut Visit)) {
        let mut state = self.hall.lock();
        let now = state.tick();
        if let Some(visit) = state.visits.get_mut(&self.id) {
            change(visit);
            visit.quiet_since = now;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.hall.lock().visits.remove(&self.id);
    }
}

/// Who counts as one: an address, or a network of 64 bits, of which every host has as many addresses as it likes.
fn source(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const BOUNDS: Bounds = Bounds { strangers: 6, strangers_per_source: 3, guests: 4 };

    /// A hall, and streams to enter it with.
    struct Test {
        hall: Arc<Hall>,
        listener: TcpListener,
        others: Vec<TcpStream>,
    }

    type Entered = (Place, oneshot::Receiver<()>, Arc<TcpStream>);

    impl Test {
        async fn new() -> Test {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            Test { hall: Hall::new(BOUNDS), listener, others: Vec::new() }
        }

        async fn enter(&mut self, host: u8) -> Entered {
            let (other, accepted) =
                tokio::join!(TcpStream::connect(self.listener.local_addr().unwrap()), self.listener.accept());
            self.others.push(other.unwrap());
            let (stream, local) = (Arc::new(accepted.unwrap().0), "127.0.0.1:7420".parse().unwrap());
            let (place, leave) = self.hall.enter(&stream, SocketAddr::from(([10, 0, 0, host], 1)), local);
            (place, leave, stream)
        }

        async fn guest(&mut self, host: u8) -> Entered {
            let entered = self.enter(host).await;
            entered.0.speaks();
            entered.0.admit();
            entered.0.rests();
            entered
        }
    }

    fn stays((_, leave, _): &mut Entered) -> bool {
        leave.try_recv() == Err(oneshot::error::TryRecvError::Empty)
    }

    fn who_stays(all: &mut [Entered]) -> Vec<bool> {
        all.iter_mut().map(stays).collect()
    }

    #[tokio::test]
    async fn one_source_pays_for_itself() {
        let mut test = Test::new().await;
        let mut all = vec![test.enter(9).await];
        for _ in 0..5 {
            all.push(test.enter(1).await);
        }
        assert_eq!(who_stays(&mut all), [true, false, false, true, true, true]);
    }

    #[tokio::test]
    async fn the_most_crowded_source_pays_for_newcomers() {
        let mut test = Test::new().await;
        let mut all = Vec::new();
        for host in [1, 2, 2, 3, 3, 3, 4] {
            all.push(test.enter(host).await);
        }
        assert_eq!(who_stays(&mut all), [true, true, true, false, true, true, true]);
    }

    #[tokio::test]
    async fn whoever_has_spoken_outlasts_the_silent() {
        use tokio::io::AsyncWriteExt;
        let mut test = Test::new().await;
        let mut all = vec![test.enter(1).await, test.enter(1).await];
        all[0].0.speaks();
        // It has the server's proof and is about to show the token.
        all[0].0.rests();
        // This one's task has not had its turn yet; its bytes are here.
        test.others[1].write_all(b"x").await.unwrap();
        all[1].2.readable().await.unwrap();
        for _ in 0..5 {
            all.push(test.enter(1).await);
        }
        assert_eq!(who_stays(&mut all), [true, true, false, false, false, false, true]);
    }

    #[tokio::test]
    async fn strangers_never_take_a_guests_place() {
        let mut test = Test::new().await;
        let mut guest = test.guest(1).await;
        let mut strangers = Vec::new();
        for host in [1].repeat(20).into_iter().chain(2..20) {
            strangers.push(test.enter(host).await);
        }
        assert!(stays(&mut guest));
        assert_eq!(who_stays(&mut strangers).iter().filter(|stays| **stays).count(), BOUNDS.strangers);
    }

    #[tokio::test]
    async fn the_guest_that_has_rested_longest_goes_first() {
        let mut test = Test::new().await;
        let mut all = Vec::new();
        for host in [1, 1, 1, 2] {
            all.push(test.guest(host).await);
        }
        all[0].0.works();
        all[1].0.works();
        all[1].0.rests();
        all.push(test.guest(2).await);
        assert_eq!(who_stays(&mut all), [true, true, false, true, true]);
        // Only busy ones are left of the crowd: the one that has been so for longest.
        all[1].0.works();
        all.push(test.guest(1).await);
        all.push(test.guest(3).await);
        assert_eq!(who_stays(&mut all).iter().filter(|stays| **stays).count(), BOUNDS.guests);
    }

    #[tokio::test]
    async fn a_place_is_free_again_when_its_connection_ends() {
        let mut test = Test::new().await;
        for _ in 0..10 {
            drop(test.enter(1).await);
        }
        assert!(test.hall.lock().visits.is_empty());
        let mut first = test.enter(1).await;
        drop((test.enter(1).await, test.enter(1).await));
        drop(test.enter(1).await);
        assert!(stays(&mut first));
    }

    #[test]
    fn addresses_of_one_host_are_one_source() {
        let of = |text: &str| source(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
